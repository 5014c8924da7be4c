"""docs/errors.md shows the messages of a run's start and of scoring word for word."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from verl_core.config import resolve
from verl_core.errors import DeadlineExceeded, VerlError
from verl_core.record.rundir import RunDir
from verl_core.reward.budget import check_budget
from verl_core.reward.registry import check_sources, known_sources
from verl_core.trainer.past import Start, agree_with_past, record_opening
from verl_core.trainer.placement import place
from verl_core.trajectory import Reward
from verl_core.transfer.availability import require_transfer_queue
from verl_core.transfer.refills import Cap, Refills

DOCS = Path(__file__).resolve().parents[2] / "docs"


def documented(message: str) -> bool:
    """Whether the page shows exactly this."""
    return f"```text\n{message}\n```" in (DOCS / "errors.md").read_text()


@pytest.mark.usefixtures("ray_cluster")
def test_too_few_devices() -> None:
    config = resolve("configs/scripted.yaml", ["trainer.n_gpus_per_node=8"]).config
    with pytest.raises(VerlError) as caught:
        place(config)
    assert documented(str(caught.value))


def test_transfer_queue_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VerlError) as caught:
        require_transfer_queue()
    assert documented(str(caught.value))


def test_run_directories(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "mine")
    record_opening(run, resolve("configs/scripted.yaml").config, Start(0, "", "", {}))
    run.publish_bytes("journal.jsonl", b"")
    for override in ("actor_rollout_ref.rollout.n=2", "trainer.resume_mode=disable"):
        with pytest.raises(VerlError) as caught:
            agree_with_past(run, resolve("configs/scripted.yaml", [override]).config)
        assert documented(str(caught.value).replace(str(tmp_path), "<root>"))


def test_unknown_data_source() -> None:
    with pytest.raises(VerlError) as caught:
        check_sources(["one_digit_sum"])
    assert documented(str(caught.value).replace(", ".join(known_sources()), "KNOWN"))


def test_error_budget() -> None:
    rewards = [
        Reward("a_0_0", 0.0, status="raised", reason="RuntimeError: no such table"),
        Reward(
            "b_0_0", 0.0, status="timeout", reason="no score within 10 s (reward.timeout_s); its process was killed"
        ),
        Reward("c_0_0", 0.0, status="not_finite", reason="the score is nan"),
        Reward("d_0_0", 1.0),
    ]
    with pytest.raises(VerlError) as caught:
        check_budget(rewards, 0.1)
    assert documented(str(caught.value))


def test_capped_filter() -> None:
    refills = Refills(lambda count: [], Cap(2), 4)
    refills.reject(7)
    refills.due(4, 0, 0, str)
    with pytest.raises(VerlError) as caught:
        refills.refuse_a_small_batch(4, 1, step=3)
    assert documented(str(caught.value))


def test_stall() -> None:
    assert documented(str(DeadlineExceeded("any group to finish", 1200.0, "STATE")))
