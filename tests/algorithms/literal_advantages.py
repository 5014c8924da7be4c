"""The estimators once more as literal loops over sessions, rows and tokens, in plain Python numbers. Slow on purpose;
written from the papers' formulas, with nothing in common with the product but the inputs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from verl_core.algorithms.advantages import AdvantageInputs

Table = list[list[float]]


@dataclass
class Session:
    """rows: in order of output; cells: (row, column) of its own tokens in order of time."""

    group: int
    rows: list[int]
    cells: list[tuple[int, int]]
    known: bool
    counted: bool
    outcome: float


def sessions_of(given: AdvantageInputs) -> list[Session]:
    own, mask = given.own.tolist(), given.mask.tolist()
    numbers = list(range(len(own))) if given.session_index is None else given.session_index.tolist()
    places = [0] * len(own) if given.output_index is None else given.output_index.tolist()
    groups, rewards = given.group_index.tolist(), given.token_rewards.tolist()
    out = []
    for number in sorted(set(numbers)):
        rows = sorted((row for row in range(len(own)) if numbers[row] == number), key=lambda row: places[row])
        cells = [(row, column) for row in rows for column in range(len(own[row])) if own[row][column]]
        known = any(own[rows[-1]])
        kept = any(any(mask[row]) for row in rows)
        counted = known and (kept or given.baseline_rows == "all")
        outcome = math.fsum(rewards[row][column] for row, column in cells)
        out.append(Session(groups[rows[-1]], rows, cells, known, counted, outcome))
    return out


def empty(given: AdvantageInputs) -> Table:
    return [[0.0] * given.mask.shape[1] for _ in range(given.mask.shape[0])]


def broadcast(given: AdvantageInputs, value: Callable[[Session, list[Session]], float]) -> Table:
    """value(session, counted sessions of its group, itself included) on the session's trainable cells."""
    every, mask, out = sessions_of(given), given.mask.tolist(), empty(given)
    for session in every:
        if session.counted:
            amount = value(session, [other for other in every if other.counted and other.group == session.group])
            for row, column in session.cells:
                out[row][column] = amount if mask[row][column] else 0.0
    return out


def per_token(given: AdvantageInputs, value: Callable[[Session], list[float]]) -> Table:
    """value(session): one number per own token, on the trainable ones."""
    mask, out = given.mask.tolist(), empty(given)
    for session in sessions_of(given):
        if session.counted:
            for (row, column), amount in zip(session.cells, value(session), strict=True):
                out[row][column] = amount if mask[row][column] else 0.0
    return out


def whiten(given: AdvantageInputs, table: Table) -> Table:
    mask, out = given.mask.tolist(), empty(given)
    cells = [
        (row, column) for session in sessions_of(given) if session.counted for row, column in session.cells
        if mask[row][column]
    ]  # fmt: skip
    if len(cells) < 2:
        return table
    numbers = [table[row][column] for row, column in cells]
    mean, variance = statistics.fmean(numbers), statistics.variance(numbers)
    for row, column in cells:
        out[row][column] = (table[row][column] - mean) / math.sqrt(variance + 1e-8)
    return out


def mean_of(others: list[Session]) -> float:
    return statistics.fmean(one.outcome for one in others) if len(others) > 1 else 0.0


def std_of(others: list[Session]) -> float:
    return statistics.stdev([one.outcome for one in others]) if len(others) > 1 else 1.0


def grpo(given: AdvantageInputs) -> Table:
    def value(session: Session, group: list[Session]) -> float:
        return (session.outcome - mean_of(group)) / (std_of(group) + 1e-6 if given.norm_by_std else 1.0)

    return broadcast(given, value)


def grpo_passk(given: AdvantageInputs) -> Table:
    def value(session: Session, group: list[Session]) -> float:
        others = [one.outcome for one in group if one is not session]
        gap = session.outcome - max(others) if others else session.outcome
        if others and gap <= 0:
            return 0.0
        return gap / (std_of(group) + 1e-6 if given.norm_by_std else 1.0)

    return broadcast(given, value)


def rloo(given: AdvantageInputs) -> Table:
    def value(session: Session, group: list[Session]) -> float:
        others = [one.outcome for one in group if one is not session]
        return session.outcome - (statistics.fmean(others) if others else 0.0)

    return broadcast(given, value)


def opo(given: AdvantageInputs) -> Table:
    def value(session: Session, group: list[Session]) -> float:
        if len(group) < 2:
            return session.outcome
        lengths = sum(len(one.cells) for one in group)
        return session.outcome - sum(len(one.cells) * one.outcome for one in group) / lengths

    return broadcast(given, value)


def maxrl(given: AdvantageInputs) -> Table:
    def value(session: Session, group: list[Session]) -> float:
        mean = statistics.fmean(one.outcome for one in group)
        return (session.outcome - mean) / mean if mean > 1e-6 else 0.0

    return broadcast(given, value)


def gpg(given: AdvantageInputs) -> Table:
    counted = [one for one in sessions_of(given) if one.counted]
    alpha = len(counted) / max(1, sum(one.outcome != 0 for one in counted))
    return broadcast(given, lambda session, group: alpha * (session.outcome - mean_of(group)))


def reinforce_plus_plus_baseline(given: AdvantageInputs) -> Table:
    return whiten(given, broadcast(given, lambda session, group: session.outcome - mean_of(group)))


def gdpo(given: AdvantageInputs) -> Table:
    parts = given.needed("reward_parts").tolist()
    weights = given.part_weights or (1.0,) * len(parts[0])

    def value(session: Session, group: list[Session]) -> float:
        total = 0.0
        for part, weight in enumerate(weights):
            numbers = [parts[one.rows[-1]][part] for one in group]
            mean, std = (statistics.fmean(numbers), statistics.stdev(numbers)) if len(group) > 1 else (0.0, 1.0)
            total += weight * (parts[session.rows[-1]][part] - mean) / (std + 1e-6)
        return total

    return whiten(given, broadcast(given, value))


def returns(given: AdvantageInputs, session: Session, gamma: float) -> list[float]:
    rewards, out, ahead = given.token_rewards.tolist(), [], 0.0
    for row, column in reversed(session.cells):
        ahead = rewards[row][column] + gamma * ahead
        out.append(ahead)
    return out[::-1]


def reinforce_plus_plus(given: AdvantageInputs) -> Table:
    return whiten(given, per_token(given, lambda session: returns(given, session, given.gamma)))


def remax(given: AdvantageInputs) -> Table:
    greedy = given.needed("greedy_rewards").tolist()
    mask, out = given.mask.tolist(), empty(given)
    for session in sessions_of(given):
        if session.counted:
            for (row, column), ahead in zip(session.cells, returns(given, session, 1.0), strict=True):
                out[row][column] = ahead - greedy[row] if mask[row][column] else 0.0
    return out


def gae(given: AdvantageInputs) -> Table:
    values, rewards = given.needed("values").tolist(), given.token_rewards.tolist()

    def value(session: Session) -> list[float]:
        out, ahead, following = [], 0.0, 0.0
        for row, column in reversed(session.cells):
            here = values[row][column]
            ahead = rewards[row][column] + given.gamma * following - here + given.gamma * given.lam * ahead
            out.append(ahead)
            following = here
        return out[::-1]

    return whiten(given, per_token(given, value))


Line = list[tuple[int, int] | None]


def timeline(own: list[list[bool]], session: Session, with_tools: bool) -> Line:
    """The session's cells in order of time, None where tool text takes a step."""
    line: Line = []
    for row in session.rows:
        end = max((column + 1 for column in range(len(own[row])) if own[row][column]), default=0)
        cells: Line = [(row, column) if own[row][column] else None for column in range(end)]
        line += cells if with_tools else [cell for cell in cells if cell is not None]
    return line


def moved_so_far(given: AdvantageInputs, line: Line) -> list[float]:
    """W_t for every position of the line."""
    log_probs, squares = given.needed("old_log_probs").tolist(), given.needed("sum_pi_squared").tolist()
    total, out = 0.0, []
    for cell in line:
        if cell is not None:
            row, column = cell
            norm = max(0.0, 1 - 2 * math.exp(log_probs[row][column]) + squares[row][column])
            rho = 1.0 if given.is_weights is None else float(given.is_weights[row, column])
            total += norm * rho**2
        out.append(total)
    return out


def token_baseline(given: AdvantageInputs, with_tools: bool) -> Table:
    own, mask, rewards, out = given.own.tolist(), given.mask.tolist(), given.token_rewards.tolist(), empty(given)
    every = [one for one in sessions_of(given) if one.counted]
    lines = [timeline(own, session, with_tools) for session in every]
    width = max((len(line) for line in lines), default=0)
    gone = [moved_so_far(given, line + [None] * (width - len(line))) for line in lines]

    def ahead(number: int, t: int) -> float:
        return math.fsum(rewards[cell[0]][cell[1]] for cell in lines[number][t:] if cell is not None)

    for number, session in enumerate(every):
        group = [other for other in range(len(every)) if every[other].group == session.group]
        for t, cell in enumerate(lines[number]):
            if cell is None or not mask[cell[0]][cell[1]]:
                continue
            baseline = 0.0
            if sum(len(lines[other]) > t for other in group) > 1:
                below = sum(gone[other][t] for other in group)
                baseline = sum(ahead(other, t) * gone[other][t] for other in group) / (below + 1e-8)
            out[cell[0]][cell[1]] = ahead(number, t) - baseline
    return out


LITERAL: dict[str, Callable[[AdvantageInputs], Table]] = {
    "gae": gae,
    "gdpo": gdpo,
    "gpg": gpg,
    "grpo": grpo,
    "grpo_passk": grpo_passk,
    "maxrl": maxrl,
    "opo": opo,
    "optimal_token_baseline": lambda given: token_baseline(given, with_tools=True),
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "rloo": rloo,
    "tir_optimal_token_baseline": lambda given: token_baseline(given, with_tools=False),
}
