"""Checks of the asynchronous modes: what only one of them reads, and bounds that can be kept."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect

_V1, _ROLLOUT = "trainer.v1", "actor_rollout_ref.rollout"
_SWITCH = f"{_V1}.separate_async.hybrid_rollout"
_THRESHOLD, _STRATEGY = f"{_V1}.sampler.max_off_policy_threshold", f"{_V1}.sampler.max_off_policy_strategy"


@check
def mode_settings_are_read(facts: Facts) -> Iterator[str]:
    """Each mode reads its own section; sync has neither warm-up nor staleness."""
    trainer = facts.config.trainer
    mode = trainer.v1.trainer_mode if trainer.use_v1 else "the legacy path"
    because = f"with {_V1}.trainer_mode={mode}" if trainer.use_v1 else "with trainer.use_v1=false"
    for section in names.ASYNC_MODES:
        if mode != section:
            yield from no_effect(facts, facts.given_below(f"{_V1}.{section}"), because)
    if mode not in names.ASYNC_MODES:
        keys = [f"{_V1}.buffer.max_groups", f"{_V1}.buffer.max_megabytes", f"{_ROLLOUT}.pause_timeout_s"]
        yield from no_effect(facts, [*facts.given_below(f"{_V1}.sampler"), *keys], because)
    else:
        yield from no_effect(facts, ["trainer.steps_per_node"], f"{because}: training is one task")
    if mode != "separate_async":
        yield from no_effect(facts, [f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node"], because)


@check
def cluster_suits_the_mode(facts: Facts) -> Iterator[str]:
    """An asynchronous run is two tasks that last; only one that rolls out on devices of its own can be two RayJobs."""
    config = facts.config
    mode, asked = config.trainer.v1.trainer_mode, config.actor_rollout_ref.rollout.update_weights_backend
    asynchronous = config.trainer.use_v1 and mode in names.ASYNC_MODES
    if config.ray.mode == "per_task" and asynchronous:
        yield f"ray.mode: per_task gives every stage a cluster, and {mode} is two tasks that last; use shared"
    if config.ray.mode != "split":
        yield from no_effect(facts, facts.given_below("ray.rollout"), f"with ray.mode={config.ray.mode}")
        return
    if not (asynchronous and mode == "separate_async"):
        yield "ray.mode: split trains in another cluster than it rolls out in: only separate_async can; use shared"
    if asked not in ("auto", "store"):
        yield f"{_ROLLOUT}.update_weights_backend: {asked} does not reach from one Ray cluster into another; use store"
    if config.trainer.v1.separate_async.hybrid_rollout.enable_switch:
        yield f"{_SWITCH}.enable_switch: with ray.mode=split the rollout's cluster cannot use the trainer's devices"


@check
def lending_settings_are_read(facts: Facts) -> Iterator[str]:
    """Without lending nothing decides about it; a fixed share does not move."""
    lending = facts.config.trainer.v1.separate_async.hybrid_rollout
    given = [key for key in facts.given_below(_SWITCH) if not key.endswith(".enable_switch")]
    if not lending.enable_switch:
        yield from no_effect(facts, given, f"with {_SWITCH}.enable_switch=false")
    elif not lending.adaptive_switch_threshold:
        moving = [key for key in given if "_step" in key]
        yield from no_effect(facts, moving, f"with {_SWITCH}.adaptive_switch_threshold=false")


@check
def bound_has_a_strategy(facts: Facts) -> Iterator[str]:
    """A bound that nobody keeps is no bound."""
    sampler = facts.config.trainer.v1.sampler
    if sampler.max_off_policy_strategy == "off":
        yield from no_effect(facts, [_THRESHOLD], f"with {_STRATEGY}=off")
    if sampler.max_off_policy_threshold is None and sampler.max_off_policy_strategy != "off":
        yield from no_effect(facts, [_STRATEGY], f"with {_THRESHOLD}=null")


@check
def warm_up_fits_the_bound(facts: Facts) -> Iterator[str]:
    """What is served W batches ahead is W versions old when its turn comes, at least."""
    v1 = facts.config.trainer.v1
    bound, ahead = v1.sampler.max_off_policy_threshold, v1.warmup_batches
    if v1.sampler.max_off_policy_strategy == "off" or bound is None or ahead <= bound:
        return
    yield (
        f"{_V1}.{v1.trainer_mode}.num_warmup_batches: {ahead:g} batches ahead make groups about {ahead:g} versions old,"
        f" and {_THRESHOLD}={bound}. Serve less ahead or raise the bound"
    )


@check
def groups_fit_the_buffer(facts: Facts) -> Iterator[str]:
    """A batch that may not be under way as a whole never comes together."""
    limit, batch = facts.config.trainer.v1.buffer.max_groups, facts.config.data.train_batch_size
    if limit is not None and limit < batch:
        yield f"{_V1}.buffer.max_groups: {limit} is less than data.train_batch_size={batch}; no batch could form"


@check
def mini_updates_make_a_batch(facts: Facts) -> Iterator[str]:
    """verl's rule: a step is parameter_sync_step mini-batches."""
    config = facts.config
    count, mini = (
        config.trainer.v1.separate_async.parameter_sync_step,
        config.actor_rollout_ref.actor.ppo_mini_batch_size,
    )
    if (
        config.trainer.v1.trainer_mode == "separate_async"
        and count is not None
        and count * mini != config.data.train_batch_size
    ):
        yield (
            f"{_V1}.separate_async.parameter_sync_step: {count} x actor_rollout_ref.actor.ppo_mini_batch_size={mini} is"
            f" {count * mini}, not data.train_batch_size={config.data.train_batch_size}"
        )


@check
def rollout_has_devices(facts: Facts) -> Iterator[str]:
    """Rollout devices of its own are what separate_async means."""
    config = facts.config
    rollout = config.actor_rollout_ref.rollout
    if config.trainer.v1.trainer_mode != "separate_async":
        return
    if config.trainer.device == "cuda" and rollout.nnodes < 1:
        yield f"{_ROLLOUT}.nnodes: separate_async needs devices for the rollout alone; set it to 1 or more"
    if config.trainer.device == "cpu":
        because = f"with trainer.device=cpu; {_ROLLOUT}.num_servers says how many there are"
        yield from no_effect(facts, [f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node"], because)
    if rollout.update_weights_backend == "ipc":
        yield (
            f"{_ROLLOUT}.update_weights_backend: ipc moves weights inside one GPU, and separate_async rolls out on"
            " others; use nccl"
        )
