"""How far the training policy is from the one that sampled, named as in verl. Invariant: only what was computed is
reported. Distances are over all sampled tokens; the weights are those of kept tokens, as the loss reads them.
"""

from __future__ import annotations

import torch

from verl_core.algorithms.correction.correct import Corrected
from verl_core.algorithms.correction.weights import raw_weights
from verl_core.algorithms.counting import row_counts

PREFIX = "rollout_corr"


def mismatch(old: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Distances of two policies on the tokens that the rollout drew; {} without tokens.

    `kl` and `k3_kl`: mean per token, nats, of k1 and k3; `training_log_ppl`, `rollout_log_ppl`: mean over rows of the
    row's mean of -log p; `log_ppl_diff`, `log_ppl_abs_diff`: their difference (positive where the training policy is
    less certain); `chi2_token`: E[r^2] - 1; `chi2_seq`: the same of the product over the row.

    Args:
        old, rollout: float32 [B, T], log-probs.
        mask: bool [B, T].
    """
    if not bool(mask.any()):
        return {}
    log_ratio = torch.where(mask, old - rollout, 0.0).double()
    live = mask.any(dim=1)
    lengths = row_counts(mask)[live]

    def row_means(values: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, values, 0.0).double().sum(dim=1)[live] / lengths

    def tokens(values: torch.Tensor) -> float:
        return float(values[mask].double().mean())

    training, sampled = -row_means(old), -row_means(rollout)
    sequence = raw_weights(log_ratio, mask, "sequence").max(dim=1).values[live]
    told = {
        "kl": tokens(-log_ratio),
        "k3_kl": tokens(raw_weights(log_ratio, mask, "token") - 1 - log_ratio),
        "training_log_ppl": float(training.mean()),
        "rollout_log_ppl": float(sampled.mean()),
        "log_ppl_diff": float((training - sampled).mean()),
        "log_ppl_abs_diff": float((training - sampled).abs().mean()),
        "chi2_token": tokens(raw_weights(log_ratio, mask, "token").square()) - 1,
        "chi2_seq": float(sequence.square().mean()) - 1,
    }
    return {f"{PREFIX}/{name}": value for name, value in told.items()}


def effect(corrected: Corrected, mask: torch.Tensor) -> dict[str, float]:
    """What the correction did: shares of tokens and rows rejected; of the weights mean, largest, the share that the
    threshold changed, and the effective sample size as a share, (sum w)^2 / (N sum w^2).
    """
    tokens, rows = mask.sum().clamp(min=1), mask.any(dim=1)
    lost = rows & ~corrected.keep.any(dim=1)
    told = {
        "rejected_token_share": float((mask & ~corrected.keep).sum() / tokens),
        "rejected_row_share": float(lost.sum() / rows.sum().clamp(min=1)),
    }
    keep, weights, raw, held = corrected.keep, corrected.weights, corrected.raw, corrected.held
    if weights is not None and raw is not None and held is not None and bool(keep.any()):
        kept = weights[keep].double()
        told |= {
            "rollout_is_mean": float(kept.mean()),
            "rollout_is_max": float(kept.max()),
            "rollout_is_raw_max": float(raw[keep].max()),
            "rollout_is_changed_share": float(held[keep].double().mean()),
            "rollout_is_eff_sample_size": float(
                kept.sum().square() / (len(kept) * kept.square().sum().clamp(min=1e-30))
            ),
        }
    return {f"{PREFIX}/{name}": value for name, value in told.items()}
