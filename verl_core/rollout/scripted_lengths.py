"""Lengths of scripted responses. Invariant: a length depends on the seed of the run and on the request's id, on nothing
else: not on weights, nor on where the request was cut off, nor on what ran beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from verl_core.config.schema import RunConfig
from verl_core.rollout.seeds import request_seed

_Z99 = NormalDist().inv_cdf(0.99)
_SALT = "length"  # or the length would be a function of the noise that the first token is drawn with


@dataclass(frozen=True)
class LengthDraw:
    """Log-normal with a given median and 99th percentile: ln L ~ N(ln median, s^2), s = ln(p99 / median) / 2.326,
    rounded to a whole number of tokens in [1, cap].

    Attributes:
        median, p99: tokens, before rounding and cap.
        cap: tokens; longer draws become this long.
        seed: rollout.seed.
    """

    median: float
    p99: float
    cap: int
    seed: int

    @property
    def sigma(self) -> float:
        """Standard deviation of ln L."""
        return math.log(self.p99 / self.median) / _Z99

    def of(self, request_id: str) -> int:
        """Tokens of the response, the end token included.

        Args:
            request_id: of the whole request, `{uid}_{session}`; its attempts share it.
        """
        bits = request_seed(self.seed, f"{_SALT}|{request_id}", 0) >> 11
        share = (bits + 0.5) / 2**52  # in (0, 1): neither end is reached
        return max(1, min(self.cap, round(self.median * math.exp(self.sigma * NormalDist().inv_cdf(share)))))


def length_draw(config: RunConfig) -> LengthDraw | None:
    """What rollout.scripted_lengths asks for; None = the policy itself ends its responses."""
    rollout = config.actor_rollout_ref.rollout
    asked = rollout.scripted_lengths
    if asked.median <= 0:
        return None
    return LengthDraw(asked.median, asked.p99, asked.cap or config.data.max_response_length, rollout.seed)
