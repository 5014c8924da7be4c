"""maj@k against the enumeration of all subsets, and by hand."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.validation.test_metrics import output, prompt, scored
from verl_core.trajectory import Reward
from verl_core.validation.majority import Vote, majority_of
from verl_core.validation.metrics import validation_metrics

VOTES = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.floats(-2, 2)), min_size=1, max_size=7)


def enumerated(votes: list[Vote], k: int) -> float:
    """Slow literal form: every subset of k once; an answer is worth the mean score of all that gave it."""
    named = [(number if answer is None else answer, score) for number, (answer, score) in enumerate(votes)]
    worth: dict[Any, float] = {}
    for answer, _ in named:
        given_ = [score for other, score in named if other == answer]
        worth[answer] = sum(given_) / len(given_)
    found = []
    for subset in combinations(named, k):
        counts = Counter(answer for answer, _ in subset)
        winners = [answer for answer, count in counts.items() if count == max(counts.values())]
        found.append(sum(worth[answer] for answer in winners) / len(winners))
    return sum(found) / len(found)


@given(VOTES, st.data())
def test_the_majority_equals_the_enumeration_of_all_subsets(votes: list[Vote], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(votes)))
    assert majority_of(votes, k) == pytest.approx(enumerated(votes, k), abs=1e-9)


@given(VOTES)
def test_one_session_is_the_mean(votes: list[Vote]) -> None:
    assert majority_of(votes, 1) == pytest.approx(sum(score for _, score in votes) / len(votes), abs=1e-9)


def test_by_hand() -> None:
    votes: list[Vote] = [("7", 1.0), ("7", 1.0), ("8", 0.0)]
    assert majority_of(votes, 3) == 1.0
    assert majority_of(votes, 2) == pytest.approx((1 + 0.5 + 0.5) / 3)  # 77, 78, 78
    assert majority_of([("7", 1.0), ("8", 0.0), ("9", 0.0), (None, 0.0)], 4) == 0.25
    many: list[Vote] = [(str(number % 5), float(number % 5 == 0)) for number in range(64)]
    assert 0.19 < majority_of(many, 32) < 0.9


@pytest.mark.parametrize("k", [0, 3])
def test_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= 2"):
        majority_of([("a", 1.0), ("b", 0.0)], k)


def test_maj_is_told_where_answers_are_named_and_a_failed_session_counts_as_zero_on_its_own() -> None:
    # a: 7 7 8 and a failure   b: 3 3 3, and one that could not be scored
    answers = {"a": ["7", "7", "8"], "b": ["3", "3", "3"]}
    rewards = {
        f"{uid}_{s}_0": scored(f"{uid}_{s}_0", float(answer in "73"), pred=answer)
        for uid, row in answers.items()
        for s, answer in enumerate(row)
    }
    rewards["b_3_0"] = Reward("b_3_0", 0.0, {"pred": "3"}, "timeout", "slow")
    rows = [output(uid, s, "sums") for uid in "ab" for s in range(3 + (uid == "b"))]
    metrics = validation_metrics([prompt("a", "sums", 4), prompt("b", "sums", 4)], rows, rewards)
    assert metrics["val-core/sums/reward/maj@4/mean"] == 1.0
    # pairs of a: 77 = 1; 78, 78, 7-, 7- = 1/2 each; 8- = 0. Of b: 33 three times = 1; 3- three times = 1/2.
    assert metrics["val-aux/sums/reward/maj@2/mean"] == pytest.approx((3 / 6 + 4.5 / 6) / 2)
    assert (metrics["val-aux/sums/failed"], metrics["val-aux/sums/quarantined"]) == (1.0, 1.0)
    unnamed = validation_metrics([prompt("a", "x", 2)], [output("a", 0, "x")], {"a_0_0": scored("a_0_0", 1.0)})
    assert not [name for name in unnamed if "maj" in name]
