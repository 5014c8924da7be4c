"""`distillation.*`: teachers that score what the policy samples, and what is learnt from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FORWARD_KL = "forward_kl_topk"


@dataclass
class TeacherInferenceConfig:
    """The server of a teacher; what is null is the rollout's (`actor_rollout_ref.rollout`).

    Attributes:
        name: `vllm`, or `scripted`: the plain model in torch, for exact tests.
        dtype: of its weights.
        max_num_seqs: sequences it scores together.
        max_logprobs: most candidates that its server gives per token; null = as many as are needed.
    """

    name: Literal["vllm", "scripted"] | None = None
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_logprobs: int | None = None


@dataclass
class TeacherModelConfig:
    """One entry of `distillation.teacher_models`.

    Attributes:
        key: the data source that it teaches; null = every source that has no teacher of its own.
        model_path: folder of a Hugging Face causal LM with the tokenizer of the policy.
        warm_start: instead of a folder, make it here as `warm_start` makes the policy: these of its settings, the
            policy's own for the others.
        num_replicas: servers, one device each.
    """

    key: str | None = None
    model_path: str = ""
    warm_start: dict[str, Any] = field(default_factory=dict)
    num_replicas: int = 1
    inference: TeacherInferenceConfig = field(default_factory=TeacherInferenceConfig)


@dataclass
class DistillationLossConfig:
    """Attributes:
    loss_mode: name in the registry of distillation losses; docs/algorithms.md has their formulas.
    topk: candidates of the teacher per token; forward_kl_topk.
    tail: what stands for the tokens outside them; forward_kl_topk.
    use_task_rewards: whether the reward function is learnt from too.
    distillation_loss_coef: weight of the distance to the teacher beside the task's reward.
    loss_max_clamp: bound of one token's loss, nats.
    use_policy_gradient: the distance under the old policy is taken off each token's advantage, instead of the gradient
        going through the distance itself.
    """

    loss_mode: str = "k3"
    topk: int = 32
    tail: Literal["bucket", "renormalise", "drop"] = "bucket"
    use_task_rewards: bool = True
    distillation_loss_coef: float = 1.0
    loss_max_clamp: float | None = None
    use_policy_gradient: bool = False

    @property
    def reads_topk(self) -> bool:
        """Whether the loss reads more than the sampled token."""
        return self.loss_mode == FORWARD_KL


@dataclass
class DistillationConfig:
    """Attributes:
    enabled: ask teachers.
    teacher_models: by a name of one's own; the settings of an entry are those of `TeacherModelConfig`.
    call_timeout_s: budget of scoring one step by all teachers.
    """

    enabled: bool = False
    teacher_models: dict[str, Any] = field(default_factory=dict)
    distillation_loss: DistillationLossConfig = field(default_factory=DistillationLossConfig)
    call_timeout_s: float = 600.0
