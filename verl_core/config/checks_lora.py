"""Checks of `actor_rollout_ref.model.lora_*`: settings of an adapter need one, and it must be able to reach the
servers."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect

_MODEL, _ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
_OF_AN_ADAPTER = (
    "lora_alpha",
    "target_modules",
    "exclude_modules",
    "lora_adapter_path",
    "lora.merge",
    "lora.save_merged",
)
LARGEST_SERVED = 512  # vLLM 0.32


@check
def adapter_settings_are_read(facts: Facts) -> Iterator[str]:
    """Without a rank there is no adapter."""
    if facts.config.actor_rollout_ref.model.lora_rank == 0:
        yield from no_effect(facts, [f"{_MODEL}.{name}" for name in _OF_AN_ADAPTER], f"with {_MODEL}.lora_rank=0")


@check
def an_adapter_sits_somewhere(facts: Facts) -> Iterator[str]:
    """A list of modules names some; the word for all of them stands alone."""
    model = facts.config.actor_rollout_ref.model
    if not model.lora_rank or isinstance(model.target_modules, str):
        return
    if not model.target_modules:
        yield f"{_MODEL}.target_modules: an empty list trains nothing; name layers, or set all-linear"
    if "all-linear" in model.target_modules:
        yield f"{_MODEL}.target_modules: all-linear is not the name of a layer; set it without a list, or list layers"


@check
def servers_can_take_the_adapter(facts: Facts) -> Iterator[str]:
    """Adapters go through the memory of the host or the run directory, whatever the device, and vLLM bounds their
    rank."""
    model, rollout = facts.config.actor_rollout_ref.model, facts.config.actor_rollout_ref.rollout
    if not model.lora_rank or model.lora.merge or facts.config.sft.enable:
        return
    if rollout.update_weights_backend in ("ipc", "nccl"):
        yield (
            f"{_ROLLOUT}.update_weights_backend: {rollout.update_weights_backend} replaces whole weights, and"
            f" {_MODEL}.lora_rank={model.lora_rank} publishes an adapter; use auto, or set {_MODEL}.lora.merge=true"
        )
    if rollout.name == "vllm" and model.lora_rank > LARGEST_SERVED:
        yield (
            f"{_MODEL}.lora_rank: vLLM takes adapters of rank {LARGEST_SERVED} at most, got {model.lora_rank}; lower"
            f" it, or set {_MODEL}.lora.merge=true"
        )


@check
def servers_start_with_the_adapter(facts: Facts) -> Iterator[str]:
    """Servers that know no adapters start from the bare base."""
    model = facts.config.actor_rollout_ref.model
    if model.lora_rank and model.lora.merge and model.lora_adapter_path:
        yield (
            f"{_MODEL}.lora_adapter_path: with {_MODEL}.lora.merge=true servers would start without it. Merge it first"
            f" (python -m verl_core.engine.merging) and name the result in {_MODEL}.path, or set {_MODEL}.lora.merge="
            "false"
        )
