"""SamplingBook: a sampler's state through the steps of a run. Invariant: a process that takes over draws what the one
before it drew: what a step drew and the state after it are a file of the step, and what the sampler learns from a step
is read from that step's files, by whoever serves the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from verl_core.data.sampled_order import SampledOrder
from verl_core.errors import RecordError
from verl_core.trajectory import Reward, Trajectory, last_outputs
from verl_core.transfer.flight import Group


class SamplingFiles(Protocol):
    """Where it is kept."""

    def sampling(self, step: int) -> dict[str, Any] | None:
        """What `save_sampling` kept of the step; None when it kept nothing."""

    def save_sampling(self, step: int, kept: dict[str, Any]) -> None:
        """Durable when it returns."""


class SamplingBook:
    """Args:
    start_step: step of the weights that the run starts from.
    start: `after` of that step, from the checkpoint the run starts from; None = nothing was drawn.
    outcomes: mean score of each ordinal that a step trained on, from its files.
    greedy_session: `RunConfig.greedy_session`, which says nothing of how often a prompt is solved.
    """

    def __init__(
        self,
        order: SampledOrder,
        files: SamplingFiles,
        start_step: int,
        start: Mapping[str, Any] | None,
        outcomes: Callable[[int], Mapping[int, float]],
        greedy_session: int | None = None,
    ) -> None:
        self._order, self._files, self._outcomes, self._greedy = order, files, outcomes, greedy_session
        self._start_step = start_step
        self._start = start or {"rows": [], "state": order.state()}
        self._step, self._told, self._known = -1, False, 0
        self._scores: dict[int, float] = {}

    def begin(self, step: int) -> None:
        """Before anything is drawn for `step`."""
        if self._step != step - 1:
            self._load(step - 1)
        if not self._told and step - 1 > self._start_step:
            self._order.update(self._learnt(step - 1))
        self._told = True

    def note(self, groups: Sequence[Group]) -> None:
        """Groups that were scored while the step is sampled, whatever becomes of them."""
        for group in groups:
            self._scores |= mean_scores(group.trajectories, group.rewards, self._greedy)

    def close(self, step: int, open_ordinals: Sequence[int]) -> None:
        """The step's groups are chosen. Call it before its trajectories are published."""
        waiting = set(open_ordinals)
        settled = {str(key): value for key, value in sorted(self._scores.items()) if key not in waiting}
        self._scores = {key: value for key, value in self._scores.items() if key in waiting}
        drawn = self._order.drawn
        self._files.save_sampling(step, {"rows": drawn[self._known :], "state": self._order.state(), "scores": settled})
        self._step, self._told, self._known = step, False, len(drawn)

    def recover(self) -> None:
        """Learn what other processes of the run drew."""
        step = self._start_step
        while self._files.sampling(step + 1) is not None:
            step += 1
        self._load(step)

    def after(self, step: int) -> dict[str, Any]:
        """For the checkpoint of `step`: all rows drawn so far, and the state with what the step taught."""
        held = list(self._order.drawn), self._order.state()
        rows, state = self._stored(step)
        self._order.restore(rows, state)
        if step > self._start_step:
            self._order.update(self._learnt(step))
        found = {"rows": rows, "state": self._order.state()}
        self._order.restore(*held)
        return found

    def _learnt(self, step: int) -> dict[int, float]:
        kept = self._files.sampling(step) or {"scores": {}}
        return {int(ordinal): float(score) for ordinal, score in kept["scores"].items()} | dict(self._outcomes(step))

    def _load(self, step: int) -> None:
        rows, state = self._stored(step)
        self._order.restore(rows, state)
        self._step, self._told, self._known = max(step, self._start_step), False, len(rows)
        self._scores.clear()

    def _stored(self, step: int) -> tuple[list[int], dict[str, Any]]:
        """(rows drawn up to the end of the step's rollout, state then)."""
        rows, state = list(self._start["rows"]), dict(self._start["state"])
        for number in range(self._start_step + 1, step + 1):
            kept = self._files.sampling(number)
            if kept is None:
                raise RecordError(
                    f"step {number} left no account of what data.sampler drew; this folder cannot be gone on with. "
                    "Start from its last checkpoint (trainer.resume_mode=resume_path) under another experiment_name"
                )
            rows, state = rows + kept["rows"], kept["state"]
        return rows, state


def mean_scores(
    trajectories: Sequence[Trajectory], rewards: Sequence[Reward], greedy_session: int | None = None
) -> dict[int, float]:
    """Ordinal -> mean over the group's sampled sessions of `acc` where the reward has that part, else of the score; of
    last outputs that have one."""
    by_key = {row.key: reward for row, reward in zip(trajectories, rewards, strict=True)}
    found: dict[int, list[float]] = {}
    for (_, session), row in last_outputs(trajectories).items():
        reward = by_key[row.key]
        if not reward.quarantined and session != greedy_session:
            acc = reward.components.get("acc")
            found.setdefault(row.ordinal, []).append(float(acc) if isinstance(acc, int | float) else reward.score)
    return {ordinal: sum(scores) / len(scores) for ordinal, scores in found.items()}
