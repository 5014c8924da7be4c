"""Sample trajectories as HTML: every token on a ground that says how likely it was. Invariant: a token's tooltip
carries the numbers, and tokens that the policy did not sample are shown apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from verl_core.errors import ModelError
from verl_core.record.rewards import NAME as REWARDS
from verl_core.record.rewards import read_rewards
from verl_core.record.rundir import RunDir
from verl_core.record.trajectories import NAME as TRAJECTORIES
from verl_core.record.trajectories import read_trajectories
from verl_core.report.view import RunView
from verl_core.trajectory import Reward, Trajectory

TokenText = Callable[[int], str]
"""Text of one token id."""

_MOST_TOKENS = 600
_UNLIKELY = math.log(100)  # a probability of 1% or less gets the full colour


def token_text_of(view: RunView) -> TokenText:
    """From the tokenizer of the run's model; ids in angle brackets when it cannot be loaded here."""
    from verl_core.data.tokenizer import load_tokenizer

    path = view.config_value("actor_rollout_ref.model.path")
    if not path:
        return lambda token: f"⟨{token}⟩"
    try:
        tokenizer = load_tokenizer(str(path))
    except ModelError:
        return lambda token: f"⟨{token}⟩"
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)


def sample_section(view: RunView, text: TokenText) -> str:
    """Cards of the best and worst response of the first, middle and last step; empty when no step kept trajectories."""
    steps = [step for step in view.trained_steps if _is_scored(view.rundir, step)]
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return "".join(_step_cards(view.rundir, step, text) for step in chosen)


def _is_scored(rundir: RunDir, step: int) -> bool:
    names = rundir.names(rundir.step_dir(step))
    return TRAJECTORIES in names and REWARDS in names


def _step_cards(rundir: RunDir, step: int, text: TokenText) -> str:
    rewards = {reward.key: reward for reward in read_rewards(rundir, step)}
    rows = [row for row in read_trajectories(rundir, step) if row.key in rewards]
    ranked = sorted(rows, key=lambda row: -rewards[row.key].score)
    picks = [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked
    return "".join(_card(row, rewards[row.key], step, text) for row in picks)


def _card(row: Trajectory, reward: Reward, step: int, text: TokenText) -> str:
    sampled = [lp for lp, ours in zip(row.rollout_log_probs.tolist(), row.response_mask.tolist(), strict=True) if ours]
    mean = f"mean log-prob {sum(sampled) / len(sampled):.2f}" if sampled else "nothing sampled"
    versions = "–".join(str(v) for v in sorted({row.min_version, max(s.weight_version for s in row.segments)}))
    facts = f"{row.data_source} · {len(row.response_ids)} tokens · {mean} · weights v{versions} · {row.stop_reason}"
    why = f' · <b class="bad">quarantined: {escape(reward.reason or reward.status)}</b>' if reward.quarantined else ""
    good = "good" if reward.score > 0 and not reward.quarantined else "none"
    return (
        f'<article class="card sample"><header><span class="badge {good}">reward {reward.score:g}</span> step {step}'
        f'<span class="dim"> · {escape(facts)}{why}</span></header>'
        f'<p class="tokens"><span class="prompt">{escape(_join(row.prompt_ids.tolist(), text))}</span>'
        f"{_tokens(row, text)}</p></article>"
    )


def _join(ids: Sequence[int], text: TokenText) -> str:
    cut = ids[-_MOST_TOKENS:]
    return ("… " if len(cut) < len(ids) else "") + "".join(text(token) for token in cut)


def _tokens(row: Trajectory, text: TokenText) -> str:
    cells = zip(row.response_ids.tolist(), row.rollout_log_probs.tolist(), row.response_mask.tolist(), strict=True)
    shown = [_token(token, lp, ours, text(token)) for token, lp, ours in list(cells)[:_MOST_TOKENS]]
    more = len(row.response_ids) - _MOST_TOKENS
    return "".join(shown) + (f'<span class="dim"> … {more} more tokens</span>' if more > 0 else "")


def _token(token: int, log_prob: float, ours: bool, piece: str) -> str:
    shown = escape(piece).replace("\n", "↵\n") if piece.strip(" ") or piece else "∅"
    if not ours:
        return f'<span class="tool" title="not sampled by the policy · id {token}">{shown}</span>'
    heat = min(1.0, max(0.0, -log_prob / _UNLIKELY)) if math.isfinite(log_prob) else 1.0
    tip = f"log-prob {log_prob:.3f} · p {math.exp(min(0.0, log_prob)):.3f} · id {token}"
    return f'<span class="t" style="--h:{heat:.2f}" title="{tip}">{shown}</span>'
