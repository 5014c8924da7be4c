"""ValueModel: the critic's network, a language model's backbone with one number per position in place of its head.

Invariant: the value of response token t is read at the position that predicts it, prompt + t - 1, so it is that of the
state before the token is sampled: changing token t or a later one changes nothing of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from verl_core.engine.loading import load_backbone
from verl_core.engine.network import Network
from verl_core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "value_head"
HEAD_FILE = f"{HEAD}.safetensors"


class ValueModel(Network):
    """Backbone and value head.

    Attributes:
        value_head: [H] -> [1], float32; zero until trained, so that a new critic says 0 everywhere and its first steps
            move the head before the backbone.
    """

    def __init__(self, lm: PreTrainedModel, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(lm, compute_dtype)
        self.value_head = nn.Linear(lm.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """float32 [N]: values at the positions, in units of reward.

        Args:
            input_ids: int64 [b, L], padded on the right.
            positions: int64 [N], into the flattened [b x L].
        """
        with self.autocast(input_ids.device):
            states = self.lm(input_ids=input_ids, use_cache=False).last_hidden_state
        values: torch.Tensor = self.value_head(states.flatten(0, 1)[positions].float())
        return values[:, 0].clone()  # FSDP hooks cannot follow a view

    def exact(self) -> list[nn.Module]:
        """See Network: bfloat16 has three digits, too few for a target."""
        return [self.value_head]

    def write(self, folder: str, tensors: dict[str, torch.Tensor]) -> None:
        """See Network: a model folder without a head, and value_head.safetensors."""
        from safetensors.torch import save_file

        head = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{HEAD}.")}
        super().write(folder, {name: tensor for name, tensor in tensors.items() if name not in head})
        save_file(head, str(Path(folder) / HEAD_FILE))

    def read(self, folder: str, start: bool = False) -> dict[str, torch.Tensor]:
        """See Network. With `start` a folder without value_head.safetensors, as every language model is, gives a new
        head."""
        tensors = {name: parameter.detach() for name, parameter in load_backbone(folder).named_parameters()}
        file = Path(folder) / HEAD_FILE
        if start and not file.is_file():
            return tensors | {f"{HEAD}.{name}": torch.zeros(part.shape) for name, part in self._head()}
        return tensors | _read_head(file)

    def _head(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.value_head.named_parameters())


def value_model(folder: str, compute_dtype: torch.dtype) -> ValueModel:
    """The network that a critic starts from: any language model, or a critic that was saved.

    Raises:
        ModelError: the folder cannot be used.
    """
    model = ValueModel(load_backbone(folder), compute_dtype)
    file = Path(folder) / HEAD_FILE
    if file.is_file():
        head = {name.removeprefix(f"{HEAD}."): tensor for name, tensor in _read_head(file).items()}
        model.value_head.load_state_dict(head)
    return model


def _read_head(file: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the value head {str(file)!r} cannot be read: {error}") from error
    return tensors
