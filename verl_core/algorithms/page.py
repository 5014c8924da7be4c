"""docs/algorithms.md, built from the docstrings: `python -m verl_core.algorithms > docs/algorithms.md`.

Invariant: a formula is written down once, where it is computed; a test holds the page to this text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from verl_core.algorithms.advantages import ADVANTAGES
from verl_core.algorithms.aggregation import AGGREGATIONS
from verl_core.algorithms.correction.rejection import kept_by, statistic
from verl_core.algorithms.correction.weights import bounded, normalised, raw_weights
from verl_core.algorithms.distillation import DISTILLATION_LOSSES, distillation_advantages
from verl_core.algorithms.kl import KL_ESTIMATORS
from verl_core.algorithms.page_text import CORRECTION, DISTILLATION, HEAD, KL, LOSSES, RECIPES, SESSIONS, VALUES
from verl_core.algorithms.policy_losses import POLICY_LOSSES
from verl_core.algorithms.registry import Registry
from verl_core.algorithms.value_loss import explained_variance, value_loss
from verl_core.config import names
from verl_core.config.schema import RolloutCorrectionConfig
from verl_core.config.schema.correction import PRESETS

_SHAPE = re.compile(r"^(float32|bool) \[.*?\]: ")
LABELS = ("Source", "Differences", "Settings", "Metrics")


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        *_estimators(),
        *_losses(),
        *_value_loss(),
        *_aggregation(),
        *_kl(),
        *_distillation(),
        *_correction(),
        *_recipes(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def paragraphs(function: Callable[..., Any]) -> tuple[list[str], dict[str, str]]:
    """(paragraphs of the text, labelled paragraphs by label) of a docstring, unwrapped; Args, Returns and Raises are
    for programmers and left out."""
    text, labelled = [], {}
    for block in (inspect.getdoc(function) or "").split("\n\n"):
        line = " ".join(piece.strip() for piece in block.splitlines())
        label = line.split(":", 1)[0]
        if label in LABELS:
            labelled[label] = line.split(":", 1)[1].strip()
        elif label not in ("Args", "Returns", "Raises"):
            text.append(line)
    return text, labelled


def _entry(name: str, function: Callable[..., Any], facts: list[tuple[str, str]]) -> str:
    text, labelled = paragraphs(function)
    rows = [
        *facts,
        *((label.lower(), labelled[label]) for label in ("Metrics", "Source", "Differences") if label in labelled),
    ]
    return "\n\n".join([f"### `{name}`", *text, "\n".join(f"- {label}: {fact}" for label, fact in rows)])


def _estimators() -> Iterator[str]:
    yield "## Advantage estimators"
    yield SESSIONS
    for name in ADVANTAGES.names():
        facts = [("config", f"`algorithm.adv_estimator: {name}`")]
        if reads := sorted(names.ADV_ESTIMATORS.get(name, ())):
            facts.append(("reads", ", ".join(f"`algorithm.{key}`" for key in reads)))
        yield _entry(name, ADVANTAGES.get(name), facts)


def _losses() -> Iterator[str]:
    yield "## Policy losses"
    yield LOSSES
    for name in POLICY_LOSSES.names():
        facts = [("config", f"`actor_rollout_ref.actor.policy_loss.loss_mode: {name}`")]
        if reads := sorted(names.POLICY_LOSSES.get(name, ())):
            facts.append(("reads", ", ".join(f"`actor.{key}`" for key in reads)))
        yield _entry(name, POLICY_LOSSES.get(name), facts)


def _value_loss() -> Iterator[str]:
    yield "## Value loss"
    yield VALUES
    text, labelled = paragraphs(value_loss)
    facts = [("config", "`critic.cliprange_value`, `critic.loss_agg_mode`")]
    facts += [(label.lower(), labelled[label]) for label in ("Metrics", "Source", "Differences")]
    yield "\n\n".join([*text, "\n".join(f"- {label}: {fact}" for label, fact in facts)])
    yield f"`critic/vf_explained_var` = {paragraphs(explained_variance)[0][0]}"


def _aggregation() -> Iterator[str]:
    yield "## Aggregation"
    yield (
        "`actor_rollout_ref.actor.loss_agg_mode`: from losses per token to one number. Counts are those of the whole"
        " mini-batch, over all ranks and micro-batches; rejected tokens and rows without a token are not counted."
    )
    yield _table(AGGREGATIONS)


def _kl() -> Iterator[str]:
    yield "## KL estimators"
    yield KL
    yield _table(KL_ESTIMATORS)


def _distillation() -> Iterator[str]:
    yield "## Distillation"
    yield DISTILLATION
    facts = [("config", "`distillation.distillation_loss.loss_mode: forward_kl_topk`")]
    facts.append(("reads", "`distillation.distillation_loss.topk`, `distillation.distillation_loss.tail`"))
    yield _entry("forward_kl_topk", DISTILLATION_LOSSES.get("forward_kl_topk"), facts)
    text, _ = paragraphs(DISTILLATION_LOSSES.get("k3"))
    sampled = ", ".join(f"`{name}`" for name in KL_ESTIMATORS.names())
    yield f"### Sampled\n\n{text[0]} Names: {sampled}, with the formulas and the gradients of the KL estimators above."
    text, labelled = paragraphs(distillation_advantages)
    text[0] = _SHAPE.sub("", text[0])
    facts = [("config", "`distillation.distillation_loss.use_policy_gradient: true`")]
    facts += [(label.lower(), labelled[label]) for label in ("Source", "Differences")]
    yield "\n\n".join(["### As a reward", *text, "\n".join(f"- {label}: {fact}" for label, fact in facts)])


def _table(registry: Registry[Any]) -> str:
    by_function: dict[Any, list[str]] = {}
    for name in registry.names():
        if not name.endswith("+"):
            by_function.setdefault(registry.get(name), []).append(f"`{name}`")
    lines = [f"| {', '.join(each)} | {' '.join(paragraphs(function)[0])} |" for function, each in by_function.items()]
    return "\n".join(["| name | formula |", "|---|---|", *(line.replace("|x|", "abs(x)") for line in lines)])


def _correction() -> Iterator[str]:
    yield "## Off-policy correction"
    yield CORRECTION
    for title, functions in (("Weights", (raw_weights, bounded, normalised)), ("Rejection", (statistic, kept_by))):
        yield f"### {title}"
        for function in functions:
            text, labelled = paragraphs(function)
            text = [_SHAPE.sub("", line) for line in text]
            yield "\n\n".join([*text, *(f"Source: {labelled[label]}" for label in labelled if label == "Source")])
    yield "### Presets"
    defaults = RolloutCorrectionConfig()
    lines = ["| preset | stands for |", "|---|---|"]
    for name, settings in PRESETS.items():
        shown = {key: value for key, value in settings.items() if getattr(defaults, key) != value}
        lines.append(f"| `{name}` | {', '.join(f'`{key}: {value}`' for key, value in shown.items()) or 'nothing'} |")
    yield "\n".join(lines).replace(": True`", ": true`")


def _recipes() -> Iterator[str]:
    yield "## Recipes"
    for title, (text, settings) in RECIPES.items():
        yield f"### {title}\n\n{text.strip()}\n\n```yaml\n{settings.strip()}\n```"
