"""Back-pressure: how much more may be served. Invariant: it slows down, and never below what one batch needs, so that
it cannot stop a run."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.config.schema import BufferConfig
from verl_core.errors import ConfigError
from verl_core.transfer.flight import Flight
from verl_core.transfer.staleness import NO_BOUND, Load, StalenessPolicy

_MEGABYTE = 2**20


def room(policy: StalenessPolicy | None, config: BufferConfig, open_groups: int, arrived: Sequence[Flight]) -> int:
    """How many groups may be submitted; NO_BOUND = any number.

    The bytes of open groups are not known: each counts as the mean of those that arrived, so that what was let in still
    fits when it arrives.
    """
    load = Load(open_groups, len(arrived))
    admitted = policy.admit(load) if policy else NO_BOUND
    by_count = NO_BOUND if config.max_groups is None else max(0, config.max_groups - load.total)
    by_bytes = _by_bytes(config.max_megabytes, load, arrived)
    one_batch = max(0, policy.batch_size - load.total) if policy else 0
    return min(admitted, by_count, max(by_bytes, one_batch))


def refuse_a_deadlock(policy: StalenessPolicy | None, config: BufferConfig) -> None:
    """Raises ConfigError when a batch could never come together."""
    if policy is None:
        return
    size, limit, admitted = policy.batch_size, config.max_groups, policy.admit(Load())
    if limit is not None and limit < size:
        raise ConfigError(
            f"trainer.v1.buffer.max_groups={limit} is less than data.train_batch_size={size}: no batch could ever come "
            f"together. Raise it to {size} or more"
        )
    if admitted < size:
        raise ConfigError(
            f"the staleness strategy {policy.name} admits {admitted} groups, fewer than data.train_batch_size={size}: "
            "no batch could ever come together. Set trainer.v1.sampler.max_off_policy_threshold to 0 or more"
        )


def _by_bytes(megabytes: int | None, load: Load, arrived: Sequence[Flight]) -> int:
    used = sum(flight.nbytes for flight in arrived)
    if megabytes is None or not used:
        return NO_BOUND
    free = megabytes * _MEGABYTE - used
    return max(0, free * len(arrived) // used - load.open)
