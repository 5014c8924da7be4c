"""How fast a mode could be at best, from the lengths that were drawn. Invariant: no schedule of any trainer on these
devices does the given work in less time than these functions say.

In all of them a device generates for `slots` requests at a time, each token of a request takes `token_s`, and training
takes what `Pace` says. A request's tokens come one after the other, so a response of L tokens takes L x token_s at
least; W tokens on m devices take W x token_s / (m x slots) at least, whoever samples them when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.modes.paced import Pace


@dataclass(frozen=True)
class Generators:
    """Devices that generate."""

    devices: int
    slots: int
    token_s: float

    def work_s(self, tokens: int) -> float:
        """Seconds for `tokens` tokens with no slot ever empty: tokens x token_s / (devices x slots)."""
        return tokens * self.token_s / (self.devices * self.slots)

    def makespan_s(self, lengths: Sequence[int]) -> float:
        """Seconds until the last of these responses ends, on empty devices: max(longest x token_s, work_s(sum)).

        The first term is the longest response; the second is the busiest device, which has at least its share of all
        tokens. A lower bound of the maximum over devices of what each has to do, whichever way requests are spread.
        """
        return max(max(lengths, default=0) * self.token_s, self.work_s(sum(lengths)))


@dataclass(frozen=True)
class StepWork:
    """What a step trains on.

    Attributes:
        lengths: tokens of its responses, as drawn.
        prompt_tokens: of its rows, all together.
    """

    lengths: tuple[int, ...]
    prompt_tokens: int

    @property
    def tokens(self) -> int:
        """That the trainer reads."""
        return sum(self.lengths) + self.prompt_tokens


@dataclass(frozen=True)
class Work:
    """What is done in a span of time.

    Attributes:
        sampled: tokens sampled in it. Over a whole run: the sum of all lengths.
        steps: what is trained on in it.
    """

    sampled: int
    steps: tuple[StepWork, ...]

    def training_s(self, pace: Pace) -> float:
        """Sum over the steps of Pace.step_s."""
        return sum(pace.step_s(step.tokens) for step in self.steps)


def sync_bound_s(work: Work, generators: Generators, pace: Pace) -> float:
    """Sum over steps of makespan_s(lengths of the step) + step_s(tokens of the step): the next step's first token needs
    this step's weights, and these need this step's last response. With devices of one kind apart, too: neither pool can
    do anything while the other works."""
    return sum(generators.makespan_s(step.lengths) + pace.step_s(step.tokens) for step in work.steps)


def colocate_bound_s(work: Work, generators: Generators, pace: Pace) -> float:
    """work_s(sampled) + sum of step_s: devices do one thing at a time, but no slot need be empty for a tail."""
    return generators.work_s(work.sampled) + work.training_s(pace)


def separate_bound_s(work: Work, generators: Generators, pace: Pace) -> float:
    """max(work_s(sampled), sum of step_s): each pool at its own rate, and the slower one decides."""
    return max(generators.work_s(work.sampled), work.training_s(pace))


BOUNDS = {"sync": sync_bound_s, "colocate_async": colocate_bound_s, "separate_async": separate_bound_s}
