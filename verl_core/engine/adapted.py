"""AdaptedPolicy: a causal LM whose linear layers carry a low-rank adapter by peft, the only part that is trained.

Invariant: the base never changes, so the policy with the adapter off is the model that the run started from, exactly;
and a checkpoint is the adapter, tied to its base by the hash of the base's weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from verl_core.engine.base_identity import base_sha256
from verl_core.engine.loading import copy_tokenizer
from verl_core.engine.model import PolicyModel
from verl_core.engine.network import PREFIX
from verl_core.engine.sharding import whole
from verl_core.errors import ModelError
from verl_core.weights.adapter import PEFT_PREFIX, TENSORS, AdapterSpec, read_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "default"  # of the adapter, inside peft
BASE = "base.json"
MERGED = "merged"


class AdaptedPolicy(PolicyModel):
    """Policy and, with the adapter off, its reference, in one set of weights.

    Args:
        lm: on the host; gets the adapter, its other parameters are frozen.
        base: folder or file that `lm` was read from.
        seed: of A's first values; equal on all ranks. B starts at zero.
        save_merged: checkpoints also hold the merged model, in a folder `merged`.

    Raises:
        ModelError: a module of the configuration is not there, or the adapter to start from does not fit.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        temperature: float,
        compute_dtype: torch.dtype,
        spec: AdapterSpec,
        base: str,
        seed: int,
        save_merged: bool = False,
    ) -> None:
        settings = inject(lm, spec, seed)
        super().__init__(lm, temperature, compute_dtype)
        settings.base_model_name_or_path = base
        self._settings = settings
        self._spec, self._base, self._save_merged = spec, base, save_merged
        own = {self.saved_name(name): p for name, p in self.named_parameters() if p.requires_grad}
        self._start = {name: parameter.detach().clone() for name, parameter in own.items()}
        if spec.start:
            if (Path(spec.start) / BASE).exists():  # peft's own folders do not say what they belong to
                same_base(spec.start, base)
            self._start = _fitting(spec, self._start)
            for name, parameter in own.items():
                parameter.data.copy_(self._start[name])

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the network is its base. Not to be nested, nor used while gradients are pending."""
        from peft.tuners.lora import LoraLayer

        layers = [module for module in self.lm.modules() if isinstance(module, LoraLayer)]
        try:
            for layer in layers:
                layer.enable_adapters(False)
                # peft also freezes them, and FSDP would keep what it sees at its first gather for good.
                for part in (layer.lora_A, layer.lora_B):
                    part.requires_grad_(True)
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def saved_name(self, name: str) -> str:
        """See Network: without peft's name of the adapter."""
        return super().saved_name(name).replace(f".{NAME}.", ".")

    def write(self, folder: str, tensors: dict[str, torch.Tensor]) -> None:
        """See Network: an adapter folder that peft and vLLM load, and what its base is."""
        from safetensors.torch import save_file

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        save_file({f"{PEFT_PREFIX}{name}": tensor.contiguous() for name, tensor in tensors.items()}, place / TENSORS)
        self._settings.save_pretrained(folder)
        (place / BASE).write_text(json.dumps({"path": self._base, "sha256": base_sha256(self._base)}) + "\n")
        if self._save_merged:
            from verl_core.engine.merging import merged_model

            merged_model(self._base, folder).save_pretrained(place / MERGED)
            copy_tokenizer(self._base, str(place / MERGED))

    def read(self, folder: str, start: bool = False) -> dict[str, torch.Tensor]:
        """See Network. With `start` the adapter as it was built, whatever the folder.

        Raises:
            ModelError: the adapter cannot be read, or belongs to another base.
        """
        if start:
            return self._start
        same_base(folder, self._base)
        return read_adapter(folder, self._spec)


class MergedWeights:
    """What the policy publishes where servers know no adapters: W + alpha / rank x B A, under the base's names."""

    def __init__(self, model: AdaptedPolicy) -> None:
        self._model = model

    def declared(self) -> list[tuple[str, torch.Size]]:
        """Name and shape of every tensor, in order."""
        return [(name, parameter.shape) for name, parameter, _ in self._parts()]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and whole tensor, one at a time. Collective: all ranks walk it to the end."""
        for name, parameter, layer in self._parts():
            weight = whole(parameter)
            if layer is not None:
                added = whole(layer.lora_B[NAME].weight) @ whole(layer.lora_A[NAME].weight)
                weight = weight + added * layer.scaling[NAME]
            yield name, weight

    def _parts(self) -> Iterator[tuple[str, torch.nn.Parameter, Any]]:
        """Name in the base, the base's parameter, and for an adapted weight its layer."""
        layers = dict(self._model.named_modules())
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                continue
            inner = name.endswith(".base_layer.weight")
            layer = layers[name.removesuffix(".base_layer.weight")] if inner else None
            yield name.removeprefix(PREFIX).replace(".base_layer.", "."), parameter, layer


def inject(lm: PreTrainedModel, spec: AdapterSpec, seed: int) -> Any:
    """Give `lm` its adapter and freeze the rest; returns peft's LoraConfig. The caller's random state stays as it was.

    Raises:
        ModelError: see `AdapterSpec.modules`.
    """
    from peft import LoraConfig, inject_adapter_in_model

    head = lm.get_output_embeddings()
    linear = [name for name, part in lm.named_modules() if isinstance(part, torch.nn.Linear) and part is not head]
    settings = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=spec.modules(linear),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        inference_mode=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, lm, adapter_name=NAME)
    lm.eval()
    settings.target_modules = sorted(settings.target_modules or ())  # peft's set would be saved in any order
    return settings


def same_base(folder: str, base: str) -> None:
    """Raise ModelError unless the adapter in `folder` was trained on these weights."""
    try:
        noted = json.loads((Path(folder) / BASE).read_text(encoding="utf-8"))
        sha256, path = noted["sha256"], noted["path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder!r} does not say what its adapter belongs to ({BASE}): {error}") from error
    if sha256 != base_sha256(base):
        raise ModelError(
            f"the adapter in {folder!r} was trained on {path!r}, whose weights are not those of {base!r}. Set "
            "actor_rollout_ref.model.path to the model it belongs to"
        )


def _fitting(spec: AdapterSpec, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The adapter that the run starts from, where it has the tensors that the model wants."""
    found = read_adapter(spec.start, spec)
    shapes = {name: tensor.shape for name, tensor in found.items()}
    differ = [name for name, tensor in own.items() if shapes.get(name) != tensor.shape]
    differ += [name for name in found if name not in own]
    if differ:
        raise ModelError(
            f"actor_rollout_ref.model.lora_adapter_path={spec.start!r} does not fit target_modules: {len(differ)} "
            f"tensors differ, first {differ[0]}"
        )
    return {name: found[name].float() for name in own}
