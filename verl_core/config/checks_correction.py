"""Checks of `algorithm.rollout_correction.*`: thresholds that can be read, combinations that mean something."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.checks_algorithm import unknown_name
from verl_core.config.schema.correction import PRESETS, RolloutCorrectionConfig
from verl_core.config.thresholds import rejections_of, weight_band

_HERE = "algorithm.rollout_correction"
_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
SEQUENCE_LOSSES = frozenset({"gspo", "geo_mean"})


def _effective(facts: Facts) -> RolloutCorrectionConfig | None:
    """What holds; None when the preset is unknown."""
    written = facts.config.algorithm.rollout_correction
    return written.effective if written.preset in ("", *PRESETS) else None


@check
def preset_stands_alone(facts: Facts) -> Iterator[str]:
    """A preset is known, and it is the whole setting."""
    preset = facts.config.algorithm.rollout_correction.preset
    if not preset:
        return
    yield from unknown_name(f"{_HERE}.preset", preset, tuple(PRESETS))
    free = (f"{_HERE}.preset", f"{_HERE}.baseline_rows")
    others = [key for key in facts.given_below(_HERE) if key not in free]
    yield from no_effect(facts, others, f"with {_HERE}.preset={preset}")


@check
def thresholds_can_be_read(facts: Facts) -> Iterator[str]:
    """Thresholds are numbers or bands that fit their statistic."""
    written = facts.config.algorithm.rollout_correction
    if written.rollout_is is not None:
        try:
            weight_band(written.rollout_is_threshold)
        except ValueError as error:
            yield f"{_HERE}.rollout_is_threshold: {error}"
    if written.rollout_rs is not None:
        try:
            rejections_of(written.rollout_rs, written.rollout_rs_threshold)
        except ValueError as error:
            yield f"{_HERE}.rollout_rs: {error} ({_HERE}.rollout_rs_threshold={written.rollout_rs_threshold})"


@check
def correction_settings_are_read(facts: Facts) -> Iterator[str]:
    """Settings of weights need weights, those of rejection rejection, those of bypass mode bypass mode."""
    holds = _effective(facts)
    if holds is None:
        return
    if holds.rollout_is is None:
        keys = [f"{_HERE}.rollout_is_threshold", f"{_HERE}.rollout_is_batch_normalize"]
        yield from no_effect(facts, keys, f"without {_HERE}.rollout_is")
    if holds.rollout_rs is None:
        keys = [f"{_HERE}.rollout_rs_threshold", f"{_HERE}.baseline_rows"]
        yield from no_effect(facts, keys, f"without {_HERE}.rollout_rs")
    if not holds.bypass_mode:
        yield from no_effect(facts, [f"{_HERE}.loss_type"], f"without {_HERE}.bypass_mode=true")
        return
    # In bypass mode tokens are rejected while training, after the advantages.
    if holds.rollout_rs is not None:
        yield from no_effect(facts, [f"{_HERE}.baseline_rows"], f"with {_HERE}.bypass_mode=true")
    if holds.loss_type == "reinforce":
        every = frozenset().union(*names.POLICY_LOSSES.values())
        keys = [_LOSS, *(f"actor_rollout_ref.actor.{name}" for name in sorted(every))]
        yield from no_effect(facts, keys, f"with {_HERE}.loss_type=reinforce")


@check
def bypass_mode_can_work(facts: Facts) -> Iterator[str]:
    """No correction twice, none that needs the whole batch while it is trained on, no ratio over several policies."""
    holds = _effective(facts)
    if holds is None or not holds.bypass_mode:
        return
    if holds.rollout_is is not None and holds.loss_type == "ppo_clip":
        yield (
            f"{_HERE}.rollout_is: with {_HERE}.bypass_mode=true and {_HERE}.loss_type=ppo_clip the ratio of the loss is"
            " already the importance weight; delete it, or use loss_type=reinforce"
        )
    if holds.rollout_is_batch_normalize:
        yield (
            f"{_HERE}.rollout_is_batch_normalize: with {_HERE}.bypass_mode=true weights are taken micro-batch by"
            " micro-batch and their mean over the batch is not known; delete it"
        )
    estimator = facts.config.algorithm.adv_estimator
    if estimator in names.SQUARES_ESTIMATORS:
        yield (
            f"algorithm.adv_estimator: {estimator} needs the old policy's probabilities of the whole vocabulary, and"
            f" with {_HERE}.bypass_mode=true nothing computes them; use bypass_mode=false or another estimator"
        )
    loss, mode = facts.config.actor_rollout_ref.actor.policy_loss.loss_mode, facts.config.trainer.v1.trainer_mode
    if loss in SEQUENCE_LOSSES and mode in names.ASYNC_MODES:
        yield (
            f"{_LOSS}: {loss} takes one ratio per response, and with {_HERE}.bypass_mode=true and"
            f" trainer.v1.trainer_mode={mode} a response may have been sampled by several policies; use"
            " bypass_mode=false or a loss with a ratio per token"
        )
