"""Ranges. Invariant: every number of the schema has a row here (a test walks the schema); no infinity or NaN passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_core.config.checks import Facts, check

_INF = math.inf
_MAX_SEED = 2**32 - 1  # the smallest seed range among the generators used (numpy's legacy one)


@dataclass(frozen=True)
class Range:
    """Bounds, inclusive unless open; `also` lists single values outside that carry a meaning of their own."""

    low: float = -_INF
    high: float = _INF
    low_open: bool = False
    high_open: bool = False
    also: tuple[float, ...] = ()

    def holds(self, value: float) -> bool:
        """Whether the value may be used."""
        if not math.isfinite(value):
            return False
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return value in self.also or (above and below)

    def __str__(self) -> str:
        parts = []
        if self.low > -_INF:
            parts.append(f"{'greater than' if self.low_open else 'at least'} {self.low:.12g}")
        if self.high < _INF:
            parts.append(f"{'less than' if self.high_open else 'at most'} {self.high:.12g}")
        return " or ".join([*(f"{value:g}" for value in self.also), " and ".join(parts)])


_COUNT = Range(1)
_COUNT_OR_ALL = Range(1, also=(-1,))
_NATURAL = Range(0)
_POSITIVE = Range(0, low_open=True)
_SHARE = Range(0, 1)
_SEED = Range(0, _MAX_SEED)
_BETA = Range(0, 1, high_open=True)

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_SWITCH = "trainer.v1.separate_async.hybrid_rollout"

RANGES: dict[str, Range] = {
    f"{_MODEL}.lora_rank": _NATURAL,
    f"{_MODEL}.lora_alpha": _COUNT,
    "data.prepare.train_size": _NATURAL,
    "data.prepare.val_size": _NATURAL,
    "data.prepare.seed": _SEED,
    "data.train_batch_size": _COUNT,
    "data.val_batch_size": _COUNT,
    "data.max_prompt_length": _COUNT,
    "data.max_response_length": _COUNT,
    "data.seed": _SEED,
    "data.train_max_samples": _COUNT_OR_ALL,
    "data.val_max_samples": _COUNT_OR_ALL,
    f"{_ACTOR}.ppo_mini_batch_size": _COUNT,
    f"{_ACTOR}.ppo_epochs": _COUNT,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": _COUNT,
    f"{_ACTOR}.clip_ratio": Range(0, 1, low_open=True, high_open=True),
    f"{_ACTOR}.clip_ratio_low": Range(0, 1, low_open=True),
    f"{_ACTOR}.clip_ratio_high": _POSITIVE,
    f"{_ACTOR}.clip_ratio_c": Range(1, low_open=True),
    f"{_ACTOR}.tau_pos": _POSITIVE,
    f"{_ACTOR}.tau_neg": _POSITIVE,
    f"{_ACTOR}.policy_loss.clip_cov_ratio": Range(0, 1, low_open=True),
    f"{_ACTOR}.policy_loss.clip_cov_lb": Range(),
    f"{_ACTOR}.policy_loss.clip_cov_ub": Range(),
    f"{_ACTOR}.policy_loss.kl_cov_ratio": Range(0, 1, low_open=True),
    f"{_ACTOR}.policy_loss.ppo_kl_coef": _POSITIVE,
    f"{_ACTOR}.policy_loss.dro_beta": _POSITIVE,
    f"{_ACTOR}.loss_scale_factor": _POSITIVE,
    f"{_ACTOR}.entropy_coeff": Range(),
    f"{_ACTOR}.kl_loss_coef": _NATURAL,
    f"{_ACTOR}.grad_clip": _POSITIVE,
    f"{_ACTOR}.call_timeout_s": _POSITIVE,
    f"{_ACTOR}.optim.lr": _NATURAL,
    f"{_ACTOR}.optim.weight_decay": _NATURAL,
    f"{_ACTOR}.optim.betas": _BETA,
    f"{_ACTOR}.optim.eps": _POSITIVE,
    f"{_ACTOR}.optim.lr_warmup_steps": Range(0, also=(-1,)),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": _SHARE,
    f"{_ACTOR}.optim.min_lr_ratio": _SHARE,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": _COUNT,
    f"{_ROLLOUT}.num_servers": _COUNT,
    f"{_ROLLOUT}.nnodes": _NATURAL,
    f"{_ROLLOUT}.n_gpus_per_node": _COUNT,
    f"{_ROLLOUT}.n": _COUNT,
    f"{_ROLLOUT}.temperature": _POSITIVE,
    f"{_ROLLOUT}.top_p": Range(0, 1, low_open=True),
    f"{_ROLLOUT}.top_k": _COUNT_OR_ALL,
    f"{_ROLLOUT}.tensor_model_parallel_size": _COUNT,
    f"{_ROLLOUT}.gpu_memory_utilization": Range(0, 1, low_open=True, high_open=True),
    f"{_ROLLOUT}.max_num_seqs": _COUNT,
    f"{_ROLLOUT}.max_model_len": Range(2),
    f"{_ROLLOUT}.kv_cache_bytes": _COUNT,
    f"{_ROLLOUT}.seed": _SEED,
    f"{_ROLLOUT}.request_timeout_s": _POSITIVE,
    f"{_ROLLOUT}.pause_timeout_s": _POSITIVE,
    f"{_ROLLOUT}.scripted_delay_s": _NATURAL,
    f"{_ROLLOUT}.scripted_lengths.median": Range(1, also=(0,)),
    f"{_ROLLOUT}.scripted_lengths.p99": _NATURAL,
    f"{_ROLLOUT}.scripted_lengths.cap": _NATURAL,
    f"{_ROLLOUT}.update_weights_bucket_megabytes": _COUNT,
    f"{_ROLLOUT}.val_kwargs.n": _COUNT,
    f"{_ROLLOUT}.val_kwargs.temperature": _NATURAL,
    f"{_ROLLOUT}.val_kwargs.top_p": Range(0, 1, low_open=True),
    f"{_ROLLOUT}.val_kwargs.top_k": _COUNT_OR_ALL,
    f"{_ROLLOUT}.agent.num_workers": _COUNT,
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": _COUNT,
    f"{_ROLLOUT}.multi_turn.max_turn_length": _COUNT,
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": _COUNT,
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": _COUNT,
    f"{_ROLLOUT}.multi_turn.tool_timeout_s": _POSITIVE,
    "critic.optim.lr": _NATURAL,
    "critic.optim.weight_decay": _NATURAL,
    "critic.optim.betas": _BETA,
    "critic.optim.eps": _POSITIVE,
    "critic.optim.lr_warmup_steps": Range(0, also=(-1,)),
    "critic.optim.lr_warmup_steps_ratio": _SHARE,
    "critic.optim.min_lr_ratio": _SHARE,
    "critic.ppo_mini_batch_size": _COUNT,
    "critic.ppo_epochs": _COUNT,
    "critic.ppo_max_token_len_per_gpu": _COUNT,
    "critic.forward_max_token_len_per_gpu": _COUNT,
    "critic.cliprange_value": _POSITIVE,
    "critic.grad_clip": _POSITIVE,
    "algorithm.gamma": _SHARE,
    "algorithm.lam": _SHARE,
    "algorithm.gdpo_reward_weights": Range(),
    "algorithm.filter_groups.max_num_gen_batches": _NATURAL,
    "algorithm.rollout_correction.rollout_is_threshold": _POSITIVE,
    "algorithm.rollout_correction.rollout_rs_threshold": _POSITIVE,
    "algorithm.kl_ctrl.kl_coef": _NATURAL,
    "algorithm.kl_ctrl.horizon": _POSITIVE,
    "algorithm.kl_ctrl.target_kl": _POSITIVE,
    "reward.num_workers": _COUNT,
    "reward.timeout_s": _POSITIVE,
    "reward.error_budget": _SHARE,
    "reward.overlong_buffer.len": _NATURAL,
    "reward.overlong_buffer.penalty_factor": _NATURAL,
    "reward.remote.max_concurrency": _COUNT,
    "reward.remote.requests_per_second": _POSITIVE,
    "reward.remote.retries": _NATURAL,
    "reward.remote.timeout_s": _POSITIVE,
    "reward.remote.deadline_s": _POSITIVE,
    "reward.reward_model.nnodes": _NATURAL,
    "reward.reward_model.n_gpus_per_node": _COUNT,
    "reward.reward_model.max_token_len_per_gpu": _COUNT,
    "reward.reward_model.timeout_s": _POSITIVE,
    "reward.sandbox.cpu_s": _COUNT,
    "reward.sandbox.wall_s": _POSITIVE,
    "reward.sandbox.memory_mb": Range(64),
    "reward.sandbox.processes": _COUNT,
    "reward.sandbox.file_mb": _COUNT,
    "distillation.distillation_loss.topk": _COUNT,
    "distillation.distillation_loss.distillation_loss_coef": _POSITIVE,
    "distillation.distillation_loss.loss_max_clamp": _POSITIVE,
    "distillation.call_timeout_s": _POSITIVE,
    "trainer.v1.buffer.lease_s": _POSITIVE,
    "trainer.v1.buffer.stall_timeout_s": _POSITIVE,
    "trainer.v1.buffer.max_reissues": _NATURAL,
    "trainer.v1.buffer.poll_s": _POSITIVE,
    "trainer.v1.buffer.call_timeout_s": _POSITIVE,
    "trainer.v1.buffer.num_storage_units": _COUNT,
    "trainer.v1.buffer.max_groups": _COUNT,
    "trainer.v1.buffer.max_megabytes": _COUNT,
    "trainer.v1.sampler.max_off_policy_threshold": _NATURAL,
    "trainer.v1.colocate_async.num_warmup_batches": _NATURAL,
    "trainer.v1.separate_async.num_warmup_batches": _NATURAL,
    "trainer.v1.separate_async.parameter_sync_step": _COUNT,
    f"{_SWITCH}.switch_threshold_ratio": Range(0, 1, low_open=True),
    f"{_SWITCH}.switch_threshold_step_up": _SHARE,
    f"{_SWITCH}.switch_threshold_step_down": _SHARE,
    f"{_SWITCH}.switch_threshold_release_steps": _COUNT,
    f"{_SWITCH}.switch_cost_window_size": _COUNT,
    "trainer.nnodes": _COUNT,
    "trainer.n_gpus_per_node": _COUNT,
    "trainer.total_epochs": _COUNT,
    "trainer.total_training_steps": _COUNT,
    "trainer.seed": _SEED,
    "trainer.critic_warmup": _NATURAL,
    "trainer.save_freq": _COUNT_OR_ALL,
    "trainer.test_freq": _COUNT_OR_ALL,
    "trainer.max_actor_ckpt_to_keep": _COUNT,
    "trainer.steps_per_node": _COUNT,
    "trainer.init_timeout_s": _POSITIVE,
    "ray.head.gpu": _NATURAL,
    "ray.head.replicas": Range(1, 1),
    "ray.worker.gpu": _NATURAL,
    "ray.worker.replicas": _NATURAL,
    "ray.rollout.gpu": _NATURAL,
    "ray.rollout.replicas": _NATURAL,
    "ray.max_hours": _POSITIVE,
    "ray.up_timeout_s": _POSITIVE,
    "sft.max_length": Range(2),
    "warm_start.target_accuracy": Range(0, 1, low_open=True, high_open=True),
    "warm_start.steps": _COUNT,
    "warm_start.task_share": Range(0, 1, low_open=True),
    "warm_start.tool_share": Range(0, 1, low_open=True),
    "warm_start.batch_size": _COUNT,
    "warm_start.lr": _POSITIVE,
    "warm_start.hidden_size": Range(32),
    "warm_start.num_layers": _COUNT,
    "warm_start.seed": _SEED,
    "reward_training.pairs": _COUNT,
    "reward_training.val_pairs": _NATURAL,
    "reward_training.batch_size": _COUNT,
    "reward_training.steps": _COUNT,
    "reward_training.lr": _POSITIVE,
    "reward_training.max_token_len_per_gpu": _COUNT,
    "reward_training.save_freq": _COUNT,
    "reward_training.seed": _SEED,
}

# Why a bound is where it is, when the number alone does not tell.
_REASONS = {
    f"{_ACTOR}.clip_ratio_c": "it caps the loss of tokens with negative advantage at c times the advantage",
    f"{_ROLLOUT}.temperature": "training divides logits by it; greedy decoding has no log-probs to train on",
    "ray.head.replicas": "a Ray cluster has one head",
}


@check
def numbers_in_range(facts: Facts) -> Iterator[str]:
    """Every number is finite and inside its bounds."""
    for key in RANGES:
        yield from out_of_range(key, facts.values[key], key)


def out_of_range(key: str, value: Any, shown: str) -> Iterator[str]:
    """What is wrong with a value that has the bounds of `key`.

    Args:
        shown: the key that the user wrote it under.
    """
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not RANGES[key].holds(number):
            reason = f": {_REASONS[key]}" if key in _REASONS else ""
            yield f"{shown}: must be {str(RANGES[key]) or 'finite'}, got {number!r}{reason}"
