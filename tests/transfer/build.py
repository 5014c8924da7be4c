"""Prompts, trajectories and settled groups to test with; their values follow from (ordinal, session, index)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from verl_core.trajectory import Prompt, Segment, Trajectory
from verl_core.transfer.group import GroupStatus, GroupTag, Manifest
from verl_core.transfer.interface import Finished


def uid_of(ordinal: int, attempt: int = 0) -> str:
    return hashlib.sha256(f"{ordinal}/{attempt}".encode()).hexdigest()[:32]


def prompt_of(ordinal: int, attempt: int = 0, n: int = 2, step: int = 1) -> Prompt:
    return Prompt(
        uid=uid_of(ordinal, attempt),
        base_uid=uid_of(ordinal),
        attempt=attempt,
        row=ordinal,
        ordinal=ordinal,
        step=step,
        n=n,
        token_ids=np.arange(3, dtype=np.int32),
        data_source="sums",
        ground_truth="4",
    )


def reissue(prompt: Prompt) -> Prompt:
    return replace(prompt, attempt=prompt.attempt + 1, uid=uid_of(prompt.ordinal, prompt.attempt + 1))


def trajectory_of(
    prompt: Prompt, session: int, index: int = 0, length: int = 5, versions: Sequence[int] = (7,)
) -> Trajectory:
    """One segment per version (the last one takes the rest); the second token is tool text, its log-prob NaN."""
    generator = np.random.default_rng([prompt.ordinal, session, index])
    mask = np.ones(length, dtype=np.bool_)
    mask[1:2] = False
    log_probs = generator.normal(size=length).astype(np.float32)
    log_probs[1:2] = np.nan
    short = [Segment(version, 1) for version in versions[:-1]]
    return Trajectory(
        uid=prompt.uid,
        session=session,
        index=index,
        ordinal=prompt.ordinal,
        prompt_ids=prompt.token_ids,
        response_ids=generator.integers(0, 50_000, length).astype(np.int32),
        response_mask=mask,
        rollout_log_probs=log_probs,
        segments=(*short, Segment(versions[-1], length - len(short))),
        stop_reason="stop",
        data_source=prompt.data_source,
        num_turns=2,
        extra={"tool": ["calc"], "näme": 1.5} if session else {},
    )


def tag_of(prompt: Prompt, status: GroupStatus, owner: str = "agent-0", errors: tuple[str, ...] = ()) -> GroupTag:
    return GroupTag(
        uid=prompt.uid,
        base_uid=prompt.base_uid,
        attempt=prompt.attempt,
        ordinal=prompt.ordinal,
        step=prompt.step,
        status=status,
        owner=owner,
        updated=1.0,
        manifest=Manifest(errors=errors),
    )


def finished_of(prompt: Prompt, length: int = 5, versions: Sequence[int] = (7,)) -> Finished:
    rows = tuple(trajectory_of(prompt, session, length=length, versions=versions) for session in range(prompt.n))
    return Finished(tag_of(prompt, GroupStatus.FINISHED), rows)


def failed_of(prompt: Prompt, survivors: int = 1, errors: tuple[str, ...] = ("session 1: boom",)) -> Finished:
    rows = tuple(trajectory_of(prompt, session) for session in range(survivors))
    return Finished(tag_of(prompt, GroupStatus.FAILURE, errors=errors), rows)


def same(a: Trajectory, b: Trajectory) -> bool:
    """Equal in every field, arrays bit for bit (NaN included) and of one dtype."""
    arrays = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs")
    plain = ("uid", "session", "index", "ordinal", "segments", "stop_reason", "data_source", "num_turns", "extra")
    return all(getattr(a, name) == getattr(b, name) for name in plain) and all(
        getattr(a, name).dtype == getattr(b, name).dtype and getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in arrays
    )
