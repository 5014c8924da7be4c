"""The supervised distillation loss as a term of the policy's objective. Invariant: what the teacher said arrives in the
batch; nobody is asked while training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.distillation import DISTILLATION_LOSSES, DistillationInputs
from verl_core.config.schema import DistillationLossConfig, RunConfig
from verl_core.engine.micro_batch import MicroBatch

TEACHER, TOPK_IDS, TOPK = "teacher_log_probs", "teacher_topk_ids", "teacher_topk_log_probs"


@dataclass(frozen=True, slots=True)
class DistillationTerm:
    """`distillation.distillation_loss` with use_policy_gradient=false."""

    loss: DistillationLossConfig

    @property
    def columns(self) -> list[str]:
        """What the batch must have."""
        return [TEACHER, *([TOPK_IDS, TOPK] if self.loss.reads_topk else [])]

    @property
    def coefficient(self) -> float:
        """Weight of the term; 1 where it is alone."""
        return self.loss.distillation_loss_coef if self.loss.use_task_rewards else 1.0

    def targets(self, micro: MicroBatch) -> torch.Tensor:
        """int64 [N], the sampled tokens, or [N, 1 + K] with the teacher's candidates behind them."""
        if not self.loss.reads_topk:
            return micro.targets
        ids = micro.columns[TOPK_IDS].reshape(*micro.cells.shape, -1)[micro.cells].long()
        return torch.cat([micro.targets[:, None], ids], dim=1)

    def split(self, micro: MicroBatch, scored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(log-probs of the sampled tokens, float32 [b, T]; of the candidates, float32 [b, T, K], or None).

        Args:
            scored: float32 of the shape of `targets`.
        """
        if not self.loss.reads_topk:
            return micro.padded(scored), None
        return micro.padded(scored[:, 0]), micro.padded(scored[:, 1:])

    def per_token(
        self,
        micro: MicroBatch,
        log_probs: torch.Tensor,
        candidates: torch.Tensor | None,
        mask: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> TokenLoss:
        """The loss of each trainable token, without its coefficient; metrics named `distillation_...`."""
        teacher = micro.columns[TOPK].reshape(*mask.shape, -1) if self.loss.reads_topk else None
        found = DISTILLATION_LOSSES.get(self.loss.loss_mode)(
            DistillationInputs(
                log_probs=log_probs,
                teacher_log_probs=micro.columns[TEACHER],
                mask=mask,
                candidates=candidates,
                teacher_candidates=teacher,
                tail=self.loss.tail,
                weights=weights,
                clamp=self.loss.loss_max_clamp,
            )
        )
        return TokenLoss(found.per_token, {f"distillation_{name}": value for name, value in found.sums.items()})


def distillation_term(config: RunConfig) -> DistillationTerm | None:
    """None unless the distance to a teacher is backpropagated."""
    loss = config.distillation.distillation_loss
    return DistillationTerm(loss) if config.distillation.enabled and not loss.use_policy_gradient else None
