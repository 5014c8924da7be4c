"""Supervised fine-tuning of the tiny policy. Invariant: with one thread, equal seed, rows and settings give equal
weights.

Right-answer probabilities are computed, not sampled: the chance that a sample at temperature 1 is the right answer is
the product of its tokens' probabilities, so the stopping point carries no sampling noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from verl_core.config.schema.warm_start import WarmStartConfig
from verl_core.warm_start.examples import IGNORED, Example, Padded, pad

_GRAD_CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Over the examples asked about: mean probability of sampling the right answer at temperature 1, and share of
    them that greedy decoding gets right."""

    sampled: float
    greedy: float


@dataclass(frozen=True, slots=True)
class Progress:
    """State before optimizer step `step` (0-based)."""

    step: int
    loss: float
    accuracy: Accuracy


def train(
    model: LlamaForCausalLM,
    taught: Sequence[Example],
    judged: Sequence[Example],
    pad_id: int,
    config: WarmStartConfig,
    report: Callable[[Progress], None],
) -> Progress:
    """Train on rows drawn from `taught` until `judged` is sampled right with `config.target_accuracy`, or for
    `config.steps`.

    Args:
        report: called before every step.

    Returns:
        The state the model was left in.
    """
    rows = np.random.default_rng(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    exam = pad(judged, pad_id)
    loss = float("nan")
    with one_thread():
        for step in range(config.steps + 1):
            progress = Progress(step, loss, accuracy(model, exam))
            report(progress)
            if step == config.steps or progress.accuracy.sampled >= config.target_accuracy:
                break
            drawn = rows.integers(len(taught), size=config.batch_size)
            loss = _step(model, optimizer, pad([taught[row] for row in drawn], pad_id))
    return progress


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, batch: Padded) -> Accuracy:
    """Exact accuracies on `batch` (teacher forcing: an answer is greedy-right if each of its tokens is the most
    probable one after the right tokens before it)."""
    log_probs = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits.float().log_softmax(-1)
    judged = batch.labels != IGNORED
    labels = batch.labels.clamp_min(0)
    right = log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    chance = torch.where(judged, right, 0.0).sum(-1).exp()
    best = torch.where(judged, log_probs.argmax(-1) == labels, True).all(-1)
    return Accuracy(chance.mean().item(), best.float().mean().item())


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums have one order only with one thread; it is also the fastest for a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Padded) -> float:
    """One update on the mean loss over answer tokens; returns the loss before it."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    loss = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _GRAD_CLIP)
    optimizer.step()
    return loss.item()
