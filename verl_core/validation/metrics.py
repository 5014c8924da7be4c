"""Validation metrics, named as in verl. Invariant: every session that was asked for counts; one without a score
counts as 0.

`val-core/{source}/reward/mean@n` and `.../best@n/mean` are what a run is judged by; the rest is under `val-aux/`.
best, worst and maj are exact expectations over subsets, where verl draws bootstrap samples. maj needs a part `pred` (or
`answer`) of the reward, the answer that was found; a session without one stands alone, with the score 0 if it has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from verl_core.trajectory import Prompt, Reward, Trajectory, last_outputs
from verl_core.validation.majority import Vote, majority_of
from verl_core.validation.subsets import best_of, subset_sizes, worst_of

REWARD = "reward"
_ANSWERS = ("pred", "answer")


@dataclass(frozen=True, slots=True)
class Session:
    """How one session of a prompt ended: no trajectory (`failed`), no score (`quarantined`), or with a reward."""

    reward: Reward | None

    @property
    def failed(self) -> bool:
        """Whether there is nothing that could have been scored."""
        return self.reward is None

    @property
    def quarantined(self) -> bool:
        """Whether scoring failed."""
        return self.reward is not None and self.reward.quarantined

    @property
    def values(self) -> dict[str, float]:
        """The score and the numeric components; empty without a score."""
        if self.reward is None or self.reward.quarantined:
            return {}
        numbers = {name: float(v) for name, v in self.reward.components.items() if isinstance(v, int | float)}
        return {**numbers, REWARD: self.reward.score}


def validation_metrics(
    prompts: Sequence[Prompt], trajectories: Sequence[Trajectory], rewards: Mapping[str, Reward]
) -> dict[str, float]:
    """Metrics of one validation pass.

    Args:
        prompts: all that were asked, as served last (so that their uids are those of `trajectories`).
        trajectories: all that came back; of a session's several outputs the last one counts.
        rewards: by trajectory key.

    Raises:
        ValueError: prompts of one source with different n, or a trajectory without a reward.
    """
    by_source: dict[str, list[list[Session]]] = defaultdict(list)
    last = last_outputs(trajectories)
    for prompt in prompts:
        sessions = [_session(last.get((prompt.uid, number)), rewards) for number in range(prompt.n)]
        by_source[prompt.data_source].append(sessions)
    metrics: dict[str, float] = {}
    for source, rows in sorted(by_source.items()):
        metrics |= _source_metrics(source, rows)
    return metrics | _turns(list(last.values()))


def _session(trajectory: Trajectory | None, rewards: Mapping[str, Reward]) -> Session:
    if trajectory is None:
        return Session(None)
    if trajectory.key not in rewards:
        raise ValueError(f"trajectory {trajectory.key} of the validation was not scored")
    return Session(rewards[trajectory.key])


def _source_metrics(source: str, rows: list[list[Session]]) -> dict[str, float]:
    if len({len(sessions) for sessions in rows}) != 1:
        raise ValueError(f"prompts of {source!r} were validated with different numbers of sessions")
    everyone = [session for sessions in rows for session in sessions]
    values = [[session.values for session in sessions] for sessions in rows]
    metrics: dict[str, float] = {}
    for name in sorted({name for session in everyone for name in session.values} | {REWARD}):
        scores = [[value.get(name, 0.0) for value in sessions] for sessions in values]
        metrics |= _statistics(source, name, scores)
    metrics |= _majorities(source, rows)
    scored = [session.values[REWARD] for session in everyone if session.values]
    aux = f"val-aux/{source}"
    metrics[f"{aux}/failed"] = float(sum(session.failed for session in everyone))
    metrics[f"{aux}/quarantined"] = float(sum(session.quarantined for session in everyone))
    if scored:
        metrics[f"{aux}/{REWARD}_scored_only/mean@{len(rows[0])}"] = float(np.mean(scored))
    return metrics


def _statistics(source: str, name: str, scores: list[list[float]]) -> dict[str, float]:
    """Per prompt, then averaged over prompts. `std` is of the n scores as they are (divisor n)."""
    n = len(scores[0])
    core = f"val-core/{source}/{name}" if name == REWARD else f"val-aux/{source}/{name}"
    aux = f"val-aux/{source}/{name}"
    metrics = {f"{core}/mean@{n}": float(np.mean(scores))}
    if n > 1:
        metrics[f"{aux}/std@{n}"] = float(np.std(scores, axis=1).mean())
    for k in subset_sizes(n):
        place = core if k == n else aux
        metrics[f"{place}/best@{k}/mean"] = float(np.mean([best_of(row, k) for row in scores]))
        metrics[f"{aux}/worst@{k}/mean"] = float(np.mean([worst_of(row, k) for row in scores]))
    return metrics


def _majorities(source: str, rows: list[list[Session]]) -> dict[str, float]:
    """maj@k of the score; nothing where no session names its answer."""
    votes = [[_vote(session) for session in sessions] for sessions in rows]
    if not any(answer is not None for row in votes for answer, _ in row):
        return {}
    n = len(rows[0])
    return {
        f"val-{'core' if k == n else 'aux'}/{source}/{REWARD}/maj@{k}/mean": float(
            np.mean([majority_of(row, k) for row in votes])
        )
        for k in subset_sizes(n)
    }


def _vote(session: Session) -> Vote:
    """(answer, score)."""
    if session.reward is None or session.reward.quarantined:
        return None, 0.0
    given = next((session.reward.components[name] for name in _ANSWERS if name in session.reward.components), None)
    return None if given in (None, "") else str(given), session.reward.score


def _turns(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    turns = [trajectory.num_turns for trajectory in trajectories]
    if not turns:
        return {}
    found = {"min": min(turns), "max": max(turns), "mean": sum(turns) / len(turns)}
    return {f"val-aux/num_turns/{name}": float(value) for name, value in found.items()}
