"""What a complete set of weights is. Invariant: a set that passes `check` replaces every parameter, with finite values.

The expectation comes from the engine's own model folder, not from the sender, so a sender cannot agree with itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from verl_core.errors import ModelError, WeightError

HEAD = "lm_head.weight"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")


@dataclass(frozen=True)
class ExpectedWeights:
    """Attributes:
    shapes: every parameter that must come, by its Hugging Face name.
    tied: whether the output layer is the embedding; then `lm_head.weight` may come too, and must equal it.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool

    @classmethod
    def from_folder(cls, folder: str | Path) -> ExpectedWeights:
        """Read the headers of the folder's safetensors files. Raises ModelError when there are none."""
        from safetensors import safe_open

        shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(str(file), framework="pt") as opened:
                shapes.update({name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()})  # noqa: SIM118
        if not shapes:
            raise ModelError(
                f"{folder} holds no *.safetensors: the inference engine loads and checks weights by them. "
                "Save the model with save_pretrained first."
            )
        tied = _tied(Path(folder))
        if tied:
            shapes.pop(HEAD, None)
        return cls(shapes, tied)

    def check(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors to load, each parameter once.

        Raises:
            WeightError: unknown or missing names, a wrong shape, NaN or infinity, or an untied copy of a tied head.
        """
        unknown = [name for name in tensors if name not in self.shapes and not (self.tied and name == HEAD)]
        if unknown:
            raise WeightError(f"the model has no weights named {named(unknown)}; was another model trained?")
        missing = [name for name in self.shapes if name not in tensors]
        if missing:
            raise WeightError(f"weights are missing: {named(missing)}; every publication must be complete")
        for name, shape in self.shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise WeightError(f"{name} has shape {tuple(tensors[name].shape)}, the model has {shape}")
        for name, tensor in tensors.items():
            if not is_finite(tensor):
                raise WeightError(f"{name} holds NaN or infinity: the trainer diverged. Lower the learning rate.")
        self._check_head(tensors)
        return {name: tensors[name] for name in self.shapes}

    def _check_head(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if not self.tied or HEAD not in tensors:
            return
        embedding = next((tensors[name] for name in self.shapes if name.endswith(EMBEDDINGS)), None)
        if embedding is None or not torch.equal(embedding, tensors[HEAD]):
            raise WeightError(f"the model ties {HEAD} to its embedding, but the two differ in this push")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all values are finite. One pass without a temporary (isfinite().all() takes thirty times as long)."""
    if not tensor.numel() or not tensor.dtype.is_floating_point:
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low)) and bool(torch.isfinite(high))


def _tied(folder: Path) -> bool:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}. The model path must be a Hugging Face folder.") from error
    return bool(config.get("tie_word_embeddings", True))  # absent means tied: the default of Hugging Face configs


def named(names: list[str], limit: int = 3) -> str:
    """The first few of them, for a message."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
