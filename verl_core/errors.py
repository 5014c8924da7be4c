"""Errors a user can act on. Invariant: every message says what is wrong, where, and what to do about it."""

from __future__ import annotations


class VerlError(Exception):
    """Base of every error raised on purpose; anything else that escapes is a bug."""


class ConfigError(VerlError):
    """A setting is unknown, contradictory, of the wrong type, or has no effect. Raised before Ray starts."""


class DataError(VerlError):
    """A data file or one of its rows cannot be used."""


class ModelError(VerlError):
    """A model folder cannot be used: no tokenizer, no chat template, unreadable weights."""


class ResourceError(VerlError):
    """The machine or cluster has fewer devices than the configuration asks for."""


class StoreError(VerlError):
    """The trajectory store refused, lost or corrupted something."""


class RolloutError(VerlError):
    """Generation failed in a way that no retry can mend."""


class EngineDead(RolloutError):
    """The inference engine behind a server is gone; the request may be sent elsewhere."""


class RewardError(VerlError):
    """Scoring failed for more samples than the error budget allows, or the reward function cannot be loaded."""


class TeacherError(VerlError):
    """A teacher cannot score what the policy sampled, or vanished twice."""


class PolicyError(VerlError):
    """The policy workers cannot go on: a number is not finite, a rank died, or an update was left half done."""


class WeightError(VerlError):
    """Published weights are incomplete, of the wrong shape, or do not match their checksum."""


class CheckpointError(VerlError):
    """A checkpoint is broken, or belongs to another configuration."""


class RecordError(VerlError):
    """The run directory is in use by another run, or one of its files is missing or damaged."""


class StreamFailed(VerlError):
    """The other side of an asynchronous run (rollout or trainer) failed, fell silent, or left before its time."""


class GateError(VerlError):
    """A finished run did not reach the score that it must have to be promoted."""


class DeadlineExceeded(VerlError):
    """A named wait ran out of time.

    Attributes:
        name: what was waited for.
        waited_s: seconds waited.
        state: dump of what the waiter knew when it gave up.
    """

    def __init__(self, name: str, waited_s: float, state: str) -> None:
        super().__init__(f"waited {waited_s:.1f} s for {name} and gave up. State: {state}")
        self.name, self.waited_s, self.state = name, waited_s, state

    def __reduce__(self) -> tuple[type[DeadlineExceeded], tuple[str, float, str]]:
        return type(self), (self.name, self.waited_s, self.state)  # crosses process borders whole
