"""The matrix: estimator x loss x correction x mode x critic x KL, every combination a user can write down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from verl_core.config import RunConfig, names
from verl_core.config.checking import problems_of
from verl_core.config.derived import derive
from verl_core.config.schema.correction import PRESETS

PRESET = "algorithm.rollout_correction.preset"
KLS = ("none", "in_reward", "in_loss")
CRITICS = (None, True, False)
SESSIONS = 4


@dataclass(frozen=True)
class Cell:
    """One combination; each field is what the user wrote."""

    estimator: str
    loss: str
    correction: str
    mode: str
    critic: bool | None
    kl: str

    @property
    def name(self) -> str:
        return f"{self.estimator}-{self.loss}-{self.correction}-{self.mode}-critic_{self.critic}-kl_{self.kl}"

    def config(self) -> tuple[RunConfig, list[str]]:
        """The configuration, with what a user of these parts must write besides, and its problems."""
        config = RunConfig()
        config.trainer.v1.trainer_mode, config.trainer.total_training_steps = self.mode, 2
        config.actor_rollout_ref.rollout.n, config.actor_rollout_ref.rollout.name = SESSIONS, "scripted"
        config.actor_rollout_ref.model.path, config.data.train_files = "a/policy", ["a/file.parquet"]
        config.data.val_files = ["another/file.parquet"]
        if self.mode == "separate_async":
            config.actor_rollout_ref.rollout.nnodes = config.actor_rollout_ref.rollout.n_gpus_per_node = 1
        config.algorithm.adv_estimator = self.estimator
        config.algorithm.rollout_correction.preset = self.correction
        config.critic.enable = self.critic
        config.algorithm.use_kl_in_reward = self.kl == "in_reward"
        config.actor_rollout_ref.actor.use_kl_loss = self.kl == "in_loss"
        if self.estimator == "gdpo":
            config.algorithm.gdpo_reward_keys = ["parity", "length"]
        loss = config.actor_rollout_ref.actor.policy_loss
        loss.loss_mode = self.loss
        if self.loss == "dro":
            loss.dro_beta = 0.1
        derive(config)
        return config, problems_of(config, dict.fromkeys(WRITTEN, "the test"))


WRITTEN = (
    "trainer.v1.trainer_mode",
    "algorithm.adv_estimator",
    "algorithm.gdpo_reward_keys",
    PRESET,
    "critic.enable",
    "algorithm.use_kl_in_reward",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.policy_loss.dro_beta",
)


def every_cell() -> Iterator[Cell]:
    """All of them."""
    dimensions = (names.ADV_ESTIMATORS, names.POLICY_LOSSES, PRESETS, names.TRAINER_MODES, CRITICS, KLS)
    return (Cell(*choice) for choice in product(*dimensions))  # type: ignore[arg-type]
