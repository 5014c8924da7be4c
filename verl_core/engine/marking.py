"""Which tokens clip_cov and kl_cov treat apart. Invariant: a function of the whole mini-batch and a seed, so every rank
and every split of it sees the same marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verl_core.algorithms.policy_losses.covariance import MARKINGS, MarkInputs
from verl_core.batch import TrainBatch
from verl_core.config.schema import PolicyLossConfig
from verl_core.engine.plan import Rows

MARKED = "marked"


def needs_marks(loss: PolicyLossConfig) -> bool:
    """Whether the loss treats chosen tokens apart."""
    return loss.loss_mode in MARKINGS.names()


def with_marks(batch: TrainBatch, rows: Rows, loss: PolicyLossConfig, seed: Sequence[int]) -> TrainBatch:
    """The batch with column `marked`: 1 on the chosen tokens of `rows`, 0 elsewhere.

    Args:
        rows: of one mini-batch, with at least one trainable token.
        seed: of the random choice; the same on every rank.
    """
    cells = batch.response_mask & np.isin(batch.row_index, rows)
    chosen = MARKINGS.get(loss.loss_mode)(
        MarkInputs(
            log_probs=torch.from_numpy(batch.columns["old_log_probs"][cells]),
            advantages=torch.from_numpy(batch.columns["advantages"][cells]),
            ratio=loss.clip_cov_ratio if loss.loss_mode == "clip_cov" else loss.kl_cov_ratio,
            low=loss.clip_cov_lb,
            high=loss.clip_cov_ub,
            seed=int(np.random.SeedSequence(list(seed)).generate_state(1)[0]),
        )
    )
    marks = np.zeros(len(batch.response_ids), dtype=np.float32)
    marks[cells] = chosen.numpy()
    return batch.with_column(MARKED, marks)
