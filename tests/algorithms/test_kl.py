"""KL estimators: values by hand, clamps, straight-through forms, masks."""

from __future__ import annotations

import math

import pytest
import torch

from verl_core.algorithms.kl import KL_ESTIMATORS, kl_penalty

BASES = ("kl", "abs", "mse", "low_var_kl")
ALIASES = (("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3"))


def value_and_slope(name: str, x: float) -> tuple[float, float]:
    log_probs = torch.tensor([[x]], requires_grad=True)
    out = kl_penalty(name, log_probs, torch.zeros(1, 1), torch.ones(1, 1).bool())
    out.sum().backward()
    assert log_probs.grad is not None
    return out.item(), log_probs.grad.item()


@pytest.mark.parametrize(
    ("name", "x", "value", "slope"),
    [
        ("kl", -0.5, -0.5, 1.0),
        ("abs", -0.5, 0.5, -1.0),
        ("mse", -0.5, 0.125, -0.5),
        ("low_var_kl", 0.5, math.exp(-0.5) - 1 + 0.5, 1 - math.exp(-0.5)),
        ("low_var_kl", -1.0, math.e - 1 - 1, 1 - math.e),
        ("low_var_kl", -5.0, 10.0, 0.0),  # e^5 - 6 = 142 is clamped to 10, the gradient stops
        ("low_var_kl", -500.0, 10.0, 0.0),  # the exponent is clamped first: no inf, no NaN
        ("low_var_kl", 500.0, 10.0, 0.0),
    ],
)
def test_values_and_slopes(name: str, x: float, value: float, slope: float) -> None:
    assert value_and_slope(name, x) == pytest.approx((value, slope), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("base", [*BASES, *(alias for _, alias in ALIASES)])
@pytest.mark.parametrize("x", [-30.0, -0.7, 0.0, 0.3, 2.0])
def test_plus_has_the_value_of_its_base_and_the_gradient_of_k2(base: str, x: float) -> None:
    value, slope = value_and_slope(f"{base}+", x)
    assert value == pytest.approx(value_and_slope(base, x)[0], rel=1e-6)
    assert slope == pytest.approx(x, rel=1e-6)


@pytest.mark.parametrize(("name", "alias"), ALIASES)
def test_aliases_are_the_same_function(name: str, alias: str) -> None:
    assert KL_ESTIMATORS.get(name) is KL_ESTIMATORS.get(alias)


@pytest.mark.parametrize("name", KL_ESTIMATORS.names())
def test_masked_nan_reaches_neither_value_nor_gradient(name: str) -> None:
    log_probs = torch.tensor([[0.4, float("nan"), 1.0]], requires_grad=True)
    ref = torch.tensor([[0.1, 0.0, float("nan")]])
    out = kl_penalty(name, log_probs, ref, torch.tensor([[True, False, False]]))
    out.sum().backward()
    assert log_probs.grad is not None
    assert out[0, 1:].tolist() == [0.0, 0.0]
    assert log_probs.grad[0, 1:].tolist() == [0.0, 0.0]
    assert math.isfinite(out[0, 0].item())
    assert math.isfinite(log_probs.grad[0, 0].item())
