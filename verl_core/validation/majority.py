"""maj@k: the score of the answer that most of k sessions give, as an exact expectation. Invariant: no sampling; answers
that tie for the most votes share equally.

Over all subsets of k of the n sessions, drawn without replacement: with answers a of c_a sessions and mean score s_a,

    maj@k = sum over subsets of the mean of s_a over its most frequent answers / C(n, k).

For each number t of votes that wins, the subsets in which no answer has more than t are counted answer by answer: with
c_a sessions answer a takes 0..min(c_a, t) places, in C(c_a, places) ways. verl draws 1,000 bootstrap samples instead,
and gives a tie to the answer that it met first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import comb

Vote = tuple[str | None, float]  # answer (None = one of its own), score
_Table = dict[
    tuple[int, int], tuple[int, float]
]  # (sessions taken, answers with t votes) -> (ways, sum of their scores)


def majority_of(votes: Sequence[Vote], k: int) -> float:
    """Expected score of the majority of k.

    Raises:
        ValueError: k is not in 1..len(votes).
    """
    if not 1 <= k <= len(votes):
        raise ValueError(f"the majority of k needs 1 <= k <= {len(votes)}, got {k}")
    answers = _answers(votes)
    total = 0.0
    for t in range(1, min(k, max(count for count, _ in answers)) + 1):
        total += sum(
            scores / ties for (taken, ties), (_, scores) in _subsets(answers, k, t).items() if taken == k and ties
        )
    return total / comb(len(votes), k)


def _answers(votes: Sequence[Vote]) -> list[tuple[int, float]]:
    """(sessions, mean score) of each distinct answer."""
    scores: dict[str | int, list[float]] = defaultdict(list)
    for number, (answer, score) in enumerate(votes):
        scores[number if answer is None else answer].append(score)
    return sorted((len(found), sum(found) / len(found)) for found in scores.values())


def _subsets(answers: Sequence[tuple[int, float]], k: int, t: int) -> _Table:
    """Subsets of up to k sessions in which no answer has more than t."""
    table: _Table = {(0, 0): (1, 0.0)}
    for count, score in answers:
        grown: dict[tuple[int, int], tuple[int, float]] = {}
        for (taken, ties), (ways, scores) in table.items():
            for places in range(min(count, t, k - taken) + 1):
                times = comb(count, places)
                place = (taken + places, ties + (places == t))
                more = scores + (score * ways if places == t else 0.0)
                old_ways, old_scores = grown.get(place, (0, 0.0))
                grown[place] = (old_ways + times * ways, old_scores + times * more)
        table = grown
    return table
