"""Agent loops by name, the single-turn agent, and what is believed of engines and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.rollout.agent_cases import FakeClient, OddAgent, config_of, prompt_of
from verl_core.errors import ConfigError, RolloutError
from verl_core.rollout.agent_loop import agent_loop_for, register_agent_loop
from verl_core.rollout.generation import checked_generation, shortened
from verl_core.rollout.group_run import GroupRunner
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.seeds import request_seed
from verl_core.rollout.session_check import checked_session
from verl_core.rollout.single_turn import SingleTurnAgent
from verl_core.trajectory import Prompt, Segment, Trajectory


class OneAnswer:
    """LLMClient with one answer for all."""

    def __init__(self, answer: Generation) -> None:
        self.answer = answer

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        return self.answer


def generation(tokens: int, reason: str = "stop", **changes: object) -> Generation:
    whole = Generation(tuple(range(3, 3 + tokens)), (-0.25,) * tokens, reason, (Segment(1, tokens),))  # type: ignore[arg-type]
    return replace(whole, **changes)


def run(prompt: Prompt, answer: Generation | None = None, **rollout: object) -> tuple[list[Trajectory], FakeClient]:
    client = FakeClient()
    agent = SingleTurnAgent(config_of(**rollout))
    return asyncio.run(agent.run(prompt, 2, client if answer is None else OneAnswer(answer))), client


def test_names_and_dotted_paths() -> None:
    assert agent_loop_for("single_turn_agent") is SingleTurnAgent
    assert agent_loop_for("tests.rollout.agent_cases.OddAgent") is OddAgent
    with pytest.raises(ConfigError, match="Did you mean 'single_turn_agent'"):
        agent_loop_for("single_turn_agnet")
    with pytest.raises(ConfigError, match=r"cannot import 'no\.such\.package'"):
        agent_loop_for("no.such.package.Agent")
    with pytest.raises(ConfigError, match="no class Gone"):
        agent_loop_for("tests.rollout.agent_cases.Gone")
    with pytest.raises(ConfigError, match="async def run"):
        agent_loop_for("tests.rollout.agent_cases.FakeClient")


def test_a_name_means_one_class() -> None:
    register_agent_loop("mine_for_this_test")(OddAgent)
    register_agent_loop("mine_for_this_test")(OddAgent)
    assert agent_loop_for("mine_for_this_test") is OddAgent
    with pytest.raises(ConfigError, match="two agent loops"):
        register_agent_loop("mine_for_this_test")(SingleTurnAgent)


def test_single_turn_trajectory() -> None:
    prompt = prompt_of(5)
    (found,), client = run(prompt, temperature=0.8, top_p=0.9, top_k=7, seed=11)
    request_id, ids, params = client.calls[0]
    assert request_id == f"{prompt.uid}_2"
    assert ids == tuple(prompt.token_ids.tolist())
    assert params == SamplingParams(16, 0.8, 0.9, 7, request_seed(11, prompt.uid, 2))
    assert (found.key, found.ordinal, found.data_source) == (f"{prompt.uid}_2_0", 5, "tests")
    assert found.response_ids.tolist() == [5, 5, 5]  # session 2: three tokens
    assert found.response_ids.dtype == np.int32
    assert found.response_mask.tolist() == [True] * 3
    assert found.rollout_log_probs.tolist() == [-0.5] * 3
    assert (found.segments, found.min_version, found.stop_reason) == ((Segment(3, 3),), 3, "stop")


def test_the_greedy_session_of_a_group_takes_the_likeliest_token() -> None:
    """Whoever runs the group sees to it; the agent loop asks for the same in every session."""
    config = config_of(temperature=0.8, top_p=0.9, top_k=7, seed=11, n=3)
    config.algorithm.adv_estimator = "remax"
    agent, client, prompt = SingleTurnAgent(config), FakeClient(), prompt_of(5)
    assert config.sessions_per_prompt == 4
    seeds = [request_seed(11, prompt.uid, session) for session in range(4)]
    sampled = [SamplingParams(16, 0.8, 0.9, 7, seed) for seed in seeds]
    assert [agent.sampling(prompt, session) for session in range(4)] == sampled
    asyncio.run(GroupRunner(config, agent, client, "a").run(prompt))
    assert [params for _, _, params in client.calls] == [*sampled[:3], SamplingParams(16, 0.0, 1.0, -1, seeds[3])]
    client.calls.clear()
    asyncio.run(GroupRunner(config, agent, client, "a").run(replace(prompt, validation=True)))
    checked = config.actor_rollout_ref.rollout.val_kwargs
    expected = [SamplingParams(16, checked.temperature, checked.top_p, checked.top_k, seed) for seed in seeds]
    assert [params for _, _, params in client.calls] == expected


def test_greedy_prompts_use_the_validation_settings() -> None:
    config = config_of(temperature=0.8)
    config.actor_rollout_ref.rollout.val_kwargs.top_k = 5
    params = SingleTurnAgent(config).sampling(prompt_of(1, validation=True), 0)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 1.0, 5)


def test_room_is_what_the_model_length_leaves() -> None:
    long = replace(prompt_of(1), token_ids=np.full(40, 5, np.int32))  # max_model_len 48, max_response_length 16
    assert SingleTurnAgent(config_of()).sampling(long, 0).max_tokens == 8
    full = replace(prompt_of(1), token_ids=np.full(48, 5, np.int32))
    with pytest.raises(RolloutError, match=r"48 tokens.*no room"):
        SingleTurnAgent(config_of()).sampling(full, 0)


def test_a_response_is_never_longer_than_allowed() -> None:
    answer = generation(20, segments=(Segment(1, 10), Segment(2, 4), Segment(3, 6)))
    (found,), _ = run(prompt_of(1), answer)
    assert found.response_ids.tolist() == list(range(3, 19))
    assert len(found.rollout_log_probs) == len(found.response_mask) == 16
    assert found.segments == (Segment(1, 10), Segment(2, 4), Segment(3, 2))
    assert found.stop_reason == "length"


def test_shortening_at_a_border_leaves_no_empty_segment() -> None:
    answer = generation(9, segments=(Segment(1, 4), Segment(2, 5)))
    assert shortened(answer, 4).segments == (Segment(1, 4),)
    assert shortened(answer, 9) is answer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_probs": (-0.1,)}, "4 tokens and 1 log-probs"),
        ({"log_probs": (-0.1, float("nan"), -0.1, -0.1)}, "not finite"),
        ({"log_probs": (-0.1, float("-inf"), -0.1, -0.1)}, "not finite"),
        ({"segments": ()}, "do not cover the 4 tokens"),
        ({"segments": (Segment(1, 3),)}, "do not cover the 4 tokens"),
        ({"segments": (Segment(-1, 4),)}, "no valid weight version"),
        ({"segments": (Segment(1, 4), Segment(2, 0))}, "no valid weight version"),
        ({"token_ids": (), "log_probs": (), "segments": ()}, "0 tokens with stop reason 'stop'"),
        ({"stop_reason": "error"}, "stop reason 'error'"),
    ],
)
def test_what_an_engine_must_not_say(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        run(prompt_of(1), generation(4, **changes))


def test_an_aborted_generation_is_no_sample_but_is_well_formed() -> None:
    for tokens, segments in ((4, (Segment(1, 4),)), (0, ())):
        cut = generation(tokens, "abort", segments=segments)
        assert checked_generation(cut) is cut
        with pytest.raises(RolloutError, match=f"cut off after {tokens} tokens"):
            run(prompt_of(1), cut)


def whole(prompt: Prompt) -> list[Trajectory]:
    return run(prompt)[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: [], "non-empty list"),
        (lambda t: None, "non-empty list"),
        (lambda t: ["text"], "non-empty list"),
        (lambda t: [replace(t, uid="f" * 32)], "labelled"),
        (lambda t: [replace(t, session=1)], "labelled"),
        (lambda t: [t, t], "output 1 is labelled"),
        (lambda t: [replace(t, ordinal=9)], "labelled"),
        (lambda t: [replace(t, response_ids=t.response_ids.astype(np.int64))], "response_ids must be a 1-d"),
        (lambda t: [replace(t, prompt_ids=[1, 2])], "prompt_ids must be"),
        (lambda t: [replace(t, response_mask=t.response_mask.astype(np.int32))], "response_mask must be"),
        (lambda t: [replace(t, rollout_log_probs=t.rollout_log_probs[:1])], "differ in length"),
        (lambda t: [replace(t, response_ids=np.ones(17, np.int32))], "17 response tokens"),
        (lambda t: [replace(t, response_ids=np.empty(0, np.int32))], "0 response tokens"),
        (lambda t: [replace(t, rollout_log_probs=np.full(3, np.nan, np.float32))], "not finite"),
        (lambda t: [replace(t, segments=())], "cover 0 of 3"),
        (lambda t: [replace(t, segments=(Segment(-1, 3),))], "weight versions"),
    ],
)  # fmt: skip
def test_what_a_session_must_not_hand_in(change, message: str) -> None:
    prompt = prompt_of(5)
    with pytest.raises(RolloutError, match=message):
        checked_session(prompt, 2, change(whole(prompt)[0]), max_response=16)


def test_log_probs_of_tokens_nobody_sampled_are_not_looked_at() -> None:
    prompt = prompt_of(5)
    (found,) = whole(prompt)
    found.response_mask[1] = False
    found.rollout_log_probs[1] = np.nan
    assert checked_session(prompt, 2, [found], max_response=16) == (found,)
