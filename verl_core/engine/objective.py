"""What an update minimises: `PolicyObjective` is policy loss + KL loss - entropy bonus. Invariant: every term is this
piece's share of the mini-batch's value, so pieces and ranks add up; metrics are sums for the same reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.algorithms.correction import WEIGHTS, correct
from verl_core.algorithms.kl import kl_penalty
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs
from verl_core.batch import TrainBatch
from verl_core.config.schema import ActorConfig, RolloutCorrectionConfig
from verl_core.engine.distillation_term import DistillationTerm
from verl_core.engine.marking import MARKED, needs_marks, with_marks
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.network import Network
from verl_core.engine.plan import Rows

OLD, REF, ADVANTAGES = "old_log_probs", "ref_log_probs", "advantages"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one micro-batch adds.

    Attributes:
        loss: scalar with gradient.
        losses: detached shares of the terms, by name; add up over pieces to the mini-batch's values.
        token_sums: detached sums over trainable tokens, by name.
        tokens, rows: trainable ones, after rejection.
    """

    loss: torch.Tensor
    losses: dict[str, torch.Tensor]
    token_sums: dict[str, torch.Tensor]
    tokens: int
    rows: int


class Objective(Protocol):
    """A loss as the updater sees it."""

    @property
    def rejects(self) -> bool:
        """Whether tokens are rejected while training. How many stay is known after the last micro-batch: pieces are
        then made with both counts at 1, and gradients are scaled by `share_of`."""

    def columns(self, single_update: bool) -> list[str]:
        """Columns a batch must have.

        Args:
            single_update: there is one optimizer step in the whole global step.
        """

    @property
    def optional(self) -> list[str]:
        """Columns that are read where the batch has them."""

    def prepared(self, batch: TrainBatch, rows: Rows, seed: Sequence[int]) -> TrainBatch:
        """The batch with what the loss derives from the whole mini-batch `rows` before it is cut."""

    @property
    def derived(self) -> list[str]:
        """Columns that `prepared` adds."""

    def piece(self, model: Network, micro: MicroBatch, whole: Denominators) -> Piece:
        """Forward pass, loss and metrics of one micro-batch.

        Args:
            micro: with the columns of `columns` and `derived`, and those of `optional` that there are.
            whole: counts of the global mini-batch.
        """

    @property
    def constants(self) -> dict[str, float]:
        """Numbers of the configuration that belong beside the metrics, by their full name."""


class PlainObjective:
    """The answers of an objective that rejects no token, derives nothing and has no constants; a subclass
    adds its `piece`, and `columns` where it reads any."""

    __slots__ = ()

    @property
    def rejects(self) -> bool:
        """Never."""
        return False

    def columns(self, single_update: bool) -> list[str]:
        """None."""
        return []

    @property
    def optional(self) -> list[str]:
        """None."""
        return []

    def prepared(self, batch: TrainBatch, rows: Rows, seed: Sequence[int]) -> TrainBatch:
        """Nothing is derived."""
        return batch

    @property
    def derived(self) -> list[str]:
        """None."""
        return []

    @property
    def constants(self) -> dict[str, float]:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """`actor_rollout_ref.actor` as an objective.

    Attributes:
        correction: `algorithm.rollout_correction`, the settings that hold. In decoupled mode its work is done before
            the update and only its weights arrive; in bypass mode it is done here, against the current policy.
        distillation: the distance to a teacher, where it is backpropagated; with `use_task_rewards` beside the policy
            loss, else in its place.
    """

    actor: ActorConfig
    correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    distillation: DistillationTerm | None = None

    @property
    def rejects(self) -> bool:
        """See Objective."""
        return self.correction.bypass_mode and self.correction.rollout_rs is not None

    @property
    def has_policy_loss(self) -> bool:
        """Whether advantages are learnt from."""
        return self.distillation is None or self.distillation.loss.use_task_rewards

    @property
    def with_entropy(self) -> bool:
        """Whether the loss needs the entropy."""
        return self.actor.entropy_coeff != 0.0

    def columns(self, single_update: bool) -> list[str]:
        """See Objective. With `single_update` old log-probs may be left out: the current policy is the old one. Marks
        are chosen by them, so there they are needed.
        """
        names = [*([ADVANTAGES] if self.has_policy_loss else []), *([REF] if self.actor.use_kl_loss else [])]
        names += self.distillation.columns if self.distillation is not None else []
        if self.correction.rollout_is is not None and not self.correction.bypass_mode:
            names.append(WEIGHTS)
        old_is_current = single_update and not self.correction.bypass_mode
        return names if old_is_current and not needs_marks(self.actor.policy_loss) else [*names, OLD]

    @property
    def optional(self) -> list[str]:
        """See Objective."""
        return [OLD]

    def prepared(self, batch: TrainBatch, rows: Rows, seed: Sequence[int]) -> TrainBatch:
        """See Objective."""
        loss = self.actor.policy_loss
        return with_marks(batch, rows, loss, seed) if needs_marks(loss) else batch

    @property
    def derived(self) -> list[str]:
        """See Objective."""
        return [MARKED] if needs_marks(self.actor.policy_loss) else []

    @property
    def constants(self) -> dict[str, float]:
        """See Objective."""
        return {"actor/kl_coef": self.actor.kl_loss_coef} if self.actor.use_kl_loss else {}

    def piece(self, model: Network, micro: MicroBatch, whole: Denominators) -> Piece:
        """See Objective."""
        teacher, actor = self.distillation, self.actor
        targets = micro.targets if teacher is None else teacher.targets(micro)
        flat, spread = model(micro.input_ids, micro.positions, targets, self.with_entropy)
        log_probs, candidates = (micro.padded(flat), None) if teacher is None else teacher.split(micro, flat)
        entropy = micro.padded(spread) if self.with_entropy else None
        mask, weights = self._corrected(micro, log_probs)
        terms: dict[str, torch.Tensor] = {}
        sums: dict[str, torch.Tensor] = {}
        loss = torch.zeros((), device=log_probs.device)
        if self.has_policy_loss:
            policy = POLICY_LOSSES.get(self._loss_name)(self._inputs(micro, log_probs, mask))
            per_token = policy.per_token if weights is None else weights * policy.per_token
            terms["pg_loss"] = aggregate(per_token, mask, actor.loss_agg_mode, whole)
            loss, sums = terms["pg_loss"], policy.sums
        if teacher is not None:
            distance = teacher.per_token(micro, log_probs, candidates, mask, weights)
            terms["distillation_loss"] = aggregate(distance.per_token, mask, actor.loss_agg_mode, whole)
            loss, sums = loss + teacher.coefficient * terms["distillation_loss"], sums | distance.sums
        if actor.use_kl_loss:
            kl = kl_penalty(actor.kl_loss_type, log_probs, micro.columns[REF], mask)
            terms["kl_loss"] = aggregate(kl, mask, actor.loss_agg_mode, whole)
            loss = loss + actor.kl_loss_coef * terms["kl_loss"]
        if entropy is not None:
            terms["entropy_loss"] = aggregate(entropy, mask, actor.loss_agg_mode, whole)
            loss = loss - actor.entropy_coeff * terms["entropy_loss"]
        losses = {name: term.detach() for name, term in terms.items()}
        here = Denominators.of(mask)
        return Piece(loss, losses, sums, here.tokens, here.rows)

    @property
    def _loss_name(self) -> str:
        plain = self.correction.bypass_mode and self.correction.loss_type == "reinforce"
        return "gpg" if plain else self.actor.policy_loss.loss_mode

    def _corrected(self, micro: MicroBatch, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(trainable tokens, weights of the loss or None)."""
        if not self.correction.bypass_mode:
            weights = micro.columns.get(WEIGHTS)
            return micro.mask, None if weights is None else torch.where(micro.mask, weights, 0.0)
        result = correct(log_probs.detach() - micro.columns[OLD], micro.mask, self.correction)
        return result.keep, result.weights

    def _inputs(self, micro: MicroBatch, log_probs: torch.Tensor, mask: torch.Tensor) -> PolicyLossInputs:
        actor = self.actor
        return PolicyLossInputs(
            log_probs=log_probs,
            old_log_probs=micro.columns[OLD] if OLD in micro.columns else log_probs.detach(),
            advantages=micro.columns[ADVANTAGES],
            mask=mask,
            clip_low=actor.clip_low,
            clip_high=actor.clip_high,
            clip_c=actor.clip_ratio_c,
            tau_pos=actor.tau_pos,
            tau_neg=actor.tau_neg,
            dro_beta=actor.policy_loss.dro_beta,
            kl_coef=actor.policy_loss.ppo_kl_coef,
            marked=micro.columns[MARKED].bool() if MARKED in micro.columns else None,
        )
