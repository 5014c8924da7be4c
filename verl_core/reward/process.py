"""A killable reward process, seen from its owner. Invariant: a sample that hangs or kills the process costs that
sample only.

The owner reads one Reward after the other and gives each sample `timeout_s` from the moment the one before it came
back. When that runs out, or the process dies, it is exactly known which sample did it: the process is replaced and
the rest is sent again. Signals inside the process would not do: code in C, a bare `except` or another timer defeats
them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import verl_core
from verl_core.config.schema.reward import RewardConfig
from verl_core.deadline import Deadline
from verl_core.errors import RewardError
from verl_core.reward.channel import Channel, Closed, Silence
from verl_core.reward.interface import Sample
from verl_core.reward.messages import Load
from verl_core.reward.scoring import quarantined
from verl_core.trajectory import Reward

START_BUDGET_S = 120.0  # interpreter and imports of the functions; not part of any sample's time
_BURIAL_S = 30.0
_ATTEMPTS = (
    2  # an idle process may have been killed by someone else; dying twice in a row while importing is the code's fault
)


class RewardProcess:
    """Owner of one child process, started on first use. Not thread-safe. On Linux the child dies with the thread that
    started it, so call from the thread that lives longest."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._running: tuple[Channel, subprocess.Popen[bytes]] | None = None

    @property
    def pid(self) -> int:
        """Process id of the child; 0 when there is none."""
        return 0 if self._running is None else self._running[1].pid

    def load(self, sources: Sequence[str]) -> None:
        """Import the functions of these data sources ahead of the first sample.

        Raises:
            RewardError: a function cannot be loaded.
            DeadlineExceeded: importing takes longer than `START_BUDGET_S`.
        """
        self._begin(Load(tuple(sources)))

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        """One Reward per sample, in order. Raises as `load`."""
        done: list[Reward] = []
        while len(done) < len(samples):
            done += self._run(samples[len(done) :])
        return done

    def stop(self) -> str:
        """Kill the process if there is one; tells how it ended."""
        if self._running is None:
            return "the reward process is gone"
        channel, child = self._running
        self._running = None
        channel.close()
        try:
            code = child.wait(timeout=1.0)  # a dying child closes its socket a moment before its exit status is there
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(timeout=_BURIAL_S)
            return "the reward process stopped answering and was killed"
        return f"the reward process died of {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"

    def _run(self, samples: Sequence[Sample]) -> list[Reward]:
        """Rewards up to and including the first sample that hangs or kills the process; all of them if none does."""
        channel = self._begin(list(samples))
        channel.limit(self._config.timeout_s)
        done: list[Reward] = []
        for sample in samples:
            try:
                done.append(channel.receive())
            except Silence:
                self._kill()
                reason = f"no score within {self._config.timeout_s:g} s (reward.timeout_s); its process was killed"
                return [*done, quarantined(sample.key, "timeout", reason)]
            except Closed:
                return [*done, quarantined(sample.key, "raised", self.stop())]
        return done

    def _begin(self, message: Load | list[Sample]) -> Channel:
        """Send `message` and wait until the functions it needs are imported."""
        deadline = Deadline("a reward process to import its functions", START_BUDGET_S, lambda: f"process {self.pid}")
        for _ in range(_ATTEMPTS):
            channel = self._channel()
            channel.limit(START_BUDGET_S)
            try:
                channel.send(message)
                answer = channel.receive()
            except Silence:
                expired = deadline.expired()
                self._kill()
                raise expired from None
            except Closed:
                how = self.stop()
                continue
            if isinstance(answer, RewardError):
                raise answer
            return channel
        raise RewardError(
            f"importing the reward function ended its process: {how}. Import its module by hand to see why"
        )

    def _channel(self) -> Channel:
        if self._running is not None and self._running[1].poll() is not None:
            self.stop()
        if self._running is None:
            self._running = _start(self._config)
        return self._running[0]

    def _kill(self) -> None:
        if self._running is not None:
            self._running[1].kill()
        self.stop()


def _start(config: RewardConfig) -> tuple[Channel, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "verl_core.reward.child", str(theirs.fileno())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
    theirs.close()
    channel = Channel(ours)
    channel.limit(START_BUDGET_S)
    channel.send(config)
    return channel, child


def _import_path() -> list[str]:
    """Where this process imports from, apart from the interpreter's own folders: those must keep their place behind the
    standard library."""
    own = (str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve()))
    root = str(Path(verl_core.__file__).resolve().parents[1])
    places = [root, *(str(Path(entry or ".").resolve()) for entry in sys.path)]
    return list(dict.fromkeys(place for place in places if not place.startswith(own)))
