"""Pairs for tasks whose rows have one right answer: that answer against a wrong one. Invariant: a function of the rows,
the seed and the stream; no rejected response is right, nor is one that only looks different, unless the row's verifier
calls it wrong.

A policy that is trained on a reward model finds whatever the model was never shown, so wrong answers are of every kind
that a sampler makes: another row's answer, a number close by, any number, the own one with a slip, noise or nothing,
and one that does not end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from verl_core.data.row import DatasetRow
from verl_core.errors import DataError

_LONGEST_NOISE = 3  # characters beyond the longest answer
_NEAR = 3
_WHOLE = re.compile(r"-?\d+")

Right = Callable[[DatasetRow, str], bool]


def pairs_of(
    rows: Sequence[DatasetRow], count: int, seed: Sequence[int], longest: int, right: Right
) -> list[dict[str, Any]]:
    """`count` records {prompt, chosen, rejected, rejected_stop} over rows drawn with repetition.

    Args:
        longest: data.max_response_length; a response that is cut off has so many characters.
        right: whether a response is right that differs from the ground truth in spaces, case, a plus or leading zeros
            alone.

    Raises:
        DataError: a row has no ground truth, or all have the same.
    """
    for row in rows:
        if row.ground_truth is None:
            raise DataError(f"{row.place}: no ground_truth; pairs are built of right answers as text")
    truths = sorted({str(row.ground_truth) for row in rows})
    if len(truths) < 2:
        raise DataError(f"all rows have the answer {truths}; there is nothing to tell apart; give train_files")
    maker = _Wrong(np.random.default_rng(list(seed)), truths, _alphabet(rows, truths), longest, right)
    return [maker.pair(rows[int(maker.random.integers(len(rows)))]) for _ in range(count)]


def _alphabet(rows: Sequence[DatasetRow], truths: Sequence[str]) -> list[str]:
    asked = {character for row in rows for character in str(row.messages[-1]["content"])}
    return sorted(asked | {character for truth in truths for character in truth})


class _Wrong:
    """Makes wrong answers of six kinds; most often those that a policy takes for right."""

    def __init__(
        self, random: np.random.Generator, truths: Sequence[str], alphabet: Sequence[str], longest: int, right: Right
    ) -> None:
        self.random, self._truths, self._alphabet, self._longest = random, truths, alphabet, longest
        self._right = right
        self._numbers = [truth for truth in truths if _WHOLE.fullmatch(truth)]
        self._signed = any(truth.startswith("-") for truth in self._numbers)
        self._kinds = (self._other, self._near, self._any, self._slip, self._nothing_or_noise, self._endless)
        self._shares = (0.4, 0.4, 0.06, 0.05, 0.05, 0.04)  # noise is told apart soon, and then teaches nothing

    def pair(self, row: DatasetRow) -> dict[str, Any]:
        """One record."""
        truth, wrong, stop = str(row.ground_truth), str(row.ground_truth), "stop"
        while stop == "stop" and self._passes(row, wrong, truth):
            wrong, stop = self._kinds[int(self.random.choice(len(self._kinds), p=self._shares))](truth)
        prompt = [{"role": str(entry["role"]), "content": str(entry["content"])} for entry in row.messages]
        return {"prompt": prompt, "chosen": truth, "rejected": wrong, "rejected_stop": stop}

    def _passes(self, row: DatasetRow, text: str, truth: str) -> bool:
        return text == truth or (_plain(text) == _plain(truth) and self._right(row, text))

    def _other(self, truth: str) -> tuple[str, str]:
        return self._truths[int(self.random.integers(len(self._truths)))], "stop"

    def _near(self, truth: str) -> tuple[str, str]:
        """A number that is off by a little, the mistake that is hardest to see; text has a slip instead."""
        if not _WHOLE.fullmatch(truth):
            return self._slip(truth)
        off = int(self.random.integers(1, _NEAR + 1)) * (1 if self.random.random() < 0.5 else -1)
        near = int(truth) + off
        return str(near if self._signed else abs(near)), "stop"

    def _any(self, truth: str) -> tuple[str, str]:
        """A number with as many digits as an answer may have, be it anybody's or nobody's; text has a slip instead."""
        if not _WHOLE.fullmatch(truth):
            return self._slip(truth)
        longest = max(len(answer.lstrip("-")) for answer in self._numbers)
        drawn = self.random.integers(10, size=int(self.random.integers(1, min(longest, self._longest) + 1)))
        sign = -1 if self._signed and self.random.random() < 0.5 else 1
        return str(sign * int("".join(map(str, drawn)))), "stop"

    def _slip(self, truth: str) -> tuple[str, str]:
        """One character more, less, or another."""
        at, how = int(self.random.integers(len(truth) + 1)), int(self.random.integers(3))
        if how == 0:
            return truth[:at] + self._letters(1) + truth[at:], "stop"
        return truth[:at] + (self._letters(1) if how == 1 else "") + truth[at + 1 :], "stop"

    def _noise(self, truth: str) -> tuple[str, str]:
        longest = max(len(answer) for answer in self._truths) + _LONGEST_NOISE
        return self._letters(int(self.random.integers(1, min(longest, self._longest) + 1))), "stop"

    def _nothing_or_noise(self, truth: str) -> tuple[str, str]:
        return ("", "stop") if self.random.random() < 0.5 else self._noise(truth)

    def _endless(self, truth: str) -> tuple[str, str]:
        """Begins right or wrong and is cut off."""
        begin = truth if self.random.random() < 0.5 else ""
        return (begin + self._letters(self._longest))[: self._longest], "length"

    def _letters(self, count: int) -> str:
        return "".join(self._alphabet[int(place)] for place in self.random.integers(len(self._alphabet), size=count))


def _plain(text: str) -> str:
    """Without spaces, case, a plus before it and leading zeros: what many verifiers overlook."""
    return re.sub(r"(?<![\d.])0+(?=\d)", "", "".join(text.split()).casefold().removeprefix("+"))
