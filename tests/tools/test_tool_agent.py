"""Sessions of several turns: what is sent, what is kept, and where they end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.reciting import END, PROMPT, Reciting, call, config_of, ids_of, prompt_of
from verl_core.errors import ConfigError, ModelError, RolloutError
from verl_core.record.trajectories import pack_trajectories, unpack_trajectories
from verl_core.rollout import group_run
from verl_core.rollout.agent_loop import agent_loop_for
from verl_core.rollout.interface import Generation
from verl_core.rollout.seeds import request_seed
from verl_core.rollout.session_check import checked_session
from verl_core.rollout.tool_agent import ToolAgent
from verl_core.trajectory import Segment, Trajectory
from verl_core.transfer import codec

ASKS = call("1776")
DELTA = "<|tool|>1776<|end|><|assistant|>"


def run(folder: Path, *turns: str, response: int = 256, **settings: Any) -> tuple[Trajectory, Reciting]:
    client = Reciting(*turns)
    agent = ToolAgent(config_of(folder, response, **settings))
    (found,) = asyncio.run(asyncio.wait_for(agent.run(prompt_of(), 2, client), 120))
    checked_session(prompt_of(), 2, [found], response)
    return found, client


def account(found: Trajectory) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(found.extra, allow_nan=False))["multi_turn"]
    return told


def test_a_call_its_answer_and_what_follows(tmp_path: Path) -> None:
    found, client = run(tmp_path, ASKS, "1776")
    first, told, last = [*ids_of(ASKS), END], ids_of(DELTA), [*ids_of("1776"), END]
    assert found.response_ids.tolist() == first + told + last
    assert found.response_mask.tolist() == [True] * len(first) + [False] * len(told) + [True] * len(last)
    sampled = [-0.01 * (k + 1) for k in range(len(first))], [-0.01 * (k + 1) for k in range(len(last))]
    np.testing.assert_allclose(found.rollout_log_probs, [*sampled[0], *[np.nan] * len(told), *sampled[1]], rtol=1e-6)
    assert found.segments == (Segment(3, len(first) + len(told)), Segment(4, len(last)))  # tool text: version before it
    assert (found.stop_reason, found.num_turns, found.min_version) == ("stop", 2, 3)
    assert (account(found)["ended"], account(found)["last_turn"], account(found)["turns"]) == ("answer", "1776", 2)
    (entry,) = account(found)["calls"]
    assert entry == {
        "turn": 1, "name": "echo", "arguments": {"text": "1776"}, "status": "ok", "text": "1776", "truncated": False
    }  # fmt: skip
    # what the second request sent is, id for id, what came before
    assert client.calls[0][1] == ids_of(PROMPT)
    assert client.calls[1][1] == ids_of(PROMPT) + first + told
    assert [params.max_tokens for _, _, params in client.calls] == [256, 256 - len(first) - len(told)]
    seeds = [params.seed for _, _, params in client.calls]
    assert seeds == [request_seed(11, prompt_of().uid, 2, done) for done in (0, len(first) + len(told))]


def test_a_turn_without_a_call_is_a_session_of_one(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "1776")
    assert found.response_mask.all()
    assert (found.num_turns, account(found)["calls"], account(found)["ended"]) == (1, [], "answer")


def test_calls_of_a_turn_are_answered_in_order(tmp_path: Path) -> None:
    calls = f"[{call('slow', wait=0.2)},{call('quick')},{call('never')}]"
    found, _ = run(tmp_path, calls, "x", max_parallel_calls=2, max_tool_response_length=80)
    refusal = "Error: 1 more call was not run; a turn may make 2"
    told = f"<|tool|>slow<|end|><|tool|>quick<|end|><|tool|>{refusal}<|end|><|assistant|>"
    assert bytes_of(found, ~found.response_mask) == told
    assert [entry["status"] for entry in account(found)["calls"]] == ["ok", "ok", "refused"]


def bytes_of(found: Trajectory, where: Any) -> str:
    from tests.tools.reciting import INNER

    return str(INNER.decode(found.response_ids[where].tolist()))


@pytest.mark.parametrize(
    ("turn", "status", "text"),
    [
        (call("x", name="ecko"), "unknown", "Error: there is no tool 'ecko'. Did you "),
        ('{"name": "echo", "arguments": 3}', "malformed", "Error: arguments must be a JSON object, "),
        ('{"name": "echo"', "malformed", "Error: the call is not JSON (Expecting ',"),
        (call("x", often="two"), "raised", "Error: echo: argument 'often' must be in"),
        (call("x", wait=9), "timeout", "Error: echo gave no answer within 0.2 s"),
    ],
)
def test_what_goes_wrong_is_text_and_the_session_goes_on(tmp_path: Path, turn: str, status: str, text: str) -> None:
    settings = {"tool_timeout_s": 0.2, "tool_response_truncate_side": "left", "max_tool_response_length": 40}
    found, _ = run(tmp_path, turn, "fine", **settings)
    (entry,) = account(found)["calls"]
    assert entry["status"] == status
    assert entry["text"].startswith(text[:37])
    assert len(ids_of(entry["text"])) <= 40
    assert f"<|tool|>{entry['text']}<|end|><|assistant|>" == bytes_of(found, ~found.response_mask)
    assert (account(found)["last_turn"], found.num_turns) == ("fine", 2)


def test_long_answers_are_cut(tmp_path: Path) -> None:
    found, _ = run(tmp_path, call("0123456789", often=10), "fine", max_tool_response_length=13)
    (entry,) = account(found)["calls"]
    assert (entry["text"], entry["truncated"]) == ("01234...56789", True)
    assert bytes_of(found, ~found.response_mask) == "<|tool|>01234...56789<|end|><|assistant|>"


def test_calls_of_the_last_turn_are_not_run(tmp_path: Path) -> None:
    found, client = run(tmp_path, ASKS, call("9", wait=9), max_assistant_turns=2)
    assert (account(found)["ended"], found.stop_reason, found.num_turns, len(client.calls)) == (
        "max_assistant_turns", "stop", 2, 2,
    )  # fmt: skip
    assert len(account(found)["calls"]) == 1
    assert found.response_ids[-1] == END


FIRST, ANSWER = len(ids_of(ASKS)) + 1, len(ids_of(DELTA))


@pytest.mark.parametrize("spare", range(-2, 8))
def test_one_budget_holds_all_turns_and_answers(tmp_path: Path, spare: int) -> None:
    """A session needs FIRST + ANSWER + 5 tokens; with fewer it ends where they end, always on a sampled token."""
    response = FIRST + ANSWER + spare
    found, client = run(tmp_path, ASKS, "1776", response=response, max_tool_response_length=8)
    if spare < 1:
        assert (len(found.response_ids), account(found)["ended"], found.stop_reason) == (FIRST, "no_room", "length")
        assert (len(client.calls), found.num_turns, len(account(found)["calls"])) == (1, 1, 1)
    else:
        assert len(found.response_ids) == min(response, FIRST + ANSWER + 5)
        assert (account(found)["ended"], found.stop_reason) == (("answer", "stop") if spare >= 5 else ("length",) * 2)
    assert found.response_mask[-1]


def test_a_turn_that_is_cut_off_ends_the_session(tmp_path: Path) -> None:
    found, client = run(tmp_path, ASKS, "1776", max_turn_length=10)
    assert (account(found)["ended"], found.stop_reason, len(client.calls)) == ("length", "length", 1)
    assert (len(found.response_ids), client.calls[0][2].max_tokens) == (10, 10)


def test_a_turn_limit_holds_for_every_turn(tmp_path: Path) -> None:
    _, client = run(tmp_path, ASKS, ASKS, "1776", max_turn_length=60, response=200)
    used = FIRST + ANSWER
    assert [params.max_tokens for _, _, params in client.calls] == [60, 60, min(60, 200 - 2 * used)]


def test_validation_samples_as_validation_does(tmp_path: Path) -> None:
    client = Reciting(ASKS, "1776")
    asyncio.run(ToolAgent(config_of(tmp_path)).run(replace(prompt_of(), validation=True), 0, client))
    assert [params.temperature for _, _, params in client.calls] == [0.0, 0.0]


def test_hermes_calls_are_found_between_words(tmp_path: Path) -> None:
    found, _ = run(tmp_path, f"I ask. <tool_call>{ASKS}</tool_call> So.", "1776", format="hermes")
    assert (found.num_turns, account(found)["calls"][0]["text"]) == (2, "1776")


def test_an_aborted_turn_is_no_sample(tmp_path: Path) -> None:
    class Cut:
        async def generate(self, *_: Any) -> Generation:
            return Generation((5, 6), (-0.1, -0.1), "abort", (Segment(1, 2),))

    with pytest.raises(RolloutError, match="a turn was cut off after 2 tokens"):
        asyncio.run(ToolAgent(config_of(tmp_path)).run(prompt_of(), 0, Cut()))


def test_a_session_that_hangs_is_cut_off_at_the_limits_of_generation_and_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        async def generate(self, *_: Any) -> Generation:
            await asyncio.sleep(3600)
            raise AssertionError

    monkeypatch.setattr(group_run, "TIMEOUT_GRACE_S", 0.1)
    config = config_of(tmp_path, max_assistant_turns=2, tool_timeout_s=0.1)
    config.actor_rollout_ref.rollout.request_timeout_s = 0.2
    runner = group_run.GroupRunner(config, ToolAgent(config), Silent(), "agent-0")
    began = time.monotonic()
    errors = asyncio.run(runner.run(replace(prompt_of(), n=1))).tag.manifest.errors
    assert 0.5 <= time.monotonic() - began < 60
    bounds = "rollout.request_timeout_s=0.2 + rollout.multi_turn.max_assistant_turns x tool_timeout_s=0.2"
    assert errors == (f"session 0: still running after {bounds}, cut off",)


def test_what_a_session_gives_survives_the_store_and_the_files(tmp_path: Path) -> None:
    found, _ = run(tmp_path, call("half \ud800 a pair"), "1776")
    for back in (*unpack_trajectories(pack_trajectories([found])), *codec.unpack(bytes(codec.pack([found])))):
        for name in ("response_ids", "response_mask", "rollout_log_probs"):
            np.testing.assert_array_equal(getattr(back, name), getattr(found, name))
        assert (back.extra, back.segments, back.num_turns) == (found.extra, found.segments, 2)


def test_the_agent_has_a_name_and_refuses_what_cannot_work(tmp_path: Path) -> None:
    assert agent_loop_for("tool_agent") is ToolAgent
    with pytest.raises(ConfigError, match="cannot import"):
        ToolAgent(config_of(tmp_path, tools=["no.such.Tool"]))
    config = config_of(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    with pytest.raises(ModelError, match="chat template"):
        ToolAgent(config)
