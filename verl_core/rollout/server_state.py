"""What a server says of itself, and what it may ask of its engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Stage = Literal["loading the model", "loading published weights", "ready", "failed", "dead"]


@dataclass(frozen=True)
class ServerState:
    """A server's own account; `describe` for error messages.

    Attributes:
        switch_s: seconds that generation stood still for the newest change of weights; 0 before the first one.
    """

    index: int
    pid: int
    stage: Stage
    version: int
    asleep: bool
    gate: str
    error: str = ""
    switch_s: float = 0.0

    def describe(self) -> str:
        """One line."""
        return ", ".join(f"{key}={value}" for key, value in asdict(self).items() if value != "")


@runtime_checkable
class DeviceReceiver(Protocol):
    """An engine that device transports can talk to."""

    async def transfer(self, method: str, *arguments: Any) -> None:
        """One step of the trainer's conversation."""
