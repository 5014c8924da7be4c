"""PolicyModel: a causal LM that answers with log-probs of chosen tokens. Invariant: they are those of the model's own
full forward pass (`check_head`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from verl_core.engine.head import Scored, token_log_probs
from verl_core.engine.loading import load_model
from verl_core.engine.network import Network
from verl_core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD_TOLERANCE = 1e-3


class PolicyModel(Network):
    """Backbone and head of a Hugging Face causal LM.

    Args:
        temperature: divides the logits.
    """

    def __init__(self, lm: PreTrainedModel, temperature: float, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(lm, compute_dtype)
        self.temperature = temperature

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        targets: torch.Tensor,
        with_entropy: bool = False,
        with_squares: bool = False,
    ) -> Scored:
        """Log-probs of `targets`, each predicted at its position, and what `token_log_probs` adds to them.

        Rows are padded on the right, so a causal network never lets padding reach a real token and needs no mask;
        positions count from 0 in every row.

        Args:
            input_ids: int64 [b, L].
            positions: int64 [N], into the flattened [b x L].
            targets: int64 [N], or [N, M] for M tokens at each position.
        """
        with self.autocast(input_ids.device):
            states = self.lm.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
            wanted = states.flatten(0, 1)[positions]
            head, vocabulary = self.lm.get_output_embeddings(), self.lm.config.get_text_config().vocab_size
            return token_log_probs(
                wanted, head, targets, vocabulary, self.temperature, with_entropy, with_squares=with_squares
            )

    def read(self, folder: str, start: bool = False) -> dict[str, torch.Tensor]:
        """See Network."""
        return {name: parameter.detach() for name, parameter in load_model(folder).named_parameters()}


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
