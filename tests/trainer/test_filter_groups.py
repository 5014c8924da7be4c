"""Dynamic sampling in whole runs: batches of groups that differ, exact accounts, nothing scored twice, resume exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.conftest import MakeConfig
from verl_core.config import RunConfig
from verl_core.record.accounting import accounting
from verl_core.record.rewards import read_rewards
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import read_metrics
from verl_core.trainer import stages
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.ray_session import run_root
from verl_core.trainer.run import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

STEPS, BATCH, N = 3, 4, 4
SETTINGS = [
    "algorithm.filter_groups.enable=true",
    "algorithm.filter_groups.max_num_gen_batches=20",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=-1",
    "data.prepare.val_size=0",
]


@pytest.fixture
def diary(tmp_path: Path) -> tuple[str, Path]:
    """(setting of a reward function that writes a line per call, the file it writes to)."""
    source, log = tmp_path / "diary.py", tmp_path / "diary.txt"
    source.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        f"    with open({str(log)!r}, 'a') as file:\n"
        "        file.write(f'{ground_truth} {solution_str}\\n')\n"
        "    return float(solution_str == str(ground_truth))\n"
    )
    return f"reward.custom_reward_function.path={source}", log


def calls(log: Path) -> int:
    return len(log.read_text().splitlines())


def check(config: RunConfig) -> int:
    """The accounts, and that every trained group differs in itself. Returns how many groups were dropped."""
    run = RunDir(run_root(config))
    accounts = accounting(run)
    assert accounts.exact
    assert accounts.trained == STEPS * BATCH
    assert set(accounts.dropped) <= {"constant"}, accounts.dropped
    dropped, told = sum(accounts.dropped.values()), 0.0
    assert accounts.served == accounts.trained + dropped
    for step in range(1, STEPS + 1):
        groups: dict[str, set[float]] = {}
        for reward in read_rewards(run, step):
            groups.setdefault(reward.key.partition("_")[0], set()).add(reward.score)
        assert [len(scores) for scores in groups.values()] == [2] * BATCH  # right and wrong ones
        told += read_metrics(run, step)["filter_groups/rejected"]
    assert told == dropped > 0
    return dropped


def test_a_sync_run_that_dies_while_it_refills_scores_nothing_again_and_ends_as_if_it_had_not(
    make_config: MakeConfig, diary: tuple[str, Path]
) -> None:
    custom, log = diary
    settings = [custom, "data.sampler.name=difficulty", *SETTINGS]  # what comes next depends on what was learnt
    calm = make_config("calm", "trainer.use_v1=false", *settings)
    expected = train(calm)
    assert calls(log) == N * (STEPS * BATCH + check(calm))
    log.unlink()
    config = make_config("dies", *settings)
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
        session = trainer.session
        trainer.on_step_begin(2)
        stages.serve(session, 2)
        spool = session.files.spool(2)
        session.buffer.wait_for(BATCH, 2, spool.append)  # all there, some dropped, and no more
        kept = len(spool.read())
        rejected = session.buffer.drops().by_reason.get("constant", 0)
        assert kept == BATCH + rejected
    close_trainer(config)
    summary = train(config)
    assert summary.final_weights_sha256 == expected.final_weights_sha256
    assert calls(log) == N * (STEPS * BATCH + check(config))


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_asynchronous_modes_filter_too(make_config: MakeConfig, diary: tuple[str, Path], mode: str) -> None:
    custom, log = diary
    ahead = [f"trainer.v1.trainer_mode={mode}", f"trainer.v1.{mode}.num_warmup_batches=1"]
    config = make_config(f"filtered_{mode}", custom, *ahead, *SETTINGS)
    train(config)
    assert calls(log) == N * (STEPS * BATCH + check(config))
