"""One request to vLLM and its answer. Invariant: what does not fit is refused; nothing is cut silently.

vLLM itself shortens a request whose prompt + max_tokens exceeds the model length, and calls the result finished.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from verl_core.errors import EngineDead, RolloutError
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.trajectory import Segment, StopReason

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

_SEED_BITS = (1 << 63) - 1


@dataclass(frozen=True)
class RequestLimits:
    """Attributes:
    max_model_len: tokens of prompt and response together.
    vocab_size: rows of the model's embedding.
    stop_ids: end tokens.
    """

    max_model_len: int
    vocab_size: int
    stop_ids: tuple[int, ...]

    def check(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> list[int]:
        """The prompt as vLLM wants it.

        Raises:
            RolloutError: empty or too long, an id outside the vocabulary, or senseless sampling parameters.
        """
        ids = [int(token) for token in prompt_ids]
        if not ids:
            raise RolloutError(f"request {request_id} has an empty prompt")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise RolloutError(
                f"request {request_id} has token ids from {min(ids)} to {max(ids)}, the model knows 0 to "
                f"{self.vocab_size - 1}: tokenizer and model do not belong together"
            )
        if params.max_tokens < 1 or params.temperature < 0 or not 0 < params.top_p <= 1:
            raise RolloutError(f"request {request_id} has senseless sampling parameters: {params}")
        if len(ids) + params.max_tokens > self.max_model_len:
            raise RolloutError(
                f"request {request_id} needs {len(ids)} prompt + {params.max_tokens} response tokens, the server holds "
                f"{self.max_model_len}. Raise actor_rollout_ref.rollout.max_model_len or shorten the prompt."
            )
        return ids

    def sampling(self, params: SamplingParams) -> Any:
        """vLLM's SamplingParams: every field that matters is sent, and only the last output comes back."""
        from vllm import SamplingParams as VllmSampling
        from vllm.sampling_params import RequestOutputKind

        return VllmSampling(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(0, params.top_k),
            min_p=0.0,
            repetition_penalty=1.0,
            seed=params.seed & _SEED_BITS,
            stop_token_ids=list(self.stop_ids),
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def priority(params: SamplingParams) -> int:
    """vLLM serves the lowest first: the millisecond in which the request was first sent."""
    return round(1000 * params.since)


def to_generation(output: RequestOutput) -> Generation:
    """The finished (or aborted) output.

    Raises:
        RolloutError: a log-prob is NaN or infinite: the weights are bad.
        EngineDead: vLLM failed the request for a reason of its own.
    """
    completion = output.outputs[0]
    if completion.finish_reason not in ("stop", "length", "abort"):
        raise EngineDead(f"vLLM ended request {output.request_id} with {completion.finish_reason!r}")
    ids = tuple(completion.token_ids)
    tables = cast("list[dict[int, Any]]", completion.logprobs or [])
    log_probs = tuple(float(table[token].logprob) for token, table in zip(ids, tables, strict=True))
    if not all(map(math.isfinite, log_probs)):
        raise RolloutError(f"request {output.request_id} has log-probs that are not finite: the weights overflow")
    spans = completion.weight_versions or []
    segments = tuple(Segment(int(span.version), span.end - span.start) for span in spans if span.end > span.start)
    return Generation(ids, log_probs, cast(StopReason, completion.finish_reason), segments)
