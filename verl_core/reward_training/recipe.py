"""`train_reward_model`: from a configuration to the folder of a reward model, in the form of transformers.

Invariant: the folder appears whole or not at all, and its weights are a function of `recipe_of`; a training that was
cut off goes on from its last checkpoint to the same weights.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_core.config.schema import RewardConfig, RunConfig
from verl_core.config.wire import stable_hash
from verl_core.data.chat import with_tools
from verl_core.data.preferences import Encoder, Placed, as_answered, as_sampled, preferences_of
from verl_core.data.reader import read_rows, records_of
from verl_core.data.reward_tokenizer import own_tokenizer
from verl_core.data.row import Columns, DatasetRow
from verl_core.data.teacher_model import model_settings
from verl_core.data.tokenizer import ChatTokenizer, load_tokenizer
from verl_core.engine.base_identity import base_sha256
from verl_core.errors import ConfigError, RewardError
from verl_core.models.folder import made_before, published, weights_file_sha256, write_account
from verl_core.reward.interface import Sample
from verl_core.reward.registry import reward_for
from verl_core.reward.scoring import score_sample
from verl_core.reward_training.loop import Pairs, Training
from verl_core.reward_training.pairs import pairs_of

_ACCOUNT, _CURVE = "reward_model.json", "curve.jsonl"
_TRAIN, _HELD_OUT = 0, 1  # streams of the pairs that are built


@dataclass(frozen=True, slots=True)
class RewardModelResult:
    """A trained reward model.

    Attributes:
        path: folder of a sequence classifier with one label, with its tokenizer.
        loss, accuracy: on held-out pairs, after the last step; nats, and the share that is ranked right. NaN without
            any.
        steps: optimizer steps taken.
        seconds: wall time of this call.
        sha256: of the weights file.
    """

    path: str
    loss: float
    accuracy: float
    steps: int
    seconds: float
    sha256: str


def train_reward_model(
    config: RunConfig, out_dir: str | Path, say: Callable[[str], None] | None = None
) -> RewardModelResult:
    """Train the reward model of `config.reward_training` into `out_dir`. A folder that an earlier call with the same
    `recipe_of` made is used as it is; any other is replaced whole.

    Args:
        config: with its data files and start policy in place.
        say: gets a line per checkpoint; None writes them to stderr.

    Raises:
        ConfigError: reward_training.enable is false.
        DataError: no or unusable pairs.
        ModelError: the model to start from cannot be used.
    """
    if not config.reward_training.enable:
        raise ConfigError("reward_training.enable is false: set it to true to train a reward model")
    (tokenizer, encode), records = form_of(config), _records(config)
    folder, recipe = Path(out_dir), _recipe(config, tokenizer, records)
    if (known := made_before(folder, _ACCOUNT, recipe)) is not None:
        return RewardModelResult(**known)
    started, base = time.monotonic(), base_of(config)
    pairs = Pairs(*(preferences_of(split, encode) for split in records))
    progress = folder.with_name(f".{folder.name}.progress")
    training = Training.begin(config, base, tokenizer, pairs, progress, stable_hash(recipe))
    curve = training.run(say or _to_stderr)
    with published(folder) as scratch:
        training.write(str(scratch))
        (scratch / _CURVE).write_text("".join(json.dumps(row) + "\n" for row in curve))
        result = RewardModelResult(
            path=str(folder),
            loss=curve[-1].get("val/loss", math.nan),
            accuracy=curve[-1].get("val/accuracy", math.nan),
            steps=config.reward_training.steps,
            seconds=time.monotonic() - started,
            sha256=weights_file_sha256(scratch),
        )
        write_account(scratch, _ACCOUNT, recipe, asdict(result))
    shutil.rmtree(progress, ignore_errors=True)
    return result


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """Everything the weights depend on, as JSON for cache keys: settings, the pairs' content, the model they start
    from, torch's version."""
    tokenizer, _ = form_of(config)
    return _recipe(config, tokenizer, _records(config))


def _recipe(config: RunConfig, tokenizer: ChatTokenizer, records: Sequence[list[Placed]]) -> dict[str, Any]:
    settings = asdict(config.reward_training)
    for key in ("enable", "model_path", "train_files", "val_files", "save_freq"):
        del settings[key]
    tools = asdict(config.actor_rollout_ref.rollout.multi_turn)
    rows = [[dict(record) for _, record in split] for split in records]
    return {
        **settings,
        "pairs_sha256": stable_hash(rows),
        "base": base_sha256(base_of(config)),
        "tools": stable_hash(tools),
        "template": stable_hash([tokenizer.inner.chat_template, tokenizer.eos_token_id]),
        "dtype": config.actor_rollout_ref.model.dtype,
        "torch": importlib.metadata.version("torch"),
    }


def base_of(config: RunConfig) -> str:
    """Folder that training starts from. Raises ModelError: reward_training.model_path names none."""
    given = config.reward_training.model_path
    if given and not Path(given).is_file():  # a .gguf file has no folder of its own
        model_settings(given, f"reward_training.model_path={given!r}")
    return given or config.actor_rollout_ref.model.path


def form_of(config: RunConfig) -> tuple[ChatTokenizer, Encoder]:
    """(tokenizer, how a response becomes ids): that of scoring (`verl_core.reward.model_scorer`), so the policy's ids
    where the model has its vocabulary, whatever the chat template in its own folder says.

    Raises:
        ModelError: see `base_of` and `own_tokenizer`.
    """
    policy = config.actor_rollout_ref.model.path
    reader = own_tokenizer(policy, base_of(config))
    if reader is not None:
        return reader, as_answered(reader)
    tokenizer = with_tools(config, load_tokenizer(policy))
    return tokenizer, as_sampled(tokenizer)


def _records(config: RunConfig) -> tuple[list[Placed], list[Placed]]:
    """(training, held-out) records: of the files if there are any, else built from the rows of `data`."""
    settings, data = config.reward_training, config.data
    if settings.train_files:
        return _read(settings.train_files), _read(settings.val_files)
    rows = read_rows(data.train_files, Columns(data.prompt_key, data.reward_fn_key))

    def built(count: int, stream: int) -> list[Placed]:
        pairs = pairs_of(rows, count, (settings.seed, stream), data.max_response_length, _is_right)
        return [(f"pair {number}", pair) for number, pair in enumerate(pairs)]

    return built(settings.pairs, _TRAIN), built(settings.val_pairs, _HELD_OUT)


def _is_right(row: DatasetRow, response: str) -> bool:
    """What the verifier of the row's data source says; without one of its own what is asked about counts as right."""
    try:
        function = reward_for(row.data_source, RewardConfig())
    except RewardError:
        return True
    reward = score_sample(function, Sample(row.place, row.data_source, response, row.ground_truth, row.extra_info))
    return reward.status != "ok" or reward.score > 0


def _read(files: Sequence[str]) -> list[Placed]:
    return [row for file in files for row in records_of(file, ("prompt", "chosen", "rejected"))]


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"reward model: {line}\n")
