"""The calculator against Python's own arithmetic, and against everything that is not arithmetic."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.tools.calculator import Calculator, value_of

NUMBER = st.integers(0, 10**6).map(str)


@given(
    st.recursive(
        NUMBER, lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})")
    )
)
def test_whole_numbers_are_pythons(expression: str) -> None:
    if len(expression) <= 200:
        assert value_of(expression) == eval(expression)  # noqa: S307


@pytest.mark.parametrize(
    ("expression", "text"),
    [("37*48", "1776"), ("1/3+1/6", "1/2"), ("7//2", "3"), ("-7%4", "1"), (" 2**10 ", "1024"), ("2**-2", "1/4"),
     ("0.1+0.2", "3/10"), ("+-3", "-3")],
)  # fmt: skip
def test_by_hand(expression: str, text: str) -> None:
    assert asyncio.run(Calculator().call({"e": expression})) == text


@pytest.mark.parametrize(
    "expression",
    ["", "1+", "a", "__import__('os')", "1 if 1 else 2", "[1]", "1<2", "True", "'a'*3", "1;2", "1/0", "0**-1", "2**0.5",
     "9**9**9", "2**65", "(10**60)**60", "1+" * 150 + "1", "1j", "1e400", "\x00"],
)  # fmt: skip
def test_what_is_no_arithmetic(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        value_of(expression)


def test_results_are_exact() -> None:
    assert value_of("10**40+1") == Fraction(10**40 + 1)
