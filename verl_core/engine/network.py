"""Network: a Hugging Face model behind a forward of its own. Invariant: that forward is the only way in, so FSDP sees
every use of every parameter; and a network reads back what it wrote, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFIX = "lm."


class Network(nn.Module):
    """Base of what is trained.

    Args:
        lm: float32, evaluation mode.
        compute_dtype: bfloat16 runs the matrix products in bfloat16 (autocast); parameters stay float32, because an
            AdamW step of 1e-6 is lost in bfloat16's eight bits.
    """

    def __init__(self, lm: PreTrainedModel, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.lm, self.compute_dtype = lm, compute_dtype

    def saved_name(self, name: str) -> str:
        """The name under which `write` and `read` know the parameter `name`."""
        return name.removeprefix(PREFIX)

    def write(self, folder: str, tensors: dict[str, torch.Tensor]) -> None:
        """Put `tensors`, whole and under the names of `read`, into a folder."""
        self.lm.save_pretrained(folder, state_dict=tensors)

    def read(self, folder: str, start: bool = False) -> dict[str, torch.Tensor]:
        """Whole tensors of a folder, or of a `.gguf` file, by name.

        Args:
            start: the folder is what a run starts from, not what `write` left.

        Raises:
            ModelError: the folder cannot be used.
        """
        raise NotImplementedError

    def checkpoint_activations(self) -> None:
        """Keep only the inputs of the layers for the backward pass. Dropout stays off: only the layer itself, not
        what is in it, is told that it trains."""
        self.lm.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in self.layers():
            layer.training = True

    def layers(self) -> list[nn.Module]:
        """The blocks that are sharded and recomputed one by one."""
        kinds = set(self.lm._no_split_modules or ())
        return [module for module in self.lm.modules() if type(module).__name__ in kinds]

    def exact(self) -> list[nn.Module]:
        """Blocks that compute in float32 whatever `compute_dtype` is."""
        return []

    def autocast(self, device: torch.device) -> torch.autocast:
        """Matrix products in `compute_dtype`."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16)
