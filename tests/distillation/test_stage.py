"""Teachers in the advantage stage, without actors: who is asked what, once, and the advantages by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainer.test_stages import Files, Policy, row
from verl_core.batch import TrainBatch
from verl_core.config import RunConfig
from verl_core.engine.distillation_term import TEACHER, TOPK, TOPK_IDS
from verl_core.errors import TeacherError
from verl_core.record.teacher_file import TeacherScores
from verl_core.rollout.teachers.interface import TeacherRequest, TeacherRow
from verl_core.trainer.stages.advantage import advantage
from verl_core.trainer.teachers import scores_of
from verl_core.trajectory import Reward

SAID = {"a_0_0": [-1.0, -9.0, -3.0], "a_1_0": [-1.5]}
QUARANTINED = Reward("b_0_0", 0.0, status="raised", reason="boom")


class TaughtFiles(Files):
    """With the teachers' file, in memory."""

    kept: TeacherScores | None = None

    def teacher(self, step: int, batch: TrainBatch) -> TeacherScores | None:
        return self.kept

    def save_teacher(self, step: int, batch: TrainBatch, scores: TeacherScores) -> None:
        self.kept = scores


class Said:
    """Answers from `SAID`; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Sequence[TeacherRequest]]] = []

    def ask(self, requests: Mapping[str, Sequence[TeacherRequest]], topk: int, vocabulary: int, what: str) -> Any:
        self.asked.append(requests)
        assert (vocabulary, what) == (9, "step 1")
        return SimpleNamespace(topk=topk)

    def collect(self, asked: Any, check: Callable[[], None]) -> dict[str, TeacherRow]:
        shape = (-1, asked.topk)
        return {
            key: TeacherRow(
                np.asarray(values, dtype=np.float32),
                np.zeros(len(values) * asked.topk, dtype=np.int32).reshape(shape) if asked.topk else _none(len(values)),
                np.full((len(values), asked.topk), -2.0, dtype=np.float32),
            )
            for key, values in SAID.items()
        }


def _none(count: int) -> Any:
    return np.zeros((count, 0), dtype=np.int32)


def stage(folder: Path, **loss: Any) -> tuple[TaughtFiles, Said, Any]:
    (folder / "config.json").write_text(json.dumps({"vocab_size": 9}))
    config = RunConfig()
    config.algorithm.norm_adv_by_std_in_grpo = False
    config.actor_rollout_ref.model.path = str(folder)
    config.distillation.enabled = True
    config.distillation.teacher_models = {"main": {"model_path": "/teacher"}}
    for name, value in loss.items():
        setattr(config.distillation.distillation_loss, name, value)
    rows = [row("a", 0, 3, masked=(1,)), row("a", 1, 1), row("b", 0, 2, ordinal=1)]
    files, teachers = TaughtFiles(rows, [Reward("a_0_0", 1.0), Reward("a_1_0", 0.0), QUARANTINED]), Said()
    session: Any = SimpleNamespace(
        config=config,
        files=files,
        policy=Policy(),
        critic=None,
        teachers=teachers,
        check=lambda: None,
        training=lambda *_: nullcontext(),
    )
    return files, teachers, session


# Old log-probs are -2 in session 0 and -1 in session 1: x = log pi_old - log teacher is -1, masked, 1 | 0.5. The task's
# advantages are 0.5 | -0.5.
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"distillation_loss_coef": 0.5}, [1.0, 0.0, 0.0, -0.75]),
        ({"use_task_rewards": False}, [1.0, 0.0, -1.0, -0.5]),
        ({"use_task_rewards": False, "loss_max_clamp": 0.75}, [0.75, 0.0, -0.75, -0.5]),
        ({"use_task_rewards": False, "loss_mode": "k2"}, [-0.5, 0.0, -0.5, -0.125]),
    ],
)
def test_the_distance_as_a_reward_by_hand(tmp_path: Path, loss: dict[str, Any], expected: list[float]) -> None:
    files, teachers, session = stage(tmp_path, **({"loss_mode": "k1", "use_policy_gradient": True} | loss))
    advantage(session, 1)
    batch, metrics = files.saved
    assert batch.columns["advantages"].tolist() == pytest.approx([*expected, 0.0, 0.0])
    assert metrics["distillation/reverse_kl"] == pytest.approx(0.5 / 3)
    assert metrics["distillation/abs_distance"] == pytest.approx(2.5 / 3)
    (asked,) = teachers.asked
    assert [(one.key, one.start, one.ids.tolist()) for one in asked["main"]] == [
        ("a_0_0", 2, [1, 2, 0, 1, 2]),
        ("a_1_0", 2, [1, 2, 0]),
    ]
    advantage(session, 1)  # the same step again: the file answers
    assert len(teachers.asked) == 1
    np.testing.assert_array_equal(files.saved[0].columns["advantages"], batch.columns["advantages"])


def test_supervised_without_rewards_leaves_nothing_to_the_policy_loss(tmp_path: Path) -> None:
    files, _, session = stage(tmp_path, loss_mode="forward_kl_topk", topk=2, use_task_rewards=False)
    advantage(session, 1)
    batch, metrics = files.saved
    assert not batch.columns["advantages"].any()
    assert batch.columns[TOPK_IDS].shape == batch.columns[TOPK].shape == (6, 2)
    assert batch.columns[TEACHER][[0, 2, 3]].tolist() == [-1.0, -3.0, -1.5]
    assert np.isnan(batch.columns[TEACHER][4:]).all()  # nobody trains on it, so nobody was asked
    assert metrics["distillation/teacher_mass"] == pytest.approx(2 * np.exp(-2.0), rel=1e-5)


def test_answers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    files, _, session = stage(tmp_path)
    advantage(session, 1)
    batch = files.saved[0]
    good = Said().collect(SimpleNamespace(topk=0), lambda: None)
    for wrong in ([-1.0], [-1.0, -1.0, np.nan]):
        bad = TeacherRow(np.asarray(wrong, np.float32), _none(len(wrong)), np.zeros((len(wrong), 0), np.float32))
        with pytest.raises(TeacherError, match=r"a_0_0: a teacher gave .* not finite"):
            scores_of(batch, good | {"a_0_0": bad}, 0)
