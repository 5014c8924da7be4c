"""The two streams of a run, from its configuration. Invariant: each file is read once and each row tokenized once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from verl_core.config.schema import DataConfig, RunConfig
from verl_core.data.reader import read_rows
from verl_core.data.row import Columns, PromptRow
from verl_core.data.sampled_order import SampledOrder
from verl_core.data.samplers import load_sampler
from verl_core.data.stream import PromptStream
from verl_core.data.tokenize import TokenizationReport, tokenize_rows
from verl_core.data.tokenizer import ChatTokenizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dataset:
    """Tokenized rows and the account of how they came about."""

    rows: list[PromptRow]
    report: TokenizationReport


def load_dataset(files: Sequence[str], data: DataConfig, tokenizer: ChatTokenizer, max_rows: int = -1) -> Dataset:
    """Rows of the files, checked and tokenized as `data.*` says; `max_rows` keeps the first ones, -1 all.

    Raises:
        DataError: see `read_rows` and `tokenize_rows`.
    """
    found = read_rows(files, Columns(data.prompt_key, data.reward_fn_key), max_rows)
    rows, report = tokenize_rows(found, tokenizer, data.max_prompt_length, data.truncation)
    return Dataset(rows, report)


def training_stream(config: RunConfig, files: Sequence[str], tokenizer: ChatTokenizer) -> PromptStream:
    """Prompts to train on, `rollout.n` sessions each and a greedy one where the estimator wants it.

    Raises:
        DataError: as `load_dataset`, or when no batch fills.
        ConfigError: data.sampler names none that can be made.
    """
    data = config.data
    dataset = load_dataset(files, data, tokenizer, data.train_max_samples)
    _log.info("training data: %s", dataset.report)
    sampler = load_sampler(data.sampler, dataset.rows, data.seed)
    order = SampledOrder(sampler, len(dataset.rows), data.train_batch_size) if sampler is not None else None
    return PromptStream(
        dataset.rows,
        data.train_batch_size,
        data.seed,
        data.shuffle,
        n=config.sessions_per_prompt,
        report=dataset.report,
        sampled=None if order is None else (order, asdict(data.sampler)),
    )


def validation_stream(config: RunConfig, files: Sequence[str], tokenizer: ChatTokenizer) -> PromptStream | None:
    """Prompts to validate on, in file order; an epoch is the whole set. None when there are no files."""
    if not files:
        return None
    dataset = load_dataset(files, config.data, tokenizer, config.data.val_max_samples)
    _log.info("validation data: %s", dataset.report)
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    return PromptStream(
        dataset.rows,
        batch_size=len(dataset.rows),
        seed=config.data.seed,
        shuffle=False,
        n=sampling.n,
        validation=True,
        name="val",
        report=dataset.report,
    )
