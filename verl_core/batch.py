"""TrainBatch: the ragged, columnar batch that the advantage and update stages share.

Invariant: every response-aligned column is flat with one set of offsets; nothing is padded until a kernel asks for it,
and padding is never read (the mask is applied with `where`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from verl_core.trajectory import Bool, Float32, Int32, Trajectory

Offsets = NDArray[np.int64]


def offsets_of(lengths: Sequence[int]) -> Offsets:
    """int64 [B + 1] running sum of `lengths`, starting at 0."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


def cells_of(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, position in the row), each int64 [sum of lengths], of the cells of ragged rows, row by row."""
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    return row_of, np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


@dataclass
class TrainBatch:
    """B rows, ordered by (ordinal, session, index).

    Attributes:
        keys, uids: trajectory key and group uid per row. Rows of one group have one uid; they need not be adjacent.
        sessions: int32 [B].
        prompt_ids: int32 flat with `prompt_offsets` int64 [B + 1].
        response_ids: int32 flat with `response_offsets` int64 [B + 1].
        response_mask: bool flat, aligned with response_ids. A row that must not be trained on has an all-False mask.
        columns: float32 flat arrays aligned with response_ids, or wide ones, [tokens, K]. Names in use:
            rollout_log_probs, old_log_probs, ref_log_probs, entropy, values, token_rewards, advantages, returns,
            teacher_log_probs; wide: teacher_topk_ids, teacher_topk_log_probs.
        scores: float32 [B], the outcome of the session on its last output, 0 on the others.
    """

    keys: list[str]
    uids: list[str]
    sessions: Int32
    prompt_ids: Int32
    prompt_offsets: Offsets
    response_ids: Int32
    response_offsets: Offsets
    response_mask: Bool
    scores: Float32
    columns: dict[str, Float32] = field(default_factory=dict)

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], scores: Sequence[float]) -> TrainBatch:
        """Column view of `trajectories` in their canonical order; `scores` is aligned with the argument."""
        if len(trajectories) != len(scores) or not trajectories:
            raise ValueError(
                f"need as many scores as trajectories and at least one, got {len(scores)}/{len(trajectories)}"
            )
        rows = sorted(zip(trajectories, scores, strict=True), key=lambda pair: pair[0].order)
        rolled = [row for row, _ in rows]
        return cls(
            keys=[row.key for row in rolled],
            uids=[row.uid for row in rolled],
            sessions=np.asarray([row.session for row in rolled], dtype=np.int32),
            prompt_ids=np.concatenate([row.prompt_ids for row in rolled]).astype(np.int32),
            prompt_offsets=offsets_of([len(row.prompt_ids) for row in rolled]),
            response_ids=np.concatenate([row.response_ids for row in rolled]).astype(np.int32),
            response_offsets=offsets_of([len(row.response_ids) for row in rolled]),
            response_mask=np.concatenate([row.response_mask for row in rolled]).astype(np.bool_),
            scores=np.asarray([score for _, score in rows], dtype=np.float32),
            columns={"rollout_log_probs": np.concatenate([row.rollout_log_probs for row in rolled]).astype(np.float32)},
        )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """int64 [B]."""
        return np.diff(self.prompt_offsets)

    @property
    def response_lengths(self) -> NDArray[np.int64]:
        """int64 [B]."""
        return np.diff(self.response_offsets)

    @property
    def row_index(self) -> NDArray[np.int64]:
        """int64, aligned with response_ids: the row of each response token."""
        return np.repeat(np.arange(len(self)), self.response_lengths)

    @property
    def group_index(self) -> NDArray[np.int64]:
        """int64 [B]: rows of one group share a number; numbers count up in order of first appearance."""
        seen: dict[str, int] = {}
        return np.asarray([seen.setdefault(uid, len(seen)) for uid in self.uids], dtype=np.int64)

    @property
    def session_index(self) -> NDArray[np.int64]:
        """int64 [B]: rows of one session of a group share a number; numbers count up in order of first appearance."""
        seen: dict[tuple[str, int], int] = {}
        named = zip(self.uids, self.sessions.tolist(), strict=True)
        return np.asarray([seen.setdefault(session, len(seen)) for session in named], dtype=np.int64)

    @property
    def output_index(self) -> NDArray[np.int64]:
        """int64 [B]: place of the row among the outputs of its session, from its key."""
        return np.asarray([int(key.rsplit("_", 1)[1]) for key in self.keys], dtype=np.int64)

    @property
    def last_output(self) -> NDArray[np.int64]:
        """int64 [B]: the row that is the last output of the row's session; the row itself where there is one."""
        session, output = self.session_index, self.output_index
        last = np.zeros(int(session.max(initial=-1)) + 1, dtype=np.int64)
        order = np.lexsort((output, session))
        last[session[order]] = order  # later assignments win, and outputs ascend
        return last[session]

    def with_column(self, name: str, values: Float32) -> TrainBatch:
        """A batch that shares everything with this one and has column `name`."""
        if values.shape[:1] != self.response_ids.shape or values.ndim > 2:
            raise ValueError(f"column {name}: expected {self.response_ids.shape}, got {values.shape}")
        return replace(self, columns={**self.columns, name: values.astype(np.float32, copy=False)})

    def select(self, rows: Sequence[int]) -> TrainBatch:
        """The given rows, in the given order, copied."""
        prompt, response = self._positions(self.prompt_offsets, rows), self._positions(self.response_offsets, rows)
        return TrainBatch(
            keys=[self.keys[row] for row in rows],
            uids=[self.uids[row] for row in rows],
            sessions=self.sessions[list(rows)],
            prompt_ids=self.prompt_ids[prompt],
            prompt_offsets=offsets_of(self.prompt_lengths[list(rows)].tolist()),
            response_ids=self.response_ids[response],
            response_offsets=offsets_of(self.response_lengths[list(rows)].tolist()),
            response_mask=self.response_mask[response],
            scores=self.scores[list(rows)],
            columns={name: values[response] for name, values in self.columns.items()},
        )

    @staticmethod
    def _positions(offsets: Offsets, rows: Sequence[int]) -> NDArray[np.int64]:
        chosen = np.asarray(rows, dtype=np.int64)
        row_of, at = cells_of(offsets[chosen + 1] - offsets[chosen])
        return offsets[chosen][row_of] + at

    def padded_mask(self) -> torch.Tensor:
        """bool [B, T]: the response mask, False on padding. T is the longest response."""
        return self.padded(self.response_mask.astype(np.float32)).bool()

    def padded(self, values: str | Float32, fill: float = 0.0) -> torch.Tensor:
        """float32 [B, T] of a flat column (by name or array), or [B, T, K] of a wide one, right-padded with `fill`."""
        flat = torch.from_numpy(np.ascontiguousarray(self.columns[values] if isinstance(values, str) else values))
        width = max(1, int(self.response_lengths.max()))
        out = torch.full((len(self), width, *flat.shape[1:]), fill, dtype=torch.float32)
        out[self._cells(width)] = flat.float()
        return out

    def flat(self, padded: torch.Tensor) -> Float32:
        """Inverse of `padded`: float32 flat array of the cells of `padded` [B, T] that belong to responses."""
        values: Float32 = padded[self._cells(padded.shape[1])].float().numpy()
        return values

    def _cells(self, width: int) -> torch.Tensor:
        return torch.arange(width)[None, :] < torch.from_numpy(self.response_lengths)[:, None]
