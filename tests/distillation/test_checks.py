"""Every refusal of `distillation.*`, by the message a user reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import RunConfig, resolve
from verl_core.config.teachers import taught_by, teachers_of
from verl_core.config.wire import resume_difference
from verl_core.errors import ConfigError

LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
    "distillation": {"enabled": True, "teacher_models": {"main": {"warm_start": {"target_accuracy": 0.9}}}},
}
LOSS, TEACHERS = "distillation.distillation_loss", "distillation.teacher_models"


def problems(*overrides: str) -> list[str]:
    try:
        resolve(LEAST, overrides)
    except ConfigError as error:
        return [line.removeprefix("  - ") for line in str(error).splitlines()[1:]]
    return []


ALONE = f"{LOSS}.use_task_rewards=false"
REFUSED = [
    (["distillation.enabled=false"], f"{TEACHERS}: has no effect without distillation.enabled=true"),
    (["distillation.enabled=false", f"{LOSS}.loss_mode=k2"], f"{LOSS}.loss_mode: has no effect without"),
    (
        [f"{TEACHERS}.main.model_path=/nowhere/teacher"],
        f"{TEACHERS}.main.warm_start: {TEACHERS}.main.model_path is given",
    ),
    ([f"{TEACHERS}.b.model_path=/nowhere/b", f"{TEACHERS}.b.key=x"], "there is no folder /nowhere/b"),
    ([f"{TEACHERS}.b.key=x"], f"{TEACHERS}.b.model_path: no teacher; name its folder"),
    ([f"{TEACHERS}.b.warm_start={{steps: 2}}"], f"{TEACHERS}: 2 teachers without a key, for all other sources"),
    ([f"{TEACHERS}.main.modelpath=x"], f"{TEACHERS}.main.modelpath: unknown key"),
    ([f"{TEACHERS}.main.num_replicas=two"], f"{TEACHERS}.main.num_replicas: expected a whole number, got 'two'"),
    ([f"{TEACHERS}.main.num_replicas=0"], f"{TEACHERS}.main.num_replicas: must be at least 1, got 0"),
    ([f"{TEACHERS}.main.warm_start.step=2"], f"{TEACHERS}.main.warm_start.step: unknown key"),
    ([f"{TEACHERS}.main.warm_start.enable=false"], f"{TEACHERS}.main.warm_start.enable: has no effect"),
    ([f"{TEACHERS}.main.warm_start.steps=0"], f"{TEACHERS}.main.warm_start.steps: must be at least 1, got 0"),
    (
        [f"{TEACHERS}.main.warm_start.target_accuracy=1.5"],
        f"{TEACHERS}.main.warm_start.target_accuracy: must be greater than 0 and less than 1, got 1.5",
    ),
    ([f"{TEACHERS}=3"], f"{TEACHERS}: expected a section, got 3"),
    ([f"{LOSS}.loss_mode=k9"], f"{LOSS}.loss_mode: unknown name 'k9'"),
    ([f"{LOSS}.loss_mode=k1"], f"{LOSS}.loss_mode: k1 has a gradient that does not know the teacher"),
    ([f"{LOSS}.topk=4"], f"{LOSS}.topk: has no effect with {LOSS}.loss_mode=k3"),
    ([f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.use_policy_gradient=true"], "forward_kl_topk says how the tokens"),
    ([f"{LOSS}.loss_mode=k3+", f"{LOSS}.use_policy_gradient=true"], "k3+ differs from k3 in its gradient"),
    (
        [f"{LOSS}.loss_mode=forward_kl_topk", f"{TEACHERS}.main.inference.max_logprobs=8"],
        f"{TEACHERS}.main.inference.max_logprobs: 8 candidates per token are fewer than {LOSS}.topk=32",
    ),
    (["actor_rollout_ref.rollout.temperature=0.7"], "compares the policy at 0.7 with teachers that score at 1"),
    ([ALONE, f"{LOSS}.distillation_loss_coef=2"], f"{LOSS}.distillation_loss_coef: has no effect with"),
    ([f"{LOSS}.distillation_loss_coef=0"], f"{LOSS}.distillation_loss_coef: must be greater than 0"),
    ([ALONE, "algorithm.adv_estimator=gae"], "nothing reads the values of a critic"),
    ([ALONE, "algorithm.adv_estimator=rloo"], "algorithm.adv_estimator: has no effect with"),
    ([ALONE, "algorithm.use_kl_in_reward=true"], "algorithm.use_kl_in_reward: with"),
    ([ALONE, "algorithm.filter_groups.enable=true"], "algorithm.filter_groups.enable: with"),
    ([ALONE, "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"], "there is no policy loss"),
    ([ALONE, "algorithm.norm_adv_by_std_in_grpo=false"], "algorithm.norm_adv_by_std_in_grpo: has no effect with"),
    (
        [ALONE, f"{LOSS}.loss_mode=forward_kl_topk", "algorithm.rollout_correction.rollout_is=token"],
        "algorithm.rollout_correction.rollout_is: has no effect with",
    ),
    ([f"{LOSS}.policy_loss_mode=vanilla"], "there is one policy loss"),
    (
        ["trainer.device=cuda", "ray.worker.gpu=1"],
        "trainer.nnodes x trainer.n_gpus_per_node + one per server of a teacher needs 2",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "message"), REFUSED, ids=lambda value: value[-1] if isinstance(value, list) else ""
)
def test_refused(overrides: list[str], message: str) -> None:
    assert any(message in problem for problem in problems(*overrides)), problems(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [ALONE, "actor_rollout_ref.rollout.n=1"],  # nothing is compared
        [
            ALONE,
            f"{LOSS}.loss_mode=k1",
            f"{LOSS}.use_policy_gradient=true",
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        ],
        [f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.topk=8", f"{LOSS}.tail=renormalise"],
        [ALONE, "algorithm.rollout_correction.rollout_is=token"],  # sampled losses take weights
        [f"{LOSS}.loss_mode=forward_kl_topk", "algorithm.rollout_correction.rollout_is=token"],  # the policy loss does
        ["algorithm.adv_estimator=gae", f"{LOSS}.distillation_loss_coef=0.1"],
        ["trainer.v1.trainer_mode=separate_async", ALONE],
    ],
    ids=str,
)
def test_accepted(overrides: list[str]) -> None:
    assert problems(*overrides) == []


def configured(*overrides: str) -> RunConfig:
    return resolve(LEAST, overrides).config


def test_what_an_entry_leaves_open_is_the_rollouts() -> None:
    (main,) = teachers_of(configured("actor_rollout_ref.rollout.max_num_seqs=7", "warm_start.hidden_size=64"))
    assert (main.engine, main.max_num_seqs, main.max_logprobs, main.source) == ("vllm", 7, 0, None)
    assert main.making is not None
    assert (main.making.hidden_size, main.making.target_accuracy) == (64, 0.9)
    both = teachers_of(configured(f"{TEACHERS}.b={{key: sums, warm_start: {{steps: 3}}, num_replicas: 2}}"))
    assert [taught_by(both, source).name for source in ("sums", "else")] == ["b", "main"]  # type: ignore[union-attr]
    assert taught_by([both[0]], "sums") is both[0]
    assert taught_by([], "sums") is None


def test_a_moved_root_is_no_difference(tmp_path: Path) -> None:
    old, new = configured(), configured()
    for config, root in ((old, "/a"), (new, "/b")):
        config.distillation.teacher_models = {"main": {"model_path": f"{root}/assets/policy-0123456789ab"}}
    assert resume_difference(old, new) == []
    new.distillation.teacher_models["main"]["num_replicas"] = 2
    assert len(resume_difference(old, new)) == 1
