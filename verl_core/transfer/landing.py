"""Landing: what becomes of attempts that settled. Invariant: a group is handed on only with all its rows, verified
against its manifest and its prompt; anything else is a failure with messages, and one bad group never takes a good
one with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_core.errors import StoreError
from verl_core.trajectory import Trajectory
from verl_core.transfer.flight import Flight, Group
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import TrajectoryStore

Landed = tuple[Flight, GroupTag]


@dataclass(frozen=True, slots=True)
class Failure:
    """Attributes:
    flight: the attempt.
    reason: `failed` (a session raised), `empty`, `corrupt`, `expired` or `vanished`.
    messages: for the user.
    """

    flight: Flight
    reason: str
    messages: tuple[str, ...]


def land(store: TrajectoryStore, settled: Sequence[Landed]) -> tuple[list[Flight], list[Failure]]:
    """Fetch the rows of settled attempts. Each flight that is returned has landed.

    Raises:
        DeadlineExceeded: the store does not answer; nothing has changed.
    """
    failures = [fault for pair in settled if (fault := _fault(*pair)) is not None]
    failed = {fault.flight.prompt.uid for fault in failures}
    whole = [pair for pair in settled if pair[0].prompt.uid not in failed]
    arrived = []
    for (flight, _), rows in zip(whole, _fetch(store, whole), strict=True):
        if isinstance(rows, StoreError):
            failures.append(Failure(flight, "corrupt", (str(rows),)))
        else:
            flight.land(Group(flight.prompt, rows, flight.errors))
            arrived.append(flight)
    return arrived, failures


def _fault(flight: Flight, tag: GroupTag) -> Failure | None:
    """Why the attempt's rows need not be fetched at all."""
    manifest = tag.manifest
    if tag.status is GroupStatus.FAILURE:
        return Failure(flight, "failed", manifest.errors or ("a session failed without a message",))
    if not manifest.keys:
        return Failure(flight, "empty", ("every session ended without a trajectory",))
    return None


def _fetch(store: TrajectoryStore, whole: Sequence[Landed]) -> list[list[Trajectory] | StoreError]:
    """Rows of each attempt, all in one call; one call per attempt only when that call met something bad."""
    if not whole:
        return []
    try:
        rows = iter(store.fetch([tag.manifest for _, tag in whole]))
    except StoreError:
        return [_fetch_one(store, pair) for pair in whole]
    return [_belonging(flight, [next(rows) for _ in tag.manifest.keys]) for flight, tag in whole]


def _fetch_one(store: TrajectoryStore, pair: Landed) -> list[Trajectory] | StoreError:
    flight, tag = pair
    try:
        return _belonging(flight, store.fetch([tag.manifest]))
    except StoreError as error:
        return error


def _belonging(flight: Flight, rows: list[Trajectory]) -> list[Trajectory] | StoreError:
    """The rows, if they are this prompt's."""
    prompt = flight.prompt
    strangers = [row.key for row in rows if row.uid != prompt.uid or row.ordinal != prompt.ordinal]
    if strangers:
        return StoreError(f"the manifest of group {prompt.uid} names rows of another group: {strangers}")
    return rows
