"""PromptStream: rows to prompts, forever. Invariant: what is served depends on the ordinal, not on how it was reached.

Any split of takes gives the same sequence, and two streams of equal `identity` serve the same under the same ordinal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from verl_core.data.order import ServingOrder
from verl_core.data.row import DatasetRow, PromptRow
from verl_core.data.sampled_order import SampledOrder
from verl_core.data.tokenize import TokenizationReport
from verl_core.data.uid import uid_of
from verl_core.errors import DataError
from verl_core.trajectory import Prompt


class PromptStream:
    """Serves prompts by number.

    Args:
        rows: tokenized rows.
        batch_size: prompts of a step; an epoch is a whole number of them.
        seed: of the order and of the uids.
        shuffle: False = file order in every epoch.
        n: sessions of each prompt.
        validation: whether the prompts are sampled as rollout.val_kwargs says.
        name: keeps the uids of two streams apart.
        report: what tokenizing did to the rows, when the caller knows.
        sampled: decides the order instead of seed and shuffle, with what it is made from, as JSON values.

    Attributes:
        recover: brings `sampled` up to what other processes of the run drew.

    Raises:
        DataError: the rows do not fill one batch.
    """

    def __init__(
        self,
        rows: Sequence[PromptRow],
        batch_size: int,
        seed: int,
        shuffle: bool,
        n: int,
        validation: bool = False,
        name: str = "train",
        report: TokenizationReport | None = None,
        sampled: tuple[SampledOrder, dict[str, Any]] | None = None,
    ) -> None:
        self.rows, self.batch_size, self.seed, self.shuffle = tuple(rows), batch_size, seed, shuffle
        self.n, self.validation, self.name = n, validation, name
        self.report = report
        self.sampled: SampledOrder | None = sampled[0] if sampled else None
        self._sampler: dict[str, Any] = sampled[1] if sampled else {}
        self._order = self.sampled or ServingOrder(len(self.rows), batch_size, seed, shuffle)
        self.recover: Callable[[], None] = lambda: None
        self._ordinal = 0
        self._fingerprint = fingerprint(self.rows)

    @property
    def ordinal(self) -> int:
        """Number of the next prompt, from 0 over all epochs."""
        return self._ordinal

    @property
    def epoch(self) -> int:
        """Epoch of the next prompt, from 0."""
        return self._order.epoch_of(self._ordinal)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return self._order.per_epoch // self.batch_size

    def take(self, count: int, step: int) -> list[Prompt]:
        """The next `count` prompts, for global step `step`."""
        if count < 1:
            raise ValueError(f"take at least one prompt, not {count}")
        taken = [self._prompt(ordinal, step) for ordinal in range(self._ordinal, self._ordinal + count)]
        self._ordinal += count
        return taken

    def row_at(self, ordinal: int) -> DatasetRow:
        """The row that is served as number `ordinal`.

        Raises:
            DataError: a sampler decides, and has not drawn it.
        """
        if self.sampled is not None and ordinal >= len(self.sampled.drawn):
            self.recover()
            if ordinal >= len(self.sampled.drawn):
                raise DataError(f"no process of this run drew prompt {ordinal}; its row is not known")
        return self.rows[self._order.row_of(ordinal)].source

    def seek(self, ordinal: int) -> None:
        """Make `ordinal` the next one."""
        if ordinal < 0:
            raise ValueError(f"ordinals start at 0, got {ordinal}")
        self._ordinal = ordinal

    def reissue(self, prompt: Prompt) -> Prompt:
        """The same prompt once more: next attempt, new uid, same base_uid."""
        attempt = prompt.attempt + 1
        return replace(prompt, attempt=attempt, uid=uid_of(self.seed, prompt.ordinal, attempt, self.name))

    def state(self) -> dict[str, Any]:
        """Position and what it is a position in, as JSON values; for the checkpoint."""
        return {"ordinal": self._ordinal, **self.identity()}

    def identity(self) -> dict[str, Any]:
        """What decides which prompt is served under which ordinal, as JSON values: equal exactly when the rows (chat,
        tokens, ground truth, verifier, extra info), their order and the batch size are."""
        return {
            "name": self.name,
            "rows": len(self.rows),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "fingerprint": self._fingerprint,
            **({"sampler": self._sampler} if self._sampler else {}),
        }

    def _prompt(self, ordinal: int, step: int) -> Prompt:
        row = self.rows[self._order.row_of(ordinal)]
        uid = uid_of(self.seed, ordinal, 0, self.name)
        return Prompt(
            uid=uid,
            base_uid=uid,
            attempt=0,
            row=row.source.row,
            ordinal=ordinal,
            step=step,
            n=self.n,
            token_ids=row.token_ids,
            data_source=row.source.data_source,
            ground_truth=row.source.ground_truth,
            messages=row.source.messages,
            extra_info=row.source.extra_info,
            validation=self.validation,
        )


def fingerprint(rows: Sequence[PromptRow]) -> str:
    """Hex digest of all that is served of the rows, in order: tokens, and what scoring and agent loops get to see."""
    digest = hashlib.sha256()
    for row in rows:
        source = row.source
        seen = [source.row, source.data_source, source.ground_truth, source.extra_info, source.messages]
        # Parquet knows values that JSON does not (times, decimals, bytes); their repr names them exactly.
        text = json.dumps(seen, sort_keys=True, separators=(",", ":"), default=repr).encode()
        digest.update(f"{len(text)}:{len(row.token_ids)}:".encode())
        digest.update(text)
        digest.update(row.token_ids.astype("<i4").tobytes())
    return digest.hexdigest()
