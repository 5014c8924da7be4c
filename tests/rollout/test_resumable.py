"""ResumableClient: a sample that was cut is what lone requests give in a row, and never more than was asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.agent_cases import config_of, prompt_of, tiny_model
from tests.rollout.local import Call, CutEngine, FakeHandle, engine_handle, part
from verl_core.config.schema import RunConfig
from verl_core.errors import DeadlineExceeded, EngineDead, RolloutError
from verl_core.rollout import resumable as module
from verl_core.rollout.client import PoolClient
from verl_core.rollout.clients import llm_client, resumable
from verl_core.rollout.gate import GateClosed
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.seeds import attempt_seed
from verl_core.trajectory import Segment

T = TypeVar("T")
PROMPT = prompt_of(7).token_ids.tolist()
LONG = 16


def run(work: Awaitable[T], seconds: float = 60) -> T:
    async def main() -> T:
        return await asyncio.wait_for(work, seconds)

    return asyncio.run(main())


def ask(handles: dict[str, Any], params: SamplingParams, work_s: float = 20.0, pause_s: float = 20.0) -> Generation:
    async def main() -> Generation:
        pool: ServerPool[Any] = ServerPool(handles)
        found = await ResumableClient(pool, work_s, pause_s).generate("u_0", [1, 2], params)
        assert set(pool.loads.values()) <= {0}  # every seat came back
        return found

    return run(main())


def scripted(*replies: Generation | Exception) -> FakeHandle:
    """Answers attempt i with replies[i], the last one for ever."""

    async def behave(number: int, call: Call) -> Generation:
        reply = replies[min(number, len(replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    return FakeHandle(behave)


@pytest.fixture(autouse=True, scope="module")
def _short_rests() -> Iterator[None]:
    first, module.FIRST_REST_S = module.FIRST_REST_S, 0.001
    yield
    module.FIRST_REST_S = first


# ---- tokens: against the engine itself


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


async def lone(folder: Path, ids: Sequence[int], params: SamplingParams) -> Generation:
    """A request that is alone in a fresh engine and never disturbed."""
    engine = ScriptedEngine(config_of(), str(folder))
    await engine.start()
    try:
        return await engine.generate("lone", ids, params)
    finally:
        await engine.shutdown()


async def cut_up(folder: Path, params: SamplingParams, cuts: Sequence[int]) -> tuple[Generation, list[Call]]:
    """The request through a ResumableClient at an engine that cuts attempt i after cuts[i] tokens."""
    engine = CutEngine(config_of(), str(folder), cuts)
    await engine.start()
    handle = engine_handle(engine)
    pool: ServerPool[Any] = ServerPool({"s": handle})
    try:
        return await ResumableClient(pool, 20, 20).generate("u_0", PROMPT, params), handle.calls
    finally:
        await engine.shutdown()


def found_seed(folder: Path, wanted: Callable[[Generation], bool]) -> SamplingParams:
    for seed in range(300):
        params = SamplingParams(LONG, seed=seed)
        if wanted(run(lone(folder, PROMPT, params))):
            return params
    raise AssertionError("no such response among 300 seeds")


@pytest.fixture(scope="module", params=["length", "stop"])
def case(request: pytest.FixtureRequest, folder: Path) -> tuple[SamplingParams, Generation]:
    """Parameters and the undisturbed response; one that runs to its limit, one that ends by itself after 5 to 12."""
    if request.param == "length":
        params = found_seed(folder, lambda g: g.stop_reason == "length")
    else:
        params = found_seed(folder, lambda g: g.stop_reason == "stop" and 5 <= len(g.token_ids) <= 12)
    return params, run(lone(folder, PROMPT, params))


def test_without_a_cut_it_is_the_lone_request(folder: Path, case: tuple[SamplingParams, Generation]) -> None:
    params, whole = case
    found, calls = run(cut_up(folder, params, []))
    assert found == whole
    assert len(calls) == 1


def test_a_cut_at_every_position(folder: Path, case: tuple[SamplingParams, Generation]) -> None:
    """After k tokens: the first k of the undisturbed response, then those of a lone request that starts there."""
    params, whole = case
    for k in range(len(whole.token_ids) + 1):
        found, calls = run(cut_up(folder, params, [k]))
        if k == len(whole.token_ids):  # the end token, or the last one, was sampled: there is nothing to cut
            assert found == whole
            assert len(calls) == 1
            continue
        ids = [*PROMPT, *whole.token_ids[:k]]
        rest = run(lone(folder, ids, SamplingParams(LONG - k, seed=attempt_seed(params.seed, k))))
        assert found.token_ids == whole.token_ids[:k] + rest.token_ids, k
        assert found.log_probs == whole.log_probs[:k] + rest.log_probs
        assert found.stop_reason == rest.stop_reason
        assert found.segments == (Segment(0, len(found.token_ids)),)  # one version: one segment, however often cut
        assert [call[1] for call in calls] == [PROMPT, ids]


def test_many_cuts_keep_log_probs_of_the_model(folder: Path) -> None:
    """Against one plain forward pass over the whole sequence."""
    from transformers import AutoModelForCausalLM

    tries = (run(cut_up(folder, SamplingParams(LONG, 0.8, seed=seed), [1, 0, 2, 1, 1, 0, 0, 3])) for seed in range(50))
    found, calls = next((found, calls) for found, calls in tries if len(calls) > 8)  # all eight cuts before the end
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[*PROMPT, *found.token_ids]])
    with torch.no_grad():
        rows = torch.log_softmax(model(ids).logits[0, len(PROMPT) - 1 : -1] / 0.8, -1)
    expected = rows.gather(1, ids[0, len(PROMPT) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.log_probs), expected, atol=2e-5, rtol=0)
    assert [len(call[1]) - len(PROMPT) for call in calls] == [0, 1, 1, 3, 4, 5, 5, 5, 8]


def test_noise_is_not_repeated_after_a_cut() -> None:
    """A model without memory (flat logits) under one seed would give the first tokens again."""
    seeds = [attempt_seed(9, done) for done in range(1000)]
    assert seeds[0] == 9  # an undisturbed request is what it is without this client
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    draws = [torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist() for seed in seeds[:50]]
    assert len({tuple(draw) for draw in draws}) == 50


# ---- the law of the budget


answers = st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from(["abort", "abort", "abort", "stop"]))


@given(budget=st.integers(1, 20), plan=st.lists(answers, min_size=1, max_size=12), greedy=st.booleans())
def test_budget_versions_and_parameters(budget: int, plan: list[tuple[int, int, str]], greedy: bool) -> None:
    """Servers that cut wherever they like, or give more than they were asked for (`greedy`)."""
    params = SamplingParams(budget, 0.7, 1.0, -1, 11)
    given_out: list[tuple[int, int]] = []  # (token, version) in the order of sampling

    async def behave(number: int, call: Call) -> Generation:
        tokens, version, reason = plan[number - 1] if number <= len(plan) else (call[2].max_tokens, 9, "length")
        if not greedy:
            tokens = min(tokens, call[2].max_tokens)
        if reason != "abort":
            tokens = max(tokens, 1)
        reply = part(tokens, reason, version, first=len(given_out))
        given_out.extend((token, version) for token in reply.token_ids)
        return reply

    handle = FakeHandle(behave)
    found = ask({"s": handle}, params)
    assert params == SamplingParams(budget, 0.7, 1.0, -1, 11)
    assert 1 <= len(found.token_ids) <= budget
    assert found.stop_reason in ("stop", "length")
    assert list(found.token_ids) == [token for token, _ in given_out][:budget]
    assert list(found.log_probs) == [-token / 100 for token in found.token_ids]
    versions = [segment.weight_version for segment in found.segments for _ in range(segment.length)]
    assert versions == [version for _, version in given_out][:budget]
    assert all(a.weight_version != b.weight_version for a, b in pairwise(found.segments))
    done = 0
    for number, (_, ids, asked, attempt) in enumerate(handle.calls, 1):
        assert attempt is not None
        assert (len(ids) - 2, attempt.done, asked.max_tokens) == (done, done, budget - done)
        assert asked.seed == attempt_seed(11, done)
        assert (asked.temperature, asked.top_p, asked.top_k) == (0.7, 1.0, -1)
        assert attempt.since == handle.calls[0][3].since > 1e9  # it keeps its place in every queue
        done += plan[number - 1][0] if number <= len(plan) else 0


def test_a_cut_exactly_at_the_budget_is_a_length() -> None:
    handle = scripted(part(3), part(2, first=3))
    found = ask({"s": handle}, SamplingParams(5))
    assert (found.token_ids, found.stop_reason, len(handle.calls)) == ((0, 1, 2, 3, 4), "length", 2)


def test_an_answer_that_contradicts_itself_is_not_kept() -> None:
    bad = Generation((1, 2), (-0.1,), "abort", (Segment(0, 2),))
    with pytest.raises(RolloutError, match="2 tokens and 1 log-probs"):
        ask({"s": scripted(bad)}, SamplingParams(5))


# ---- waiting


def test_time_at_a_closed_gate_is_not_work() -> None:
    """Half a second parked, a tenth of work: fine with 0.3 s of work and 5 s of pause, an error the other way round."""

    async def behave(_: int, __: Call) -> Generation:
        await asyncio.sleep(0.6)
        return part(4, "length", worked_s=0.1)

    assert len(ask({"s": FakeHandle(behave)}, SamplingParams(4), work_s=0.3, pause_s=5.0).token_ids) == 4

    async def cut(number: int, call: Call) -> Generation:
        await asyncio.sleep(0.3)
        return part(1, worked_s=0.05, first=number)

    handle = FakeHandle(cut)
    with pytest.raises(DeadlineExceeded, match=r"generation to go on: the pauses of generation u_0.*of 99 tokens"):
        ask({"s": handle}, SamplingParams(99), work_s=60, pause_s=0.6)
    assert 1 <= len(handle.calls) <= 3  # 0.25 s of pause each, or more on a loaded machine
    pauses = [call[3].pause_s for call in handle.calls if call[3]]
    assert all(earlier - later >= 0.25 for earlier, later in pairwise(pauses))


def test_work_is_counted_over_all_attempts() -> None:
    async def behave(number: int, _: Call) -> Generation:
        await asyncio.sleep(0.1)
        return part(
            1, worked_s=10.0, first=number
        )  # a clock that runs fast is not believed beyond the time that passed

    handle = FakeHandle(behave)
    with pytest.raises(
        DeadlineExceeded, match=r"engines to work for generation u_0.*[1-4] of 99 tokens after [1-4] att"
    ):
        ask({"s": handle}, SamplingParams(99), work_s=0.35, pause_s=60)
    works = [call[3].work_s for call in handle.calls if call[3]]
    assert works[0] == 0.35
    assert all(earlier - later >= 0.1 for earlier, later in pairwise(works))  # a loaded machine makes it more


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_GRACE_S", 0.1)

    async def behave(_: int, __: Call) -> Generation:
        await asyncio.sleep(60)
        return part(1)

    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"generation u_0.*0 of 4 tokens after 1 attempts.*s: 1 in flight"):
        ask({"s": FakeHandle(behave)}, SamplingParams(4), work_s=0.2, pause_s=0.2)
    assert time.monotonic() - began < 5


def test_no_server_at_all_is_bounded_by_the_pause() -> None:
    with pytest.raises(DeadlineExceeded, match=r"a server for generation u_0.*the pool has no server"):
        ask({}, SamplingParams(4), work_s=60, pause_s=0.2)


def test_a_server_that_cuts_before_the_first_token_is_not_asked_in_a_busy_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_REST_S", 0.05)
    handle = scripted(part(0))
    with pytest.raises(DeadlineExceeded, match="the pauses of generation"):
        ask({"s": handle}, SamplingParams(4), pause_s=1.0)
    assert 3 <= len(handle.calls) <= 7  # rests of 0.05, 0.1, 0.2, 0.4, ... s


@pytest.mark.parametrize(
    ("idle", "ago_s", "rest_s"),
    [
        (0, 0.0, 0.0),  # it got tokens: at once
        (1, 0.0, 0.05),  # those with tokens go first
        (1, 9.0, 0.05),
        (4, 0.0, 0.4),  # cut again and again: attempts begin 0.4 s apart
        (4, 0.1, 0.3),
        (4, 9.0, 0.05),  # cut at every change of weights, which is seldom
        (900, 0.0, 1.0),
    ],
)
def test_rests(idle: int, ago_s: float, rest_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_REST_S", 0.05)
    monkeypatch.setattr(module.time, "monotonic", lambda: 1000.0)
    course = module._Course("r", 4, 1.0, 1.0, idle=idle, began=1000.0 - ago_s)
    assert course.rest_s == pytest.approx(rest_s)


def test_refused_means_elsewhere_at_once() -> None:
    """The one that leaves rejects: another one answers before the first has rested."""
    leaving, staying = scripted(GateClosed("leaving")), scripted(part(4, "length"))
    began = time.monotonic()
    for _ in range(8):  # whichever the pool offers first
        assert ask({"leaving": leaving, "staying": staying}, SamplingParams(4)).stop_reason == "length"
    assert len(staying.calls) == 8
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("death", [EngineDead("gone"), GateClosed("closed")])
def test_what_was_sampled_survives_the_server(death: Exception) -> None:
    handle = scripted(part(3, version=4), death, death, part(2, "stop", 5, first=3))
    found = ask({"s": handle}, SamplingParams(9))
    assert found == Generation(
        (0, 1, 2, 3, 4), (0.0, -0.01, -0.02, -0.03, -0.04), "stop", (Segment(4, 3), Segment(5, 2))
    )
    assert [len(call[1]) - 2 for call in handle.calls] == [0, 3, 3, 3]
    assert len({call[2].seed for call in handle.calls[1:]}) == 1  # the same request again, not another sample


def test_a_request_that_can_never_succeed_is_not_repeated() -> None:
    handle = scripted(part(2), RolloutError("too long"))
    with pytest.raises(RolloutError, match="too long"):
        ask({"s": handle}, SamplingParams(9))
    assert len(handle.calls) == 2


def test_cancelling_the_caller_frees_the_seat() -> None:
    async def behave(_: int, __: Call) -> Generation:
        await asyncio.sleep(60)
        return part(1)

    async def main() -> dict[str, int]:
        pool: ServerPool[Any] = ServerPool({"s": FakeHandle(behave)})
        task = asyncio.create_task(ResumableClient(pool, 30, 30).generate("u_0", [1], SamplingParams(4)))
        await asyncio.sleep(0.05)
        assert pool.loads == {"s": 1}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pool.loads

    assert run(main()) == {"s": 0}


# ---- which mode has which client


@pytest.mark.parametrize(
    ("mode", "use_v1", "resumes"),
    [("sync", True, False), ("colocate_async", True, True), ("separate_async", True, True), ("sync", False, False)],
)
def test_the_mode_decides(mode: str, use_v1: bool, resumes: bool) -> None:
    config = RunConfig()
    config.trainer.v1.trainer_mode, config.trainer.use_v1 = mode, use_v1
    assert resumable(config) is resumes
    assert type(llm_client(config, ServerPool({}))) is (ResumableClient if resumes else PoolClient)
