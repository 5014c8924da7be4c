"""finish: the last node that works. Invariant: what it shows as a Deck is the run directory's own report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flytekit import Deck, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.connect import trainer_of
from tasks.literals import StageNote, file_in_place, folder_in_place
from tasks.ray_config import DRIVER, SUBMITTER
from tasks.stage_jobs import CLUSTER
from tasks.stages import RETRIES
from verl_core.record.rundir import REPORT

if TYPE_CHECKING:
    from verl_core.trainer.ppo import PPOTrainer


class Finished(NamedTuple):
    """summary.json, report.html, the last checkpoint's folder, and the number of steps that are done."""

    summary: FlyteFile
    report: FlyteFile
    checkpoint: FlyteDirectory
    steps: int


# deck_fields=(): with the usual fields flytekit runs `pip freeze` after the task, two seconds of every run.
@task(requests=DRIVER, retries=RETRIES, enable_deck=True, deck_fields=())
def finish(config: dict, after: StageNote) -> Finished:
    """Close the run's books: report and summary."""
    return _finish(config, after)


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES, enable_deck=True, deck_fields=())
def finish_job(config: dict, after: StageNote) -> Finished:
    """`finish` as a RayJob of its own, for ray.mode=per_task."""
    return _finish(config, after)


def _finish(config: dict, after: StageNote) -> Finished:
    with trainer_of(config, after) as trainer:
        trainer.end()
        return finished(trainer)


def finished(trainer: PPOTrainer) -> Finished:
    """Report, summary and last checkpoint of a run whose last step is done, as literals; the report is this task's
    Deck, too."""
    from verl_core.trainer.finish import SUMMARY
    from verl_core.trainer.finish import finish as summarise

    session, run = trainer.session, trainer.session.run
    summary, last = summarise(session), session.files.finished("update", session.total_steps)
    Deck("Training", run.read(REPORT).decode())
    files = file_in_place(run.url(SUMMARY)), file_in_place(summary.report)
    return Finished(*files, folder_in_place(last.checkpoint if last else ""), summary.steps)
