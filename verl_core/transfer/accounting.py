"""Accounting: the numbers of the replay buffer. Invariant (a law of the design): served = trained + dropped + in
flight."""

from __future__ import annotations

from dataclasses import dataclass, field


def kind_of(reason: str) -> str:
    """What stands before the first colon of a reason; the rest has values in it, and is for the journal."""
    return reason.partition(":")[0]


@dataclass(slots=True)
class Accounting:
    """Groups, counted by base uid; a re-issued group stays one group.

    Attributes:
        served, trained: since the buffer was made.
        dropped: by kind of reason.
        pending, running, arrived, claimed: now.
        finished, failed, reissued: attempts, since the buffer was made.
        quarantined: attempts whose rows disagreed with their manifest.
        expired: attempts whose lease ran out, or whose tag vanished.
        late: attempts that settled after the buffer had given them up.
    """

    served: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    running: int = 0
    arrived: int = 0
    claimed: int = 0
    finished: int = 0
    failed: int = 0
    reissued: int = 0
    quarantined: int = 0
    expired: int = 0
    late: int = 0

    @property
    def in_flight(self) -> int:
        """Served, and neither trained nor dropped yet."""
        return self.pending + self.running + self.arrived + self.claimed

    @property
    def balanced(self) -> bool:
        """Whether the law holds."""
        return self.served == self.trained + sum(self.dropped.values()) + self.in_flight
