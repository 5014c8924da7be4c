"""The curves of the report. Invariant: a curve that the run did not log leaves no empty frame."""

from __future__ import annotations

from html import escape

from verl_core.metrics import headline
from verl_core.metrics.headline import short
from verl_core.report.chart import Layer, Line, legend, line_chart, stacked_chart
from verl_core.report.view import RunView

_LINES: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...], bool], ...] = (
    (
        "Response length",
        (("longest", ("response_length/max",)), ("mean", headline.LENGTH), ("shortest", ("response_length/min",))),
        True,
    ),
    ("Entropy", (("entropy", headline.ENTROPY),), False),
    ("KL to the reference", (("KL", ("actor/kl_loss", "actor/reward_kl_penalty")),), False),
    ("KL of the update", (("KL", ("actor/ppo_kl",)),), False),
    ("Clip fraction", (("upper", ("actor/pg_clipfrac",)), ("dual clip", ("actor/pg_clipfrac_lower",))), False),
    ("Gradient norm", (("norm", ("actor/grad_norm",)), ("of the critic", ("critic/grad_norm",))), False),
    ("Value loss", (("loss", ("critic/vf_loss",)),), True),
    ("Share of the returns that the critic knew", (("explained variance", ("critic/vf_explained_var",)),), False),
    ("Tokens per second", (("tokens/s", headline.TOKENS_PER_S),), True),
    ("Probability gap, trainer to engine (max)", (("gap", ("training/rollout_probs_diff_max",)),), True),
)
# Seconds of a step that are shown by name, in the order of the step; the rest of timing_s/step is `other`.
_STAGES = (
    ("generate", ("gen",), 1),
    ("reward", ("reward",), 2),
    ("log-probs and values", ("old_log_prob", "ref", "values"), 3),
    ("advantage", ("adv",), 7),
    ("update", ("update_actor", "update_critic"), 4),
    ("publish weights", ("update_weights",), 6),
    ("checkpoint", ("save_checkpoint",), 5),
)
_OTHER = 8


def curve_cards(view: RunView) -> str:
    """All curves as cards."""
    cards = [_reward(view), _validation(view)]
    for title, lines, zero in _LINES:
        drawn = [
            Line(name, view.series(*names), color, smooth=True)
            for color, (name, names) in enumerate(lines, start=1)
            if any(value != 0 for _, value in view.series(*names)) or color == 1
        ]
        cards.append(curve_card(title, [line for line in drawn if line.points], zero))
    return "".join([*cards, _times(view)])


def _reward(view: RunView) -> str:
    return curve_card("Reward", [Line("reward", view.series(*headline.REWARD), 1, smooth=True)])


def _validation(view: RunView) -> str:
    scores = list(view.validations().items())[:6]
    return curve_card(
        "Validation", [Line(name, points, n, dots=True) for n, (name, points) in enumerate(scores, start=1)]
    )


def curve_card(title: str, lines: list[Line], zero: bool = False) -> str:
    """Lines over steps as a card; empty when there is nothing to draw.

    Args:
        zero: the axis starts there.
    """
    chart = line_chart(lines, f"{title} over steps", zero)
    if not chart:
        return ""
    last = next((points[-1][1] for points in (line.points for line in lines) if points), None)
    value = f"<span>last {short(last)}</span>" if last is not None and len(lines) == 1 else ""
    names = legend([(line.name, line.color) for line in lines]) if len(lines) > 1 or lines[0].dots else ""
    return f'<figure class="card"><figcaption>{escape(title)}{value}</figcaption>{chart}{names}</figure>'


def _times(view: RunView) -> str:
    steps = [step for step in view.trained_steps if "timing_s/step" in view.rows[step]]
    layers = [
        Layer(name, [sum(view.rows[step].get(f"timing_s/{key}", 0.0) for key in keys) for step in steps], color)
        for name, keys, color in _STAGES
    ]
    totals = [view.rows[step]["timing_s/step"] for step in steps]
    named = [sum(layer.values[index] for layer in layers) for index in range(len(steps))]
    rest = [max(0.0, total - part) for total, part in zip(totals, named, strict=True)]
    layers = [layer for layer in [*layers, Layer("other", rest, _OTHER)] if any(layer.values)]
    chart = stacked_chart(steps, layers, "Seconds per stage over steps", "s")
    if not chart:
        return ""
    mean = sum(totals) / len(totals)
    title = f"<figcaption>Time per stage<span>mean {short(mean)} s/step</span></figcaption>"
    return f'<figure class="card">{title}{chart}{legend([(layer.name, layer.color) for layer in layers])}</figure>'
