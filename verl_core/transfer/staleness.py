"""Staleness: how old a group may be when it is trained on, and what is done to keep it so.

The staleness of a group at global step t is (t - 1) - v, where t - 1 is the version of the weights that step t starts
from and v the oldest weight version that sampled a token of the group (not the version when it was sent out).

What each strategy guarantees for threshold s, batches of B groups, one batch a step:

    wait       no trained group exceeds s; training waits. Needs at most (s + 1) x B groups open or arrived, which
               `admit` sees to. Nothing is dropped but what a worker began for an earlier process, which gave it up, and
               finishes for this one: nobody counted with its age.
    drop       no trained group exceeds s; what would is dropped, and a new prompt served in its place.
    admission  at most (s + 1) x B groups are open or arrived. Nothing is dropped and training never waits for a certain
               group, so the *mean* staleness stays below s, while a straggler that is overtaken may exceed s.
    off        nothing.

s = 0 is on-policy: with nothing served ahead every strategy is the synchronous loop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from verl_core.config.schema import RunConfig

NO_BOUND: Final = sys.maxsize


class Aged(Protocol):
    """A group as a policy sees it.

    Attributes:
        ordinal: of its prompt.
        oldest: oldest weight version in it; of an open group the version when it was sent out, which its own can only
            be later than.
    """

    @property
    def ordinal(self) -> int: ...

    @property
    def oldest(self) -> int: ...


G = TypeVar("G", bound=Aged)


@dataclass(frozen=True, slots=True)
class Load:
    """Groups that are not trained yet: `open` are being generated, `arrived` wait to be trained on."""

    open: int = 0
    arrived: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.open + self.arrived


class StalenessPolicy(Protocol):
    """Asked by the replay buffer, which alone acts on the answers.

    Attributes:
        name: for state dumps.
        batch_size: groups of a step.
    """

    @property
    def name(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    def admit(self, load: Load) -> int:
        """How many more groups may start now; NO_BOUND = any number."""

    def evict(self, arrived: Sequence[G], version: int) -> list[tuple[G, str]]:
        """Groups that must not be trained from weights `version`, each with the reason for the journal."""

    def must_wait_for(self, open_groups: Sequence[G], arrived: Sequence[G], version: int, take: int) -> list[G]:
        """The open groups one or more of which must arrive before `take` of `arrived` are trained from `version`."""

    def order(self, arrived: Sequence[G]) -> list[G]:
        """Who is trained first."""

    def too_late(self, found: Sequence[G], held: Sequence[G], version: int) -> list[G]:
        """Those of `found`, begun by an earlier process of the run, that cannot be trained in time beside `held`: they
        are sampled anew."""


@dataclass(frozen=True, slots=True)
class Unbounded:
    """`off`, or no threshold: lowest ordinals first."""

    batch_size: int
    name: str = "off"

    def admit(self, load: Load) -> int:
        """See StalenessPolicy."""
        return NO_BOUND

    def evict(self, arrived: Sequence[G], version: int) -> list[tuple[G, str]]:
        """See StalenessPolicy."""
        return []

    def must_wait_for(self, open_groups: Sequence[G], arrived: Sequence[G], version: int, take: int) -> list[G]:
        """See StalenessPolicy."""
        return []

    def order(self, arrived: Sequence[G]) -> list[G]:
        """See StalenessPolicy."""
        return sorted(arrived, key=lambda group: group.ordinal)

    def too_late(self, found: Sequence[G], held: Sequence[G], version: int) -> list[G]:
        """See StalenessPolicy."""
        return []


@dataclass(frozen=True, slots=True)
class Drop:
    """verl's default, on weight versions. Nothing starves silently: see the drop share by length in `drops()`."""

    batch_size: int
    threshold: int
    name: str = "drop"

    def admit(self, load: Load) -> int:
        """See StalenessPolicy."""
        return NO_BOUND

    def evict(self, arrived: Sequence[G], version: int) -> list[tuple[G, str]]:
        """A group exactly at the threshold stays."""
        return _beyond(self.threshold, arrived, version)

    def must_wait_for(self, open_groups: Sequence[G], arrived: Sequence[G], version: int, take: int) -> list[G]:
        """See StalenessPolicy."""
        return []

    def order(self, arrived: Sequence[G]) -> list[G]:
        """Oldest version first: fewer are dropped later."""
        return oldest_first(arrived)

    def too_late(self, found: Sequence[G], held: Sequence[G], version: int) -> list[G]:
        """See StalenessPolicy."""
        return []


@dataclass(frozen=True, slots=True)
class Admission:
    """A bound on the work under way. By Little's law the mean staleness is (groups under way) / B - 1 <= s."""

    batch_size: int
    threshold: int
    name: str = "admission"

    def admit(self, load: Load) -> int:
        """(s + 1) x B - open - arrived."""
        return max(0, (self.threshold + 1) * self.batch_size - load.total)

    def evict(self, arrived: Sequence[G], version: int) -> list[tuple[G, str]]:
        """See StalenessPolicy."""
        return []

    def must_wait_for(self, open_groups: Sequence[G], arrived: Sequence[G], version: int, take: int) -> list[G]:
        """See StalenessPolicy."""
        return []

    def order(self, arrived: Sequence[G]) -> list[G]:
        """See StalenessPolicy."""
        return oldest_first(arrived)

    def too_late(self, found: Sequence[G], held: Sequence[G], version: int) -> list[G]:
        """See StalenessPolicy."""
        return []


@dataclass(frozen=True, slots=True)
class Wait:
    """Earliest deadline first, with a look ahead.

    A group of version v can be trained at the latest by the step that starts from v + s: its slack, now at `version`,
    is v + s - version further steps. What this step leaves behind can all be trained in time exactly when, for every
    j = 0..s, at most j x B of it have a slack of j or less: the schedulability of equal jobs with deadlines on one
    machine of capacity B. Groups served later have a slack of s when they come and fit as long as there are at most
    (s + 1) x B in all. It is not enough to wait for the groups without slack: two batches of them may fall due at once.
    """

    batch_size: int
    threshold: int
    name: str = "wait"

    def admit(self, load: Load) -> int:
        """(s + 1) x B - open - arrived."""
        return max(0, (self.threshold + 1) * self.batch_size - load.total)

    def evict(self, arrived: Sequence[G], version: int) -> list[tuple[G, str]]:
        """What came older than it was counted."""
        return _beyond(self.threshold, arrived, version)

    def must_wait_for(self, open_groups: Sequence[G], arrived: Sequence[G], version: int, take: int) -> list[G]:
        """The open groups that fall due before too many others."""
        left = [self._slack(group, version) for group in (*self.order(arrived)[take:], *open_groups)]
        due = [sum(slack <= j for slack in left) for j in range(self.threshold + 1)]
        late = max((j for j, count in enumerate(due) if count > j * self.batch_size), default=-1)
        return [group for group in open_groups if self._slack(group, version) <= late]

    def order(self, arrived: Sequence[G]) -> list[G]:
        """See StalenessPolicy."""
        return oldest_first(arrived)

    def too_late(self, found: Sequence[G], held: Sequence[G], version: int) -> list[G]:
        """A step that is done over may leave behind groups that nobody counted with: they come back older than a new
        group, when all places of their age are taken."""
        slacks, late = [self._slack(group, version) for group in held], []
        for group in self.order(found):
            tried = [*slacks, self._slack(group, version)]
            fits = all(sum(slack <= j for slack in tried) <= (j + 1) * self.batch_size for j in range(self.threshold))
            if fits and group.oldest + self.threshold >= version:
                slacks = tried
            else:
                late.append(group)
        return late

    def _slack(self, group: Aged, version: int) -> int:
        return max(0, group.oldest + self.threshold - version)


def _beyond(threshold: int, groups: Sequence[G], version: int) -> list[tuple[G, str]]:
    """Those older than `threshold` at `version`, with the reason."""
    ages = [(group, version - group.oldest) for group in groups]
    return [(group, f"stale: {age} versions, threshold {threshold}") for group, age in ages if age > threshold]


def oldest_first(groups: Sequence[G]) -> list[G]:
    """By oldest version, then ordinal."""
    return sorted(groups, key=lambda group: (group.oldest, group.ordinal))


def staleness_policy(config: RunConfig) -> StalenessPolicy:
    """What `trainer.v1.sampler` asks for; sync and the legacy path have no staleness."""
    sampler, size = config.trainer.v1.sampler, config.data.train_batch_size
    bound, strategy = sampler.max_off_policy_threshold, sampler.max_off_policy_strategy
    if config.trainer.v1.trainer_mode == "sync" or not config.trainer.use_v1 or bound is None:
        return Unbounded(size)
    strategies: dict[str, StalenessPolicy] = {
        "wait": Wait(size, bound),
        "drop": Drop(size, bound),
        "admission": Admission(size, bound),
        "off": Unbounded(size),
    }
    return strategies[strategy]
