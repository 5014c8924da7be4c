"""The process in which reward functions run. Invariant: it owns nothing; it may be killed at any instant and started
again.

Run as `python -m verl_core.reward.child <file descriptor of a socket> <file descriptor of a Progress>`; see `messages`
for what is said. It ends when the other side closes, and dies with its parent.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection

from verl_core.config.schema.reward import RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.interface import RewardFunction, Sample
from verl_core.reward.messages import FLUSH_S, Load, Loaded
from verl_core.reward.progress import Progress
from verl_core.reward.registry import reward_for
from verl_core.reward.scoring import score_sample
from verl_core.reward.wire import Packed, packed_reward

_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, config: RewardConfig, progress: Progress) -> None:
    """Answer messages until the connection closes."""
    while True:
        try:
            message: Load | list[Packed] = connection.recv()
        except EOFError:
            return
        samples = [] if isinstance(message, Load) else [Sample(*fields) for fields in message]
        sources = message.sources if isinstance(message, Load) else [sample.data_source for sample in samples]
        try:
            functions = _functions(sources, config)
        except RewardError as error:
            connection.send(error)
            continue
        connection.send(Loaded())
        _score(connection, functions, samples, progress)


def _score(
    connection: Connection, functions: Mapping[str, RewardFunction], samples: Sequence[Sample], progress: Progress
) -> None:
    """Score all, sending what there is every `FLUSH_S`: a message per sample would cost more than many a function."""
    scored: list[Packed] = []
    sent = time.monotonic()
    for number, sample in enumerate(samples):
        progress.write(number)
        scored.append(packed_reward(score_sample(functions[sample.data_source], sample)))
        if time.monotonic() - sent >= FLUSH_S:
            connection.send(scored)
            scored, sent = [], time.monotonic()
    if scored:
        connection.send(scored)


def _functions(sources: Iterable[str], config: RewardConfig) -> dict[str, RewardFunction]:
    return {source: reward_for(source, config) for source in set(sources)}


def main(descriptor: int, progress: int) -> None:
    """Die with the parent, ignore the terminal's Ctrl-C (the parent decides), serve."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    serve(connection, connection.recv(), Progress(progress))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
