"""PolicyModel: a causal LM that answers with log-probs. Invariant: its forward is the only way into the network, so
that FSDP sees every use of every parameter (embedding, layers and head)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from verl_core.engine.head import Scored, token_log_probs
from verl_core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFIX = "lm."
HEAD_TOLERANCE = 1e-3


class PolicyModel(nn.Module):
    """Backbone and head of a Hugging Face causal LM.

    Args:
        lm: float32, evaluation mode.
        temperature: divides the logits.
        compute_dtype: bfloat16 runs the matrix products in bfloat16 (autocast); parameters stay float32, because an
            AdamW step of 1e-6 is lost in bfloat16's eight bits.
    """

    def __init__(self, lm: PreTrainedModel, temperature: float, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.lm = lm
        self.temperature, self.compute_dtype = temperature, compute_dtype

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor, with_entropy: bool = False
    ) -> Scored:
        """Log-probs of `targets`, each predicted at its position, and entropies (empty without `with_entropy`).

        Rows are padded on the right, so a causal network never lets padding reach a real token and needs no mask;
        positions count from 0 in every row.

        Args:
            input_ids: int64 [b, L].
            positions: int64 [N], into the flattened [b x L].
            targets: int64 [N].
        """
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16):
            states = self.lm.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
            wanted = states.flatten(0, 1)[positions]
            head, vocabulary = self.lm.get_output_embeddings(), self.lm.config.get_text_config().vocab_size
            return token_log_probs(wanted, head, targets, vocabulary, self.temperature, with_entropy)

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


@torch.no_grad()
def check_head(model: PolicyModel) -> None:
    """Compare the model's log-probs of a short probe with those from its own full forward pass.

    Raises:
        ModelError: they differ, e.g. because the architecture scales or caps its logits after the head.
    """
    ids = torch.arange(8)[None, :] % model.lm.config.get_text_config().vocab_size
    full = torch.log_softmax(model.lm(input_ids=ids, use_cache=False).logits.float() / model.temperature, dim=-1)
    expected = full[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
    got, _ = model(ids, torch.arange(7), ids[0, 1:])
    difference = float((got - expected).abs().max())
    limit = HEAD_TOLERANCE if model.compute_dtype == torch.float32 else 0.3
    if not difference <= limit:
        raise ModelError(
            f"{type(model.lm).__name__} cannot be trained here: log-probs from its hidden states and head differ from "
            f"its own by {difference:.3g} nats, so it changes logits after the head. Use another architecture"
        )
