"""Defaults that follow from other settings. Invariant: they fill in what nobody wrote, and `explain` says why.

An asynchronous mode trains on tokens of older weights. Without a correction the tiny policy of the quickstart did not
learn at a staleness of one, so there it is the default; `algorithm.rollout_correction.preset=disabled` turns it off.
"""

from __future__ import annotations

from verl_core.config import names
from verl_core.config.schema import RunConfig
from verl_core.config.schema.correction import RolloutCorrectionConfig

ASYNC_CORRECTION = "decoupled_token_is"
_PRESET = "algorithm.rollout_correction.preset"


def derive(config: RunConfig) -> dict[str, str]:
    """Fill in `config` where it stands; repeating it changes nothing. Returns dotted key -> what its value follows
    from."""
    return _correction(config)


def _correction(config: RunConfig) -> dict[str, str]:
    """Weights per token, unless a correction is chosen or every sample is on-policy."""
    v1, written = config.trainer.v1, config.algorithm.rollout_correction
    is_async = config.trainer.use_v1 and v1.trainer_mode in names.ASYNC_MODES
    if not is_async or v1.sampler.max_off_policy_threshold == 0:
        return {}
    if written != RolloutCorrectionConfig(baseline_rows=written.baseline_rows):
        return {}
    written.preset = ASYNC_CORRECTION
    return {_PRESET: f"default with trainer.v1.trainer_mode={v1.trainer_mode}"}
