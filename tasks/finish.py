"""finish: the last node that works. Invariant: what it shows as a Deck is the run directory's own report."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import Deck, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.connect import trainer_of
from tasks.literals import StageNote, file_in_place, folder_in_place
from tasks.ray_config import DRIVER, SUBMITTER
from tasks.stage_jobs import CLUSTER
from tasks.stages import LIMIT, RETRIES
from verl_core.trainer.finish import finish_run


class Finished(NamedTuple):
    """summary.json, report.html, the last checkpoint's folder, and the number of steps that are done."""

    summary: FlyteFile
    report: FlyteFile
    checkpoint: FlyteDirectory
    steps: int


# deck_fields=(): with the usual fields flytekit runs `pip freeze` after the task, two seconds of every run.
@task(requests=DRIVER, retries=RETRIES, timeout=LIMIT, enable_deck=True, deck_fields=())
def finish(config: dict, after: StageNote) -> Finished:
    """Close the run's books: report and summary."""
    return _finish(config, after)


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES, timeout=LIMIT, enable_deck=True, deck_fields=())
def finish_job(config: dict, after: StageNote) -> Finished:
    """`finish` as a RayJob of its own, for ray.mode=per_task."""
    return _finish(config, after)


def _finish(config: dict, after: StageNote) -> Finished:
    with trainer_of(config, after) as trainer:
        trainer.end()
        done = finish_run(trainer.session)
        Deck("Training", trainer.session.run.read(REPORT).decode())
        return Finished(
            file_in_place(SUMMARY), file_in_place(done.report), folder_in_place(done.checkpoint), done.steps
        )
