"""The stream: a function of the ordinal, whatever way it is asked."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.data.order import epoch_order
from verl_core.data.row import DatasetRow, PromptRow
from verl_core.data.stream import PromptStream
from verl_core.data.uid import uid_of
from verl_core.errors import DataError
from verl_core.trajectory import Prompt


def rows_of(count: int, salt: int = 0) -> list[PromptRow]:
    return [
        PromptRow(
            DatasetRow(number, f"f, row {number}", [{"role": "user", "content": str(number)}], "s", str(number)),
            np.asarray([salt, number], dtype=np.int32),
        )
        for number in range(count)
    ]


def stream_of(
    count: int = 10, batch: int = 4, seed: int = 1, shuffle: bool = True, name: str = "train"
) -> PromptStream:
    return PromptStream(rows_of(count), batch, seed, shuffle, n=2, name=name)


def served(prompts: list[Prompt]) -> list[tuple[str, int, int]]:
    return [(prompt.uid, prompt.ordinal, prompt.row) for prompt in prompts]


sizes = st.tuples(st.integers(1, 30), st.integers(1, 30)).filter(lambda pair: pair[0] >= pair[1])


@given(sizes, st.integers(0, 2**32 - 1), st.booleans(), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_any_split_of_takes_gives_the_same_sequence(
    size: tuple[int, int], seed: int, shuffle: bool, splits: list[int]
) -> None:
    whole = stream_of(*size, seed=seed, shuffle=shuffle).take(sum(splits), step=1)
    stream = stream_of(*size, seed=seed, shuffle=shuffle)
    parts = [prompt for count in splits for prompt in stream.take(count, step=1)]
    assert served(parts) == served(whole)


@given(sizes, st.integers(0, 2**32 - 1), st.integers(0, 100), st.integers(1, 50))
def test_a_resumed_stream_goes_on_like_the_undisturbed_one(
    size: tuple[int, int], seed: int, before: int, after: int
) -> None:
    undisturbed = stream_of(*size, seed=seed)
    undisturbed.seek(before)
    state = json.loads(json.dumps(undisturbed.state()))
    resumed = stream_of(*size, seed=seed)
    resumed.take(3, step=1)
    assert state == {"ordinal": before, **resumed.identity()}
    resumed.seek(state["ordinal"])
    assert resumed.ordinal == before
    assert served(resumed.take(after, step=2)) == served(undisturbed.take(after, step=2))


@given(sizes, st.integers(0, 2**32 - 1), st.lists(st.integers(0, 200), max_size=6))
def test_seeking_in_any_order_gives_what_counting_gives(size: tuple[int, int], seed: int, visits: list[int]) -> None:
    counted = stream_of(*size, seed=seed).take(201, step=1)
    jumping = stream_of(*size, seed=seed)
    for ordinal in visits:
        jumping.seek(ordinal)
        assert served(jumping.take(1, step=1)) == served([counted[ordinal]])


@given(sizes, st.integers(0, 2**32 - 1))
def test_an_epoch_serves_whole_batches_and_no_row_twice(size: tuple[int, int], seed: int) -> None:
    rows, batch = size
    stream = stream_of(rows, batch, seed)
    assert stream.steps_per_epoch == rows // batch
    for epoch in range(3):
        assert stream.epoch == epoch
        prompts = stream.take(rows // batch * batch, step=1)
        assert max(Counter(prompt.row for prompt in prompts).values()) == 1


def test_without_shuffle_rows_come_in_file_order_every_epoch() -> None:
    assert [prompt.row for prompt in stream_of(5, 2, shuffle=False).take(8, 1)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_epochs_and_seeds_have_different_orders_and_rows_change_places() -> None:
    orders = {tuple(epoch_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert all(sorted(order) == list(range(50)) for order in orders)
    first = Counter(int(epoch_order(4, seed, 0)[0]) for seed in range(400))
    assert all(70 < first[row] < 130 for row in range(4))  # 100 each expected, standard deviation 8.7


def test_the_order_is_pinned() -> None:
    """From `random_raw` of PCG64(SeedSequence([7, 2])), sorted by hand; a change would break every checkpoint."""
    words = np.random.PCG64(np.random.SeedSequence([7, 2])).random_raw(5).tolist()
    assert epoch_order(5, 7, 2).tolist() == [words.index(word) for word in sorted(words)] == PINNED


def test_a_seed_of_several_numbers_is_a_stream_of_its_own() -> None:
    words = np.random.PCG64(np.random.SeedSequence([7, 3, 2])).random_raw(5).tolist()
    assert epoch_order(5, (7, 3), 2).tolist() == [words.index(word) for word in sorted(words)]
    assert epoch_order(50, (7, 3), 2).tolist() != epoch_order(50, 7, 2).tolist()


PINNED = [4, 0, 1, 3, 2]


def test_a_prompt_carries_its_row() -> None:
    prompt = stream_of(3, 3, shuffle=False).take(3, step=9)[2]
    assert (prompt.row, prompt.ordinal, prompt.step, prompt.n, prompt.attempt) == (2, 2, 9, 2, 0)
    assert prompt.token_ids.tolist() == [0, 2]
    assert (prompt.data_source, prompt.ground_truth, prompt.messages[0]["content"]) == ("s", "2", "2")
    assert not prompt.validation
    assert prompt.uid == prompt.base_uid


def test_uids_are_hex_deterministic_and_distinct() -> None:
    # printf 'train/1/5/0' | sha256sum | cut -c1-32
    assert uid_of(1, 5) == "6b9263e035ff73a7b5b00b1b14750ae9"
    uids = {uid_of(s, o, a, n) for s in range(3) for o in range(20) for a in range(3) for n in ("train", "val")}
    assert len(uids) == 360
    assert all(len(uid) == 32 and set(uid) <= set("0123456789abcdef") for uid in uids)


def test_training_and_validation_share_no_uid() -> None:
    ours = {prompt.uid for prompt in stream_of().take(100, 1)}
    assert ours.isdisjoint(prompt.uid for prompt in stream_of(name="val").take(100, 1))


def test_a_reissue_is_the_same_prompt_under_a_new_uid() -> None:
    stream = stream_of()
    first = stream.take(3, step=1)[2]
    second = stream.reissue(first)
    third = stream.reissue(second)
    assert (second.attempt, third.attempt) == (1, 2)
    assert first.base_uid == second.base_uid == third.base_uid == first.uid
    assert len({first.uid, second.uid, third.uid}) == 3
    assert second.uid == uid_of(1, 2, 1)
    assert (second.row, second.ordinal, second.step) == (first.row, first.ordinal, first.step)
    assert second.token_ids is first.token_ids


def test_other_data_and_another_order_have_another_identity() -> None:
    ours = stream_of(10, 4).identity()
    assert json.loads(json.dumps(stream_of(10, 4).identity())) == ours

    def differing(other: PromptStream) -> set[str]:
        return {key for key, value in other.identity().items() if ours[key] != value}

    assert differing(stream_of(11, 4)) == {"rows", "fingerprint"}
    assert differing(stream_of(10, 4, seed=2)) == {"seed"}
    assert differing(stream_of(10, 5)) == {"batch_size"}
    assert differing(stream_of(10, 4, shuffle=False)) == {"shuffle"}
    assert differing(stream_of(10, 4, name="val")) == {"name"}
    assert differing(PromptStream(rows_of(10, salt=1), 4, 1, True, n=2)) == {"fingerprint"}


@pytest.mark.parametrize(
    "change",
    [
        {"ground_truth": "other"},
        {"data_source": "other"},
        {"extra_info": {"index": 1}},
        {"messages": [{"role": "user", "content": "other"}]},
        {"row": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_identity_covers_what_scoring_sees(change: dict[str, Any]) -> None:
    rows = rows_of(4)
    changed = [*rows[:-1], replace(rows[-1], source=replace(rows[-1].source, **change))]
    same = PromptStream(rows_of(4), 4, 1, True, n=2)
    other = PromptStream(changed, 4, 1, True, n=2)
    assert same.identity() == PromptStream(rows, 4, 1, True, n=2).identity()
    assert {key for key, value in same.identity().items() if other.identity()[key] != value} == {"fingerprint"}


def test_values_that_json_does_not_know_have_an_identity() -> None:
    def stamped(day: int) -> dict[str, Any]:
        row = rows_of(1)[0]
        extra = {"day": date(2026, 1, day), "raw": b"x"}
        return PromptStream([replace(row, source=replace(row.source, extra_info=extra))], 1, 1, True, n=2).identity()

    assert stamped(1) == stamped(1) != stamped(2)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(DataError, match="3 rows do not fill one batch of 4"):
        stream_of(3, 4)
    with pytest.raises(ValueError, match="at least one prompt"):
        stream_of().take(0, 1)
    with pytest.raises(ValueError, match="ordinals start at 0"):
        stream_of().seek(-1)
