"""The policy's adapter inside vLLM. Invariant: there is one, its number never changes, and every request names it, so
requests that run when its weights are replaced go on with the new ones, as they do with whole weights.

vLLM reads adapters from folders; here the tensors are given to its manager, which never looks for `NOWHERE`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from verl_core.errors import ModelError
from verl_core.weights.adapter import PEFT_PREFIX, AdapterSpec
from verl_core.weights.expected import named

NUMBER = 1
NOWHERE = "given-in-memory"


def adapter_request(adapter: AdapterSpec | None) -> Any:
    """What a request carries; None where there is no adapter."""
    if adapter is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", NUMBER, NOWHERE)


def install(model_runner: Any, spec: AdapterSpec, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replace the adapter; the tensors are copied. Between two forward passes.

    Raises:
        ModelError: vLLM has no adapter for some of the layers, and would go on without; nothing was touched.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    workers = model_runner.lora_manager
    manager, settings = workers._adapter_manager, workers.lora_config
    renames = getattr(manager.model, "hf_to_vllm_mapper", None)
    lora = LoRAModel.from_lora_tensors(
        NUMBER,
        {f"{PEFT_PREFIX}{name}": tensor.clone() for name, tensor in tensors.items()},  # vLLM scales B in place
        PEFTHelper(r=spec.rank, lora_alpha=spec.alpha, target_modules=list(spec.targets)),
        device="cpu",
        dtype=settings.lora_dtype,
        model_vocab_size=workers.vocab_size,
        weights_mapper=None if renames is None else renames.get_rename_mapper(),
    )
    packed = (part for parts in manager.packed_modules.values() for part in parts)
    _refuse_unserved(lora.loras, {*manager.modules, *packed})
    manager.remove_adapter(NUMBER)
    manager.add_adapter(lora)
    manager.activate_adapter(NUMBER)


def _refuse_unserved(adapted: Iterable[str], served: Collection[str]) -> None:
    unserved = [name for name in adapted if name not in served]
    if unserved:
        raise ModelError(
            f"vLLM serves no adapter on {len(unserved)} of the layers that are trained, such as {named(unserved)}: put "
            "them into actor_rollout_ref.model.exclude_modules, or set actor_rollout_ref.model.lora.merge=true"
        )
