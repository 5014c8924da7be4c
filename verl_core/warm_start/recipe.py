"""`warm_start`: from a configuration to the folder of a tiny policy that is right about half of the time.

Invariant: the folder appears whole or not at all, and its weights are a function of `recipe_of`.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verl_core.config.schema import DataConfig, RunConfig
from verl_core.config.wire import stable_hash
from verl_core.data.chat import with_tools
from verl_core.data.prepare import rows_of
from verl_core.data.reader import read_rows
from verl_core.data.row import Columns, DatasetRow, checked_row
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.models.folder import made_before, published, weights_file_sha256, write_account
from verl_core.tools.interface import schema_of
from verl_core.tools.parsers import format_called
from verl_core.tools.registry import tools_of
from verl_core.warm_start.examples import Example, demonstrations_of, examples_of
from verl_core.warm_start.model import build_model, write_policy
from verl_core.warm_start.sft import Progress, train
from verl_core.warm_start.tokenizer import make_tokenizer

_ACCOUNT = "warm_start.json"
_LINE_EVERY_S = 2.0
_JUDGED = 48  # demonstrations that are judged before every step; they are long
_SPLIT = 2  # keeps the random stream that chooses what is taught apart from the one that draws rows


@dataclass(frozen=True, slots=True)
class WarmStartResult:
    """A policy that is ready for reinforcement learning.

    Attributes:
        path: model folder.
        sampled_accuracy: probability that a sample at temperature 1 is right, mean over the task's distinct prompts.
        greedy_accuracy: share of them that greedy decoding gets right.
        steps: optimizer steps taken.
        seconds: wall time of building and training.
        sha256: of the weights file.
    """

    path: str
    sampled_accuracy: float
    greedy_accuracy: float
    steps: int
    seconds: float
    sha256: str


def warm_start(config: RunConfig, out_dir: str | Path, say: Callable[[str], None] | None = None) -> WarmStartResult:
    """Build the tiny policy of `config.warm_start` and teach it part of the task of `config.data`.

    A folder that an earlier call with the same `recipe_of` made is used as it is; any other is replaced whole.

    Args:
        say: gets a progress line now and then; None writes them to stderr.

    Raises:
        DataError: no or unusable rows.
        ConfigError: the model's shape is impossible.
    """
    folder, recipe = Path(out_dir), recipe_of(config)
    if (known := made_before(folder, _ACCOUNT, recipe)) is not None:
        return WarmStartResult(**known)
    settings, started = config.warm_start, time.monotonic()
    inner = make_tokenizer()
    judged, taught = _curriculum(config, with_tools(config, ChatTokenizer(inner, "the tiny policy")))
    model = build_model(inner, settings)
    line = _ProgressLine(settings.steps, settings.target_accuracy, say or _to_stderr)
    end = train(model, taught, judged, inner.pad_token_id, settings, line)
    with published(folder) as scratch:
        write_policy(model, inner, scratch)
        result = WarmStartResult(
            path=str(folder),
            sampled_accuracy=end.accuracy.sampled,
            greedy_accuracy=end.accuracy.greedy,
            steps=end.step,
            seconds=time.monotonic() - started,
            sha256=weights_file_sha256(scratch),
        )
        write_account(scratch, _ACCOUNT, recipe, asdict(result))
    return result


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """Everything the weights depend on, as JSON for cache keys: settings, the rows' content, torch's version."""
    settings = asdict(config.warm_start)
    del settings["enable"]
    rows = [[(row.messages, row.ground_truth) for row in split] for split in _task_rows(config.data)]
    recipe = {**settings, "rows": stable_hash(rows), "torch": importlib.metadata.version("torch")}
    turns = config.actor_rollout_ref.rollout.multi_turn
    if not turns.enable:
        del recipe["tool_share"]
        return recipe
    return {**recipe, "format": turns.format, "tools": [schema_of(tool) for tool in tools_of(turns).values()]}


def _curriculum(config: RunConfig, tokenizer: ChatTokenizer) -> tuple[list[Example], list[Example]]:
    """(all distinct examples of the task, the seeded share of the training ones that is taught). A tool agent is shown
    calls in `tool_share` of what it is taught, and judged by calls."""
    train_rows, val_rows = _task_rows(config.data)
    trained_on = examples_of(train_rows, tokenizer)
    count = round(config.warm_start.task_share * len(trained_on))
    if count < 1:
        raise DataError(f"warm_start.task_share leaves none of {len(trained_on)} distinct prompts to teach; raise it")
    order = np.random.default_rng([config.warm_start.seed, _SPLIT]).permutation(len(trained_on))
    taught = [trained_on[place] for place in sorted(order[:count])]
    turns = config.actor_rollout_ref.rollout.multi_turn
    if not turns.enable:
        return examples_of([*train_rows, *val_rows], tokenizer), taught
    shown = demonstrations_of([*train_rows, *val_rows], tokenizer, format_called(turns.format))
    with_help = round(config.warm_start.tool_share * count)
    helped = {trained_on[place].prompt_ids for place in order[:with_help]}
    demonstrated = [example for example in shown if example.prompt_ids in helped]
    by_heart = [example for example in taught if example.prompt_ids not in helped]
    return shown[:: -(-len(shown) // _JUDGED)], [*demonstrated, *by_heart]


def _task_rows(data: DataConfig) -> tuple[Sequence[DatasetRow], Sequence[DatasetRow]]:
    """Training and validation rows: of the files if there are any, else those that `data.prepare` would build."""
    columns = Columns(data.prompt_key, data.reward_fn_key)
    if data.train_files:
        return read_rows(data.train_files, columns), read_rows(data.val_files, columns) if data.val_files else []
    train_records, val_records = (
        [checked_row(record, row, f"data.prepare, {name} row {row}", Columns()) for row, record in enumerate(records)]
        for name, records in zip(("training", "validation"), rows_of(data.prepare), strict=True)
    )
    return train_records, val_records


class _ProgressLine:
    """Says where training is and how long it may still take, at most every two seconds."""

    def __init__(self, steps: int, target: float, say: Callable[[str], None]) -> None:
        self._steps, self._target, self._say = steps, target, say
        self._started = time.monotonic()
        self._said = -_LINE_EVERY_S

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic() - self._started
        at_end = progress.step == self._steps or progress.accuracy.sampled >= self._target
        if now - self._said < _LINE_EVERY_S and not at_end:
            return
        self._said = now
        left = 0.0 if at_end else now / max(progress.step, 1) * (self._steps - progress.step)
        self._say(
            f"warm start: step {progress.step}/{self._steps}, loss {progress.loss:.3f}, sampled accuracy "
            f"{progress.accuracy.sampled:.2f} of {self._target:.2f}, greedy {progress.accuracy.greedy:.2f}, "
            f"{now:.0f} s, at most {left:.0f} s left"
        )


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
