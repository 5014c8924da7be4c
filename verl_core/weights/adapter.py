"""The low-rank adapter (LoRA, Hu et al. 2021, arXiv 2106.09685) as both ends see it. Invariant: which modules carry
one, and what its tensors are called and shaped, follows from the configuration and the model folder; neither end is
told by the other.

W' = W + alpha / rank x B A, with A [rank, in] and B [out, rank].
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from verl_core.config.schema import ModelConfig
from verl_core.errors import ModelError, WeightError
from verl_core.weights.expected import EMBEDDINGS, HEAD, ExpectedWeights, is_finite, named

ALL = "all-linear"
TENSORS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"  # names of peft
PEFT_PREFIX = "base_model.model."
# peft's settings under which an adapter is more than B A times alpha / rank, or sits on other weights than the base's.
_NOT_PLAIN = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "layer_replication",
    "alora_invocation_tokens",
    "trainable_token_indices",
    "target_parameters",
)
_PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")  # others take a part out of the base's weights
SERVER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM 0.32 allocates adapters for
A, B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """`actor_rollout_ref.model.lora_*`, without how it is published.

    Attributes:
        targets: module names, or the one word `all-linear`.
        start: adapter folder that a run starts from; empty = B is zero, so the policy starts as its base.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    start: str = ""

    @property
    def scaling(self) -> float:
        """Factor of B A."""
        return self.alpha / self.rank

    def modules(self, linear: Iterable[str]) -> list[str]:
        """Those of a model's linear layers that carry an adapter, in the model's order.

        Args:
            linear: full names of its linear layers, the one that makes logits left out.

        Raises:
            ModelError: the model has none, a name of the configuration is none of them or changes nothing, or nothing
                is left.
        """
        every = list(linear)
        if not every:
            raise ModelError(
                "the model has no linear layer that an adapter fits (torch.nn.Linear, the output layer left out): set "
                "actor_rollout_ref.model.lora_rank=0, or take another model"
            )
        _refuse_unknown("target_modules", [name for name in self.targets if name != ALL], every)
        _refuse_unknown("exclude_modules", self.excluded, every)
        chosen = [name for name in every if self.targets == (ALL,) or _is_any(name, self.targets)]
        for one in self.excluded:
            if not any(_is_any(name, [one]) for name in chosen):
                raise ModelError(
                    f"actor_rollout_ref.model.exclude_modules: {one!r} is none of those that "
                    "actor_rollout_ref.model.target_modules names, so it has no effect; delete it"
                )
        kept = [name for name in chosen if not _is_any(name, self.excluded)]
        if not kept:
            raise ModelError("actor_rollout_ref.model.exclude_modules leaves no module that would carry an adapter")
        return kept

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> AdapterSpec:
        """Inverse of `to_dict`, through JSON as well, where tuples became lists."""
        lists = {"targets": tuple(value["targets"]), "excluded": tuple(value["excluded"])}
        return cls(**{**value, **lists})


def adapter_of(model: ModelConfig) -> AdapterSpec | None:
    """The adapter that is trained; None where all parameters are."""
    if not model.lora_rank:
        return None
    targets = (ALL,) if isinstance(model.target_modules, str) else tuple(model.target_modules)
    excluded = tuple(model.exclude_modules or ())
    return AdapterSpec(model.lora_rank, model.lora_alpha, targets, excluded, model.lora_adapter_path or "")


def served_adapter(model: ModelConfig) -> AdapterSpec | None:
    """The adapter as it reaches the servers; None where whole weights do."""
    return None if model.lora.merge else adapter_of(model)


@dataclass(frozen=True)
class ExpectedAdapter:
    """What a complete adapter is.

    Attributes:
        shapes: every tensor that must come, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def from_folder(cls, spec: AdapterSpec, folder: str | Path) -> ExpectedAdapter:
        """By the headers of the base's safetensors files.

        Raises:
            ModelError: there are none, or the configuration names modules that the model lacks.
        """
        every = ExpectedWeights.from_folder(folder).shapes
        linear = {
            name.removesuffix(".weight"): shape
            for name, shape in every.items()
            if len(shape) == 2 and name.endswith(".weight") and name != HEAD and not name.endswith(EMBEDDINGS)
        }
        shapes: dict[str, tuple[int, ...]] = {}
        for module in spec.modules(linear):
            out, width = linear[module]
            shapes |= {f"{module}{A}": (spec.rank, width), f"{module}{B}": (out, spec.rank)}
        return cls(shapes)

    def check(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors to load.

        Raises:
            WeightError: unknown or missing names, a wrong shape, NaN or infinity.
        """
        unknown, missing = [n for n in tensors if n not in self.shapes], [n for n in self.shapes if n not in tensors]
        if unknown or missing:
            raise WeightError(
                f"this is not the adapter of the configuration: {len(unknown)} tensors are unknown, "
                f"{len(missing)} missing, such as {named([*unknown, *missing])}"
            )
        for name, shape in self.shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise WeightError(f"{name} has shape {tuple(tensors[name].shape)}, the adapter has {shape}")
            if not is_finite(tensors[name]):
                raise WeightError(f"{name} holds NaN or infinity: the trainer diverged. Lower the learning rate.")
        return {name: tensors[name] for name in self.shapes}

    def start(self, spec: AdapterSpec) -> dict[str, torch.Tensor]:
        """What is served before the first publication: `spec.start`, else zeros.

        Raises:
            ModelError: the adapter folder cannot be used.
        """
        if not spec.start:
            return {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        found = read_adapter(spec.start, spec)
        try:
            return self.check(found)
        except WeightError as error:
            raise ModelError(f"the adapter {spec.start!r} does not fit: {error}") from error


def delta(tensors: Mapping[str, torch.Tensor], module: str, scaling: float) -> torch.Tensor:
    """float32 [out, in]: what the adapter adds to the module's weight."""
    return (tensors[f"{module}{B}"].float() @ tensors[f"{module}{A}"].float()) * scaling


def read_adapter(folder: str | Path, spec: AdapterSpec | None = None) -> dict[str, torch.Tensor]:
    """Tensors of an adapter folder as peft writes it, by the names used here.

    Raises:
        ModelError: it cannot be read, is of another kind than W + alpha / rank x B A, or (with `spec`) of another rank
            or alpha.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
        found: dict[str, torch.Tensor] = load_file(str(Path(folder) / TENSORS))
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"the adapter {str(folder)!r} cannot be read: {error}") from error
    _refuse_other_kinds(str(folder), settings)
    if spec is not None and (settings.get("r"), settings.get("lora_alpha")) != (spec.rank, spec.alpha):
        raise ModelError(
            f"the adapter {str(folder)!r} has rank {settings.get('r')} and alpha {settings.get('lora_alpha')}; set "
            f"actor_rollout_ref.model.lora_rank and lora_alpha, now {spec.rank} and {spec.alpha}, to these"
        )
    return {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in found.items()}


def _refuse_other_kinds(folder: str, settings: Mapping[str, Any]) -> None:
    odd = [f"{name}={settings[name]!r}" for name in _NOT_PLAIN if settings.get(name)]
    odd += [f"{name}={settings[name]!r}" for name in ("bias",) if settings.get(name, "none") != "none"]
    odd += [f"peft_type={settings.get('peft_type')!r}"] if settings.get("peft_type") != "LORA" else []
    if settings.get("init_lora_weights") not in _PLAIN_INITS:
        odd.append(f"init_lora_weights={settings['init_lora_weights']!r}")
    if odd:
        raise ModelError(
            f"the adapter {folder!r} is not W + alpha / rank x B A: its {SETTINGS} says {', '.join(odd)}. Merge it "
            "into its base with peft, and name the result in actor_rollout_ref.model.path"
        )


def modules_in(tensors: Iterable[str]) -> list[str]:
    """Modules whose adapter is among the tensors, in order."""
    return [name.removesuffix(A) for name in tensors if name.endswith(A)]


def server_rank(rank: int) -> int:
    """The smallest of vLLM's ranks that holds an adapter of `rank`. Ranks above 512 are refused with the
    configuration."""
    return next(size for size in SERVER_RANKS if rank <= size)


def _is_any(name: str, wanted: Iterable[str]) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in wanted)


def _refuse_unknown(key: str, wanted: Iterable[str], every: list[str]) -> None:
    known = list(dict.fromkeys(name.rpartition(".")[2] for name in every))
    for one in wanted:
        if any(_is_any(name, [one]) for name in every):
            continue
        near = difflib.get_close_matches(one, [*known, *every], 1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise ModelError(
            f"actor_rollout_ref.model.{key}: {one!r} is no linear layer of the model{meant} "
            f"There are: {', '.join(known)}"
        )
