"""A killable reward process, seen from its owner. Invariant: a sample that hangs or kills the process costs that
sample only.

Rewards come back a few at a time, every `FLUSH_S`, and the owner gives each sample `timeout_s`. When that runs out, or
the process dies, shared memory says which sample did it: the process is replaced and the rest is sent again, with the
few that were scored and not yet sent. Signals inside the process would not do: code in C, a bare `except` or another
timer defeats them.
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
from verl_core.reward.messages import FLUSH_S, Load
from verl_core.reward.progress import Progress
from verl_core.reward.scoring import quarantined
from verl_core.reward.wire import Packed, failures, packed_reward, packed_samples, unpacked_rewards
from verl_core.trajectory import Reward, RewardStatus

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
        self._progress = Progress()

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
        return unpacked_rewards(self.score_packed(packed_samples(samples)))

    def score_packed(self, samples: Sequence[Packed], most_failures: int | None = None) -> list[Packed]:
        """Same, for a caller that only passes them on.

        Args:
            most_failures: with more of them the caller goes no further. Once a sample that hung or killed the process
                is one too many, those after it are quarantined and not tried: a function that always hangs would cost
                its time-out for each of them. None = all are tried.
        """
        done: list[Packed | None] = [None] * len(samples)
        open_ = list(range(len(samples)))
        while open_:
            scored, culprit = self._run([samples[number] for number in open_])
            for number, reward in zip(open_, scored, strict=False):
                done[number] = reward
            if culprit is not None:
                position, reward = culprit
                done[open_[position]] = reward
            open_ = [number for number in open_ if done[number] is None]
            if culprit is None or most_failures is None or (failed := failures(done)) <= most_failures:
                continue
            for number in open_:
                done[number] = _untried(samples[number], culprit[1], failed)
            break
        return [reward for reward in done if reward is not None]

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

    def _run(self, samples: Sequence[Packed]) -> tuple[list[Packed], tuple[int, Packed] | None]:
        """Rewards of the first samples, all of them if none hangs or kills the process; else also the one that did, by
        its position."""
        channel = self._begin(list(samples))
        channel.limit(self._config.timeout_s + FLUSH_S)
        done: list[Packed] = []
        while len(done) < len(samples):
            try:
                done += channel.receive()
            except Silence:
                self._kill()
                reason = f"no score within {self._config.timeout_s:g} s (reward.timeout_s); its process was killed"
                return done, self._blamed(samples, len(done), "timeout", reason)
            except Closed:
                return done, self._blamed(samples, len(done), "raised", self.stop())
        return done, None

    def _blamed(
        self, samples: Sequence[Packed], received: int, status: RewardStatus, reason: str
    ) -> tuple[int, Packed]:
        """The sample the process was at when it ended."""
        position = min(max(self._progress.read(), received), len(samples) - 1)
        return position, packed_reward(quarantined(samples[position][0], status, reason))

    def _begin(self, message: Load | list[Packed]) -> Channel:
        """Send `message` and wait until the functions it needs are imported."""
        deadline = Deadline("a reward process to import its functions", START_BUDGET_S, lambda: f"process {self.pid}")
        for _ in range(_ATTEMPTS):
            channel = self._channel()
            channel.limit(START_BUDGET_S)
            try:
                self._progress.write(0)
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
            self._running = _start(self._config, self._progress)
        return self._running[0]

    def _kill(self) -> None:
        if self._running is not None:
            self._running[1].kill()
        self.stop()


def _untried(sample: Packed, last: Packed, failed: int) -> Packed:
    (cause,) = unpacked_rewards([last])
    reason = f"not tried after {failed} failures, the last of {cause.key}: {cause.reason}"
    return packed_reward(quarantined(sample[0], cause.status, reason))


def _start(config: RewardConfig, progress: Progress) -> tuple[Channel, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    passed = [theirs.fileno(), progress.descriptor]
    command = [sys.executable, "-m", "verl_core.reward.child", *map(str, passed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}
    child = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL, env=environment)
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
