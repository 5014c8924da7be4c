"""Turns that are cut off and resumed, weights changing in between, through the real client and the scripted engine."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout.local import engine_handle
from tests.tools.reciting import END, INNER, RecitingEngine, call, config_of, ids_of, prompt_of
from verl_core.config.schema import WarmStartConfig
from verl_core.rollout import resumable
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient
from verl_core.rollout.tool_agent import ToolAgent
from verl_core.trajectory import Segment, Trajectory
from verl_core.warm_start.model import build_model, write_policy

TURNS = [call("1776"), call("x", name="ecko"), "1776"]
TOLD = ["<|tool|>1776<|end|><|assistant|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained tiny policy."""
    place = tmp_path_factory.mktemp("policy")
    write_policy(build_model(INNER, WarmStartConfig(hidden_size=32, num_layers=1)), INNER, place)
    return place


def session(folder: Path, cuts: list[int]) -> Trajectory:
    config = config_of(folder)
    engine = RecitingEngine(config, str(folder), TURNS, cuts)

    async def main() -> list[Trajectory]:
        await engine.start()
        pool: ServerPool[Any] = ServerPool({"s": engine_handle(engine)})
        try:
            return await asyncio.wait_for(ToolAgent(config).run(prompt_of(), 0, ResumableClient(pool, 20, 20)), 60)
        finally:
            await engine.shutdown()

    (found,) = asyncio.run(main())
    assert not engine._cuts  # every cut happened
    return found


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Trajectory:
    return session(folder, [])


# An attempt that ends its turn takes its cut out of the list as well: cuts beyond a turn's end never come true, so each
# turn's list ends with one.
FAR = 10**6


@pytest.mark.parametrize(
    ("first", "second", "third"), [([5], [], []), ([1, 7, 3], [0, 4], [2]), ([], [40], [0]), ([], [], [4, 0])]
)
def test_cuts_change_nothing_but_the_versions(
    folder: Path,
    undisturbed: Trajectory,
    first: list[int],
    second: list[int],
    third: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resumable, "FIRST_REST_S", 0.001)
    found = session(folder, [*first, FAR, *second, FAR, *third, FAR])
    assert found.response_ids.tolist() == undisturbed.response_ids.tolist()
    assert found.response_mask.tolist() == undisturbed.response_mask.tolist()
    np.testing.assert_allclose(found.rollout_log_probs, undisturbed.rollout_log_probs, rtol=0, atol=1e-5)
    assert np.isnan(found.rollout_log_probs).tolist() == (~found.response_mask).tolist()
    assert (found.extra["multi_turn"]["calls"], found.num_turns) == (undisturbed.extra["multi_turn"]["calls"], 3)
    mask = found.response_mask.tolist()
    by_hand = versions_of(mask, [first, second, third])
    wanted = tuple(Segment(version, len(list(run))) for version, run in groupby(by_hand))
    assert found.segments == wanted


def versions_of(mask: list[bool], cuts: list[list[int]]) -> list[int]:
    """The version of every token, token by token: cut k of a turn comes after cuts[k] more tokens of it, and counts the
    version up; what a tool says has the version of the token before it."""
    versions: list[int] = []
    version = turn = attempt = 0
    left = list(cuts[0])
    for place, sampled in enumerate(mask):
        if not sampled:
            versions.append(versions[-1])
            continue
        if place and not mask[place - 1]:
            turn, attempt = turn + 1, 0
            left = list(cuts[turn])
        while left and left[0] == attempt:
            left.pop(0)
            version, attempt = version + 1, 0
        versions.append(version)
        attempt += 1
    return versions


def test_the_undisturbed_session_is_what_was_recited(undisturbed: Trajectory) -> None:
    first = [*ids_of(TURNS[0]), END, *ids_of(TOLD[0])]
    assert undisturbed.response_ids[: len(first)].tolist() == first
    assert undisturbed.response_ids[-5:].tolist() == [*ids_of("1776"), END]
    assert undisturbed.segments == (Segment(0, len(undisturbed.response_ids)),)
