"""Link: the two sides of an asynchronous run tell each other how they are, through the run directory.

    rendezvous/<meeting>/rollout     account of the side that generates, written anew with each beat
    rendezvous/<meeting>/trainer     account of the side that trains

Invariant: the end of either side reaches the other. One that fails says why; one that is killed falls silent, which is
noticed `SILENCE_S` after its last beat. Clocks are never compared: a side counts for itself how long the other's
account has not changed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self

from verl_core.deadline import Deadline
from verl_core.errors import RecordError, StreamFailed
from verl_core.record.rundir import RunDir

Side = Literal["rollout", "trainer"]
State = Literal["starting", "ready", "done", "failed"]

BEAT_S = 5.0
LOOK_S = 1.0
SILENCE_S = 25.0
_GLANCE_S = 0.1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """What a side says of itself.

    Attributes:
        life: id of its process; another one means that it was started again.
        beat: grows with every writing.
        time: when it was written, by that side's clock; for people.
        numbers: live numbers.
        offer: where the side can be reached; empty when there is nothing to know.
        error: kind and text of what ended it.
    """

    life: str
    beat: int = 0
    state: State = "starting"
    time: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)
    offer: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Link:
    """One side's end, while entered: a thread writes the own account and reads the other one's. Leaving by an exception
    says that this side failed, leaving otherwise that it is done.

    Args:
        run: the run directory, on storage that both sides reach.
        meeting: id of this pair of sides; nothing of an earlier pair is ever read.
        side: which one this is.
    """

    def __init__(
        self,
        run: RunDir,
        meeting: str,
        side: Side,
        beat_s: float = BEAT_S,
        look_s: float = LOOK_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._run, self._folder = run, f"rendezvous/{meeting}"
        self.side: Side = side
        self.other: Side = "trainer" if side == "rollout" else "rollout"
        self._beat_s, self._look_s, self._silence_s = beat_s, look_s, silence_s
        self._own = Account(uuid.uuid4().hex)
        self._seen: Account | None = None
        self._unchanged, self._trouble = 0, ""
        self._end, self._writing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._keep, daemon=True, name=f"link-{side}")

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(timeout=self._beat_s)
        said = "" if error is None else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # then the other side notices the silence
            self._write(state="done" if error is None else "failed", error=said)

    # ---- told

    def ready(self, offer: Mapping[str, Any] | None = None) -> None:
        """This side may be used, through `offer`."""
        self._write(state="ready", offer=dict(offer or {}))

    def tell(self, numbers: Mapping[str, Any]) -> None:
        """Live numbers, written with the next beat. JSON values."""
        with self._writing:
            self._own = replace(self._own, numbers=dict(numbers))

    # ---- heard

    def check(self) -> None:
        """Costs nothing; for loops that wait.

        Raises:
            StreamFailed: the other side failed, fell silent, was started again, or left before its time.
        """
        if self._trouble:
            raise StreamFailed(self._trouble)

    def over(self) -> bool:
        """Whether the other side is done."""
        return self._seen is not None and self._seen.state == "done"

    def heard(self) -> Account | None:
        """The other side's newest account."""
        return self._seen

    def wait(self, seconds: float, *states: State) -> Account:
        """The other side's account, as soon as its state is one of `states`.

        Raises:
            DeadlineExceeded: not within `seconds`.
            StreamFailed: see `check`.
        """
        deadline = Deadline(f"the {self.other} side to be {' or '.join(states)}", seconds, self.state)
        while (seen := self._seen) is None or seen.state not in states:
            self.check()
            deadline.check()
            time.sleep(min(_GLANCE_S, self._look_s))
        return seen

    def state(self) -> str:
        """What is known of the other side, for messages."""
        if self._seen is None:
            return f"the {self.other} side was never seen in {self._run.url(self._folder)}"
        quiet = self._unchanged * self._look_s
        return f"the {self.other} side is {self._seen.state}, unchanged for {quiet:.0f} s, numbers {self._seen.numbers}"

    # ---- the thread

    def _keep(self) -> None:
        next_beat = time.monotonic() + self._beat_s
        while not self._end.wait(self._look_s):
            try:
                if time.monotonic() >= next_beat:
                    self._write()
                    next_beat = time.monotonic() + self._beat_s
                self._look()
            except Exception as error:  # noqa: BLE001  storage may fail for a moment, in whatever way its library has
                logger.warning("%s side: no account could be written or read: %s", self.side, error)

    def _look(self) -> None:
        try:
            seen = Account(**json.loads(self._run.read(f"{self._folder}/{self.other}")))
        except RecordError:
            return  # not there yet; whoever waits for it has a deadline
        before, self._seen = self._seen, seen
        self._unchanged = self._unchanged + 1 if before == seen else 0
        self._trouble = self._trouble or self._trouble_of(before, seen)

    def _trouble_of(self, before: Account | None, now: Account) -> str:
        who = f"the {self.other} side"
        if now.state == "failed":
            return f"{who} failed: {now.error}"
        if before is not None and before.life != now.life:
            return f"{who} was started again while this one was at work; both must start together. Start the run again"
        if now.state == "done":
            return f"{who} ended before training did" if self.other == "rollout" else ""
        if self._unchanged * self._look_s >= self._silence_s:
            return (
                f"{who} fell silent: no heartbeat for {self._unchanged * self._look_s:.0f} s, so its process was "
                f"killed or its host is lost; see its log. Its last numbers: {now.numbers}"
            )
        return ""

    def _write(self, **changes: Any) -> None:
        """Whole, but not synced: an account is worth nothing after a crash of the machine, and a slow disk must not
        look like a dead side."""
        with self._writing:
            self._own = replace(self._own, beat=self._own.beat + 1, time=time.time(), **changes)
            path, data = f"{self._folder}/{self.side}", json.dumps(asdict(self._own)).encode()
            if self._run.local is None:
                self._run.publish_bytes(path, data)
                return
            target = self._run.local / path
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.{self._own.life}")
            draft.write_bytes(data)
            draft.replace(target)
