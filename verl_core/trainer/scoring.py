"""The scorer of a run with its reward model, where it has one. Invariant: what scores is decided here: functions, a
service and a reward model become one Scorer."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.config.schema import RewardConfig, RunConfig
from verl_core.data.reward_tokenizer import own_tokenizer
from verl_core.data.teacher_model import model_settings
from verl_core.reward.composite import parts_of
from verl_core.reward.interface import Scorer
from verl_core.reward.model_group import RewardModelGroup
from verl_core.reward.model_scorer import ModelScorer
from verl_core.reward.scorer import launch_scorer
from verl_core.trainer.ground import Ground


def launch_scoring(config: RunConfig, ground: Ground, sources: Sequence[str]) -> Scorer:
    """Attach to what scores where it lives, launch the rest.

    Raises:
        RewardError: a reward function cannot be loaded.
        ModelError: the reward model, or its tokenizer, cannot be used.
        DeadlineExceeded: a part did not come up.
    """
    settings = config.reward.reward_model
    if not settings.enable:
        return launch_scorer(config.reward, ground.namespace, sources)
    reader = own_tokenizer(config.actor_rollout_ref.model.path, settings.model_path)
    rules = launch_scorer(config.reward, ground.namespace, sources) if has_rules(config.reward) else None
    placement = ground.placement
    group = RewardModelGroup.attach_or_launch(
        settings,
        ground.namespace,
        placement.num_judges,
        placement.judge,
        placement.device,
        config.trainer.init_timeout_s,
    )
    return ModelScorer(config.reward, group, rules, reader)


def check_reward_model(config: RunConfig) -> None:
    """The reward model's folder has settings and a tokenizer. Nothing without one.

    Raises:
        ModelError: it has not; names reward.reward_model.model_path.
    """
    settings = config.reward.reward_model
    if not settings.enable:
        return
    model_settings(settings.model_path, f"reward.reward_model.model_path={settings.model_path!r}")
    own_tokenizer(config.actor_rollout_ref.model.path, settings.model_path)


def has_rules(reward: RewardConfig) -> bool:
    """Whether anything but the reward model scores, be it validation alone."""
    parts = parts_of(reward)
    return any(not part.reward_model for part in parts) if parts else not reward.reward_model.in_validation
