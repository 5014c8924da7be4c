"""Teachers: what they answer, what is refused before Ray, and what happens when one vanishes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from tests.rollout.conftest import byte_tokenizer, tiny_policy
from verl_core.config import RunConfig
from verl_core.config.teachers import Teacher, teachers_of
from verl_core.data.teacher_model import check_teacher
from verl_core.errors import ConfigError, DeadlineExceeded, EngineDead, ModelError, RecordError, TeacherError
from verl_core.record.teacher_file import TeacherScores, pack_teacher, unpack_teacher
from verl_core.rollout.teachers.group import Teachers
from verl_core.rollout.teachers.interface import TeacherRequest, TeacherRow, best
from verl_core.rollout.teachers.server import TeacherServer
from verl_core.rollout.teachers.torch_scoring import TorchScoring
from verl_core.rollout.teachers.vllm_scoring import VllmScoring
from verl_core.trainer.teachers import check_teachers

PLACE = {"num_cpus": 0}


def configured(folder: Path, engine: str = "scripted", **loss: Any) -> RunConfig:
    config = RunConfig()
    config.trainer.device, config.trainer.init_timeout_s = "cpu", 120.0
    config.data.max_prompt_length, config.data.max_response_length = 16, 16
    config.actor_rollout_ref.model.path = str(folder)
    config.distillation.enabled = True
    config.distillation.teacher_models = {"main": {"model_path": str(folder), "inference": {"name": engine}}}
    for name, value in loss.items():
        setattr(config.distillation.distillation_loss, name, value)
    return config


def requests(count: int = 5, seed: int = 0) -> list[TeacherRequest]:
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        start, length = int(random.integers(1, 12)), int(random.integers(1, 14))
        made.append(TeacherRequest(f"row{number}_0_0", random.integers(0, 256, start + length).astype(np.int32), start))
    return made


def test_torch_answers_are_the_models_own(policy_folder: Path) -> None:
    engine = TorchScoring(str(policy_folder))
    engine.start()
    model = tiny_policy(True)
    for request, row in zip(requests(), engine.score(requests(), 4, 250), strict=True):
        with torch.no_grad():
            table = torch.log_softmax(model(torch.from_numpy(request.ids.astype(np.int64))[None]).logits[0], -1)
        for at, token in enumerate(request.ids[request.start :].tolist()):
            place = table[request.start + at - 1]
            assert row.log_probs[at] == pytest.approx(float(place[token]), abs=1e-5)
            expected = place[:250].topk(4)
            assert row.topk_ids[at].tolist() == expected.indices.tolist()
            np.testing.assert_allclose(row.topk_log_probs[at], expected.values.numpy(), atol=1e-5)


@pytest.mark.slow
def test_vllm_says_what_torch_says(policy_folder: Path) -> None:
    asked = requests(40)
    config = configured(policy_folder, "vllm", loss_mode="forward_kl_topk", topk=24)
    (teacher,) = teachers_of(config)
    vllm, plain = VllmScoring(config, teacher, "cpu"), TorchScoring(str(policy_folder))
    vllm.start()
    plain.start()
    for topk in (24, 0):
        for ours, theirs in zip(vllm.score(asked, topk, 320), plain.score(asked, topk, 320), strict=True):
            np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-3)
            np.testing.assert_allclose(ours.topk_log_probs, theirs.topk_log_probs, atol=1e-3)
            same = (ours.topk_ids == theirs.topk_ids).mean() if topk else 1.0
            assert same > 0.95  # the order of near equals may differ
    again = vllm.score(asked, 24, 320)  # a cached prefix would lack its log-probs
    assert all(np.isfinite(row.log_probs).all() for row in again)
    with pytest.raises(TeacherError, match="refuses a sequence"):
        vllm.score([TeacherRequest("long", np.zeros(99, dtype=np.int32), 1)], 0, 320)


def test_the_best_candidates_are_the_policys_own_tokens() -> None:
    ids, values = best(np.asarray([7, 3, 9], np.int32), np.asarray([-1.0, -1.0, -0.5], np.float32), 3, 8)
    assert ids.tolist() == [3, 7, 0]  # 9 is no token of the policy; equals go by their ids
    assert values.tolist() == [-1.0, -1.0, -np.inf]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_teacher_that_vanishes_is_started_again_once(policy_folder: Path) -> None:
    config = configured(policy_folder)
    config.distillation.teacher_models["main"]["num_replicas"] = 2
    namespace = "test-teachers"
    teachers = Teachers.attach_or_launch(config, namespace, "cpu", lambda _: PLACE)
    try:
        asked = {"main": requests(70)}
        expected = teachers.collect(teachers.ask(asked, 2, 320, "step 1"))
        assert set(expected) == {request.key for request in asked["main"]}
        ray.kill(ray.get_actor("teacher-main-0", namespace))
        again = teachers.collect(teachers.ask(asked, 2, 320, "step 2"))
        for key, row in expected.items():
            np.testing.assert_array_equal(row.log_probs, again[key].log_probs)
            np.testing.assert_array_equal(row.topk_ids, again[key].topk_ids)
        question = teachers.ask(asked, 2, 320, "step 3")
        teachers._seats["teacher-main-0"].life = 1  # as if it had been started again in this step already
        question.sent = {ref: _once_renewed(sent) for ref, sent in question.sent.items()}
        ray.kill(ray.get_actor("teacher-main-0", namespace))
        with pytest.raises(TeacherError, match=r"teacher-main-0 .* vanished while it scored step 3, was started again"):
            teachers.collect(question)
        other = Teachers.attach_or_launch(config, namespace, "cpu", lambda _: PLACE)  # the next process
        config.distillation.call_timeout_s = 0.001
        with pytest.raises(DeadlineExceeded, match=r"teachers to score 70 sequences of step 4.*teacher-main-1: pid="):
            other.collect(other.ask(asked, 2, 320, "step 4"))
    finally:
        teachers.shutdown()


def _once_renewed(sent: Any) -> Any:
    return type(sent)(sent.server, 1 if sent.server.endswith("-0") else sent.life, sent.chunk)


class Broken:
    """An engine that dies at the second question."""

    def __init__(self) -> None:
        self.asked = 0

    def start(self) -> None:
        """Nothing to load."""

    def score(self, asked: list[TeacherRequest], topk: int, vocabulary: int) -> list[TeacherRow]:
        self.asked += 1
        if self.asked == 2:
            raise EngineDead("out of memory")
        nothing = np.zeros((0, topk))
        return [TeacherRow(nothing[:, 0], nothing.astype(np.int32), nothing.astype(np.float32)) for _ in asked]


def test_a_server_whose_engine_died_answers_and_leaves() -> None:
    left: list[int] = []

    async def life() -> list[str]:
        teacher = Teacher("a", None, "/x", None, 1, "vllm", "auto", 0.5, 8, 4)
        server = TeacherServer(RunConfig(), teacher, "cpu", "me", engine=Broken(), leave=lambda: left.append(1))
        await server.ready()
        assert len(await server.score(requests(3), 1, 9)) == 3
        told = [await server.identity(), await server.state()]
        with pytest.raises(EngineDead, match="out of memory"):
            await server.score(requests(2), 1, 9)
        told += [await server.identity(), await server.state()]
        await asyncio.sleep(0.7)
        return told

    before, alive, after, dead = asyncio.run(life())
    assert (before, after, left) == ("me", "", [1])
    assert "ready, sequences scored=3, waiting=0" in alive
    assert "out of memory" in dead


def test_folders_that_cannot_teach(policy_folder: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(policy_folder, tmp_path / name))

    def change(folder: Path, **settings: Any) -> str:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))
        return str(folder)

    policy = str(policy_folder)
    check_teacher("main", str(copy("same")), policy, 320, 1023)
    with pytest.raises(ModelError, match=r"teacher_models\.main .* is not a model folder"):
        check_teacher("main", str(tmp_path / "none"), policy, 0, 32)
    with pytest.raises(ModelError, match="is a LlamaForSequenceClassification, which gives no log-probs"):
        check_teacher("main", change(copy("judge"), architectures=["LlamaForSequenceClassification"]), policy, 0, 32)
    with pytest.raises(ModelError, match=r"topk=321 asks for more"):
        check_teacher("main", policy, policy, 321, 32)
    with pytest.raises(ModelError, match=r"reads 1024 tokens at most"):
        check_teacher("main", policy, policy, 0, 1024)
    other = copy("other")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|new|>"])
    tokenizer.save_pretrained(other)
    with pytest.raises(ModelError, match=r"1 tokens differ: '<\|new\|>' is None here and 259 there"):
        check_teacher("main", str(other), policy, 0, 32)


def test_every_source_has_a_teacher_and_every_teacher_a_source(policy_folder: Path) -> None:
    config = configured(policy_folder)
    check_teachers(config, ["sums"])
    entry = config.distillation.teacher_models["main"]
    config.distillation.teacher_models["apart"] = {**entry, "key": "code"}
    check_teachers(config, ["sums", "code"])
    with pytest.raises(ConfigError, match=r"teacher_models\.apart: no row has a data source that it teaches"):
        check_teachers(config, ["sums"])
    del config.distillation.teacher_models["main"]
    with pytest.raises(ConfigError, match="nobody teaches the data source 'sums'"):
        check_teachers(config, ["sums", "code"])
    config.distillation.enabled = False
    check_teachers(config, ["sums"])


def test_scores_belong_to_their_rows(make_batch: Callable[..., Any]) -> None:
    batch = make_batch()
    count = len(batch.response_ids)
    scores = TeacherScores(
        np.arange(count, dtype=np.float32), np.ones((count, 2), dtype=np.int32), np.zeros((count, 2), dtype=np.float32)
    )
    data = pack_teacher(batch, scores)
    assert data == pack_teacher(batch, scores)
    back = unpack_teacher(data, batch)
    for name, values in vars(scores).items():
        np.testing.assert_array_equal(getattr(back, name), values)
    with pytest.raises(RecordError, match="scores of other rows"):
        unpack_teacher(data, batch.select(list(reversed(range(len(batch))))))
    with pytest.raises(RecordError, match="not a whole file"):
        unpack_teacher(data[:-9], batch)


def test_a_named_tuple_of_settings_travels() -> None:
    """Actors get their teacher by pickle."""
    import pickle

    teacher = Teacher("a", None, "/x", None, 1, "vllm", "auto", 0.5, 8, 4)
    assert pickle.loads(pickle.dumps(teacher)) == teacher
