"""Supervised fine-tuning in one RayJob. Invariant: what is shown as a Deck is the run directory's own report."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import Deck, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.literals import file_in_place, folder_in_place
from tasks.place import execution_name, is_local
from tasks.ray_config import SUBMITTER
from tasks.retry import retried
from tasks.stage_jobs import CLUSTER
from tasks.stages import RETRIES
from verl_core.config import from_dict
from verl_core.record.rundir import REPORT, RunDir


class FineTuned(NamedTuple):
    """summary.json, report.html, the last checkpoint's folder, the steps done, and the validation loss at the end (NaN
    without a validation)."""

    summary: FlyteFile
    report: FlyteFile
    checkpoint: FlyteDirectory
    steps: int
    val_loss: float


# deck_fields=(): with the usual fields flytekit runs `pip freeze` after the task, two seconds of every run.
@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES, enable_deck=True, deck_fields=())
def fine_tune_job(config: dict) -> FineTuned:
    """The whole run; a retry goes on from its newest checkpoint."""
    from verl_core.sft.exam import LOSS
    from verl_core.sft.run import fine_tune
    from verl_core.trainer.finish import SUMMARY

    with retried():
        done = fine_tune(from_dict(config), owner=None if is_local() else execution_name())
    run = RunDir(done.run_dir)
    Deck("Fine-tuning", run.read(REPORT).decode())
    loss = (done.val_after or {}).get(LOSS, float("nan"))
    files = file_in_place(run.url(SUMMARY)), file_in_place(done.report)
    return FineTuned(*files, folder_in_place(done.checkpoint), done.steps, loss)
