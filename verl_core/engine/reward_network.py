"""RewardNetwork: a transformers sequence classifier with one label, as a score of whole token sequences.

Invariant: a row's score is read at its own last token and is that of the model's own forward pass on the row alone
(`check_score`); neither padding nor the other rows of a batch change it. transformers itself looks for the last token
that is not the pad token, which goes wrong where the end token of a response is the pad token too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn

from verl_core.engine.loading import load_backbone, load_classifier, positions_of
from verl_core.engine.network import Network
from verl_core.errors import ModelError
from verl_core.trajectory import Int32

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCORE_TOLERANCE = 1e-3
_CLASSIFIER = "ForSequenceClassification"


class RewardNetwork(Network):
    """Backbone and score head of a classifier. Decoders have a linear layer `score` on top of their states; any other
    architecture answers by its own forward pass."""

    def forward(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """float32 [b]: scores.

        Args:
            input_ids: int64 [b, L], padded on the right.
            lengths: int64 [b], at least 1.
        """
        there = torch.arange(input_ids.shape[1], device=input_ids.device)[None, :] < lengths[:, None]
        mask = there.to(torch.int64)
        with self.autocast(input_ids.device):
            head = self._head()
            if head is None:
                logits = self.lm(input_ids=input_ids, attention_mask=mask).logits
                return cast(torch.Tensor, logits[:, 0].float())
            states = self.lm.base_model(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state
        rows = torch.arange(len(lengths), device=input_ids.device)
        scores: torch.Tensor = head(states[rows, lengths - 1].float())
        return scores[:, 0].clone()  # FSDP hooks cannot follow a view

    def exact(self) -> list[nn.Module]:
        """See Network: bfloat16 has three digits, too few to compare responses by."""
        head = self._head()
        return [] if head is None else [head]

    def read(self, folder: str, start: bool = False) -> dict[str, torch.Tensor]:
        """See Network."""
        return {name: parameter.detach() for name, parameter in load_classifier(folder).named_parameters()}

    @property
    def pad_id(self) -> int:
        """What rows are filled up with."""
        pad = self.lm.config.get_text_config().pad_token_id
        return 0 if pad is None else int(pad)

    @property
    def vocabulary(self) -> int:
        """Number of token ids that it knows."""
        return int(self.lm.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int:
        """Longest row that it may be given; 0 = its configuration does not say."""
        return positions_of(self.lm.config)

    def _head(self) -> nn.Module | None:
        head = getattr(self.lm, "score", None)
        return head if isinstance(head, nn.Linear) else None


def reward_network(folder: str, compute_dtype: torch.dtype) -> RewardNetwork:
    """The reward model that was saved in `folder`, in evaluation mode.

    Raises:
        ModelError: not a sequence classifier with one label, or one whose scores cannot be read at the last token.
    """
    model = RewardNetwork(load_classifier(folder), compute_dtype)
    check_score(model)
    return model


def new_reward_network(folder: str, compute_dtype: torch.dtype, pad_id: int | None) -> RewardNetwork:
    """What training starts from: a saved reward model, or any language model with a new head that says 0.

    Args:
        pad_id: of the tokenizer; written into the configuration of a new one, since transformers needs it there.

    Raises:
        ModelError: the folder cannot be used, or transformers has no classifier of this architecture.
    """
    from transformers import AutoModelForSequenceClassification

    if _is_classifier(folder):
        return reward_network(folder, compute_dtype)
    backbone = load_backbone(folder)
    config = backbone.config
    config.num_labels, config.architectures = 1, None
    if pad_id is not None:
        config.get_text_config().pad_token_id = pad_id
    try:
        with torch.random.fork_rng(devices=[]):
            lm: PreTrainedModel = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        lm.base_model.load_state_dict(backbone.state_dict())
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"no sequence classifier can be made of {folder!r}: {error}") from error
    lm.eval()
    model = RewardNetwork(lm, compute_dtype)
    for head in model.exact():
        nn.init.zeros_(cast(nn.Linear, head).weight)
    check_score(model)
    return model


def _is_classifier(folder: str) -> bool:
    """Whether the folder's configuration names a sequence classifier; who loads a folder without one refuses it."""
    file = Path(folder) / "config.json"
    named = json.loads(file.read_text()).get("architectures") if file.is_file() else None
    return any(str(name).endswith(_CLASSIFIER) for name in named or [])


def padded_rows(rows: Sequence[Int32], pad_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [b, L] filled up with `pad_id` on the right, int64 [b] lengths).

    Raises:
        ValueError: a row is empty: it has no token to read a score at.
    """
    lengths = np.asarray([len(row) for row in rows], dtype=np.int64)
    if not lengths.all():
        raise ValueError(f"row {int(np.argmin(lengths))} of a batch to score is empty")
    ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return torch.from_numpy(ids).to(device), torch.from_numpy(lengths).to(device)


@torch.no_grad()
def check_score(model: RewardNetwork) -> None:
    """Compare the score of a probe, alone and beside a longer row, with the model's own forward pass.

    Raises:
        ModelError: they differ.
    """
    ids = np.asarray([token for token in range(12) if token != model.pad_id and token < model.vocabulary], np.int32)
    probe, cpu = ids[:4], torch.device("cpu")
    whole = torch.from_numpy(probe.astype(np.int64))[None, :]
    own = model.lm(input_ids=whole, attention_mask=torch.ones_like(whole)).logits
    alone = model(*padded_rows([probe], model.pad_id, cpu))
    beside = model(*padded_rows([probe, ids], model.pad_id, cpu))
    difference = max(abs(float(own[0, 0]) - float(scores[0])) for scores in (alone, beside))
    limit = SCORE_TOLERANCE if model.compute_dtype == torch.float32 else 0.3
    if not difference <= limit * max(1.0, abs(float(own[0, 0]))):
        raise ModelError(
            f"{type(model.lm).__name__} cannot score here: read at the last token its score differs from its own by "
            f"{difference:.3g}. Use another architecture"
        )
