"""Composite rewards: a weighted sum of named parts. Invariant: a sample has all its parts or no score; what each part
said travels beside the sum, under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_core.config.schema.reward import CustomRewardConfig, RewardConfig
from verl_core.reward.interface import RewardFunction, Sample
from verl_core.reward.scoring import Unscorable, score_sample
from verl_core.trajectory import Reward

ROW = "row"  # the verifier of the row's own data source


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of reward.composite. Exactly one of the four sources is given.

    Attributes:
        verifier: a data source of the registry, or `row`.
        function: `file.py:name` or `module:name`.
        remote: whether reward.remote scores it.
        reward_model: whether reward.reward_model does.
    """

    name: str
    weight: float
    verifier: str = ""
    function: str = ""
    remote: bool = False
    reward_model: bool = False

    @property
    def local(self) -> bool:
        """Whether a function scores it, in one of the run's processes."""
        return not (self.remote or self.reward_model)

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Part:
        """From a checked entry of the configuration."""
        return cls(**{**entry, "weight": float(entry.get("weight", 1.0))})

    @property
    def custom(self) -> CustomRewardConfig:
        """`function`, taken apart."""
        path, _, name = self.function.rpartition(":")
        return CustomRewardConfig(path, name)


def parts_of(config: RewardConfig) -> list[Part]:
    """All parts, in order; none without reward.composite."""
    return [Part.of(entry) for entry in config.composite]


def no_parts(samples: Sequence[Sample]) -> list[Reward]:
    """What local parts add where there are none."""
    return [Reward(sample.key, 0.0) for sample in samples]


def weighted(parts: Sequence[tuple[Part, RewardFunction]]) -> RewardFunction:
    """One function that calls them all. A part with a verifier of its own is asked under that verifier's name."""

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
    ) -> dict[str, Any]:
        """{"score": sum of weight x part, <part>: its score, <part>/<key>: what else it returned}."""
        scored = []
        for part, function in parts:
            source = part.verifier if part.verifier not in ("", ROW) else data_source
            sample = Sample(part.name, source, solution_str, ground_truth, extra_info)
            scored.append((part, score_sample(function, sample)))
        return combined(scored)

    return compute_score


def combined(scored: Sequence[tuple[Part, Reward]]) -> dict[str, Any]:
    """What a composite function returns for its parts' rewards.

    Raises:
        Unscorable: a part has no score.
    """
    for part, reward in scored:
        if reward.quarantined:
            raise Unscorable(reward.status, f"part {part.name!r}: {reward.reason}")
    extras = {f"{part.name}/{key}": value for part, reward in scored for key, value in reward.components.items()}
    scores = {part.name: reward.score for part, reward in scored}
    return {**extras, **scores, "score": sum(part.weight * reward.score for part, reward in scored)}
