"""Tool text is context, not behaviour: whatever stands in its cells, no loss, gradient, advantage or metric changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import MakeConfig, make_config, tiny_model  # noqa: F401  fixtures
from verl_core.algorithms.reward_kl import outcome_rewards
from verl_core.batch import TrainBatch
from verl_core.config.schema import AlgorithmConfig
from verl_core.engine.loading import load_model
from verl_core.engine.local import LocalPolicy
from verl_core.trainer.metrics import batch_metrics, rollout_metrics
from verl_core.trainer.stages.advantage import assemble, corrected, with_advantages
from verl_core.trajectory import Reward, Segment, Trajectory

SHAPES = [(3, 2, 4), (4, 3, 1), (2, 0, 0), (5, 1, 2)]  # sampled, told, sampled again


def sessions(told_log_prob: float) -> list[Trajectory]:
    """Two groups of four sessions; the log-prob of every tool token is `told_log_prob`."""
    random = np.random.default_rng(3)
    rows = []
    for group in range(2):
        for session, (before, told, after) in enumerate(SHAPES):
            mask = np.asarray([True] * before + [False] * told + [True] * after)
            log_probs = np.where(mask, random.normal(-2, 0.3, len(mask)), told_log_prob).astype(np.float32)
            calls = [{"status": "ok" if session else "timeout", "truncated": session == 1}] if told else []
            account: dict[str, Any] = {
                "turns": 1 + bool(told),
                "calls": calls,
                "ended": "answer",
                "tool_s": 0.5 * bool(told),
            }
            rows.append(
                Trajectory(
                    uid=f"{group:032x}",
                    session=session,
                    index=0,
                    ordinal=group,
                    prompt_ids=random.integers(2, 48, 4).astype(np.int32),
                    response_ids=random.integers(2, 48, len(mask)).astype(np.int32),
                    response_mask=mask,
                    rollout_log_probs=log_probs,
                    segments=(Segment(0, len(mask)),),
                    stop_reason="stop",
                    data_source="t",
                    num_turns=account["turns"],
                    extra={"multi_turn": account},
                )
            )
    return rows


def trained(
    rows: list[Trajectory], algorithm: AlgorithmConfig, policy: LocalPolicy
) -> tuple[TrainBatch, dict[str, float]]:
    """The advantage stage without its files."""
    scored = [Reward(row.key, float(row.session % 3 == 0)) for row in rows]
    batch = assemble(rows, scored)
    bypass = algorithm.rollout_correction.effective.bypass_mode
    if bypass:
        batch = batch.with_column("old_log_probs", batch.columns["rollout_log_probs"])
    else:
        old = policy.old_log_probs(batch)
        batch = batch.with_column("old_log_probs", old.log_probs)
    rewards = outcome_rewards(torch.from_numpy(batch.scores), batch.padded_mask())
    batch = batch.with_column("token_rewards", batch.flat(rewards))
    sampled, metrics = batch.response_mask, {}
    if not bypass:
        batch, metrics = corrected(batch, algorithm)
    batch = with_advantages(batch, algorithm, None, sampled)
    return batch, metrics | batch_metrics(batch, sampled)


@pytest.mark.parametrize("preset", [None, "decoupled_token_is", "bypass"])
def test_nothing_of_a_tool_cell_is_read(preset: str | None, make_config: MakeConfig, tmp_path: Path) -> None:  # noqa: F811
    told: list[dict[str, float]] = []
    weights: list[dict[str, torch.Tensor]] = []
    for number, value in enumerate((float("nan"), -0.5, float("inf"))):
        config = make_config(ppo_max_token_len_per_gpu=64)
        config.algorithm.rollout_correction.bypass_mode = preset == "bypass"
        if preset == "decoupled_token_is":
            config.algorithm.rollout_correction.preset = preset
        policy = LocalPolicy(config, 1, str(tmp_path / f"weights{number}"))
        batch, metrics = trained(sessions(value), config.algorithm, policy)
        metrics |= policy.update(batch, 1)
        folder = tmp_path / str(number)
        folder.mkdir()
        policy.save(str(folder))
        weights.append({name: tensor.detach() for name, tensor in load_model(str(folder)).named_parameters()})
        told.append({name: number for name, number in metrics.items() if not name.startswith(("timing", "perf"))})
    assert all(np.isfinite(list(told[0].values())))
    assert told[0] == told[1] == told[2]
    assert all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_turns_and_calls_are_counted_by_hand() -> None:
    found = rollout_metrics(sessions(float("nan")), 10, 2.0)
    # per group: 3 + 2 + 4, 4 + 3 + 1, 2, 5 + 1 + 2 tokens; 6 of 27 are told
    wanted = {
        "num_turns/mean": 1.75, "num_turns/max": 2.0, "num_turns/min": 1.0,
        "tool_call_counts/mean": 0.75, "tools/calls": 6.0, "tools/errors": 2.0, "tools/errors/timeout": 2.0,
        "tools/truncated": 2.0, "tools/seconds": 3.0, "tools/token_share": 12 / 54, "tools/ended/answer": 1.0,
        "perf/rollout_tokens_per_s": 42 / 2.0, "response_length/max": 9.0,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    single: list[Any] = [replace(row, extra={}) for row in sessions(0.0)]
    assert not [name for name in rollout_metrics(single, 10, 2.0) if name.startswith(("num_turns", "tool"))]
