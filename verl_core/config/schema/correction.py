"""`algorithm.rollout_correction.*`: what is done about the distance between the policy that sampled and the one that is
trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass
class RolloutCorrectionConfig:
    """With r = pi_old / pi_rollout (bypass mode: pi / pi_rollout) of each sampled token.

    Attributes:
        preset: name of a whole setting; excludes the other keys, `baseline_rows` apart. "" = these other keys; where
            none is set, an asynchronous mode takes `decoupled_token_is` (config/derived.py), `disabled` takes nothing.
        rollout_is: importance weights per `token` or per `sequence`; null = none.
        rollout_is_threshold: a number caps the weights; text `lo_hi` sets weights outside the band to 0 (IcePop).
        rollout_is_batch_normalize: divide the weights by their mean over the batch.
        rollout_rs: rejection statistics, several by commas, all must hold: `token_`, `seq_sum_`, `seq_mean_` or
            `seq_max_` before `k1`, `k2` or `k3`.
        rollout_rs_threshold: one for all statistics or one for each, by commas. k1: `lo_hi` around r^-1, or h for
            1/h_h; k2, k3: the largest value kept.
        bypass_mode: the rollout's log-probs are the old ones; nothing is recomputed, and r is taken while training.
        loss_type: bypass mode only: `ppo_clip` = the configured loss; `reinforce` = -weight A log pi.
        baseline_rows: whether sessions that were rejected as a whole leave the statistics of their group (`kept`) or
            stay in them (`all`, as in verl).
    """

    preset: str = ""
    rollout_is: Literal["token", "sequence"] | None = None
    rollout_is_threshold: float | str = 2.0
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    rollout_rs_threshold: float | str | None = None
    bypass_mode: bool = False
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    baseline_rows: Literal["kept", "all"] = "kept"

    @property
    def effective(self) -> RolloutCorrectionConfig:
        """What holds: the preset's settings where one is named, else these."""
        if not self.preset:
            return self
        return replace(RolloutCorrectionConfig(**PRESETS[self.preset]), baseline_rows=self.baseline_rows)


_TOKEN: dict[str, Any] = {"rollout_is": "token"}
_SEQUENCE: dict[str, Any] = {"rollout_is": "sequence"}
_ICEPOP: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_GEO: dict[str, Any] = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3: dict[str, Any] = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_PPO: dict[str, Any] = {"bypass_mode": True}
_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}

# verl's factory methods by their names.
PRESETS: dict[str, dict[str, Any]] = {
    "disabled": {},
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQUENCE,
    "decoupled_token_icepop": _ICEPOP,
    "decoupled_seq_is_rs": {**_SEQUENCE, "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    "decoupled_geo_rs": _GEO,
    "decoupled_geo_rs_seq_tis": {**_GEO, **_SEQUENCE},
    "decoupled_geo_rs_token_tis": {**_GEO, **_TOKEN},
    "decoupled_k3_rs": _K3,
    "decoupled_k3_rs_seq_tis": {**_K3, **_SEQUENCE},
    "decoupled_k3_rs_token_tis": {**_K3, **_TOKEN},
    "bypass_ppo_clip": _PPO,
    "bypass_ppo_clip_geo_rs": {**_PPO, **_GEO},
    "bypass_ppo_clip_k3_rs": {**_PPO, **_K3},
    "bypass_pg_is": {**_PG, **_SEQUENCE},
    "bypass_pg_token_icepop": {**_PG, **_ICEPOP},
    "bypass_pg_geo_rs": {**_PG, **_GEO},
    "bypass_pg_geo_rs_seq_tis": {**_PG, **_GEO, **_SEQUENCE},
    "bypass_pg_geo_rs_token_tis": {**_PG, **_GEO, **_TOKEN},
}
