"""A fine-tuning run: rows, steps, validation, checkpoints, report. Invariant: the state of a run is its newest
checkpoint; what a crash interrupts is done again from there, with the same rows in the same order, to the same weights.

    config.yaml, start.json              settings and digest of the rows, as in a run of reinforcement learning
    steps/000012/metrics.json            numbers of step 12; of step 0: the validation before it
    checkpoints/000012/                  a model folder (or an adapter) with optimizer and schedule
    summary.json, report.html
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import fmean

from verl_core.batch import TrainBatch
from verl_core.config.kind import require_kind
from verl_core.config.schema import RunConfig
from verl_core.data.tokenizer import load_tokenizer
from verl_core.engine.interface import PolicyEngine
from verl_core.engine.loading import max_positions
from verl_core.errors import ConfigError
from verl_core.metrics import MetricSinks, open_sinks
from verl_core.record.checkpoints import Checkpoint, CheckpointStore
from verl_core.record.owner import OwnerLock
from verl_core.record.rundir import REPORT, RunDir
from verl_core.record.step_record import read_metrics, write_metrics
from verl_core.sft.engine import open_engine
from verl_core.sft.exam import LOSS, examined
from verl_core.sft.order import EpochBatches
from verl_core.sft.page import sft_page
from verl_core.sft.rows import Lessons, load_lessons, refuse_unfit
from verl_core.trainer.finish import SUMMARY, versions
from verl_core.trainer.past import agree_with_past, record_opening, start_of
from verl_core.trainer.ray_session import run_root

_EDGE = 5  # steps averaged at either end


@dataclass(frozen=True)
class SftSummary:
    """Attributes:
    loss_first5, loss_last5: mean of sft/loss over the first and last five steps.
    val_before, val_after: validation metrics at the start and the end; None when there was no validation.
    dropped, val_dropped: over-long rows that were left out of training, and of validation.
    checkpoint: path or URL of the last one.
    report: path or URL.
    """

    steps: int
    loss_first5: float
    loss_last5: float
    val_before: dict[str, float] | None
    val_after: dict[str, float] | None
    rows: int
    dropped: int
    val_dropped: int
    train_s: float
    final_weights_sha256: str
    checkpoint: str
    report: str
    run_dir: str
    versions: dict[str, str] = field(default_factory=dict)


def fine_tune(config: RunConfig, owner: str | None = None) -> SftSummary:
    """Fine-tune as the configuration says, or go on where this run directory stopped. A run that is done is summed up
    again.

    Args:
        owner: name under which another attempt takes the directory over at once (a Flyte execution id); None = only
            when it is known to be free.

    Raises:
        ConfigError: sft.enable is not set, or the run directory belongs to another configuration, or is further than
            the length that is asked for.
        DataError: the rows cannot be used, are longer than the model reads, or are not those that the run was started
            with.
        ModelError: the model cannot be used.
    """
    require_kind(config, supervised=True)
    run = RunDir(run_root(config))
    with contextlib.ExitStack() as own:
        lock = own.enter_context(OwnerLock.acquire(run, owner))
        agree_with_past(run, config, owner)
        tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
        data = config.data
        lessons = load_lessons(config, data.train_files, tokenizer, data.train_max_samples)
        order = EpochBatches(len(lessons.rows), data.train_batch_size, data.shuffle, data.seed)
        start, _ = start_of(run, config, {"rows": len(lessons.rows), "sha256": lessons.digest}, owner)
        exam = load_lessons(config, data.val_files, tokenizer, data.val_max_samples) if data.val_files else None
        sets = [lessons] if exam is None else [lessons, exam]
        refuse_unfit(sets, max_positions(config.actor_rollout_ref.model.path))
        total = config.trainer.total_training_steps or config.trainer.total_epochs * order.steps_per_epoch
        store = CheckpointStore(run, config.trainer.max_actor_ckpt_to_keep, config)
        newest = store.newest_whole()
        _refuse_shorter(run, newest, total)
        engine = open_engine(config, total)
        own.callback(engine.shutdown)
        record_opening(run, config, start)
        if newest is not None:
            engine.load(str(newest.folder))
        elif engine.steps_done():
            engine.reset()  # ranks that were found hold steps that no checkpoint has
        sinks = own.enter_context(open_sinks(config, run, total, engine.steps_done()))
        job = _Job(config, run, lock, engine, lessons, order, exam, total)
        last = job.train(store, sinks) or newest
        return job.summary(last)


def _refuse_shorter(run: RunDir, newest: Checkpoint | None, total: int) -> None:
    if newest is not None and newest.step > total:
        raise ConfigError(
            f"{run.root} has a checkpoint of step {newest.step}, and the run is to end at step {total}. Raise "
            "trainer.total_training_steps (or trainer.total_epochs), or choose another trainer.experiment_name"
        )


@dataclass(frozen=True)
class _Job:
    """An open run."""

    config: RunConfig
    run: RunDir
    lock: OwnerLock
    engine: PolicyEngine
    lessons: Lessons
    order: EpochBatches
    exam: Lessons | None
    total: int

    @cached_property
    def exam_batch(self) -> TrainBatch | None:
        """What validation asks; the same every time."""
        return self.exam.batch(range(len(self.exam.rows))) if self.exam else None

    def train(self, store: CheckpointStore, sinks: MetricSinks) -> Checkpoint | None:
        """The steps that are left; gives the last checkpoint made, if any was."""
        trainer, last = self.config.trainer, None
        if self.engine.steps_done() == 0 and trainer.val_before_train:
            self._log(sinks, 0, self._examined())
        for step in range(self.engine.steps_done() + 1, self.total + 1):
            self.lock.check()
            metrics = self._step(step)
            at_end = step == self.total
            if trainer.test_freq > 0 and (step % trainer.test_freq == 0 or at_end):
                metrics |= self._examined()
            self._log(sinks, step, metrics)
            if at_end or (trainer.save_freq > 0 and step % trainer.save_freq == 0):
                last = store.save(step, lambda folder: self.engine.save(str(folder)), {})
        return last

    def summary(self, last: Checkpoint | None) -> SftSummary:
        """Write summary.json and report.html."""
        rows = {step: read_metrics(self.run, step) for step in self.run.steps() if step <= self.total}
        trained = [metrics for step, metrics in rows.items() if step > 0]
        losses = [metrics["sft/loss"] for metrics in trained]
        exams = [_exam(metrics) for metrics in rows.values() if LOSS in metrics]
        summary = SftSummary(
            steps=self.engine.steps_done(),
            loss_first5=fmean(losses[:_EDGE]),
            loss_last5=fmean(losses[-_EDGE:]),
            val_before=exams[0] if exams and LOSS in rows.get(0, {}) else None,
            val_after=exams[-1] if exams and LOSS in rows.get(self.total, {}) else None,
            rows=len(self.lessons.rows),
            dropped=self.lessons.dropped,
            val_dropped=self.exam.dropped if self.exam else 0,
            train_s=sum(metrics["timing_s/step"] for metrics in trained),
            final_weights_sha256=self.engine.weights_sha256(),
            checkpoint=self.run.url(last.path) if last is not None else "",
            report=self.run.url(REPORT),
            run_dir=self.run.root,
            versions=versions(),
        )
        self.run.publish_bytes(SUMMARY, json.dumps(asdict(summary), indent=1).encode())
        self.run.publish_bytes(REPORT, sft_page(self.config, rows, summary.val_before, summary.val_after).encode())
        return summary

    def _step(self, step: int) -> dict[str, float]:
        began, batch = time.monotonic(), self.lessons.batch(self.order.rows_of(step))
        metrics = self.engine.update(batch, step)
        seconds = time.monotonic() - began
        tokens = float(batch.prompt_lengths.sum() + batch.response_lengths.sum())
        speed = {"perf/throughput": tokens / max(seconds, 1e-9) / self.config.world_size}
        counted = {"sft/epoch": float(self.order.epoch_of(step)), "sft/tokens": float(batch.response_mask.sum())}
        return {**metrics, **counted, **speed, "timing_s/step": seconds}

    def _examined(self) -> dict[str, float]:
        return {} if self.exam_batch is None else examined(self.engine, self.exam_batch)

    def _log(self, sinks: MetricSinks, step: int, metrics: dict[str, float]) -> None:
        if metrics:
            write_metrics(self.run, step, metrics)
            sinks.log(step, metrics)


def _exam(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("val/")}
