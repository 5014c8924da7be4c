"""The checks of the asynchronous modes, by the message a user reads."""

from __future__ import annotations

import pytest

from tests.config.test_checks import problems

V1, ROLLOUT = "trainer.v1", "actor_rollout_ref.rollout"
COLOCATE, SEPARATE = f"{V1}.trainer_mode=colocate_async", f"{V1}.trainer_mode=separate_async"
LENDING = f"{V1}.separate_async.hybrid_rollout"
REFUSED = [
    ([f"{V1}.colocate_async.num_warmup_batches=2"], "has no effect with trainer.v1.trainer_mode=sync"),
    ([COLOCATE, f"{V1}.separate_async.num_warmup_batches=2"], "has no effect with trainer.v1.trainer_mode=colocate"),
    ([SEPARATE, f"{V1}.colocate_async.num_warmup_batches=2"], "has no effect with trainer.v1.trainer_mode=separate"),
    ([f"{V1}.sampler.max_off_policy_threshold=2"], "has no effect with trainer.v1.trainer_mode=sync"),
    (["trainer.use_v1=false", f"{V1}.sampler.max_off_policy_threshold=2"], "has no effect with trainer.use_v1=false"),
    ([f"{V1}.buffer.max_groups=64"], "has no effect with trainer.v1.trainer_mode=sync"),
    ([COLOCATE, "trainer.steps_per_node=4"], "trainer.steps_per_node: has no effect"),
    ([COLOCATE, f"{ROLLOUT}.nnodes=1"], f"{ROLLOUT}.nnodes: has no effect"),
    ([SEPARATE, f"{LENDING}.switch_threshold_ratio=0.5"], f"has no effect with {LENDING}.enable_switch=false"),
    (
        [
            SEPARATE,
            f"{LENDING}.enable_switch=true",
            f"{LENDING}.adaptive_switch_threshold=false",
            f"{LENDING}.switch_threshold_step_up=0.1",
        ],
        f"has no effect with {LENDING}.adaptive_switch_threshold=false",
    ),
    (
        [COLOCATE, f"{V1}.sampler.max_off_policy_strategy=off", f"{V1}.sampler.max_off_policy_threshold=2"],
        "max_off_policy_threshold: has no effect with trainer.v1.sampler.max_off_policy_strategy=off",
    ),
    (
        [COLOCATE, f"{V1}.sampler.max_off_policy_strategy=wait", f"{V1}.sampler.max_off_policy_threshold=null"],
        "max_off_policy_strategy: has no effect with trainer.v1.sampler.max_off_policy_threshold=null",
    ),
    (
        [COLOCATE, f"{V1}.sampler.max_off_policy_threshold=1", f"{V1}.colocate_async.num_warmup_batches=1.5"],
        "num_warmup_batches: 1.5 batches ahead make groups about 1.5 versions old",
    ),
    ([COLOCATE, f"{V1}.buffer.max_groups=31", "data.train_batch_size=32"], "max_groups: 31 is less than data.train"),
    ([SEPARATE, f"{V1}.separate_async.parameter_sync_step=3"], "parameter_sync_step: 3 x actor_rollout_ref.actor.ppo"),
    ([SEPARATE, "trainer.device=cuda"], f"{ROLLOUT}.nnodes: separate_async needs devices for the rollout alone"),
    ([SEPARATE, "trainer.device=cpu", f"{ROLLOUT}.nnodes=1"], f"{ROLLOUT}.nnodes: has no effect with trainer.device"),
    (
        [SEPARATE, "trainer.device=cuda", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.update_weights_backend=ipc"],
        "update_weights_backend: ipc moves weights inside one GPU",
    ),
    ([SEPARATE, f"{V1}.sampler.custom_sampler.path=x"], "custom_sampler"),
]
ACCEPTED = [
    [COLOCATE],
    [SEPARATE],
    [COLOCATE, f"{V1}.colocate_async.num_warmup_batches=0", f"{V1}.sampler.max_off_policy_threshold=0"],
    [SEPARATE, f"{V1}.separate_async.num_warmup_batches=1.5", f"{V1}.sampler.max_off_policy_strategy=wait"],
    [SEPARATE, f"{V1}.sampler.max_off_policy_threshold=null", f"{V1}.separate_async.num_warmup_batches=20"],
    [SEPARATE, f"{LENDING}.enable_switch=true", f"{LENDING}.switch_threshold_step_up=0.1"],
    [SEPARATE, "trainer.device=cuda", f"{ROLLOUT}.nnodes=1"],
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_what_cannot_hold_is_refused(overrides: list[str], message: str) -> None:
    told = problems(*overrides)
    assert any(message in line for line in told), told


@pytest.mark.parametrize("overrides", ACCEPTED, ids=" ".join)
def test_one_word_is_enough(overrides: list[str]) -> None:
    assert problems(*overrides) == []
