"""A teacher in vLLM: the log-probs of a prompt that is prompt and response of the policy. Invariant: nothing is
tokenized, nothing is sampled that anyone reads, and no prompt is answered from a cache, which would lack its log-probs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from verl_core.config import RunConfig, from_dict, to_dict
from verl_core.config.schema import ModelConfig
from verl_core.config.teachers import Teacher
from verl_core.errors import EngineDead, TeacherError
from verl_core.rollout.engines.vllm_args import engine_arguments, process_environment
from verl_core.rollout.teachers.interface import TeacherRequest, TeacherRow, best
from verl_core.trajectory import Float32, Int32

_FOR_A_POLICY = ("weight_transfer_config", "worker_extension_cls", "enable_sleep_mode")


def served(config: RunConfig, teacher: Teacher) -> RunConfig:
    """The run's settings with the teacher in the place of the policy: what its server is built from."""
    copy = from_dict(to_dict(config))
    rollout = copy.actor_rollout_ref.rollout
    rollout.dtype = "float32" if teacher.dtype == "float32" else "bfloat16" if teacher.dtype == "bfloat16" else "auto"
    rollout.gpu_memory_utilization, rollout.max_num_seqs = teacher.gpu_memory_utilization, teacher.max_num_seqs
    rollout.tensor_model_parallel_size, rollout.enable_prefix_caching = 1, False
    rollout.max_model_len = config.max_model_len + 1  # a request must be allowed to answer
    copy.actor_rollout_ref.model = ModelConfig(path=teacher.path)  # an adapter of the policy is not the teacher's
    return copy


class VllmScoring:
    """Implements ScoringEngine on vLLM's LLMEngine.

    Args:
        config: of the run.
    """

    def __init__(self, config: RunConfig, teacher: Teacher, device: str) -> None:
        self._config, self._device, self._teacher = served(config, teacher), device, teacher
        self._engine: Any = None
        self._asked = 0

    def start(self) -> None:
        """See ScoringEngine. Raises TeacherError with vLLM's reason when it does not come up."""
        for name, value in process_environment(self._config, self._device).items():
            os.environ.setdefault(name, value)
        try:
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            given = engine_arguments(self._config, self._device)
            arguments = {name: value for name, value in given.items() if name not in _FOR_A_POLICY}
            arguments["max_logprobs"] = max(1, self._teacher.max_logprobs)
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            raise TeacherError(f"vLLM did not start the teacher {self._teacher.name}: {error}") from error

    def score(self, requests: Sequence[TeacherRequest], topk: int, vocabulary: int) -> list[TeacherRow]:
        """See ScoringEngine."""
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import tokens_input

        names = [f"{request.key}#{self._asked + number}" for number, request in enumerate(requests)]
        self._asked += len(names)
        try:
            for name, request in zip(names, requests, strict=True):
                self._engine.add_request(name, tokens_input(request.ids.tolist()), _sampling(topk))
        except (VLLMValidationError, ValueError) as error:
            self._engine.abort_request(names)
            raise TeacherError(f"the teacher {self._teacher.name} refuses a sequence: {error}") from error
        outputs: dict[str, Any] = {}
        try:
            while self._engine.has_unfinished_requests():
                outputs.update((output.request_id, output) for output in self._engine.step() if output.finished)
        except Exception as error:
            raise EngineDead(f"the engine of the teacher {self._teacher.name} died: {error!r}") from error
        return [
            row_of(request, outputs[name].prompt_logprobs, topk, vocabulary)
            for name, request in zip(names, requests, strict=True)
        ]


def row_of(
    request: TeacherRequest, tables: Sequence[Mapping[int, Any] | None] | None, topk: int, vocabulary: int
) -> TeacherRow:
    """vLLM's account of a prompt as an answer.

    Args:
        tables: for each token of the prompt but the first, the log-prob of it and of the best ones, by id.

    Raises:
        EngineDead: the account does not cover the sequence.
    """
    if tables is None or len(tables) != len(request.ids):
        have = "none" if tables is None else str(len(tables))
        raise EngineDead(f"vLLM gave log-probs of {have} of the {len(request.ids)} tokens of {request.key}")
    own, ids, values = [], [], []
    for token, table in zip(request.ids[request.start :].tolist(), tables[request.start :], strict=True):
        if table is None or token not in table:
            raise EngineDead(f"vLLM gave no log-prob of a token of {request.key}")
        own.append(table[token].logprob)
        if topk:
            chosen = best(*_columns(table), topk, vocabulary)
            ids.append(chosen[0])
            values.append(chosen[1])
    return TeacherRow(
        np.asarray(own, dtype=np.float32),
        np.asarray(ids, dtype=np.int32).reshape(len(own), topk),
        np.asarray(values, dtype=np.float32).reshape(len(own), topk),
    )


def _columns(table: Mapping[int, Any]) -> tuple[Int32, Float32]:
    return (
        np.fromiter(table, dtype=np.int32, count=len(table)),
        np.asarray([entry.logprob for entry in table.values()], dtype=np.float32),
    )


def _sampling(topk: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=topk,
        detokenize=False,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
