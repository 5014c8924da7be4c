"""docs/algorithms.md is what the docstrings say, whole, and its recipes resolve."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from verl_core.algorithms.advantages import ADVANTAGES
from verl_core.algorithms.page import page, paragraphs
from verl_core.algorithms.page_text import RECIPES
from verl_core.algorithms.policy_losses import POLICY_LOSSES
from verl_core.config import resolve

DOCS = Path(__file__).resolve().parents[2] / "docs"
LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}


def test_the_page_is_current() -> None:
    assert (DOCS / "algorithms.md").read_text() == page(), "run make algorithms-page"


@pytest.mark.parametrize("registry", [ADVANTAGES, POLICY_LOSSES], ids=["estimators", "losses"])
def test_every_algorithm_names_its_source_and_the_differences(registry: object) -> None:
    for name in registry.names():  # type: ignore[attr-defined]
        text, labelled = paragraphs(registry.get(name))  # type: ignore[attr-defined]
        assert text, name
        assert {"Source", "Differences"} <= set(labelled), name


def merged(base: dict[str, object], more: dict[str, object]) -> dict[str, object]:
    out = dict(base)
    for key, value in more.items():
        held = out.get(key)
        out[key] = merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return out


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves(name: str) -> None:
    resolve(merged(LEAST, yaml.safe_load(RECIPES[name][1])), [])


def test_the_page_on_losses_near_zero_names_curves_that_exist() -> None:
    text = (DOCS / "loss_is_zero.md").read_text()
    source = "".join(path.read_text() for path in (DOCS.parent / "verl_core").rglob("*.py"))
    for curve in ("pg_clipfrac", "ppo_kl", "grad_norm", "critic/advantages", "critic/score", "rollout_corr", "pg_loss"):
        assert curve in text
        assert curve in source
