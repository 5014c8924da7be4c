"""Engines' answers: what may be believed of one, and how parts make a whole. Invariant: tokens, log-probs and weight
versions agree in length."""

from __future__ import annotations

import math

from verl_core.errors import RolloutError
from verl_core.rollout.interface import Generation
from verl_core.trajectory import Segment


def checked_generation(generation: Generation) -> Generation:
    """The argument.

    Raises:
        RolloutError: lengths disagree, a log-prob is not finite, a weight version is missing, or nothing was generated
            although the generation was not aborted.
    """
    tokens = len(generation.token_ids)
    if len(generation.log_probs) != tokens:
        raise RolloutError(f"the engine gave {tokens} tokens and {len(generation.log_probs)} log-probs")
    if not all(map(math.isfinite, generation.log_probs)):
        raise RolloutError("the engine gave a log-prob that is not finite")
    if sum(segment.length for segment in generation.segments) != tokens:
        raise RolloutError(f"the weight versions {generation.segments} do not cover the {tokens} tokens")
    if any(segment.weight_version < 0 or segment.length < 1 for segment in generation.segments):
        raise RolloutError(f"the engine gave no valid weight version for every token: {generation.segments}")
    if generation.stop_reason == "error" or (not tokens and generation.stop_reason != "abort"):
        raise RolloutError(f"the engine gave {tokens} tokens with stop reason {generation.stop_reason!r}")
    return generation


def shortened(generation: Generation, limit: int) -> Generation:
    """The first `limit` tokens, with stop reason `length`; the generation itself when it is not longer."""
    if len(generation.token_ids) <= limit:
        return generation
    segments, left = [], limit
    for segment in generation.segments:
        if left > 0:
            segments.append(Segment(segment.weight_version, min(left, segment.length)))
        left -= segment.length
    return Generation(
        generation.token_ids[:limit], generation.log_probs[:limit], "length", tuple(segments), generation.worked_s
    )


def joined(first: Generation, more: Generation) -> Generation:
    """`more` continues `first`; neighbouring runs of one weight version become one. Log-probs stay as sampled."""
    segments = list(first.segments)
    for segment in more.segments:
        if segments and segments[-1].weight_version == segment.weight_version:
            segments[-1] = Segment(segment.weight_version, segments[-1].length + segment.length)
        else:
            segments.append(segment)
    return Generation(
        first.token_ids + more.token_ids,
        first.log_probs + more.log_probs,
        more.stop_reason,
        tuple(segments),
        first.worked_s + more.worked_s,
    )
