"""Rows to prompts. Invariant: each row is tokenized exactly once, and every row that is left out or cut is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from verl_core.data.row import DatasetRow, PromptRow
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError

Truncation = Literal["error", "drop", "left"]
_SHOWN = 5  # over-long rows listed in the error


@dataclass
class TokenizationReport:
    """What happened to the rows.

    Attributes:
        total: rows seen.
        dropped: `row` of each over-long row that was left out.
        cut: `row` of each over-long row that lost tokens at its left.
        longest: tokens of the longest prompt before anything was cut.
    """

    total: int = 0
    dropped: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    longest: int = 0

    def __str__(self) -> str:
        return (
            f"{self.total} rows, longest prompt {self.longest} tokens, {len(self.dropped)} over-long rows dropped,"
            f" {len(self.cut)} cut at the left"
        )


def tokenize_rows(
    rows: Sequence[DatasetRow], tokenizer: ChatTokenizer, max_prompt_length: int, truncation: Truncation
) -> tuple[list[PromptRow], TokenizationReport]:
    """Prompts of the rows, in order.

    Args:
        max_prompt_length: tokens a prompt may have.
        truncation: what happens to a longer one: `error`, `drop`, or `left` (its last max_prompt_length tokens stay).

    Raises:
        DataError: with `error`, a prompt is over-long (the first ones are listed with their lengths); with `drop`, all
            are.
    """
    report = TokenizationReport(total=len(rows))
    kept: list[PromptRow] = []
    over_long: list[str] = []
    for row in rows:
        ids = tokenizer.encode_chat(row.messages, row.place)
        report.longest = max(report.longest, len(ids))
        if len(ids) > max_prompt_length:
            if truncation == "error":
                over_long.append(f"{row.place}: {len(ids)} tokens")
                continue
            if truncation == "drop":
                report.dropped.append(row.row)
                continue
            report.cut.append(row.row)
            ids = ids[-max_prompt_length:].copy()
        kept.append(PromptRow(row, ids))
    if over_long:
        raise DataError(_refusal(over_long, report, max_prompt_length))
    if not kept:
        raise DataError(f"all {len(rows)} prompts are longer than data.max_prompt_length={max_prompt_length}; raise it")
    return kept, report


def _refusal(over_long: list[str], report: TokenizationReport, limit: int) -> str:
    more = f" and {len(over_long) - _SHOWN} more" if len(over_long) > _SHOWN else ""
    return (
        f"{len(over_long)} of {report.total} prompts are longer than data.max_prompt_length={limit} tokens:"
        f" {'; '.join(over_long[:_SHOWN])}{more}. Raise data.max_prompt_length to {report.longest}, or set"
        " data.truncation to drop or left"
    )
