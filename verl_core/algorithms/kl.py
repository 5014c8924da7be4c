"""Per-token estimators of KL(pi, reference) from one sampled token. Registry of `algorithm.kl_penalty` and
`actor.kl_loss_type`.

With x = log pi(a) - log ref(a) and a drawn from pi, every estimator here has a value; only some have a useful
gradient. A name with a trailing `+` keeps the value of its base and takes the gradient of k2 = x^2 / 2, whose
expected gradient is that of the KL itself (k1's is 0, k3's is that of KL(reference, pi), the other direction).

Source: J. Schulman, "Approximating KL divergence" (2020); Tang and Munos 2025, arXiv 2506.09477 (gradients).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from verl_core.algorithms.registry import Registry

KLEstimator = Callable[[torch.Tensor], torch.Tensor]

KL_ESTIMATORS: Registry[KLEstimator] = Registry("KL estimator", "kl_penalty / kl_loss_type")

EXPONENT_LIMIT, VALUE_LIMIT = 20.0, 10.0


@KL_ESTIMATORS.register("kl")
@KL_ESTIMATORS.register("k1")
def k1(x: torch.Tensor) -> torch.Tensor:
    """k1 = x: unbiased, may be negative. Its expected gradient is 0: use it in rewards, not in losses."""
    return x


@KL_ESTIMATORS.register("abs")
def absolute(x: torch.Tensor) -> torch.Tensor:
    """|x|: a biased distance."""
    return x.abs()


@KL_ESTIMATORS.register("mse")
@KL_ESTIMATORS.register("k2")
def k2(x: torch.Tensor) -> torch.Tensor:
    """k2 = x^2 / 2: biased value of low variance, unbiased gradient."""
    return 0.5 * x.square()


@KL_ESTIMATORS.register("low_var_kl")
@KL_ESTIMATORS.register("k3")
def k3(x: torch.Tensor) -> torch.Tensor:
    """k3 = e^(-x) - 1 + x: unbiased, never negative. x is clamped to +-20 and the value to +-10, where the gradient
    stops.
    """
    x = x.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    return (torch.exp(-x) - 1 + x).clamp(-VALUE_LIMIT, VALUE_LIMIT)


class _SlopeOfK2(torch.autograd.Function):
    """The value it is given, with x as its derivative to x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        return slopes[0] * ctx.saved_tensors[0], None


def _straight_through(base: KLEstimator) -> KLEstimator:
    def estimator(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = _SlopeOfK2.apply(x, base(x.detach()))  # type: ignore[no-untyped-call]
        return value

    estimator.__qualname__ = f"{base.__name__}_straight_through"
    return estimator


for _base in KL_ESTIMATORS.names():
    KL_ESTIMATORS.register(f"{_base}+")(_straight_through(KL_ESTIMATORS.get(_base)))


def kl_penalty(name: str, log_probs: torch.Tensor, ref_log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float32 [B, T] nats, 0 where the mask is False.

    Args:
        name: key of `KL_ESTIMATORS`.
        log_probs, ref_log_probs: float32 [B, T], of the sampled tokens.
        mask: bool [B, T].
    """
    return KL_ESTIMATORS.get(name)(torch.where(mask, log_probs - ref_log_probs, 0.0))  # each of them is 0 at 0
