"""One prepared record in verl's columns. Invariant: every builder makes its rows here, so all have one shape."""

from __future__ import annotations

from typing import Any

from verl_core.config.schema import PrepareConfig


def record(
    config: PrepareConfig,
    question: str,
    answer: str | None,
    data_source: str,
    split: str,
    index: int,
    entry: str | None = None,
    settings: str | None = None,
) -> dict[str, Any]:
    """A row.

    Args:
        data_source: the task's own; `data.prepare.data_source` goes before it.
        index: position in the split.
        entry, settings: JSON text for verifiers that need more than the answer: the dataset's entry and its settings.
    """
    system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt else []
    return {
        "data_source": config.data_source or data_source,
        "prompt": [*system, {"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": index, "entry": entry, "config": settings},
    }
