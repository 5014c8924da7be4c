"""What a session handed in, checked before anyone else sees it. Invariant: whatever passes can be stored, ordered,
scored and trained on; user agent loops are held to it like the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verl_core.errors import RolloutError
from verl_core.trajectory import Prompt, Trajectory

_DTYPES = {"prompt_ids": np.int32, "response_ids": np.int32, "response_mask": np.bool_, "rollout_log_probs": np.float32}


def checked_session(prompt: Prompt, session: int, found: object, max_response: int) -> tuple[Trajectory, ...]:
    """The trajectories of one session.

    Args:
        found: what `AgentLoop.run` returned.
        max_response: data.max_response_length; tool text counts.

    Raises:
        RolloutError: it is not a non-empty list of trajectories of this session, or one of them contradicts itself.
    """
    if not isinstance(found, Sequence) or not found or not all(isinstance(each, Trajectory) for each in found):
        raise RolloutError(f"an agent loop must return a non-empty list of Trajectory, got {type(found).__name__}")
    for index, trajectory in enumerate(found):
        key = (trajectory.uid, trajectory.session, trajectory.index, trajectory.ordinal)
        if key != (prompt.uid, session, index, prompt.ordinal):
            raise RolloutError(f"output {index} is labelled (uid, session, index, ordinal) = {key}")
        _check_arrays(trajectory, index)
        _check_response(trajectory, index, max_response)
    return tuple(found)


def _check_arrays(trajectory: Trajectory, index: int) -> None:
    arrays = {
        "prompt_ids": trajectory.prompt_ids,
        "response_ids": trajectory.response_ids,
        "response_mask": trajectory.response_mask,
        "rollout_log_probs": trajectory.rollout_log_probs,
    }
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != _DTYPES[name]:
            raise RolloutError(f"output {index}: {name} must be a 1-d array of {_DTYPES[name].__name__}")


def _check_response(trajectory: Trajectory, index: int, max_response: int) -> None:
    length, mask = len(trajectory.response_ids), trajectory.response_mask
    if not 1 <= length <= max_response or not len(trajectory.prompt_ids):
        raise RolloutError(
            f"output {index}: {length} response tokens (1 to data.max_response_length={max_response} are possible) "
            f"after {len(trajectory.prompt_ids)} prompt tokens"
        )
    if len(mask) != length or len(trajectory.rollout_log_probs) != length:
        raise RolloutError(f"output {index}: response ids, mask and log-probs differ in length")
    if not np.isfinite(trajectory.rollout_log_probs[mask]).all():
        raise RolloutError(f"output {index}: a log-prob of a sampled token is not finite")
    covered = sum(segment.length for segment in trajectory.segments)
    if covered != length or any(s.weight_version < 0 or s.length < 1 for s in trajectory.segments):
        raise RolloutError(f"output {index}: weight versions cover {covered} of {length} tokens: {trajectory.segments}")
