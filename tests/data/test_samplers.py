"""The difficulty sampler: weights by hand, draws as often as the weights say, state that is whole."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.data.test_stream import rows_of
from verl_core.config import names
from verl_core.config.schema import SamplingConfig
from verl_core.data.sampled_order import SampledOrder
from verl_core.data.samplers import load_sampler
from verl_core.data.samplers.difficulty import DifficultySampler
from verl_core.data.samplers.registry import built_in
from verl_core.data.stream import PromptStream
from verl_core.errors import ConfigError, DataError


def test_weights_by_hand() -> None:
    sampler = DifficultySampler(rows_of(4), seed=1, momentum=0.5, floor=0.1, prior=0.5)
    assert sampler.weight(0) == pytest.approx(1.1)
    sampler.update({0: 1.0, 1: 0.25, 2: 7.0})
    assert [sampler.weight(row) for row in range(4)] == pytest.approx([0.1, 0.1 + 4 * 0.25 * 0.75, 0.1, 1.1])
    sampler.update({0: 0.0, 1: 0.75})  # 1 -> 0.5, 0.25 -> 0.5
    assert [sampler.weight(row) for row in (0, 1)] == pytest.approx([1.1, 1.1])


def test_rows_are_drawn_as_often_as_their_weights_say() -> None:
    sampler = DifficultySampler(rows_of(4), seed=3, floor=0.1)
    sampler.update({0: 1.0, 1: 0.0, 2: 0.5, 3: 0.25})
    counts = Counter(sampler.draw() for _ in range(4000))
    weights = [0.1, 0.1, 1.1, 0.85]
    for row, weight in enumerate(weights):
        expected = weight / sum(weights)
        assert abs(counts[row] / 4000 - expected) < 4 * (expected * (1 - expected) / 4000) ** 0.5


def test_a_state_goes_through_json_and_gives_the_same_draws() -> None:
    sampler = DifficultySampler(rows_of(20), seed=5)
    for _ in range(7):
        sampler.draw()
    sampler.update({3: 1 / 3, 11: 0.1})
    state = json.loads(json.dumps(sampler.state_dict()))
    other = DifficultySampler(rows_of(20), seed=5)
    other.load_state_dict(state)
    assert [sampler.draw() for _ in range(50)] == [other.draw() for _ in range(50)]
    fresh = DifficultySampler(rows_of(20), seed=6)
    assert [fresh.draw() for _ in range(50)] != [DifficultySampler(rows_of(20), seed=5).draw() for _ in range(50)]


class Backwards:
    """A user's own: from the last row to the first, around and around."""

    def __init__(self, rows: Any, seed: int, step: int = 1) -> None:
        self.count, self.step, self.at = len(rows), step, 0

    def draw(self) -> int:
        self.at += self.step
        return self.count - 1 - (self.at - self.step) % self.count

    def update(self, outcomes: Any) -> None:
        """Learns nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class NoSampler:
    """Lacks everything."""

    def __init__(self, rows: Any, seed: int) -> None:
        pass


def own(path: str, **kwargs: Any) -> SamplingConfig:
    return SamplingConfig(class_path=path, kwargs=kwargs)


def test_a_users_own_class_serves_a_stream() -> None:
    rows = rows_of(5)
    sampler = load_sampler(own(f"{__name__}.Backwards", step=2), rows, 1)
    assert sampler is not None
    order = SampledOrder(sampler, 5, 2)
    stream = PromptStream(rows, 2, seed=1, shuffle=True, n=2, sampled=(order, {"name": "mine"}))
    assert [prompt.row for prompt in stream.take(4, 1)] == [4, 2, 0, 3]
    stream.seek(1)
    assert [prompt.row for prompt in stream.take(2, 1)] == [2, 0]  # drawn once, whoever asks
    assert stream.row_at(3).row == 3
    assert stream.identity()["sampler"] == {"name": "mine"}
    with pytest.raises(DataError, match="no process of this run drew prompt 4"):
        stream.row_at(4)


def test_what_cannot_be_made_is_refused() -> None:
    for config, message in (
        (own("nothing.here.Sampler"), "cannot import 'nothing.here.Sampler'"),
        (own(f"{__name__}.rows_of"), "is not a class"),
        (own(f"{__name__}.NoSampler"), "NoSampler has no draw"),
        (own(f"{__name__}.Backwards", stride=3), "but got an unexpected keyword argument 'stride'"),
        (SamplingConfig(name="difficulty", kwargs={"floor": 0.0}), "difficulty needs 0 < momentum <= 1, floor > 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_sampler(config, rows_of(5), 1)
    assert load_sampler(SamplingConfig(), rows_of(5), 1) is None
    assert tuple(built_in()) == names.SAMPLERS


def test_a_sampler_outside_the_rows_is_told() -> None:
    order = SampledOrder(Backwards(rows_of(9), 1), 5, 2)
    with pytest.raises(DataError, match="drew row 8; there are rows 0 to 4"):
        order.row_of(0)
