"""Checks of `actor_rollout_ref.rollout.*`: sampling that training can follow, lengths that fit, devices that exist."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.checks_algorithm import unknown_name

_ROLLOUT = "actor_rollout_ref.rollout"
_LENGTHS = f"{_ROLLOUT}.scripted_lengths"
_VLLM_ONLY = (
    "engine_process",
    "gpu_memory_utilization",
    "kv_cache_bytes",
    "enable_prefix_caching",
    "dtype",
)
_GPU_ONLY = ("gpu_memory_utilization", "tensor_model_parallel_size")


@check
def sampling_is_the_policy(facts: Facts) -> Iterator[str]:
    """The engine renormalises its log-probs over the kept tokens, the trainer's cover the whole vocabulary."""
    rollout = facts.config.actor_rollout_ref.rollout
    reason = (
        "the engine reports log-probs renormalised over the tokens it kept, the trainer's cover all of them, so every"
        " ratio would carry the difference (0.1 nats at top_p=0.9)"
    )
    if rollout.top_p < 1.0:
        yield f"{_ROLLOUT}.top_p: must be 1.0 for training, got {rollout.top_p}: {reason}"
    if rollout.top_k != -1:
        yield f"{_ROLLOUT}.top_k: must be -1 (off) for training, got {rollout.top_k}: {reason}"


@check
def sequences_fit_the_engine(facts: Facts) -> Iterator[str]:
    """The engine would silently cut a response that does not fit."""
    data, given = facts.config.data, facts.config.actor_rollout_ref.rollout.max_model_len
    need = data.max_prompt_length + data.max_response_length
    if given is not None and given < need:
        yield (
            f"{_ROLLOUT}.max_model_len: {given} is less than data.max_prompt_length + data.max_response_length ="
            f" {need}; responses would be cut short. Raise it, or leave it null"
        )


@check
def sequences_fit_a_micro_batch(facts: Facts) -> Iterator[str]:
    """A micro-batch holds at least one sequence."""
    config = facts.config
    sizes = "data.max_prompt_length + data.max_response_length"
    need = config.data.max_prompt_length + config.data.max_response_length
    if config.sft.enable:
        sizes, need = "sft.max_length", config.sft.max_length
    for key in (
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    ):
        budget = facts.values[key]
        if budget < need:
            yield (f"{key}: {budget} tokens cannot hold one sequence of {sizes} = {need}")


@check
def validation_samples_differ(facts: Facts) -> Iterator[str]:
    """Greedy decoding gives one answer, however often it is asked; and it reads no nucleus."""
    sampling = facts.config.actor_rollout_ref.rollout.val_kwargs
    if sampling.temperature > 0:
        return
    if sampling.n > 1:
        yield (
            f"{_ROLLOUT}.val_kwargs.n: {sampling.n} greedy samples are all the same; raise"
            f" {_ROLLOUT}.val_kwargs.temperature or set it to 1"
        )
    keys = [f"{_ROLLOUT}.val_kwargs.top_p", f"{_ROLLOUT}.val_kwargs.top_k"]
    yield from no_effect(facts, keys, f"with {_ROLLOUT}.val_kwargs.temperature=0")


@check
def agent_loop_is_known(facts: Facts) -> Iterator[str]:
    """A registered name, or a dotted path to a class."""
    name = facts.config.actor_rollout_ref.rollout.agent.default_agent_loop
    if "." not in name:
        key = f"{_ROLLOUT}.agent.default_agent_loop"
        yield from unknown_name(key, name, names.AGENT_LOOPS, names.VERL_AGENT_LOOPS)


@check
def engine_settings_are_read(facts: Facts) -> Iterator[str]:
    """Each engine has settings of its own."""
    if facts.config.actor_rollout_ref.rollout.name == "vllm":
        keys = [f"{_ROLLOUT}.scripted_delay_s", *facts.given_below(_LENGTHS)]
        yield from no_effect(facts, keys, f"with {_ROLLOUT}.name=vllm")
    else:
        keys = [f"{_ROLLOUT}.{name}" for name in _VLLM_ONLY]
        yield from no_effect(facts, keys, f"with {_ROLLOUT}.name=scripted")


@check
def scripted_lengths_can_be_drawn(facts: Facts) -> Iterator[str]:
    """A median, a 99th percentile at or above it, and a longest length that fits the responses."""
    asked, longest = facts.config.actor_rollout_ref.rollout.scripted_lengths, facts.config.data.max_response_length
    if facts.config.actor_rollout_ref.rollout.name != "scripted":
        return
    if asked.median == 0:
        yield from no_effect(facts, [f"{_LENGTHS}.p99", f"{_LENGTHS}.cap"], f"with {_LENGTHS}.median=0")
        return
    if asked.p99 < asked.median:
        yield f"{_LENGTHS}.p99: {asked.p99:g} is less than {_LENGTHS}.median={asked.median:g}; raise it"
    if asked.cap > longest:
        yield f"{_LENGTHS}.cap: {asked.cap} tokens are more than data.max_response_length={longest}; lower it"
    if 0 < asked.cap < asked.median:
        yield f"{_LENGTHS}.cap: {asked.cap} tokens are less than {_LENGTHS}.median={asked.median:g}; raise it"


@check
def device_settings_are_read(facts: Facts) -> Iterator[str]:
    """Settings of devices that the run was told not to use."""
    device = facts.config.trainer.device
    if device == "cpu":
        yield from no_effect(facts, [f"{_ROLLOUT}.{name}" for name in _GPU_ONLY], "with trainer.device=cpu")
    if device == "cuda":
        yield from no_effect(facts, [f"{_ROLLOUT}.kv_cache_bytes"], "with trainer.device=cuda")


@check
def weights_can_travel(facts: Facts) -> Iterator[str]:
    """Device transports need devices on both ends."""
    rollout, device = facts.config.actor_rollout_ref.rollout, facts.config.trainer.device
    if rollout.update_weights_backend in ("ipc", "nccl"):
        backend = f"{_ROLLOUT}.update_weights_backend: {rollout.update_weights_backend} moves weights between GPUs"
        if device == "cpu":
            yield f"{backend}, and trainer.device=cpu; use shm or auto"
        if rollout.name == "scripted":
            yield f"{backend}, and {_ROLLOUT}.name=scripted runs on a CPU; use shm or auto"
    model = facts.config.actor_rollout_ref.model
    if rollout.update_weights_backend == "shm" and facts.config.trainer.nnodes > 1:
        other = "auto (store)" if model.lora_rank and not model.lora.merge else "auto (ipc) or nccl"
        yield (
            f"{_ROLLOUT}.update_weights_backend: shm is the memory of one host, and trainer.nnodes="
            f"{facts.config.trainer.nnodes}; use {other}"
        )


@check
def servers_fit_the_devices(facts: Facts) -> Iterator[str]:
    """On GPUs the servers share the trainer's devices: they split them evenly."""
    config = facts.config
    rollout, devices = config.actor_rollout_ref.rollout, config.world_size
    tensor = rollout.tensor_model_parallel_size
    if config.trainer.device == "cpu" or tensor < 1:
        return
    total = f"{devices} devices (trainer.nnodes x trainer.n_gpus_per_node)"
    if devices % tensor:
        yield f"{_ROLLOUT}.tensor_model_parallel_size: {tensor} does not divide {total}"
    if config.trainer.device == "cuda" and rollout.num_servers is not None and rollout.num_servers * tensor > devices:
        yield (
            f"{_ROLLOUT}.num_servers: {rollout.num_servers} servers of {_ROLLOUT}.tensor_model_parallel_size={tensor}"
            f" need more than {total}"
        )
