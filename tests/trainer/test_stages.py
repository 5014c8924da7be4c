"""The arithmetic of the stages, without actors: values by hand."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from verl_core.algorithms.kl_control import AdaptiveKL
from verl_core.batch import TrainBatch
from verl_core.config.schema import AlgorithmConfig, RunConfig
from verl_core.engine.interface import LogProbs
from verl_core.errors import RewardError
from verl_core.trainer.finish import overhead_share
from verl_core.trainer.metrics import batch_metrics, reward_metrics, rollout_metrics
from verl_core.trainer.stages.advantage import advantage, assemble, corrected, penalised, reward_parts, with_advantages
from verl_core.trainer.stages.reward import unscored_groups
from verl_core.trainer.stages.update import update
from verl_core.trajectory import Float32, Reward, Segment, Trajectory


def row(uid: str, session: int, tokens: int, ordinal: int = 0, masked: tuple[int, ...] = ()) -> Trajectory:
    """A trajectory of `tokens` response tokens; positions in `masked` are not the policy's and hold NaN."""
    mask = np.asarray([place not in masked for place in range(tokens)])
    return Trajectory(
        uid=uid,
        session=session,
        index=0,
        ordinal=ordinal,
        prompt_ids=np.asarray([1, 2], dtype=np.int32),
        response_ids=np.arange(tokens, dtype=np.int32),
        response_mask=mask,
        rollout_log_probs=np.where(mask, -1.0, np.nan).astype(np.float32),
        segments=(Segment(0, tokens),),
        stop_reason="stop",
        data_source="test",
    )


def test_rows_come_in_canonical_order_whatever_order_they_finished_in() -> None:
    rows = [row("b", 1, 2, ordinal=1), row("a", 0, 3), row("b", 0, 1, ordinal=1)]
    batch = assemble(rows, [Reward(one.key, score) for one, score in zip(rows, (1.0, 2.0, 3.0), strict=True)])
    assert batch.keys == ["a_0_0", "b_0_0", "b_1_0"]
    assert batch.scores.tolist() == [2.0, 3.0, 1.0]


def test_quarantined_rows_are_not_trained_on_and_leave_their_group_alone() -> None:
    rows = [row("a", session, 2) for session in range(3)]
    rewards = [Reward("a_0_0", 1.0), Reward("a_1_0", 0.0, status="raised", reason="boom"), Reward("a_2_0", 0.0)]
    batch = assemble(rows, rewards)
    batch = batch.with_column("token_rewards", np.asarray([0, 1, 0, 99, 0, 0], dtype=np.float32))
    done = with_advantages(batch, AlgorithmConfig(norm_adv_by_std_in_grpo=False))
    # The group is {1, 0}: mean 0.5. The quarantined 99 enters nothing and gets nothing.
    assert done.columns["advantages"].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0, -0.5, -0.5])


def outputs(session: int, count: int) -> list[Trajectory]:
    """`count` outputs of one session of group a, two tokens each."""
    return [dataclasses.replace(row("a", session, 2), index=index) for index in range(count)]


def test_the_outputs_of_a_session_share_the_advantage_of_its_last() -> None:
    # Session 0 has two outputs scored 5 and 1: only the 1 counts. Outcomes 1 and 0, mean 0.5.
    rows = [*outputs(0, 2), *outputs(1, 1)]
    rewards = [Reward("a_0_0", 5.0), Reward("a_0_1", 1.0), Reward("a_1_0", 0.0)]
    batch = assemble(rows, rewards)
    assert batch.scores.tolist() == [0.0, 1.0, 0.0]
    batch = batch.with_column("token_rewards", np.asarray([0, 0, 0, 1, 0, 0], dtype=np.float32))
    done = with_advantages(batch, AlgorithmConfig(norm_adv_by_std_in_grpo=False))
    assert done.columns["advantages"].tolist() == [0.5, 0.5, 0.5, 0.5, -0.5, -0.5]


def test_a_session_without_a_score_for_its_last_output_is_not_trained_on() -> None:
    rows = [*outputs(0, 2), *outputs(1, 2)]
    quarantined = {"status": "raised", "reason": "boom"}
    rewards = [Reward("a_0_0", 5.0), Reward("a_0_1", 0.0, **quarantined), Reward("a_1_0", 0.0, **quarantined)]
    batch = assemble(rows, [*rewards, Reward("a_1_1", 1.0)])
    assert batch.response_mask.tolist() == [False] * 4 + [True] * 4


def test_parts_of_the_reward() -> None:
    rows = [*outputs(0, 2), *outputs(1, 1), *outputs(2, 1)]
    rewards = [
        Reward("a_0_0", 0.0),
        Reward("a_0_1", 1.0, {"form": True, "answer": 2}),
        Reward("a_1_0", 0.0, {"form": 0.5}, status="raised", reason="boom"),
        Reward("a_2_0", 1.0, {"form": 0, "answer": -1.5, "why": "text"}),
    ]
    batch = assemble(rows, rewards)
    parts = reward_parts(batch, rewards, ["form", "answer"])
    assert parts is not None
    assert parts.tolist() == [[0, 0], [1, 2], [0, 0], [0, -1.5]]
    assert reward_parts(batch, rewards, []) is None
    with pytest.raises(RewardError, match=r"names 'why', and the reward of a_0_1 has None there \(its parts: answer"):
        reward_parts(batch, rewards, ["why"])


def test_rejected_rows_leave_the_mask_and_stay_in_the_baseline_only_if_asked() -> None:
    rows = [row("a", session, 1) for session in range(3)]
    scores = [Reward("a_0_0", 1.0), Reward("a_1_0", 0.0), Reward("a_2_0", 5.0)]
    for keep_in_baseline, expected in (("kept", [0.5, -0.5, 0.0]), ("all", [-1.0, -2.0, 0.0])):
        algorithm = AlgorithmConfig(norm_adv_by_std_in_grpo=False)
        correction = algorithm.rollout_correction
        correction.rollout_is, correction.rollout_rs, correction.rollout_rs_threshold = "token", "token_k1", 2.0
        correction.baseline_rows = keep_in_baseline  # type: ignore[assignment]
        batch = assemble(rows, scores)
        batch = batch.with_column("old_log_probs", np.asarray([-1.0, -0.5, 1.0], dtype=np.float32))  # rollout: -1
        batch = batch.with_column("token_rewards", batch.scores)
        sampled = batch.response_mask
        batch, metrics = corrected(batch, algorithm)
        done = with_advantages(batch, algorithm, sampled=sampled)
        assert done.response_mask.tolist() == [True, True, False]
        assert done.columns["rollout_is_weights"].tolist() == pytest.approx([1.0, np.exp(0.5), 2.0])  # e^2, capped
        assert done.columns["advantages"].tolist() == expected
        assert metrics["rollout_corr/rejected_row_share"] == pytest.approx(1 / 3)
        assert metrics["rollout_corr/kl"] == pytest.approx(-2.5 / 3)


def test_without_a_correction_nothing_changes_and_the_distance_is_told() -> None:
    batch = assemble([row("a", 0, 2)], [Reward("a_0_0", 1.0)])
    batch = batch.with_column("old_log_probs", np.asarray([-1.0, -1.5], dtype=np.float32))
    same, metrics = corrected(batch, AlgorithmConfig())
    assert same is batch
    assert metrics["rollout_corr/kl"] == pytest.approx(0.25)
    assert "rollout_corr/rejected_token_share" not in metrics


def test_kl_in_reward_by_hand() -> None:
    batch = assemble([row("a", 0, 3, masked=(1,)), row("a", 1, 1)], [Reward("a_0_0", 1.0), Reward("a_1_0", 0.0)])
    nan = np.nan
    batch = batch.with_column("old_log_probs", np.asarray([-1.0, nan, -2.0, -1.5], dtype=np.float32))
    batch = batch.with_column("ref_log_probs", np.asarray([-1.5, nan, -1.0, -1.5], dtype=np.float32))
    control = AdaptiveKL(kl_coef=0.5, target_kl=0.1, horizon=10)
    done, metrics = penalised(batch, AlgorithmConfig(use_kl_in_reward=True, kl_penalty="kl"), control)
    # k1 per token: 0.5, masked, -1.0 | 0.0. Score on the last token: -0.5 x 0.5, 0, 1 + 0.5 x 1 | 0.
    assert done.columns["token_rewards"].tolist() == pytest.approx([-0.25, 0.0, 1.5, 0.0])
    # Row means -0.25 and 0: -0.125. Error clip(-0.125 / 0.1 - 1) = -0.2; 0.5 x (1 - 0.2 x 2 / 10) = 0.48.
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(-0.125)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert metrics["actor/reward_kl_penalty_coeff_next"] == pytest.approx(0.48)


class Files:
    """What the advantage stage reads and writes of a run's files, in memory."""

    def __init__(self, rows: list[Trajectory], scored: list[Reward]) -> None:
        self.rows, self.scored, self.saved = rows, scored, (TrainBatch.from_trajectories(rows, [0.0] * len(rows)), {})

    def trajectories(self, step: int) -> list[Trajectory]:
        return self.rows

    def rewards(self, step: int) -> list[Reward]:
        return self.scored

    def save_batch(self, step: int, batch: TrainBatch, metrics: dict[str, float], durable: bool) -> None:
        self.saved = (batch, metrics)


class Policy:
    """Old log-probs 1 nat below the rollout's in session 0, equal in the others."""

    calls = 0

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        self.calls += 1
        shift = np.where(batch.sessions[batch.row_index] == 0, -1.0, 0.0)
        own = (batch.columns["rollout_log_probs"] + shift).astype(np.float32)
        return LogProbs(log_probs=own, entropy=np.full_like(own, 0.5))


@pytest.mark.parametrize("bypass", [False, True])
def test_the_stage_corrects_in_decoupled_mode_and_recomputes_nothing_in_bypass_mode(bypass: bool) -> None:
    files, policy = Files([row("a", session, 2) for session in range(3)], []), Policy()
    files.scored = [Reward(f"a_{session}_0", float(session)) for session in range(3)]
    config = RunConfig()
    config.algorithm.adv_estimator = "rloo"
    correction = config.algorithm.rollout_correction
    correction.bypass_mode, correction.rollout_rs, correction.rollout_rs_threshold = bypass, "seq_max_k2", 0.1
    session = SimpleNamespace(
        config=config, files=files, policy=policy, critic=None, teachers=None, training=lambda *_: nullcontext()
    )
    advantage(session, 1)  # type: ignore[arg-type]
    batch, metrics = files.saved
    assert policy.calls == (0 if bypass else 1)
    assert ("actor/entropy" in metrics) is not bypass
    if bypass:  # nothing is known yet about what will be rejected: 0 - 1.5, 1 - 1, 2 - 0.5
        assert batch.columns["old_log_probs"].tolist() == batch.columns["rollout_log_probs"].tolist()
        assert batch.columns["advantages"].tolist() == [-1.5, -1.5, 0, 0, 1.5, 1.5]
        assert not [name for name in metrics if name.startswith("rollout_corr")]
    else:  # session 0 is out: 1 - 2, 2 - 1
        assert batch.response_mask.tolist() == [False, False, True, True, True, True]
        assert batch.columns["advantages"].tolist() == [0, 0, -1, -1, 1, 1]
        assert metrics["rollout_corr/rejected_row_share"] == pytest.approx(1 / 3)
        assert metrics["critic/rewards/mean"] == pytest.approx(1.5)


class Critic:
    """Values by hand; NaN where the token is not the policy's."""

    def values(self, batch: TrainBatch) -> Float32:
        return np.asarray([0.5, np.nan, 0.25, 1.0], dtype=np.float32)


def test_values_reach_the_estimator_and_the_batch_of_the_step() -> None:
    rows = [row("a", 0, 3, masked=(1,)), row("a", 1, 1)]
    files = Files(rows, [Reward("a_0_0", 1.0), Reward("a_1_0", 0.0)])
    config = RunConfig()
    config.algorithm.adv_estimator, config.algorithm.lam = "gae", 0.5
    session = SimpleNamespace(
        config=config, files=files, policy=Policy(), critic=Critic(), teachers=None, training=lambda *_: nullcontext()
    )
    advantage(session, 1)  # type: ignore[arg-type]
    batch, metrics = files.saved
    assert batch.columns["values"][[0, 2, 3]].tolist() == [0.5, 0.25, 1.0]
    # Row 0: d = 0 + 0.25 - 0.5 and 1 - 0.25; A = -0.25 + 0.5 x 0.75 and 0.75. Row 1: 0 - 1. Returns are A + V.
    assert batch.columns["returns"][[0, 2, 3]].tolist() == [0.625, 1.0, 0.0]
    raw = np.asarray([0.125, 0.75, -1.0])
    white = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    assert batch.columns["advantages"][[0, 2, 3]].tolist() == pytest.approx(white.tolist(), rel=1e-5)
    returns = np.asarray([0.625, 1.0, 0.0])
    assert metrics["critic/vf_explained_var"] == pytest.approx(1 - raw.var(ddof=1) / returns.var(ddof=1))
    assert metrics["critic/values/mean"] == pytest.approx(1.75 / 3)


def test_the_critic_is_trained_before_the_policy() -> None:
    told: list[str] = []

    def engine(name: str) -> SimpleNamespace:
        return SimpleNamespace(update=lambda batch, step: told.append(f"{name} {step} {batch}") or {name: 1.0})

    trained = {"critic": engine("critic"), "actor": engine("actor")}
    files = SimpleNamespace(batch=lambda step: "batch")
    session = SimpleNamespace(
        files=files, trained=trained, training=lambda name, _: nullcontext(told.append(name)), saves_at=lambda _: False
    )
    assert update(session, 3).metrics == {"critic": 1.0, "actor": 1.0}  # type: ignore[arg-type]
    assert told == ["update_critic", "critic 3 batch", "update_actor", "actor 3 batch"]


def test_only_groups_without_any_score_are_unscored() -> None:
    rows = [row("a", 0, 1), row("a", 1, 1), row("b", 0, 1, ordinal=1)]
    rewards = [
        Reward("a_0_0", 0.0, status="timeout", reason="slow"),
        Reward("a_1_0", 1.0),
        Reward("b_0_0", 0.0, status="raised", reason="boom"),
    ]
    assert unscored_groups(rows, rewards) == {"b": "boom"}


def test_batch_metrics_ignore_masked_cells_and_cope_with_empty_responses() -> None:
    rows = [row("a", 0, 2, masked=(0,)), row("a", 1, 0), row("a", 2, 1)]
    batch = TrainBatch.from_trajectories(rows, [1.0, 0.0, 0.0])
    nan = np.nan
    for name, values in {
        "old_log_probs": [nan, -1.1, -1.0],
        "entropy": [nan, 0.2, 0.4],
        "token_rewards": [nan, 1.0, 0.5],
        "advantages": [nan, 2.0, -1.0],
        "returns": [nan, 2.0, -1.0],
    }.items():
        batch = batch.with_column(name, np.asarray(values, dtype=np.float32))
    metrics = batch_metrics(batch)
    assert metrics["critic/rewards/mean"] == pytest.approx(0.75)  # rows 0 and 2; row 1 has no trained token
    assert metrics["critic/advantages/min"] == -1.0
    assert metrics["actor/entropy"] == pytest.approx(0.3)
    assert metrics["training/rollout_log_probs_diff_max"] == pytest.approx(0.1)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(np.exp(-1.0) - np.exp(-1.1), rel=1e-4)
    assert all(np.isfinite(value) for value in metrics.values())


def test_length_and_score_metrics_by_hand() -> None:
    lengths = rollout_metrics([row("a", 0, 4), row("a", 1, 2), row("a", 2, 0)], max_response=4, seconds=2.0)
    assert lengths["response_length/mean"] == 2.0
    assert lengths["response_length/clip_ratio"] == pytest.approx(1 / 3)
    assert lengths["response/aborted_ratio"] == pytest.approx(1 / 3)
    assert lengths["perf/rollout_tokens_per_s"] == 3.0
    scores = reward_metrics([Reward("x", 1.0), Reward("y", 0.0), Reward("z", 0.0, status="raised", reason="r")])
    assert scores["critic/score/mean"] == 0.5
    assert scores["reward/quarantined"] == 1.0


def test_overhead_is_what_is_neither_generating_nor_training() -> None:
    steps = [
        {"timing_s/step": 2.0, "timing_s/gen": 1.0, "timing_s/update_actor": 0.8, "timing_s/reward": 0.2},
        {"timing_s/step": 2.0, "timing_s/gen": 1.0, "timing_s/old_log_prob": 0.4, "timing_s/ref": 0.4},
    ]
    assert overhead_share(steps) == pytest.approx(0.4 / 4.0)


def test_a_greedy_or_an_earlier_output_is_no_score_of_a_group() -> None:
    bad = {"status": "raised", "reason": "boom"}
    rows = [row("a", session, 1) for session in range(3)]
    rewards = [Reward("a_0_0", 0.0, **bad), Reward("a_1_0", 0.0, **bad), Reward("a_2_0", 1.0)]  # type: ignore[arg-type]
    assert unscored_groups(rows, rewards) == {}
    assert unscored_groups(rows, rewards, greedy_session=2) == {"a": "boom"}
    rewards = [Reward("a_0_0", 1.0), Reward("a_0_1", 0.0, **bad)]  # type: ignore[arg-type]
    assert unscored_groups(outputs(0, 2), rewards) == {"a": "boom"}  # `assemble` trains on none of its rows
