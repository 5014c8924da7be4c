"""Tally: the metrics of one global step. Invariant: reduced exactly; no mean of means over pieces of different size."""

from __future__ import annotations

from dataclasses import dataclass, field

from verl_core.engine.objective import Piece
from verl_core.engine.ranks import Ranks


@dataclass
class Tally:
    """Sums over this rank's micro-batches, and what is the same on all ranks.

    Attributes:
        tokens: trained tokens of all mini-batches, all ranks.
        seen: the same before rejection.
        updates: optimizer steps taken; empty_updates: mini-batches without a trainable token, where none was.
        grad_norms: before clipping, one per optimizer step.
    """

    losses: dict[str, float] = field(default_factory=dict)
    token_sums: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    seen: int = 0
    updates: int = 0
    empty_updates: int = 0
    grad_norms: list[float] = field(default_factory=list)
    lr: float = 0.0

    def add(self, piece: Piece, share: float = 1.0) -> None:
        """Count one micro-batch; its losses are to be multiplied with `share`."""
        for sums, new, factor in ((self.losses, piece.losses, share), (self.token_sums, piece.token_sums, 1.0)):
            for name, value in new.items():
                sums[name] = sums.get(name, 0.0) + float(value) * factor

    def metrics(self, ranks: Ranks, role: str) -> dict[str, float]:
        """Named `{role}/...` as in verl: losses as means over optimizer steps, fractions and KL as means over tokens.
        Collective."""
        totals = ranks.total({**self.losses, **self.token_sums})
        out = {f"{role}/{name}": totals[name] / max(1, self.updates) for name in self.losses}
        out |= {f"{role}/{name}": totals[name] / max(1, self.tokens) for name in self.token_sums}
        if self.tokens < self.seen:
            out[f"{role}/rollout_kept_share"] = self.tokens / self.seen
        out[f"{role}/grad_norm"] = sum(self.grad_norms) / max(1, len(self.grad_norms))
        out[f"{role}/lr"] = self.lr
        out[f"{role}/updates"] = float(self.updates)
        out[f"{role}/empty_updates"] = float(self.empty_updates)
        return out
