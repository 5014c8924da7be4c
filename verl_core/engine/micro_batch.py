"""MicroBatch: the padded tensors of one forward pass. Invariant: flat values and padded cells are in the same order,
row-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl_core.batch import TrainBatch, cells_of
from verl_core.engine.plan import Rows


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """b rows, padded on the right; N cells of their responses are wanted.

    Attributes:
        rows: of the TrainBatch; empty for a filler that only takes part in collectives.
        input_ids: int64 [b, L]; L = longest prompt + response - 1, as the last token predicts nothing.
        positions: int64 [N] into the flattened [b x L]: where each wanted token is predicted.
        targets: int64 [N], the wanted tokens.
        cells: bool [b, T], the wanted cells.
        columns: float32 [b, T] each, or [b, T, K] for wide ones ([1, 1] in a filler); 0 on padding.
    """

    rows: Rows
    input_ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    cells: torch.Tensor
    columns: dict[str, torch.Tensor]

    @classmethod
    def build(
        cls, batch: TrainBatch, rows: Rows, device: torch.device, trainable: bool = False, columns: Sequence[str] = ()
    ) -> MicroBatch:
        """Pad `rows`.

        Args:
            trainable: want only cells where the response mask is True; else every response token.
            columns: names to carry along.

        Raises:
            ValueError: a prompt is empty: its first response token has nothing to be predicted from.
        """
        if not rows:
            return cls._filler(device, columns)
        part = batch.select(rows)
        prompts, responses = part.prompt_lengths, part.response_lengths
        if not prompts.all():
            raise ValueError(f"row {part.keys[int(np.argmin(prompts))]} has an empty prompt")
        width = int((prompts + responses).max()) - 1
        input_ids = np.zeros((len(rows), width + 1), dtype=np.int64)
        row_of, at = cells_of(prompts)
        input_ids[row_of, at] = part.prompt_ids
        row_of, at = cells_of(responses)
        input_ids[row_of, prompts[row_of] + at] = part.response_ids
        wanted = np.arange(max(1, int(responses.max())))[None, :] < responses[:, None]
        if trainable:
            wanted[wanted] = part.response_mask
        row_of, step_of = np.nonzero(wanted)
        at = prompts[row_of] + step_of
        return cls(
            rows=list(rows),
            input_ids=torch.from_numpy(input_ids[:, :-1]).to(device),
            positions=torch.from_numpy(row_of * width + at - 1).to(device),
            targets=torch.from_numpy(input_ids[row_of, at]).to(device),
            cells=torch.from_numpy(wanted).to(device),
            columns={name: part.padded(name).to(device) for name in columns},
        )

    @classmethod
    def _filler(cls, device: torch.device, columns: Sequence[str]) -> MicroBatch:
        """One token with one wanted cell that nothing reads: keeps the graph alive on a rank that has no rows left."""
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        return cls(
            rows=[],
            input_ids=zero[None, :],
            positions=zero,
            targets=zero,
            cells=torch.ones(1, 1, dtype=torch.bool, device=device),
            columns={name: torch.zeros(1, 1, device=device) for name in columns},
        )

    @property
    def mask(self) -> torch.Tensor:
        """bool [b, T]: wanted cells of real rows."""
        return self.cells if self.rows else torch.zeros_like(self.cells)

    def padded(self, flat: torch.Tensor) -> torch.Tensor:
        """float32 [b, T] with `flat` [N] in the wanted cells, or [b, T, K] of [N, K]; 0 elsewhere; differentiable."""
        shape = (*self.cells.shape, *flat.shape[1:])
        cells = self.cells.reshape(*self.cells.shape, *(1 for _ in flat.shape[1:])).expand(shape)
        return torch.zeros(shape, device=flat.device).masked_scatter(cells, flat)
