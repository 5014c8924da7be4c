"""Validation of a fine-tuned policy. Invariant: computed from probabilities, never sampled, so it carries no noise."""

from __future__ import annotations

import math

import numpy as np

from verl_core.batch import TrainBatch
from verl_core.engine.interface import PolicyEngine

LOSS, ACCURACY = "val/loss", "val/sampled_accuracy"


def examined(engine: PolicyEngine, batch: TrainBatch) -> dict[str, float]:
    """Metrics of the policy on `batch`:

    - val/loss: mean negative log-likelihood of the learnt tokens, nats.
    - val/perplexity: its exponential.
    - val/sampled_accuracy: the chance that a sample at temperature 1 is the row's own answer, token by token: the
      product of its tokens' probabilities, mean over rows. With several answers in a row: all of them.
    """
    log_probs, mask = engine.old_log_probs(batch).log_probs, batch.response_mask
    of_row = np.bincount(batch.row_index, np.where(mask, log_probs, 0.0), minlength=len(batch))
    loss = -float(of_row.sum()) / max(1, int(mask.sum()))
    return {LOSS: loss, "val/perplexity": math.exp(min(loss, 700.0)), ACCURACY: float(np.exp(of_row).mean())}
