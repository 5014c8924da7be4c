"""The scorer of a run: local processes, a remote service, or both parts of a composite reward. Invariant: callers see
one Scorer, and its error budget is over whole rewards, however many parts they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_core.config.schema.reward import RewardConfig
from verl_core.reward.budget import check_budget, failures_allowed
from verl_core.reward.composite import combined, no_parts, parts_of
from verl_core.reward.interface import Sample, Scorer
from verl_core.reward.remote import RemoteRewards
from verl_core.reward.scoring import Unscorable, judged, quarantined
from verl_core.reward.workers import RewardWorkers
from verl_core.trajectory import Reward


class CompositeScorer:
    """Scores remotely, and locally where there are local parts. Implements Scorer.

    Args:
        local: scores all parts that are not remote; None = there are none.
    """

    def __init__(self, config: RewardConfig, local: Scorer | None, remote: RemoteRewards) -> None:
        self._config, self._local, self._remote = config, local, remote
        self._parts = [part for part in parts_of(config) if part.remote]

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        """See Scorer. Local parts first, for they cost no request: where these alone exceed the budget, the service is
        not asked."""
        near = self._local.score(samples) if self._local is not None else no_parts(samples)
        far = self._remote.score_each(samples, failures_allowed(len(samples), self._config.error_budget))
        rewards = self._together(near, far)
        check_budget(rewards, self._config.error_budget)
        return rewards

    def score_each(self, samples: Sequence[Sample]) -> list[Reward]:
        """See Scorer."""
        near = self._local.score_each(samples) if self._local is not None else no_parts(samples)
        return self._together(near, self._remote.score_each(samples))

    def shutdown(self) -> None:
        """See Scorer."""
        if self._local is not None:
            self._local.shutdown()

    def _together(self, near: Sequence[Reward], far: list[Reward]) -> list[Reward]:
        return [self._joined(*pair) for pair in zip(near, far, strict=True)] if self._parts else far

    def _joined(self, near: Reward, far: Reward) -> Reward:
        if near.quarantined:
            return near
        try:
            total: dict[str, Any] = combined([(part, far) for part in self._parts])
        except Unscorable as error:
            return quarantined(near.key, error.status, str(error))
        return judged(near.key, {**near.components, **total, "score": near.score + total["score"]})


def launch_scorer(config: RewardConfig, namespace: str, sources: Sequence[str]) -> Scorer:
    """Attach to the run's scoring processes where they live, launch them otherwise; none where all is remote. Raises as
    `RewardWorkers.attach_or_launch`."""
    parts = parts_of(config)
    is_remote = any(part.remote for part in parts) if parts else bool(config.remote.url)
    if not is_remote:
        return RewardWorkers.attach_or_launch(config, namespace, sources)
    is_local = any(part.local for part in parts)
    local = RewardWorkers.attach_or_launch(config, namespace, sources) if is_local else None
    return CompositeScorer(config, local, RemoteRewards(config.remote))
