"""StepSpool: groups of one step, kept as they finish. Invariant: a group whose `append` returned survives a crash, so
that no finished generation is ever sampled again.

A record is `length, CRC` and a payload: JSON of prompt, errors and rewards, then the packed trajectories. A record that
a crash tore is ignored. The spool is only a bridge: once the step's trajectories.parquet is published it may be
deleted.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from verl_core.record.append_log import LocalLog, SegmentLog, open_log, read_log
from verl_core.record.canonical import compact
from verl_core.record.prompts import prompt_from_json, prompt_to_json
from verl_core.record.rundir import RunDir
from verl_core.trajectory import Reward
from verl_core.transfer.codec import pack, unpack
from verl_core.transfer.flight import Group

_FRAME = struct.Struct("<II")  # payload bytes, CRC of the payload
_HEAD = struct.Struct("<I")  # bytes of the JSON head


class StepSpool:
    """The spool of `step`; nothing is created before the first append."""

    def __init__(self, rundir: RunDir, step: int) -> None:
        self._rundir, self.path = rundir, f"{rundir.step_dir(step)}/spool.bin"
        self._log: LocalLog | SegmentLog | None = None

    def append(self, groups: Sequence[Group]) -> None:
        """Keep finished groups durably: one write and one fsync for all of them."""
        if not groups:
            return
        if self._log is None:
            self._log = open_log(self._rundir.storage, self.path, whole_frames)
        with self._log.exclusive():
            self._log.write(b"".join(_frame(group) for group in groups))

    def read(self) -> list[Group]:
        """All groups that were kept, in the order of arrival; a uid that was kept twice comes once."""
        data = read_log(self._rundir.storage, self.path, whole_frames)
        groups = [_group(payload) for payload in _payloads(data)]
        return list({group.prompt.uid: group for group in groups}.values())

    def close(self) -> None:
        """Let the file go. Idempotent; an append opens it again."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def remove(self) -> None:
        """Forget the groups; their trajectories are durable elsewhere."""
        self.close()
        for name in self._rundir.names(self.path.rpartition("/")[0]):
            if name.startswith("spool"):
                self._rundir.remove(f"{self.path.rpartition('/')[0]}/{name}")


def whole_frames(data: bytes) -> int:
    """Length of the prefix of records with a right CRC."""
    return sum(_FRAME.size + len(payload) for payload in _payloads(data))


def _payloads(data: bytes) -> Iterator[memoryview]:
    view, at = memoryview(data), 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        payload = view[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length or zlib.crc32(payload) != crc:
            return
        yield payload
        at += _FRAME.size + length


def _frame(group: Group) -> bytes:
    rewards = [asdict(reward) for reward in group.rewards]
    head = compact({"prompt": prompt_to_json(group.prompt), "errors": list(group.errors), "rewards": rewards})
    payload = _HEAD.pack(len(head)) + head + pack(group.trajectories)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _group(payload: memoryview) -> Group:
    (size,) = _HEAD.unpack_from(payload)
    head = json.loads(bytes(payload[_HEAD.size : _HEAD.size + size]))
    trajectories = unpack(bytes(payload[_HEAD.size + size :]))
    rewards = tuple(Reward(**reward) for reward in head["rewards"])
    return Group(prompt_from_json(head["prompt"]), trajectories, tuple(head["errors"]), rewards)
