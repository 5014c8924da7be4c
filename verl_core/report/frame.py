"""What every page has around its content. Invariant: one file, no script, nothing fetched; names and settings are
escaped."""

from __future__ import annotations

from html import escape

from verl_core.report.style import stylesheet


def document(name: str, body: str) -> str:
    """HTML of a whole page.

    Args:
        name: of the run.
        body: HTML.
    """
    title = f"<title>{escape(name)} · verl-flyte</title>"
    view_port = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    head = f"<head>{view_port}{title}<style>{stylesheet()}</style></head>"
    return f'<!doctype html><html lang="en">{head}<body><main>{body}</main></body></html>\n'


def section(title: str, body: str, css: str = "") -> str:
    """A titled part of the page; nothing without a body."""
    if not body:
        return ""
    inner = f'<div class="{css}">{body}</div>' if css else body
    return f"<section><h2>{title}</h2>{inner}</section>"


def settings(text: str) -> str:
    """The configuration, folded; nothing without one."""
    if not text:
        return ""
    shown = f"<summary>config.yaml</summary><pre>{escape(text)}</pre>"
    return section("Configuration", f'<details class="card">{shown}</details>')
