"""Headline tiles and tables of the report. Invariant: a number that the run did not log is left out, never shown as
zero.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from statistics import fmean

from verl_core.metrics import headline
from verl_core.metrics.headline import duration, short
from verl_core.report.scale import Points
from verl_core.report.view import RunView

_EDGE = 5


def tiles(view: RunView) -> str:
    """Reward and validation before and after, length and speed of the run."""
    steps = view.trained_steps
    found = [_change("reward, first and last 5 steps", *_edges(view.series(*headline.REWARD)))]
    found += [_change(f"validation, {name}", *_ends(points)) for name, points in list(view.validations().items())[:2]]
    if unscored := [y for _, y in view.series(headline.UNSCORED) if y]:
        note = f"in {len(unscored)} steps; reasons in their rewards.parquet"
        found.append(_tile("samples without a score", short(sum(unscored)), note))
    if steps:
        planned = view.config_value("trainer.total_training_steps")
        of = f"of {planned}" if planned and planned > steps[-1] else "all done" if view.summary else "so far"
        found.append(_tile("steps", str(steps[-1]), of))
    if wall := float(view.summary.get("wall_s") or view.last_time - view.first_time):
        pace = view.series(*headline.STEP_SECONDS)
        found.append(_tile("wall time", duration(wall), f"{short(fmean(y for _, y in pace))} s/step" if pace else ""))
    if speed := view.series(*headline.TOKENS_PER_S):
        tokens = sum(y for _, y in view.series("perf/total_num_tokens"))
        found.append(_tile("tokens/s, median", short(_median(speed)), f"{short(tokens)} tokens" if tokens else ""))
    return f'<section class="tiles">{"".join(found)}</section>'


def accounting_table(view: RunView) -> str:
    """What became of every row that was served."""
    accounts = view.accounts
    if accounts is None:
        return ""
    rows = [("served", accounts.served, "rows of the data set, each counted once")]
    rows.append(("trained", accounts.trained, "in the final weights"))
    rows += [("dropped", count, reason) for reason, count in accounts.dropped.items()]
    rows.append(("in flight", accounts.in_flight, "no outcome yet"))
    rows.append(("trained twice", accounts.trained_twice, " ".join(accounts.twice_uids[:5]) or "must be 0"))
    rows.append(("lost", accounts.lost, " ".join(accounts.lost_uids[:5]) or "must be 0"))
    if accounts.unserved_uids:
        rows.append(("trained unserved", len(accounts.unserved_uids), " ".join(accounts.unserved_uids[:5])))
    verdict = "The books balance." if accounts.exact else '<b class="bad">The books do not balance.</b>'
    body = "".join(
        f'<tr><td>{name}</td><td class="n">{count}</td><td class="dim">{escape(note)}</td></tr>'
        for name, count, note in rows
    )
    head = '<tr><th>rows</th><th class="n">count</th><th></th></tr>'
    return f'<div class="card scroll"><table>{head}{body}</table><p class="dim">{verdict}</p></div>'


def checkpoint_table(view: RunView) -> str:
    """Step, time and size of each checkpoint."""
    if not view.checkpoints:
        return '<div class="card dim">No checkpoint yet.</div>'
    body = []
    for entry in view.checkpoints:
        mark = ' <span class="badge good">latest</span>' if entry.is_latest else ""
        note = f'<b class="bad">{escape(entry.note)}</b>' if entry.note else _clock(entry.saved_at)
        step = "" if entry.step < 0 else str(entry.step)
        size = _megabytes(entry.nbytes)
        body.append(
            f'<tr><td><code>{escape(entry.path)}</code>{mark}</td><td class="n">{step}</td>'
            f'<td class="n">{size}</td><td>{note}</td></tr>'
        )
    head = '<tr><th>folder</th><th class="n">step</th><th class="n">size</th><th>saved</th></tr>'
    return f'<div class="card scroll"><table>{head}{"".join(body)}</table></div>'


def versions_table(view: RunView) -> str:
    """Packages, code and hashes that made the run."""
    rows = [(str(name), str(value)) for name, value in sorted(view.summary.get("versions", {}).items())]
    if view.last_record is not None:
        rows += [("code", view.last_record.code_version), ("configuration", view.last_record.config_hash)]
        rows.append(("weights", f"version {view.last_record.version_out}"))
    if digest := view.summary.get("final_weights_sha256"):
        rows.append(("final weights", f"sha256 {digest}"))
    body = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(value)}</code></td></tr>" for name, value in rows if value
    )
    return f'<div class="card scroll"><table>{body}</table></div>' if body else ""


def _tile(label: str, value: str, note: str = "", css: str = "") -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f'<div class="card tile"><span>{escape(label)}</span><b class="{css}">{escape(value)}</b>{small}</div>'


def _change(label: str, before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    gain = after - before
    return _tile(label, f"{_score(before)} → {_score(after)}", f"{gain:+.3f}", "up" if gain > 0 else "")


def _score(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else short(value)


def _edges(points: Points) -> tuple[float | None, float | None]:
    values = [y for _, y in points]
    return (fmean(values[:_EDGE]), fmean(values[-_EDGE:])) if values else (None, None)


def _ends(points: Points) -> tuple[float | None, float | None]:
    return (points[0][1], points[-1][1]) if len(points) > 1 else (None, None)


def _median(points: Points) -> float:
    values: Sequence[float] = sorted(y for _, y in points)
    return values[len(values) // 2]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"
