"""`actor_rollout_ref.{model,actor,ref}.*`: the policy that is trained and the reference it is held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class LoraConfig:
    """Attributes:
    merge: publish whole weights with the adapter in them instead of the adapter alone.
    save_merged: checkpoints also hold the merged model, in a folder `merged` that plain transformers loads.
    """

    merge: bool = False
    save_merged: bool = False


@dataclass
class ModelConfig:
    """Attributes:
    path: folder of a Hugging Face causal LM with tokenizer and chat template; a `.gguf` file works too.
    dtype: of the matrix products while training, and of the published weights. Trained parameters and optimizer stay
        float32.
    enable_gradient_checkpointing: recompute activations in the backward pass.
    lora_rank: above 0, only a low-rank adapter of this rank is trained.
    lora_alpha: the adapter counts lora_alpha / lora_rank.
    target_modules: `all-linear`, or names of linear layers that carry it.
    exclude_modules: names of linear layers that do not.
    lora_adapter_path: adapter folder to start from; null = B is zero, so the policy starts as the model at `path`.
    """

    path: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    enable_gradient_checkpointing: bool = False
    lora_rank: int = 0
    lora_alpha: int = 16
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    exclude_modules: list[str] | None = None
    lora_adapter_path: str | None = None
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass
class OptimConfig:
    """AdamW and its schedule; the horizon is the total number of optimizer steps.

    Attributes:
        lr_warmup_steps: optimizer steps; -1 = use lr_warmup_steps_ratio of the horizon.
        lr_scheduler_type: after warm-up, `constant` or `cosine` down to min_lr_ratio x lr.
    """

    lr: float = 1e-6
    weight_decay: float = 0.01
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    lr_warmup_steps: int = -1
    lr_warmup_steps_ratio: float = 0.0
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    min_lr_ratio: float = 0.0


@dataclass
class PolicyLossConfig:
    """Attributes:
    loss_mode: name in the registry of policy losses; docs/algorithms.md has their formulas.
    clip_cov_ratio: clip_cov: share of tokens whose gradient is dropped.
    clip_cov_lb, clip_cov_ub: clip_cov: bounds of the covariance of the tokens to draw from.
    kl_cov_ratio: kl_cov: share of tokens that are held by a KL.
    ppo_kl_coef: kl_cov: its weight.
    dro_beta: dro: weight of the squared log-ratio, twice; has no default.
    """

    loss_mode: str = "vanilla"
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 0.1
    dro_beta: float | None = None


@dataclass
class ActorConfig:
    """Attributes:
    ppo_mini_batch_size: prompts (groups) per optimizer step; divides data.train_batch_size.
    ppo_epochs: passes over the batch of a step.
    ppo_max_token_len_per_gpu: token budget (prompt + response) of a micro-batch on one rank.
    clip_ratio: both sides, unless clip_ratio_low / clip_ratio_high are given.
    clip_ratio_c: dual clip, > 1 (Ye et al. 2020, arXiv 1912.09729); dppo: bound of the importance weight.
    tau_pos, tau_neg: sapo: sharpness of its gate where the advantage is positive, and elsewhere.
    loss_agg_mode: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm.
    loss_scale_factor: divisor of seq-mean-token-sum-norm; null = data.max_response_length.
    kl_loss_type: as algorithm.kl_penalty.
    grad_clip: maximal global gradient norm.
    shuffle: whether mini-batches are drawn in an order seeded by (trainer.seed, step, epoch).
    call_timeout_s: budget of one call to the policy ranks (log-probs, update, save) and of their collectives.
    """

    ppo_mini_batch_size: int = 32
    ppo_epochs: int = 1
    ppo_max_token_len_per_gpu: int = 16_384
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    grad_clip: float = 1.0
    shuffle: bool = False
    call_timeout_s: float = 3600.0
    optim: OptimConfig = field(default_factory=OptimConfig)

    @property
    def clip_low(self) -> float:
        """Distance of the lower clip boundary from 1."""
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def clip_high(self) -> float:
        """Distance of the upper clip boundary from 1."""
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high


@dataclass
class RefConfig:
    """Attributes:
    log_prob_max_token_len_per_gpu: token budget of a forward-only micro-batch, for reference and old log-probs.
    """

    log_prob_max_token_len_per_gpu: int = 16_384
