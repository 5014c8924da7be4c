"""Names a configuration may choose from. Invariant: literal lists; the registries are tested against them."""

from __future__ import annotations

# Advantage estimator -> the settings under algorithm that it reads.
ADV_ESTIMATORS: dict[str, frozenset[str]] = {
    "gae": frozenset({"gamma", "lam"}),
    "gdpo": frozenset({"gdpo_reward_keys", "gdpo_reward_weights"}),
    "gpg": frozenset(),
    "grpo": frozenset({"norm_adv_by_std_in_grpo"}),
    "grpo_passk": frozenset({"norm_adv_by_std_in_grpo"}),
    "maxrl": frozenset(),
    "opo": frozenset(),
    "optimal_token_baseline": frozenset(),
    "reinforce_plus_plus": frozenset({"gamma"}),
    "reinforce_plus_plus_baseline": frozenset(),
    "remax": frozenset(),
    "rloo": frozenset(),
    "tir_optimal_token_baseline": frozenset(),
}

# Estimators that read the values of a critic.
VALUE_ESTIMATORS = frozenset({"gae"})

# Estimators that compare the samples of one prompt: with a single sample there is nothing to compare.
GROUP_ESTIMATORS = frozenset(ADV_ESTIMATORS) - {"gae", "reinforce_plus_plus", "remax"}

# Estimators that read the score of a greedy response to every prompt: one more session per group.
GREEDY_ESTIMATORS = frozenset({"remax"})

# Estimators that read the policy's squared probabilities, summed over the vocabulary, at every token.
SQUARES_ESTIMATORS = frozenset({"optimal_token_baseline", "tir_optimal_token_baseline"})

_CLIP = frozenset({"clip_ratio", "clip_ratio_low", "clip_ratio_high"})

# Loss -> the settings under actor_rollout_ref.actor that it reads, beside those that all read.
POLICY_LOSSES: dict[str, frozenset[str]] = {
    "cispo": _CLIP,
    "clip_cov": _CLIP | {"policy_loss.clip_cov_ratio", "policy_loss.clip_cov_lb", "policy_loss.clip_cov_ub"},
    "dppo_kl": _CLIP | {"clip_ratio_c"},
    "dppo_tv": _CLIP | {"clip_ratio_c"},
    "dro": frozenset({"policy_loss.dro_beta"}),
    "geo_mean": _CLIP,
    "gpg": frozenset(),
    "gspo": _CLIP,
    "kl_cov": frozenset({"policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef"}),
    "sapo": frozenset({"tau_pos", "tau_neg"}),
    "vanilla": _CLIP | {"clip_ratio_c"},
}

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
KL_TYPES = KL_ESTIMATORS + tuple(f"{name}+" for name in KL_ESTIMATORS)

# Their expected gradient is 0: as a loss they hold nothing back.
KL_WITHOUT_GRADIENT = ("k1", "kl")

# Distances to a teacher.
DISTILLATION_LOSSES = ("forward_kl_topk", *KL_TYPES)

TRAINER_MODES = ("sync", "colocate_async", "separate_async")
ASYNC_MODES = ("colocate_async", "separate_async")

SAMPLERS = ("difficulty",)

AGENT_LOOPS = ("single_turn_agent", "tool_agent")

LOGGERS = ("console", "jsonl", "tensorboard")

# Names that verl knows and this project does not have yet, so that the message can say so.
VERL_TRAINER_MODES: frozenset[str] = frozenset()
VERL_LOGGERS = frozenset({"wandb", "mlflow", "swanlab", "vemlp_wandb", "clearml", "trackio", "file"})
VERL_AGENT_LOOPS: frozenset[str] = frozenset()
