"""`critic.*`: the network that predicts what a response will earn, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from verl_core.config.schema.actor import ActorConfig, OptimConfig

T = TypeVar("T")


@dataclass
class CriticModelConfig:
    """Attributes:
    path: folder of a Hugging Face language model whose backbone the critic starts from, or of a saved critic; empty =
        actor_rollout_ref.model.path.
    enable_gradient_checkpointing: recompute activations in the backward pass.
    """

    path: str = ""
    enable_gradient_checkpointing: bool = False


@dataclass
class CriticConfig:
    """What is null is the actor's.

    Attributes:
        enable: null = a critic exists when algorithm.adv_estimator reads values.
        optim: AdamW and its schedule, of the critic alone.
        ppo_mini_batch_size: prompts (groups) per optimizer step.
        ppo_max_token_len_per_gpu: token budget of a micro-batch on one rank.
        forward_max_token_len_per_gpu: the same where values are only computed; null = ppo_max_token_len_per_gpu.
        cliprange_value: distance from the old value, in units of reward, beyond which a value gets no more gradient
            towards its return.
        loss_agg_mode: as the actor's; seq-mean-token-sum-norm divides by data.max_response_length.
    """

    enable: bool | None = None
    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    ppo_mini_batch_size: int | None = None
    ppo_epochs: int | None = None
    ppo_max_token_len_per_gpu: int | None = None
    forward_max_token_len_per_gpu: int | None = None
    shuffle: bool | None = None
    cliprange_value: float = 0.5
    loss_agg_mode: str | None = None
    grad_clip: float = 1.0

    def beside(self, actor: ActorConfig) -> CriticSettings:
        """The settings that hold."""
        budget = _given(self.ppo_max_token_len_per_gpu, actor.ppo_max_token_len_per_gpu)
        return CriticSettings(
            mini_batch_size=_given(self.ppo_mini_batch_size, actor.ppo_mini_batch_size),
            epochs=_given(self.ppo_epochs, actor.ppo_epochs),
            token_budget=budget,
            forward_budget=_given(self.forward_max_token_len_per_gpu, budget),
            shuffle=_given(self.shuffle, actor.shuffle),
            loss_agg_mode=_given(self.loss_agg_mode, actor.loss_agg_mode),
        )


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """What may be null in CriticConfig, decided."""

    mini_batch_size: int
    epochs: int
    token_budget: int
    forward_budget: int
    shuffle: bool
    loss_agg_mode: str


def _given(own: T | None, other: T) -> T:
    return other if own is None else own
