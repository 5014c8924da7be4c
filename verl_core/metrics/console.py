"""Console: one line per step, and on a terminal a progress bar below the lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from verl_core.metrics import headline
from verl_core.metrics.headline import duration, pick, short
from verl_core.metrics.pace import Pace
from verl_core.metrics.sink import RunInfo


class ConsoleSink:
    """Args:
    stream: default stdout. A bar is drawn only when it is a terminal; elsewhere the lines are all there is.
    """

    def __init__(self, run: RunInfo, stream: TextIO | None = None) -> None:
        from tqdm import tqdm

        self._stream = stream or sys.stdout
        self._run, self._pace = run, Pace(run.total_steps)
        self._is_terminal = self._stream.isatty()
        self._bar = tqdm(
            total=run.total_steps,
            initial=run.done_steps,
            desc=run.name,
            unit="step",
            file=self._stream,
            disable=not self._is_terminal,
            dynamic_ncols=True,
            bar_format="{desc} {bar} {n}/{total} {postfix}",
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._pace.mark(step)
        for line in self._lines(step, metrics):
            if self._is_terminal:
                self._bar.write(line, file=self._stream)
            else:
                self._stream.write(line + "\n")
        self._bar.set_postfix_str(self._postfix(metrics), refresh=False)
        self._bar.n = step
        self._bar.refresh()
        self._stream.flush()

    def close(self) -> None:
        self._bar.close()

    def _lines(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        width = len(str(self._run.total_steps))
        start = f"step {step:>{width}}/{self._run.total_steps}"
        parts = [f"{label} {short(value)}" for label, value in self._numbers(metrics) if value is not None]
        if lost := metrics.get(headline.UNSCORED):
            parts.insert(1, f"unscored {lost:.0f}")
        if step and self._pace.left is not None:
            parts.append(f"left {duration(self._pace.left)}")
        scores = [f"{name} {short(value)}" for name, value in sorted(headline.validation(metrics).items())]
        lines = [f"{start}  " + "  ".join(parts)] if parts else []
        return lines + ([f"{start}  validation: " + "  ".join(scores)] if scores else [])

    def _numbers(self, metrics: Mapping[str, float]) -> list[tuple[str, float | None]]:
        return [
            ("reward", pick(metrics, headline.REWARD)),
            ("loss", pick(metrics, headline.LOSS)),
            ("kl", pick(metrics, headline.KL)),
            ("entropy", pick(metrics, headline.ENTROPY)),
            ("length", pick(metrics, headline.LENGTH)),
            ("tokens/s", pick(metrics, headline.TOKENS_PER_S)),
            ("s/step", pick(metrics, headline.STEP_SECONDS)),
            *_rollout(metrics),
        ]

    def _postfix(self, metrics: Mapping[str, float]) -> str:
        reward, speed, left = pick(metrics, headline.REWARD), pick(metrics, headline.TOKENS_PER_S), self._pace.left
        parts = [
            "" if reward is None else f"reward {short(reward)}",
            "" if speed is None else f"{short(speed)} tokens/s",
            "" if left is None else f"{duration(left)} left",
        ]
        return ", ".join(part for part in parts if part)


def _rollout(metrics: Mapping[str, float]) -> list[tuple[str, float | None]]:
    """The other side of an asynchronous run; nothing in a synchronous one."""
    if "buffer/in_flight" not in metrics:
        return []
    return [
        ("in flight", metrics["buffer/in_flight"]),
        ("ready", metrics.get("buffer/ready")),
        ("stale", metrics.get("training/staleness/mean")),
        ("dropped", metrics.get("buffer/dropped")),
    ]
