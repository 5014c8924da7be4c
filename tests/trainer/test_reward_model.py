"""A reward model in a run: the servers sleep before it wakes, and every mode that is accepted trains on its scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.trainer.conftest import MakeConfig
from verl_core.engine.loading import copy_tokenizer
from verl_core.engine.reward_network import new_reward_network
from verl_core.record.rundir import RunDir
from verl_core.trainer.colocate_async import ColocateAsyncTrainer
from verl_core.trainer.evaluate import without_reward_model
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.ray_session import run_root
from verl_core.trainer.run import train
from verl_core.trainer.step_files import StepFiles
from verl_core.trainer.sync import SyncTrainer

OWN = ("reward.reward_model.enable_resource_pool=true", "reward.reward_model.nnodes=1")


class Noted:
    """A session of a colocated reward model that only notes who uses the devices."""

    def __init__(self, colocated: bool = True, in_validation: bool = True) -> None:
        self.said: list[str] = []
        note = self._note
        self.servers = SimpleNamespace(sleep=note("servers sleep"), under_way=None)
        self.buffer = SimpleNamespace(pause=note("pause"), resume=note("resume"))
        self.wake_servers = note("servers wake")
        self.files = SimpleNamespace(finished=lambda stage, step: None)
        model = SimpleNamespace(in_validation=in_validation)
        self.config = SimpleNamespace(colocates_reward_model=colocated, reward=SimpleNamespace(reward_model=model))

    def _note(self, what: str) -> Any:
        return lambda *args, **kwargs: self.said.append(what)


@pytest.mark.parametrize(
    ("trainer", "freed"), [(SyncTrainer, ["servers sleep"]), (ColocateAsyncTrainer, ["servers sleep", "pause"])]
)
def test_servers_sleep_before_a_colocated_model_scores(
    trainer: type[PPOTrainer], freed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Noted()
    monkeypatch.setattr("verl_core.trainer.stages.reward", lambda session, step: session.said.append("score"))
    trainer(session).reward(1)
    assert session.said == [*freed, "score"]
    session.said.clear()
    with trainer(session)._scoring(1):
        session.said.append("score")
    assert session.said[: len(freed) + 1] == [*freed, "score"]
    assert session.said[len(freed) + 1] == "servers wake"  # validation was not the end of serving


def test_servers_stay_awake_for_a_model_elsewhere_and_for_other_validation() -> None:
    for session in (Noted(colocated=False), Noted(in_validation=False)):
        asked: Any = session
        with SyncTrainer(asked)._scoring(1):
            pass
        assert session.said == []


def test_an_evaluation_by_verifiers_needs_no_reward_model(make_config: MakeConfig) -> None:
    reward = make_config("apart").reward
    reward.reward_model.enable, reward.reward_model.in_validation = True, False
    reward.composite = [{"name": "right", "verifier": "row"}, {"name": "liked", "reward_model": True}]
    without_reward_model(reward)
    assert (reward.reward_model.enable, reward.composite) == (False, [{"name": "right", "verifier": "row"}])


@pytest.fixture(scope="session")
def judge(assets: tuple[list[str], list[str], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The start policy's backbone with a head that was never trained: its scores differ, that is all that is needed."""
    model = new_reward_network(assets[2], torch.float32, None)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.lm.score.weight)
    folder = str(tmp_path_factory.mktemp("judge"))
    model.write(folder, {name.removeprefix("lm."): part.detach() for name, part in model.named_parameters()})
    copy_tokenizer(assets[2], folder)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("trainer.v1.trainer_mode=colocate_async",),
        (*OWN, "trainer.v1.trainer_mode=separate_async"),
        (*OWN, "algorithm.filter_groups.enable=true"),
        (*OWN, "trainer.use_v1=false", "reward.reward_model.in_validation=false"),
    ],
    ids=["sync", "colocate_async", "separate_async", "filtered", "legacy"],
)
def test_every_accepted_mode_trains_on_its_scores(
    overrides: tuple[str, ...], make_config: MakeConfig, judge: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    model = ["reward.reward_model.enable=true", f"reward.reward_model.model_path={judge}"]
    config = make_config(name, *model, "trainer.total_training_steps=2", *overrides)
    train(config)
    files = StepFiles(RunDir(run_root(config)))
    scorer = AutoModelForSequenceClassification.from_pretrained(judge, dtype=torch.float32).eval()
    for step in (1, 2):
        rows, rewards = files.trajectories(step), files.rewards(step)
        assert [one.key for one in rewards] == [row.key for row in rows]
        for row, reward in zip(rows, rewards, strict=True):
            ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids]).astype(np.int64))[None]
            scorer.config.pad_token_id = None
            with torch.no_grad():
                assert reward.score == pytest.approx(float(scorer(input_ids=ids).logits[0, 0]), abs=1e-4)
        assert len({one.score for one in rewards}) > 1
    validation = files.validation(2)
    assert validation is not None
    core = next(value for key, value in validation.items() if key.startswith("val-core/") and "mean" in key)
    judged_by_rules = name == "legacy"
    assert (core == round(core * 8) / 8) is judged_by_rules  # 8 rows, right or wrong; scores are no eighths
