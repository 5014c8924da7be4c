"""Random trajectories and rewards for the tests of the record."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from verl_core.trajectory import Prompt, Reward, Segment, StopReason, Trajectory

STOPS: tuple[StopReason, ...] = ("stop", "length", "abort", "error")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
JSON_OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Any legal trajectory: empty prompts and responses, NaN log-probs, several segments included."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    size = sum(lengths)
    log_probs = rng.normal(size=size).astype(np.float32)
    log_probs[rng.random(size) < 0.2] = np.nan
    return Trajectory(
        uid=draw(st.text("0123456789abcdef", min_size=1, max_size=8)),
        session=draw(st.integers(0, 7)),
        index=draw(st.integers(0, 3)),
        ordinal=draw(st.integers(0, 2**40)),
        prompt_ids=rng.integers(0, 2**31 - 1, draw(st.integers(0, 5))).astype(np.int32),
        response_ids=rng.integers(0, 2**31 - 1, size).astype(np.int32),
        response_mask=rng.random(size) < 0.7,
        rollout_log_probs=log_probs,
        segments=tuple(Segment(draw(st.integers(0, 9)), length) for length in lengths),
        stop_reason=draw(st.sampled_from(STOPS)),
        data_source=draw(st.text(max_size=10)),
        num_turns=draw(st.integers(1, 5)),
        extra=draw(JSON_OBJECTS),
    )


@st.composite
def rewards(draw: st.DrawFn) -> Reward:
    """Any legal reward."""
    status = draw(st.sampled_from(("ok", "raised", "timeout", "not_finite", "bad_type")))
    score = 0.0 if status != "ok" else draw(st.floats(allow_nan=False, allow_infinity=False))
    return Reward(draw(st.text(max_size=8)), score, draw(JSON_OBJECTS), status, draw(st.text(max_size=9)))


def trajectory(uid: str = "ab", session: int = 0, ordinal: int = 0, response: int = 20, seed: int = 0) -> Trajectory:
    """One plain trajectory of `response` tokens."""
    rng = np.random.default_rng(seed)
    return Trajectory(
        uid=uid,
        session=session,
        index=0,
        ordinal=ordinal,
        prompt_ids=rng.integers(0, 100, 9).astype(np.int32),
        response_ids=rng.integers(0, 100, response).astype(np.int32),
        response_mask=np.ones(response, np.bool_),
        rollout_log_probs=-rng.random(response).astype(np.float32),
        segments=(Segment(3, response),),
        stop_reason="stop",
        data_source="one_digit_sums",
    )


def prompt(uid: str = "ab", ordinal: int = 0, **changes: Any) -> Prompt:
    """One plain prompt."""
    values: dict[str, Any] = {
        "uid": uid,
        "base_uid": uid,
        "attempt": 0,
        "row": 5,
        "ordinal": ordinal,
        "step": 1,
        "n": 2,
        "token_ids": np.arange(4, dtype=np.int32),
        "data_source": "one_digit_sums",
        "ground_truth": {"answer": "7"},
        "messages": [{"role": "user", "content": "3+4="}],
    }
    return Prompt(**{**values, **changes})


def equal(left: Trajectory, right: Trajectory) -> bool:
    """Equality of all fields, bit for bit."""
    for name in Trajectory.__dataclass_fields__:
        a, b = getattr(left, name), getattr(right, name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or a.tobytes() != b.tobytes():
                return False
        elif a != b:
            return False
    return True
