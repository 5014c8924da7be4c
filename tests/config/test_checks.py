"""Every check, by the message a user reads. A case changes a configuration that resolves, so it tests one thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_core.config import resolve
from verl_core.config.checking import CHECK_MODULES
from verl_core.config.checks import CHECKS
from verl_core.errors import ConfigError

LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"
TOOL_AGENT = (f"{ROLLOUT}.agent.default_agent_loop=tool_agent", f"{ROLLOUT}.multi_turn.enable=true")
TOOLS = (*TOOL_AGENT, f"{ROLLOUT}.multi_turn.tools=[calculator]")
SPLIT = ("trainer.v1.trainer_mode=separate_async", "ray.mode=split")


def problems(*overrides: str) -> list[str]:
    """The messages; empty when the configuration resolves."""
    try:
        resolve(LEAST, overrides)
    except ConfigError as error:
        return [line.removeprefix("  - ") for line in str(error).splitlines()[1:]]
    return []


CONTRADICTIONS = [
    (
        ["algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true"],
        "algorithm.use_kl_in_reward: together with actor_rollout_ref.actor.use_kl_loss the KL",
    ),
    ([f"{ACTOR}.clip_ratio_c=1"], f"{ACTOR}.clip_ratio_c: must be greater than 1, got 1.0"),
    (["data.train_batch_size=48"], f"{ACTOR}.ppo_mini_batch_size: 32 does not divide data.train_batch_size=48"),
    ([f"{ROLLOUT}.max_model_len=1023"], f"{ROLLOUT}.max_model_len: 1023 is less than"),
    ([f"{ROLLOUT}.top_p=0.9"], f"{ROLLOUT}.top_p: must be 1.0 for training, got 0.9: the engine reports log-probs"),
    ([f"{ROLLOUT}.top_k=5"], f"{ROLLOUT}.top_k: must be -1 (off) for training, got 5: the engine reports log-probs"),
    ([f"{ROLLOUT}.temperature=0"], f"{ROLLOUT}.temperature: must be greater than 0, got 0.0: training divides"),
    ([f"{ROLLOUT}.n=1"], f"{ROLLOUT}.n: algorithm.adv_estimator=grpo compares the samples of one prompt"),
    (
        ["algorithm.adv_estimator=gppo"],
        "algorithm.adv_estimator: unknown name 'gppo'; did you mean grpo? (known: gae, gdpo,",
    ),
    (["algorithm.adv_estimator=rloo_vectorized"], "'rloo_vectorized' is called rloo here"),
    (["algorithm.adv_estimator=PPO"], "'PPO' is called gae here"),
    (["algorithm.adv_estimator=RLOOO"], "did you mean rloo?"),
    ([f"{ACTOR}.policy_loss.loss_mode=ppo"], "'ppo' is called vanilla here"),
    ([f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=k1"], "the gradient of k1 is 0 on average"),
    (["critic.enable=true"], "critic.enable: algorithm.adv_estimator=grpo reads no values, so the critic would be"),
    (
        ["algorithm.adv_estimator=gae", "critic.enable=false"],
        "critic.enable: algorithm.adv_estimator=gae needs the values of a critic; leave it null",
    ),
    (
        ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=5"],
        "critic.ppo_mini_batch_size: 5 does not divide data.train_batch_size=32",
    ),
    (
        ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=1", f"{ROLLOUT}.n=1", "trainer.n_gpus_per_node=2"],
        "critic.ppo_mini_batch_size: a mini-batch of 1 rows (times actor_rollout_ref.rollout.n) cannot be spread",
    ),
    (
        ["algorithm.adv_estimator=gae", "critic.loss_agg_mode=token_mean"],
        "critic.loss_agg_mode: unknown name 'token_mean'; did you mean token-mean?",
    ),
    (["algorithm.adv_estimator=gae", "critic.optim.betas=[0.9]"], "critic.optim.betas: must be two numbers, got [0.9]"),
    (["algorithm.adv_estimator=gae", "critic.cliprange_value=0"], "critic.cliprange_value: must be greater than 0"),
    (
        ["algorithm.adv_estimator=gae", "trainer.critic_warmup=9", "trainer.total_training_steps=9"],
        "trainer.critic_warmup: in the first 9 steps only the critic is trained, and trainer.total_training_steps=9",
    ),
    (
        ["algorithm.adv_estimator=tir_optimal_token_baseline", "algorithm.rollout_correction.bypass_mode=true"],
        "algorithm.adv_estimator: tir_optimal_token_baseline needs the old policy's probabilities",
    ),
    (["algorithm.adv_estimator=opo", f"{ROLLOUT}.n=1"], "algorithm.adv_estimator=opo compares the samples of one"),
    (["algorithm.adv_estimator=gdpo"], "algorithm.gdpo_reward_keys: algorithm.adv_estimator=gdpo compares the named"),
    (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a,a]"],
        "algorithm.gdpo_reward_keys: a part is named twice in ['a', 'a']",
    ),
    (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a]", "algorithm.gdpo_reward_weights=[1,2]"],
        "algorithm.gdpo_reward_weights: 2 weights for 1 algorithm.gdpo_reward_keys",
    ),
    (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a]", "algorithm.use_kl_in_reward=true"],
        "algorithm.use_kl_in_reward: algorithm.adv_estimator=gdpo reads the named parts of the score",
    ),
    (
        ["reward.composite=[{name: a, verifier: row, weight: x}]"],
        "reward.composite: part 0 needs a finite number as its weight; got {'name': 'a', 'verifier': 'row'",
    ),
    (["data.sampler.name=dificulty"], "data.sampler.name: unknown name 'dificulty'; did you mean difficulty?"),
    (
        ["data.sampler.name=difficulty", "data.sampler.class_path=a.B"],
        "data.sampler.class_path: data.sampler.name is given too; delete one of them",
    ),
    (["data.sampler.name=difficulty", "data.shuffle=false"], "data.shuffle: has no effect with data.sampler, which"),
    (["data.sampler.kwargs={floor: 1}"], "data.sampler.kwargs: has no effect without data.sampler.name or"),
    (
        ["reward.composite=[{name: a}]"],
        "reward.composite: part 0 needs exactly one of verifier, function, remote, reward_model; got",
    ),
    (["reward.composite=[{name: score, verifier: row}]"], "part 0 needs a name, and another than 'score'; got"),
    (["reward.composite=[{name: a, function: f.py}]"], "part 0 needs its function as file.py:name or module:name; got"),
    (["reward.composite=[{name: a, verifer: row}]"], "part 0 has an unknown key 'verifer'; known are name, weight, "),
    (
        ["reward.composite=[{name: a, verifier: row}, {name: a, remote: true}]", "reward.remote.url=http://x"],
        "reward.composite: two parts share a name in ['a', 'a']",
    ),
    (["reward.composite=[{name: a, remote: true}]"], "reward.remote.url: a part of reward.composite is remote; name"),
    (
        ["reward.composite=[{name: a, verifier: row}]", "reward.custom_reward_function.path=f.py"],
        "reward.custom_reward_function.path: has no effect with reward.composite",
    ),
    (["reward.remote.retries=5"], "reward.remote.retries: has no effect without reward.remote.url"),
    (["reward.remote.url=ftp://x"], "reward.remote.url: must begin with http:// or https://, got 'ftp://x'"),
    (
        ["reward.remote.url=http://x", "reward.remote.timeout_s=90"],
        "reward.remote.timeout_s: 90 s for one attempt exceed reward.remote.deadline_s=60",
    ),
    (
        ["reward.overlong_buffer.enable=true"],
        "reward.overlong_buffer.len: must be at least 1 and at most data.max_response_length=512, got 0",
    ),
    (
        ["reward.overlong_buffer.len=8"],
        "reward.overlong_buffer.len: has no effect without reward.overlong_buffer.enable",
    ),
    (
        ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=seq_final_reward"],
        "algorithm.filter_groups.metric: seq_final_reward includes the KL to the reference, which is not known while",
    ),
    (
        ["algorithm.filter_groups.enable=true", f"{ROLLOUT}.n=1", "algorithm.adv_estimator=reinforce_plus_plus"],
        f"algorithm.filter_groups.enable: compares the sessions of a group, and {ROLLOUT}.n=1; set that to at",
    ),
    (
        ["algorithm.filter_groups.metric=acc"],
        "algorithm.filter_groups.metric: has no effect without algorithm.filter_groups.enable=true",
    ),
    (
        ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.when_capped=train"],
        "algorithm.filter_groups.when_capped: has no effect with algorithm.filter_groups.max_num_gen_batches=0",
    ),
    (
        ["algorithm.filter_groups.max_inflight_gen_batches=2"],
        "algorithm.filter_groups.max_inflight_gen_batches: known in verl; every dropped group is replaced at once",
    ),
    (
        [f"{ACTOR}.policy_loss.loss_mode=vanila"],
        f"{ACTOR}.policy_loss.loss_mode: unknown name 'vanila'; did you mean vanilla?",
    ),
    ([f"{ACTOR}.policy_loss=gspo"], f"{ACTOR}.policy_loss: expected a section with settings of its own"),
    ([f"{ACTOR}.policy_loss.loss_mode=bypass_mode"], "set algorithm.rollout_correction.bypass_mode=true"),
    ([f"{ACTOR}.policy_loss.loss_mode=dro"], f"{ACTOR}.policy_loss.dro_beta: "),
    (
        [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.policy_loss.clip_cov_lb=6"],
        f"{ACTOR}.policy_loss.clip_cov_lb: 6.0 must be less than",
    ),
    ([f"{CORRECTION}.preset=decoupled_tok_is"], "unknown name 'decoupled_tok_is'; did you mean decoupled_token_is?"),
    (
        [f"{CORRECTION}.preset=decoupled_seq_is", f"{CORRECTION}.rollout_is=token"],
        f"{CORRECTION}.rollout_is: has no effect with {CORRECTION}.preset=decoupled_seq_is",
    ),
    (
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=0.5_5"],  # YAML 1.1 reads 0.55
        f"{CORRECTION}.rollout_is_threshold: must be at least 1, got 0.55",
    ),
    ([f"{CORRECTION}.rollout_is_threshold=3"], f"{CORRECTION}.rollout_is_threshold: has no effect without"),
    ([f"{CORRECTION}.rollout_rs=token_k1"], f"{CORRECTION}.rollout_rs: 'token_k1' has no threshold"),
    ([f"{CORRECTION}.baseline_rows=all"], f"{CORRECTION}.baseline_rows: has no effect without {CORRECTION}.rollout_rs"),
    ([f"{CORRECTION}.loss_type=reinforce"], f"{CORRECTION}.loss_type: has no effect without {CORRECTION}.bypass_mode"),
    (
        [f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=token"],
        f"{CORRECTION}.rollout_is: with {CORRECTION}.bypass_mode=true and",
    ),
    (
        [
            f"{CORRECTION}.bypass_mode=true",
            f"{CORRECTION}.loss_type=reinforce",
            f"{CORRECTION}.rollout_is=token",
            f"{CORRECTION}.rollout_is_batch_normalize=true",
        ],
        f"{CORRECTION}.rollout_is_batch_normalize: with {CORRECTION}.bypass_mode=true weights are taken micro-batch",
    ),
    (
        [f"{CORRECTION}.preset=bypass_pg_is", f"{ACTOR}.clip_ratio=0.3"],
        f"{ACTOR}.clip_ratio: has no effect with {CORRECTION}.loss_type=reinforce",
    ),
    (
        [
            f"{CORRECTION}.bypass_mode=true",
            f"{ACTOR}.policy_loss.loss_mode=gspo",
            "trainer.v1.trainer_mode=colocate_async",
        ],
        f"{ACTOR}.policy_loss.loss_mode: gspo takes one ratio per response",
    ),
    ([f"{ACTOR}.loss_agg_mode=mean"], f"{ACTOR}.loss_agg_mode: unknown name 'mean'"),
    ([f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=k4"], f"{ACTOR}.kl_loss_type: unknown name 'k4'"),
    (
        ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full"],
        "algorithm.kl_penalty: 'full' is known in verl, not supported yet",
    ),
    (["trainer.v1.trainer_mode=snyc"], "trainer.v1.trainer_mode: unknown name 'snyc'; did you mean sync?"),
    (["trainer.logger=[wandb]"], "trainer.logger: 'wandb' is known in verl, not supported yet"),
    (["trainer.logger=[console,console]"], "trainer.logger: a logger is named twice"),
    (
        [f"{ROLLOUT}.agent.default_agent_loop=tool_agent"],
        f"{ROLLOUT}.agent.default_agent_loop: tool_agent needs {ROLLOUT}.multi_turn.enable=true",
    ),
    (
        [f"{ROLLOUT}.multi_turn.enable=true", f"{ROLLOUT}.multi_turn.tools=[calculator]"],
        f"{ROLLOUT}.multi_turn.enable: {ROLLOUT}.agent.default_agent_loop=single_turn_agent takes one turn",
    ),
    ([*TOOL_AGENT], f"{ROLLOUT}.multi_turn.tools: no tool is named; give one, such as calculator"),
    (
        [*TOOLS, f"{ROLLOUT}.multi_turn.tool_config_path=tools.yaml"],
        f"{ROLLOUT}.multi_turn.tool_config_path: {ROLLOUT}.multi_turn.tools is given too",
    ),
    (
        [*TOOLS, f"{ROLLOUT}.multi_turn.max_assistant_turns=1"],
        f"{ROLLOUT}.multi_turn.max_assistant_turns: calls of the last turn are not run",
    ),
    (
        [*TOOLS, "data.max_response_length=256"],
        f"{ROLLOUT}.multi_turn.max_tool_response_length: one answer of 256 tokens would fill data.max_response_length",
    ),
    (
        [*TOOLS, f"{ROLLOUT}.multi_turn.max_turn_length=512"],
        f"{ROLLOUT}.multi_turn.max_turn_length: 512 is no limit below data.max_response_length=512",
    ),
    (
        [*TOOLS, f"{ROLLOUT}.name=scripted", f"{ROLLOUT}.scripted_lengths.median=8"],
        f"{ROLLOUT}.scripted_lengths.median: with {ROLLOUT}.multi_turn.enable a turn must end where the policy ends it",
    ),
    (
        [*TOOLS, f"{ROLLOUT}.multi_turn.tool_timeout_s=60"],
        f"trainer.v1.buffer.lease_s: 900 s must exceed {ROLLOUT}.request_timeout_s=600 + rollout.multi_turn."
        "max_assistant_turns x tool_timeout_s=480 by more than",
    ),
    ([f"{ROLLOUT}.multi_turn.format=json"], f"{ROLLOUT}.multi_turn.format: has no effect without"),
    (["trainer.steps_per_node=0"], "trainer.steps_per_node: must be at least 1, got 0"),
    (["trainer.save_freq=0"], "trainer.save_freq: must be -1 or at least 1, got 0"),
    ([f"{ACTOR}.optim.betas=[0.9]"], f"{ACTOR}.optim.betas: must be two numbers, got [0.9]"),
    (["trainer.n_gpus_per_node=300"], f"{ACTOR}.ppo_mini_batch_size: a mini-batch of 256 rows"),
    ([f"{ACTOR}.ppo_max_token_len_per_gpu=1000"], "1000 tokens cannot hold one sequence of"),
    (["actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=1000"], "1000 tokens cannot hold one sequence of"),
    ([f"{ROLLOUT}.val_kwargs.n=4"], f"{ROLLOUT}.val_kwargs.n: 4 greedy samples are all the same"),
    (
        ["trainer.device=cpu", f"{ROLLOUT}.update_weights_backend=nccl"],
        f"{ROLLOUT}.update_weights_backend: nccl moves weights between GPUs, and trainer.device=cpu",
    ),
    (
        [f"{ROLLOUT}.name=scripted", f"{ROLLOUT}.update_weights_backend=ipc"],
        "ipc moves weights between GPUs, and actor_rollout_ref.rollout.name=scripted",
    ),
    ([f"{ROLLOUT}.tensor_model_parallel_size=3"], f"{ROLLOUT}.tensor_model_parallel_size: 3 does not divide 1 devices"),
    (["trainer.device=cuda", f"{ROLLOUT}.num_servers=2"], f"{ROLLOUT}.num_servers: 2 servers of"),
    (
        [f"{ROLLOUT}.update_weights_backend=shm", "trainer.nnodes=2"],
        f"{ROLLOUT}.update_weights_backend: shm is the memory of one host, and trainer.nnodes=2",
    ),
    (
        ["trainer.device=cuda", "trainer.n_gpus_per_node=8", "ray.worker.gpu=4"],
        "ray.worker.gpu: ray.head.gpu=0 and 4 in each of ray.worker.replicas=1 make 4 GPUs; trainer.nnodes x"
        " trainer.n_gpus_per_node needs 8",
    ),
    (["trainer.device=cuda", "ray.head.cpu='8'"], "ray.worker.gpu: ray.head.gpu=0 and 0 in each of"),
    (["trainer.resume_mode=resume_path"], "trainer.resume_from_path: trainer.resume_mode=resume_path needs"),
    (["trainer.default_local_dir=''"], "trainer.default_local_dir: must not be empty"),
    (["trainer.experiment_name=a/b"], "trainer.experiment_name: names the run's folder"),
    (
        ["trainer.v1.buffer.lease_s=650"],
        f"trainer.v1.buffer.lease_s: 650 s must exceed {ROLLOUT}.request_timeout_s=600 by more than 60 s",
    ),
    ([f"{ROLLOUT}.request_timeout_s=840"], "trainer.v1.buffer.lease_s: 900 s must exceed"),
    (["trainer.v1.buffer.stall_timeout_s=5"], "trainer.v1.buffer.stall_timeout_s: 5 s is less than"),
    (["ray.worker.mem=16GB"], "ray.worker.mem: must be a Kubernetes quantity such as"),
    (["ray.rollout.gpu=1"], "ray.rollout.gpu: has no effect with ray.mode=shared"),
    (["ray.mode=split"], "ray.mode: split trains in another cluster than it rolls out in: only separate_async can"),
    (
        ["trainer.v1.trainer_mode=colocate_async", "ray.mode=per_task"],
        "ray.mode: per_task gives every stage a cluster, and colocate_async is two tasks that last; use shared",
    ),
    (
        [*SPLIT, f"{ROLLOUT}.update_weights_backend=shm"],
        f"{ROLLOUT}.update_weights_backend: shm does not reach from one Ray cluster into another; use store",
    ),
    (
        [*SPLIT, "trainer.v1.separate_async.hybrid_rollout.enable_switch=true"],
        "trainer.v1.separate_async.hybrid_rollout.enable_switch: with ray.mode=split the rollout's cluster cannot",
    ),
    (
        [*SPLIT, "trainer.device=cuda", f"{ROLLOUT}.nnodes=1", "ray.worker.gpu=1", "ray.rollout.replicas=2"],
        "ray.rollout.gpu: ray.head.gpu=0 and 0 in each of ray.rollout.replicas=2 make 0 GPUs; actor_rollout_ref",
    ),
    (
        ["trainer.v1.trainer_mode=separate_async", "trainer.device=cuda", f"{ROLLOUT}.nnodes=1", "ray.worker.gpu=1"],
        "ray.worker.gpu: ray.head.gpu=0 and 1 in each of ray.worker.replicas=1 make 1 GPUs; trainer.nnodes x "
        "trainer.n_gpus_per_node + actor_rollout_ref.rollout.nnodes x n_gpus_per_node needs 2",
    ),
    (["data.train_files=[a.parquet]"], "data.prepare.task: data.train_files is given too"),
    (["data.prepare.file=a.jsonl"], "data.prepare.file: data.prepare.task is given too"),
    (
        ["data.prepare.task=''", "data.prepare.train_size=0", "data.prepare.val_size=0"],
        "data.train_files: no training rows",
    ),
    (["data.prepare.train_size=31"], "data.prepare.train_size: 31 rows do not fill one data.train_batch_size=32"),
    (["data.train_max_samples=31"], "data.train_max_samples: 31 rows do not fill one data.train_batch_size=32"),
    (["data.prepare.val_size=0"], "trainer.val_before_train: no validation rows"),
    (["data.prepare.val_size=0", "trainer.test_freq=2"], "trainer.test_freq: no validation rows"),
    (
        ["data.prepare.task=''", "data.prepare.file=a.jsonl"],
        "data.prepare.data_source: data.prepare.file needs the name that picks the verifier",
    ),
    (["data.val_files=[a.parquet]"], "data.val_files: given without data.train_files"),
    (["actor_rollout_ref.model.path=x"], "warm_start.enable: actor_rollout_ref.model.path is given too"),
    (["warm_start.enable=false"], "actor_rollout_ref.model.path: no model"),
    (
        ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=[]"],
        "actor_rollout_ref.model.target_modules: an empty list trains nothing",
    ),
    (
        ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=[all-linear, q_proj]"],
        "actor_rollout_ref.model.target_modules: all-linear is not the name of a layer",
    ),
    (
        ["actor_rollout_ref.model.lora_rank=8", f"{ROLLOUT}.update_weights_backend=shm", "trainer.nnodes=2"],
        f"{ROLLOUT}.update_weights_backend: shm is the memory of one host, and trainer.nnodes=2; use auto (store)",
    ),
    (
        ["actor_rollout_ref.model.lora_rank=8", f"{ROLLOUT}.update_weights_backend=nccl"],
        f"{ROLLOUT}.update_weights_backend: nccl replaces whole weights, and actor_rollout_ref.model.lora_rank=8",
    ),
    (
        ["actor_rollout_ref.model.lora_rank=600"],
        "actor_rollout_ref.model.lora_rank: vLLM takes adapters of rank 512 at most, got 600",
    ),
    (
        [
            "actor_rollout_ref.model.lora_rank=8",
            "actor_rollout_ref.model.lora.merge=true",
            "actor_rollout_ref.model.lora_adapter_path=x",
        ],
        "actor_rollout_ref.model.lora_adapter_path: with actor_rollout_ref.model.lora.merge=true servers would start",
    ),
    (["warm_start.hidden_size=40"], "warm_start.hidden_size: must be a multiple of 32"),
]


@pytest.mark.parametrize(("overrides", "message"), CONTRADICTIONS, ids=[" ".join(case[0]) for case in CONTRADICTIONS])
def test_contradictions_are_refused(overrides: list[str], message: str) -> None:
    told = problems(*overrides)
    assert any(message in line for line in told), told
    assert all(re.match(r"[a-z_][a-z0-9_.]*: ", line) for line in told), "each message starts with its key"


# The setting, what makes it useless (none: the defaults do), and what makes it useful.
WITHOUT_EFFECT = [
    ("algorithm.kl_penalty=k2", [], ["algorithm.use_kl_in_reward=true"]),
    ("algorithm.kl_ctrl.kl_coef=0.1", [], ["algorithm.use_kl_in_reward=true"]),
    (
        "algorithm.kl_ctrl.horizon=5",
        ["algorithm.use_kl_in_reward=true"],
        ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"],
    ),
    (
        "algorithm.kl_ctrl.target_kl=5",
        ["algorithm.use_kl_in_reward=true"],
        ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"],
    ),
    (f"{ACTOR}.kl_loss_coef=0.1", [], [f"{ACTOR}.use_kl_loss=true"]),
    (f"{ACTOR}.kl_loss_type=k2", [], [f"{ACTOR}.use_kl_loss=true"]),
    (f"{ACTOR}.loss_scale_factor=5", [], [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"]),
    (f"{ACTOR}.clip_ratio=0.3", [f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.2"], []),
    (f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1", [f"{ACTOR}.optim.lr_warmup_steps=3"], []),
    (f"{ACTOR}.optim.min_lr_ratio=0.1", [], [f"{ACTOR}.optim.lr_scheduler_type=cosine"]),
    ("critic.cliprange_value=0.2", [], ["algorithm.adv_estimator=gae"]),
    ("critic.model.path=x", [], ["algorithm.adv_estimator=gae"]),
    ("trainer.critic_warmup=3", [], ["algorithm.adv_estimator=gae"]),
    (
        "critic.optim.lr_warmup_steps_ratio=0.1",
        ["algorithm.adv_estimator=gae", "critic.optim.lr_warmup_steps=3"],
        ["algorithm.adv_estimator=gae"],
    ),
    (
        "critic.optim.min_lr_ratio=0.1",
        ["algorithm.adv_estimator=gae"],
        ["algorithm.adv_estimator=gae", "critic.optim.lr_scheduler_type=cosine"],
    ),
    ("actor_rollout_ref.model.lora_alpha=8", [], ["actor_rollout_ref.model.lora_rank=8"]),
    ("actor_rollout_ref.model.target_modules=[q_proj]", [], ["actor_rollout_ref.model.lora_rank=8"]),
    ("actor_rollout_ref.model.exclude_modules=[q_proj]", [], ["actor_rollout_ref.model.lora_rank=8"]),
    ("actor_rollout_ref.model.lora_adapter_path=x", [], ["actor_rollout_ref.model.lora_rank=8"]),
    ("actor_rollout_ref.model.lora.merge=true", [], ["actor_rollout_ref.model.lora_rank=8"]),
    ("actor_rollout_ref.model.lora.save_merged=true", [], ["actor_rollout_ref.model.lora_rank=8"]),
    (f"{ROLLOUT}.scripted_delay_s=0.1", [], [f"{ROLLOUT}.name=scripted"]),
    (f"{ROLLOUT}.engine_process=inproc", [f"{ROLLOUT}.name=scripted"], []),
    (f"{ROLLOUT}.enable_prefix_caching=false", [f"{ROLLOUT}.name=scripted"], []),
    (f"{ROLLOUT}.dtype=float32", [f"{ROLLOUT}.name=scripted"], []),
    (f"{ROLLOUT}.kv_cache_bytes=5", ["trainer.device=cuda"], ["trainer.device=cpu"]),
    (f"{ROLLOUT}.gpu_memory_utilization=0.3", ["trainer.device=cpu"], ["trainer.device=cuda"]),
    (
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        ["trainer.device=cpu"],
        ["trainer.device=cuda", "trainer.n_gpus_per_node=2"],
    ),
    (f"{ROLLOUT}.val_kwargs.top_p=0.5", [], [f"{ROLLOUT}.val_kwargs.temperature=1"]),
    (f"{ROLLOUT}.val_kwargs.temperature=1", ["trainer.val_before_train=false", "data.prepare.val_size=0"], []),
    ("data.val_batch_size=4", ["trainer.val_before_train=false", "data.prepare.val_size=0"], ["trainer.test_freq=5"]),
    ("data.prepare.val_size=9", ["trainer.val_before_train=false"], ["trainer.test_freq=5"]),
    ("trainer.total_epochs=3", ["trainer.total_training_steps=5"], []),
    ("trainer.resume_from_path=x", [], ["trainer.resume_mode=resume_path"]),
    ("trainer.v1.buffer.num_storage_units=2", ["trainer.use_v1=false"], []),
    ("trainer.v1.buffer.call_timeout_s=2", ["trainer.use_v1=false"], []),
    (
        "warm_start.steps=3",
        ["warm_start.enable=false", "actor_rollout_ref.model.path=x"],
        ["warm_start.enable=true"],
    ),
    (
        "data.prepare.seed=3",
        ["data.prepare.task=''", "data.train_files=[a.parquet]", "data.val_files=[b.parquet]"],
        [],
    ),
]


@pytest.mark.parametrize(("setting", "useless", "useful"), WITHOUT_EFFECT, ids=[case[0] for case in WITHOUT_EFFECT])
def test_settings_without_effect_are_refused(setting: str, useless: list[str], useful: list[str]) -> None:
    key = setting.split("=")[0]
    lines = [line for line in problems(*useless, setting) if line.startswith(f"{key}: has no effect")]
    assert len(lines) == 1, problems(*useless, setting)
    assert lines[0].endswith(f"(set in override {setting}); delete it")
    assert not any(key in line for line in problems(*useful, setting)), "the same setting where it is read"


def test_a_written_default_is_no_setting() -> None:
    """Else a resolved configuration could not be the source of another run."""
    assert problems("algorithm.kl_ctrl.horizon=10000", f"{ROLLOUT}.scripted_delay_s=0.0") == []


@pytest.mark.parametrize(
    "groups",
    [
        [],  # a Ray of one's own
        ["ray.worker.gpu=4", "ray.worker.replicas=2"],
        ["ray.head.gpu=4", "ray.worker.gpu=4"],
        ["ray.head.gpu=8", "ray.worker.replicas=0"],
    ],
    ids=" ".join,
)
def test_groups_that_hold_the_gpus_pass(groups: list[str]) -> None:
    assert problems("trainer.device=cuda", "trainer.nnodes=2", "trainer.n_gpus_per_node=4", *groups) == []


@pytest.mark.parametrize(
    ("loss", "setting"),
    [
        ("gspo", "clip_ratio_c=4"),
        ("gpg", "clip_ratio_high=0.3"),
        ("vanilla", "tau_pos=2"),
        ("sapo", "clip_ratio=0.3"),
        ("kl_cov", "policy_loss.clip_cov_ratio=0.1"),
        ("clip_cov", "policy_loss.ppo_kl_coef=1"),
    ],
)
def test_a_loss_that_ignores_a_setting_is_told(loss: str, setting: str) -> None:
    told = problems(f"{ACTOR}.policy_loss.loss_mode={loss}", f"{ACTOR}.{setting}")
    assert len(told) == 1
    name = setting.split("=")[0]
    assert told[0].startswith(f"{ACTOR}.{name}: has no effect with {ACTOR}.policy_loss.loss_mode={loss}")


def test_an_estimator_that_is_not_grpo_ignores_its_switch() -> None:
    told = problems(
        "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.norm_adv_by_std_in_grpo=false", f"{ROLLOUT}.n=1"
    )
    assert len(told) == 1
    assert told[0].startswith("algorithm.norm_adv_by_std_in_grpo: has no effect with algorithm.adv_estimator=reinforce")


def test_every_check_file_is_registered() -> None:
    folder = Path(CHECK_MODULES[0].__file__ or "").parent
    assert {Path(module.__file__ or "") for module in CHECK_MODULES} == set(folder.glob("checks_*.py"))
    assert len(CHECKS) == len(set(CHECKS)) >= 30


def test_what_a_recipe_sets_without_effect_can_be_overridden_as_the_message_says() -> None:
    """Every setting that a switched recipe leaves without a reader is put back by the override that is offered."""
    for recipe, switch in (
        ("quickstart", "algorithm.adv_estimator=rloo"),
        ("dapo", "algorithm.filter_groups.enable=false"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(f"configs/{recipe}.yaml", [switch])
        cures = [line.split("set it to its default: ")[1] for line in str(caught.value).splitlines()[1:]]
        assert cures
        resolve(f"configs/{recipe}.yaml", [switch, *cures])
