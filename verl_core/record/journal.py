"""Journal: the ledger of what happened to every uid. Invariant: append-only, numbered without gaps, one write per call.

Events that the accounting counts are durable when `record` returns. Those of attempts (finished, failed, reissued)
become so with the next one that is: no disk wait per arrival, and nothing that is counted can be lost.

A line is `{"n": 17, "t": unix seconds, "event": "claimed", "uids": [...], "detail": {...}}`. Details that the
accounting reads: `base_uids` (aligned with uids, when an attempt's uid differs from its base), `step`, `reason`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_core.record.append_log import open_log, read_log
from verl_core.record.canonical import plain
from verl_core.record.json_lines import parse_lines, whole_lines
from verl_core.record.rundir import RunDir

PATH = "journal.jsonl"

_ATTEMPTS = frozenset({"finished", "failed", "reissued"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the journal. Kinds: served, adopted, finished, failed, reissued, claimed, trained, dropped, resumed,
    ended."""

    number: int
    time: float
    kind: str
    uids: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The run's Ledger, opened for writing; cuts off a line that a crash tore, and says so.

    Thread-safe. Several processes of one machine may write in turns (the nodes of one run).
    """

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self._file = open_log(rundir.storage, PATH, whole_lines)
        self._number = 0
        with self._file.exclusive() as old:
            self._absorb(old)
        if self._file.cut:
            _log.warning("%s: cut off a torn last line of %d bytes, left by a crash", rundir.url(PATH), self._file.cut)

    @property
    def position(self) -> int:
        """Number of the last event known here; a checkpoint keeps it, for `resumed`."""
        return self._number

    @property
    def cut(self) -> int:
        """Bytes of torn lines that were cut off."""
        return self._file.cut

    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        """Append one event. `detail` is JSON; numpy values are accepted."""
        with self._file.exclusive() as fresh:
            self._absorb(fresh)
            line = {"n": self._number + 1, "t": round(time.time(), 3), "event": event, "uids": list(uids)}
            text = json.dumps({**line, "detail": plain(detail)}, separators=(",", ":"))
            self._file.write(text.encode() + b"\n", durable=event not in _ATTEMPTS)
            self._number += 1

    def resumed(self, from_step: int, position: int | None = None, rolled_out: int | None = None) -> None:
        """The run goes on from the checkpoint of `from_step` (0 = from the start), saved when the journal stood at
        `position`. The trajectories of the steps up to `rolled_out` are kept and used (None = only those up to
        `from_step`).

        Everything later in the abandoned line is void: see `verl_core.record.accounting`.
        """
        self.record("resumed", (), from_step=from_step, position=position, rolled_out=rolled_out)

    def ended(self, step: int) -> None:
        """The run is over: what is neither trained nor dropped now is lost."""
        self.record("ended", (), step=step)

    def events(self) -> list[Event]:
        """All events up to now."""
        return read_events(self._rundir)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _absorb(self, fresh: bytes) -> None:
        if fresh:
            last = fresh[fresh.rfind(b"\n", 0, -1) + 1 :]
            self._number = int(json.loads(last)["n"])


def read_events(rundir: RunDir) -> list[Event]:
    """All events of a run directory, for readers; a torn last line is left out, not cut.

    Raises:
        RecordError: a line inside the journal is damaged.
    """
    data = read_log(rundir.storage, PATH, whole_lines)
    return list(_parse(parse_lines(data, rundir.url(PATH))))


def _parse(lines: Iterable[dict[str, Any]]) -> Iterable[Event]:
    for line in lines:
        yield Event(line["n"], line["t"], line["event"], tuple(line["uids"]), line["detail"])
