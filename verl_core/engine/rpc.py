"""One call to all ranks. Invariant: it ends within its deadline, with every answer or with the one error that
explains the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_core.deadline import Deadline
from verl_core.errors import PolicyError, VerlError

GRACE_S = 10.0  # after the first failure: a rank that died makes its peers fail too, and may be noticed later than they


class RankFailure(PolicyError):
    """A rank is dead or in an unknown state; the whole group must be started again."""


@dataclass
class _Call:
    """A call in flight: who still owes an answer, who gave one, who failed how."""

    method: str
    who: str
    waiting: dict[Any, int]
    answers: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, Exception] = field(default_factory=dict)

    def collect(self, deadline: Deadline, first_failure: bool) -> None:
        """Take answers until all are in, time is up, or (with `first_failure`) one rank failed."""
        import ray

        while self.waiting and deadline.left and not (first_failure and self.failures):
            done, _ = ray.wait(list(self.waiting), num_returns=1, timeout=deadline.left)
            for ref in done:
                rank = self.waiting.pop(ref)
                try:
                    self.answers[rank] = ray.get(ref)
                except ray.exceptions.RayError as error:
                    self.failures[rank] = error

    def dump(self) -> str:
        """State for the deadline."""
        return f"no answer from ranks {sorted(self.waiting.values())}, answers from {sorted(self.answers)}"

    def explanation(self) -> Exception:
        """The failure that explains the others: a death, then an error raised on purpose, then anything else."""
        import ray

        for rank, error in sorted(self.failures.items()):
            if isinstance(error, ray.exceptions.RayActorError):
                return RankFailure(
                    f"{self.who} rank {rank} died during {self.method}; start the {self.who} again: {error}"
                )
        causes = {
            rank: error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            for rank, error in sorted(self.failures.items())
        }
        for cause in causes.values():
            if isinstance(cause, VerlError | ValueError):
                return cause
        rank, cause = next(iter(causes.items()))
        return RankFailure(f"{self.who} rank {rank} failed in {self.method}; start the {self.who} again: {cause!r}")


def call_all(actors: Sequence[Any], method: str, arguments: tuple[Any, ...], seconds: float, who: str) -> list[Any]:
    """`method(*arguments)` on every actor; answers in rank order.

    Args:
        who: policy or critic, for messages.

    Raises:
        VerlError, ValueError: what a rank raised on purpose.
        RankFailure: a rank died, or raised anything else.
        DeadlineExceeded: some ranks did not answer; names them.
    """
    call = _Call(method, who, {getattr(actor, method).remote(*arguments): rank for rank, actor in enumerate(actors)})
    deadline = Deadline(f"{method} of {len(actors)} {who} ranks", seconds, call.dump)
    call.collect(deadline, first_failure=True)
    if call.failures:
        call.collect(Deadline("the other ranks' failures", GRACE_S), first_failure=False)
        raise call.explanation() from next(iter(call.failures.values()))
    if call.waiting:
        raise deadline.expired()
    return [call.answers[rank] for rank in range(len(actors))]
