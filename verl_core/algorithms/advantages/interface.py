"""What an advantage estimator gets and gives. Invariant: a cell that is not `mask` gets 0, and a row without an outcome
takes part in no statistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from verl_core.algorithms.registry import Registry

BaselineRows = Literal["kept", "all"]


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """One global batch, padded right. Optional fields are needed by the estimators that name them.

    Attributes:
        token_rewards: float32 [B, T], reward units. Of a session with several outputs, only the last carries the score.
        mask: bool [B, T], True on tokens to train on.
        group_index: int64 [B], 0..G-1; rows of one prompt share a number and need not be adjacent.
        norm_by_std: `algorithm.norm_adv_by_std_in_grpo`.
        sampled: bool [B, T], the policy's own tokens before any rejection, a superset of `mask` and its default. The
            reward of a rejected token still counts in the outcome of its row. A row that is False everywhere has no
            outcome (quarantined, or padding).
        session_index: int64 [B], 0..S-1: rows of one session share a number; None = each row is a session.
        output_index: int64 [B]: place of the row among its session's outputs; given together with session_index.
        baseline_rows: `algorithm.rollout_correction.baseline_rows`: whether sessions that were rejected as a whole
            stay in the statistics of their group ("all") or leave them ("kept").
        gamma, lam: `algorithm.gamma`, `algorithm.lam`.
        values: float32 [B, T], the critic's, of the state before the token.
        greedy_rewards: float32 [B], outcome of a greedy response to the row's prompt.
        reward_parts: float32 [B, K], the named parts of the score.
        part_weights: K weights; None = 1 each.
        old_log_probs, sum_pi_squared: float32 [B, T], of the frozen policy; the second is the sum over the vocabulary
            of squared probabilities.
        is_weights: float32 [B, T], importance weights old / rollout under their threshold; None = 1.
    """

    token_rewards: torch.Tensor
    mask: torch.Tensor
    group_index: torch.Tensor
    norm_by_std: bool = True
    sampled: torch.Tensor | None = None
    session_index: torch.Tensor | None = None
    output_index: torch.Tensor | None = None
    baseline_rows: BaselineRows = "kept"
    gamma: float = 1.0
    lam: float = 1.0
    values: torch.Tensor | None = None
    greedy_rewards: torch.Tensor | None = None
    reward_parts: torch.Tensor | None = None
    part_weights: tuple[float, ...] | None = None
    old_log_probs: torch.Tensor | None = None
    sum_pi_squared: torch.Tensor | None = None
    is_weights: torch.Tensor | None = None

    def __post_init__(self) -> None:
        cells, rows = tuple(self.mask.shape), (self.mask.shape[0],)
        if not self.mask.numel():
            raise ValueError(f"advantages of an empty batch: mask is {cells}")
        expected = dict.fromkeys(("token_rewards", *_CELL_FIELDS), cells)
        expected |= dict.fromkeys(("group_index", *_ROW_FIELDS), rows)
        for name, shape in expected.items():
            given = getattr(self, name)
            if given is not None and tuple(given.shape) != shape:
                raise ValueError(f"shapes disagree: mask {cells}, so {name} must be {shape}, not {tuple(given.shape)}")
        if (self.session_index is None) != (self.output_index is None):
            raise ValueError("session_index and output_index are given together or not at all")
        if self.reward_parts is not None and (self.reward_parts.dim() != 2 or len(self.reward_parts) != rows[0]):
            raise ValueError(f"shapes disagree: reward_parts must be [{rows[0]}, K], not {self.reward_parts.shape}")
        if self.sampled is not None and bool((self.mask & ~self.sampled).any()):
            raise ValueError("mask has cells that sampled lacks: only tokens of the policy can be trained on")

    @property
    def own(self) -> torch.Tensor:
        """bool [B, T]: `sampled`, or `mask` without it."""
        return self.mask if self.sampled is None else self.sampled

    @property
    def rewards(self) -> torch.Tensor:
        """float32 [B, T]: token rewards, 0 on cells that are not the policy's own."""
        return torch.where(self.own, self.token_rewards, 0.0)

    @property
    def outcomes(self) -> torch.Tensor:
        """float64 [B]: the sum of a row's token rewards, added in float32; 0 on rows without a token of the policy."""
        return self.rewards.sum(dim=1).double()

    def needed(self, name: str) -> torch.Tensor:
        """An optional tensor that the estimator cannot do without.

        Raises:
            ValueError: it was not given.
        """
        given: torch.Tensor | None = getattr(self, name)
        if given is None:
            raise ValueError(f"this advantage estimator needs {name}, which was not given")
        return given


_CELL_FIELDS = ("sampled", "values", "old_log_probs", "sum_pi_squared", "is_weights")
_ROW_FIELDS = ("session_index", "output_index", "greedy_rewards")


@dataclass(frozen=True, slots=True)
class Advantages:
    """Attributes:
    advantages: float32 [B, T], 0 where the mask is False.
    returns: float32 [B, T], finite, what a critic would be fitted to; cells outside the mask mean nothing.
    """

    advantages: torch.Tensor
    returns: torch.Tensor


AdvantageEstimator = Callable[[AdvantageInputs], Advantages]

ADVANTAGES: Registry[AdvantageEstimator] = Registry("advantage estimator", "algorithm.adv_estimator")
