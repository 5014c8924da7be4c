"""Eviction: arrived groups that will not be trained on. Invariant: a group that several rules reject is dropped once,
refilled once, and counted under each of its reasons.

What is done with which group (training; validation evicts nothing):

                     stale                failed, after max_reissues      rejected by a filter
    sync             cannot happen        drop                            drop k, refill k
    asynchronous     drop k, refill k     drop k, refill k                drop k, refill k

Stale groups are dropped by the strategy `drop`; `wait` sees that there are none. In sync nothing refills a failed
group, its step is smaller, unless the run has a filter: then dropped groups are refilled, whatever the reason. How much
is refilled for a filter is bounded by `refills`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from verl_core.transfer.flight import Flight, Group
from verl_core.transfer.staleness import StalenessPolicy

Filter = Callable[[Sequence[Group]], Mapping[str, str]]  # of arrived groups: uid -> reason, for those it rejects


@dataclass(frozen=True, slots=True)
class Eviction:
    """Attributes:
    flight: arrived.
    reasons: at least one, for the journal; what stands before a colon is the kind of reason.
    from_filter: whether a filter rejects it; rejecting for ever is possible, growing old for ever is not.
    """

    flight: Flight
    reasons: tuple[str, ...]
    from_filter: bool


def evictions(
    arrived: Sequence[Flight], version: int, policy: StalenessPolicy | None, filters: Sequence[Filter]
) -> list[Eviction]:
    """Which of `arrived` must not be trained on from weights `version`."""
    stale = {flight.prompt.uid: reason for flight, reason in policy.evict(arrived, version)} if policy else {}
    groups = [flight.group for flight in arrived if flight.group is not None]
    rejected = [one(groups) for one in filters] if groups else []
    found = []
    for flight in arrived:
        uid = flight.prompt.uid
        reasons = tuple(rule[uid] for rule in (stale, *rejected) if uid in rule)
        if reasons:
            found.append(Eviction(flight, reasons, len(reasons) > (uid in stale)))
    return found
