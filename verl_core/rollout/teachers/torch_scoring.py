"""A teacher as a plain torch model, one sequence at a time, for exact tests. Invariant: a row is a function of weights
and ids; what else is asked for changes no bit of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from verl_core.errors import TeacherError
from verl_core.rollout.teachers.interface import TeacherRequest, TeacherRow, best


class TorchScoring:
    """Implements ScoringEngine.

    Args:
        folder: a Hugging Face causal LM.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._model: Any = None

    def start(self) -> None:
        """See ScoringEngine."""
        import transformers  # heavy, and only this engine needs it

        torch.set_num_threads(1)
        try:
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32)
        except (OSError, ValueError, RuntimeError) as error:
            raise TeacherError(f"cannot load a causal LM from {self._folder}: {error}") from error
        self._model = loaded.eval().requires_grad_(False)

    def score(self, requests: Sequence[TeacherRequest], topk: int, vocabulary: int) -> list[TeacherRow]:
        """See ScoringEngine."""
        return [self._row(request, topk, vocabulary) for request in requests]

    @torch.inference_mode()
    def _row(self, request: TeacherRequest, topk: int, vocabulary: int) -> TeacherRow:
        ids = torch.from_numpy(request.ids.astype(np.int64))
        known = int(self._model.get_input_embeddings().num_embeddings)
        if int(ids.max()) >= known:
            raise TeacherError(f"{request.key} has token {int(ids.max())}, the teacher knows {known} tokens")
        logits = self._model(input_ids=ids[None, :-1], use_cache=False).logits[0, request.start - 1 :]
        table = torch.log_softmax(logits.float(), dim=-1)
        own = table.gather(-1, ids[request.start :, None])[:, 0]
        every = np.arange(table.shape[1], dtype=np.int32)
        tops = [best(every, row, topk, vocabulary) for row in table.numpy()] if topk else []
        return TeacherRow(
            own.numpy().astype(np.float32),
            np.asarray([ids for ids, _ in tops], dtype=np.int32).reshape(len(own), topk),
            np.asarray([values for _, values in tops], dtype=np.float32).reshape(len(own), topk),
        )
