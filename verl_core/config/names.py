"""Names a configuration may choose from. Invariant: literal lists; the registries are tested against them."""

from __future__ import annotations

ADV_ESTIMATORS = ("grpo",)

# Estimators that compare the samples of one prompt: with a single sample there is nothing to compare.
GROUP_ESTIMATORS = frozenset({"grpo"})

# Loss -> the clip settings under actor_rollout_ref.actor that it reads.
POLICY_LOSSES: dict[str, frozenset[str]] = {
    "vanilla": frozenset({"clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"}),
}

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
KL_TYPES = KL_ESTIMATORS + tuple(f"{name}+" for name in KL_ESTIMATORS)

TRAINER_MODES = ("sync", "colocate_async", "separate_async")
ASYNC_MODES = ("colocate_async", "separate_async")

AGENT_LOOPS = ("single_turn_agent",)

LOGGERS = ("console", "jsonl", "tensorboard")

# Names that verl knows and this project does not have yet, so that the message can say so.
VERL_ADV_ESTIMATORS = frozenset(
    {
        "gae",
        "gdpo",
        "gpg",
        "grpo_passk",
        "grpo_vectorized",
        "opo",
        "optimal_token_baseline",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "rloo",
        "rloo_vectorized",
        "tir_optimal_token_baseline",
    }
)
VERL_POLICY_LOSSES = frozenset(
    {
        "bypass_mode",
        "cispo",
        "clip_cov",
        "dppo_kl",
        "dppo_tv",
        "dro",
        "geo_mean",
        "gpg",
        "gspo",
        "kl_cov",
        "sapo",
    }
)
VERL_TRAINER_MODES: frozenset[str] = frozenset()
VERL_LOGGERS = frozenset({"wandb", "mlflow", "swanlab", "vemlp_wandb", "clearml", "trackio", "file"})
VERL_AGENT_LOOPS = frozenset({"tool_agent"})
