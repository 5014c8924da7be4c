"""Step time and mean staleness by formula. Invariant: everything is computed from a Setup, nothing is simulated.

Symbols: B groups of n responses a step, w batches ahead, S servers, b = B n / S responses per server and step, L a
response's length, M the longest of a group's n, F their laws, t0 and t1 of `devices`, s the staleness threshold.

Where it is from. (1) All requests of a server advance together, a token each t0 + t1 k seconds. Integrated over a phase
in which each gets D tokens, with k varying: time = t0 D + t1 x (tokens sampled), whatever k did. In the long run a step
samples b E[L] tokens per server, so only D is needed. (2) Little's law, counted in steps: a group stays from the top-up
that serves it to the claim; (1 + w) B are in the system after a top-up and B leave, so the mean number of publications
that a group lives through is w: the mean staleness, whatever the lengths, when every request starts at once (J. D. C.
Little, 1961; put to this use by "Staleness in fully asynchronous RL", Applied Compute, 2026). (3) In the fluid limit of
large batches a share 1 - F_M(x) of a cohort is still open when its requests got x tokens.

    sync            D = E[longest of B n]: the phase ends with the last response.
    colocate_async  cohorts are D tokens apart; what the claim leaves is x_j = j D tokens old, j = 1, 2, ...:
                    w = sum over j of (1 - F_M(x_j)).
    separate_async  the same with x_j = j D - D_T, where D_T tokens are sampled between claim and next top-up, while
                    T seconds of training and publication pass; by (1) with what runs meanwhile,
                    T = t0 D_T + t1 b x sum over j of the integral of 1 - F_L from x_j to x_j + D_T.
                    The step takes max(t0 D + t1 b E[L] + reading, T): training does not wait for what is there. With
                    k streams only the last k-th of the batch is trained between claim and top-up: T / k instead.

With `drop` the share q = 1 - F_M(x_(s+1)) of the groups is dropped and served anew: cohorts are larger by 1 / (1 - q),
and w = sum / (1 - q); the mean staleness of the others is the sum over j <= s of (1 - F_M(x_j) - q) / (1 - q).

With fewer slots than requests a queue forms, servers are full, D = b E[L] / slots, and a group is only as old as its
start: B E[M] / D started groups stay on the servers, so the mean staleness is min(w, E[M] / D), in separate_async plus
D_T / D, what arrives while training goes on. (For n = 1. The sessions of a group go to one server, and when cut off
requests spread anew, some of them queue again: then more groups are begun than this says.)

What it assumes: the steady state; large B; servers alike and evenly loaded; nobody waits for a certain group (the
strategy `wait` does); `admission` only lowers w, to min(w, s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulate.lengths import Lengths, cumulated, longest_of, mean_of, mean_up_to
from benchmarks.simulate.run import Setup

_HALVINGS = 45
_SHARE_HALVINGS = 14  # of training's share of a step; midpoints repeat from one setup to the next, and are remembered
_COHORTS = 400  # no cohort is younger than 1 / so much of the longest response


@dataclass(frozen=True)
class Prediction:
    """Attributes:
    step_s, samples_per_s: of a step in the steady state.
    staleness: mean in the steady state, weight versions.
    tokens: D, that a running request gets in a step.
    generation_s: seconds of a step in which servers sample, or could.
    training_s: between the claim and the next top-up.
    dropped: share of the groups, q.
    """

    step_s: float
    samples_per_s: float
    staleness: float
    tokens: float
    generation_s: float
    training_s: float
    dropped: float = 0.0


@dataclass(frozen=True)
class _Pace:
    """Cohorts that follow each other: D, mean staleness, share dropped, tokens up to which a group is kept; whether all
    slots are taken all the time."""

    tokens: float
    staleness: float
    dropped: float
    kept_up_to: float
    saturated: bool = False


def predict(setup: Setup) -> Prediction:
    """By the formulas above."""
    return {"sync": _sync, "colocate_async": _colocate, "separate_async": _separate}[setup.mode](setup)


def sync_of_draws(setup: Setup, groups: Sequence[Sequence[int]], first: int, last: int) -> float:
    """Seconds of a synchronous step, mean over steps first .. last, from the very lengths that these steps draw. (The
    longest of a batch varies so much that a few steps say little about its expectation.)"""
    size = setup.batch_size
    batches = [groups[size * (step - 1) : size * step] for step in range(first, last + 1)]
    trainer, total = setup.trainer, 0.0
    for batch in batches:
        tokens = sum(sum(group) for group in batch)
        prompts = setup.prompt_tokens * size * setup.n
        total += setup.server.t0 * max(max(group) for group in batch) + setup.server.t1 * tokens / setup.servers
        total += setup.server.read_s * prompts / setup.servers + trainer.seconds(tokens + prompts) + trainer.step_s
        total += trainer.sleep_s + trainer.publish_s + trainer.wake_s
    return total / len(batches)


def staleness_of_run(setup: Setup, steady: float) -> float:
    """Mean staleness over all groups of a whole run of T steps whose steady state has `steady`.

    Little's law without a steady state: the ages at the claims add up to the groups that each publication leaves
    behind, B min(steady, T - t) at step t, for nothing is served that no step would train on.
    """
    return sum(min(steady, setup.steps - step) for step in range(1, setup.steps + 1)) / setup.steps


def _sync(setup: Setup) -> Prediction:
    tokens = longest_of(setup.lengths, setup.batch_size * setup.n)
    generation = _generation(setup, _Pace(tokens, 0.0, 0.0, setup.lengths.longest), carries=False)
    return _in_turns(setup, _Pace(tokens, 0.0, 0.0, setup.lengths.longest), generation)


def _colocate(setup: Setup) -> Prediction:
    pace = _paced(setup, 0.0)
    return _in_turns(setup, pace, _generation(setup, pace, carries=True))


def _in_turns(setup: Setup, pace: _Pace, generation: float) -> Prediction:
    trainer, training = setup.trainer, _training(setup, pace)
    step = generation + training + trainer.sleep_s + trainer.publish_s + trainer.wake_s
    return _prediction(setup, pace, step, generation, training)


def _separate(setup: Setup) -> Prediction:
    publication = setup.trainer.publish_s + setup.trainer.switch_s

    def cycle(share: float) -> tuple[_Pace, float, float]:
        pace = _paced(setup, share)
        return pace, _generation(setup, pace, carries=True) + setup.trainer.switch_s, _training(setup, pace)

    def excess(share: float) -> float:
        pace, _, training = cycle(share)
        return training / setup.streams + publication - _after_the_claim(setup, pace, share)

    pace, generation, training = cycle(_root(excess, 0.0, 1.0, _SHARE_HALVINGS))
    return _prediction(setup, pace, max(generation, training + publication), generation, training + publication)


def _after_the_claim(setup: Setup, pace: _Pace, share: float) -> float:
    """Seconds that the servers need for share x D tokens after a claim, when nothing new comes."""
    per_server = setup.batch_size * setup.n / setup.servers / (1.0 - pace.dropped)
    if pace.saturated:
        return share * (setup.server.t0 * pace.tokens + setup.server.t1 * per_server * mean_of(setup.lengths))
    ages = np.arange(1, int(setup.lengths.longest / pace.tokens) + 3).astype(np.float64) * pace.tokens
    after, before = cumulated(setup.lengths, ages), cumulated(setup.lengths, ages - share * pace.tokens)
    return share * setup.server.t0 * pace.tokens + setup.server.t1 * per_server * float(np.sum(after - before))


def _prediction(setup: Setup, pace: _Pace, step: float, generation: float, training: float) -> Prediction:
    samples = setup.batch_size * setup.n
    return Prediction(step, samples / step, pace.staleness, pace.tokens, generation, training, pace.dropped)


def _paced(setup: Setup, training_share: float) -> _Pace:
    """How cohorts follow each other when D_T = training_share x D."""
    bound = setup.threshold if setup.strategy == "drop" else None
    ahead = setup.warmup
    if setup.strategy in ("admission", "wait") and setup.threshold is not None:
        ahead = min(ahead, setup.threshold)
    pace = _unlimited(setup.lengths, setup.n, ahead, bound, training_share)
    saturated = setup.batch_size * setup.n / setup.servers * mean_of(setup.lengths) / setup.server.slots
    if saturated <= pace.tokens:
        return pace
    staleness = min(ahead, longest_of(setup.lengths, setup.n) / saturated + training_share)
    return _Pace(saturated, staleness, 0.0, setup.lengths.longest, saturated=True)


@lru_cache(maxsize=100_000)
def _unlimited(law: Lengths, n: int, ahead: float, bound: int | None, training_share: float) -> _Pace:
    """Without a limit of slots."""

    def left(spacing: float) -> NDArray[np.float64]:
        ages = np.maximum(0.0, spacing * (np.arange(1, int(law.longest / spacing) + 3) - training_share))
        return np.asarray(1.0 - law.cdf(ages.astype(np.float64)) ** n)

    def dropped(shares: NDArray[np.float64]) -> float:
        return float(shares[bound]) if bound is not None and bound < len(shares) else 0.0

    def excess(spacing: float) -> float:
        shares = left(spacing)
        return float(shares.sum()) / (1.0 - dropped(shares)) - ahead

    tokens = _root(excess, law.longest / _COHORTS, law.longest / max(1e-6, 1.0 - training_share))
    shares = left(tokens)
    share = dropped(shares)
    if not share:
        return _Pace(tokens, ahead, 0.0, law.longest)
    old = float((shares[:bound] - share).sum()) / (1.0 - share)
    return _Pace(tokens, old, share, tokens * ((bound or 0) + 1 - training_share))


def _training(setup: Setup, pace: _Pace) -> float:
    """Seconds to train on a batch of what is kept."""
    kept = mean_up_to(setup.lengths, pace.kept_up_to)
    return setup.trainer.seconds(setup.batch_size * setup.n * (kept + setup.prompt_tokens)) + setup.trainer.step_s


def _generation(setup: Setup, pace: _Pace, carries: bool) -> float:
    """t0 D + t1 b E[L] + reading: of prompts and, where requests are cut off once a step, of what they had."""
    per_server = setup.batch_size * setup.n / setup.servers / (1.0 - pace.dropped)
    carried = 0.0
    if carries and setup.server.read_s > 0:
        ages = pace.tokens * np.arange(1, int(setup.lengths.longest / pace.tokens) + 2).astype(np.float64)
        carried = float(np.sum((1.0 - setup.lengths.cdf(ages)) * (ages + setup.prompt_tokens)))
    reading = setup.server.read_s * per_server * (setup.prompt_tokens + carried)
    return setup.server.t0 * pace.tokens + setup.server.t1 * per_server * mean_of(setup.lengths) + reading


def _root(falling: Callable[[float], float], low: float, high: float, halvings: int = _HALVINGS) -> float:
    """Where a falling function crosses zero in [low, high]; an end of it when it does not."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
