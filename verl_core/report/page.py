"""The page. Invariant: one file, no script, nothing fetched: it can be mailed, stored beside the run, or put into a
Deck.
"""

from __future__ import annotations

import time
from html import escape

from verl_core.record.rundir import REPORT, Published, RunDir
from verl_core.report.asynchrony import asynchrony_cards
from verl_core.report.curves import curve_cards
from verl_core.report.frame import document, section, settings
from verl_core.report.samples import TokenText, sample_section, token_text_of
from verl_core.report.sections import accounting_table, checkpoint_table, tiles, versions_table
from verl_core.report.view import RunView


def render_report(rundir: RunDir, token_text: TokenText | None = None) -> str:
    """HTML of the run as it stands now.

    Args:
        token_text: text of a token id; None = the tokenizer of the run's model, if it can be loaded here.

    Raises:
        RecordError: a file of the run directory is damaged.
    """
    view = RunView.load(rundir)
    body = "".join(
        [
            f"<h1>{escape(view.name)}</h1>",
            f'<p class="lead">{escape(_lead(view))}</p>',
            tiles(view),
            section("Curves", curve_cards(view), "grid2"),
            section("Asynchrony", asynchrony_cards(view), "grid2"),
            _samples(view, token_text),
            section("Accounts", accounting_table(view)),
            section("Checkpoints", checkpoint_table(view)),
            section("Versions", versions_table(view)),
            settings(view.config_text),
        ]
    )
    return document(view.name, body)


def write_report(rundir: RunDir, token_text: TokenText | None = None) -> Published:
    """Render and publish report.html."""
    return rundir.publish_bytes(REPORT, render_report(rundir, token_text).encode())


def _lead(view: RunView) -> str:
    mode, estimator = view.config_value("trainer.v1.trainer_mode"), view.config_value("algorithm.adv_estimator")
    if view.config_value("trainer.use_v1") is False:
        mode = "legacy path"
    model = str(view.config_value("actor_rollout_ref.model.path") or "").rstrip("/").rsplit("/", 1)[-1]
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.first_time)) if view.first_time else ""
    state = "" if view.summary else "still running" if view.trained_steps else "no step is done yet"
    parts = [estimator, mode, model and f"model {model}", begun and f"begun {begun}", state, view.rundir.root]
    return " · ".join(str(part) for part in parts if part)


def _samples(view: RunView, token_text: TokenText | None) -> str:
    cards = sample_section(view, token_text or token_text_of(view))
    if not cards:
        return ""
    key = (
        '<p class="dim">Best and worst response of the first, middle and last step. Ground of a token: '
        'certain<span class="ramp"></span>1% or less; hover for its log-prob.</p>'
    )
    return section("Samples", key + f'<div class="samples">{cards}</div>')
