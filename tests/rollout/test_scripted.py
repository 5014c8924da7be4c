"""ScriptedEngine against a plain torch forward, and against itself under every kind of disturbance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from tests.rollout.agent_cases import END, VOCAB, config_of, prompt_of, tiny_model
from verl_core.errors import DeadlineExceeded, EngineDead, RolloutError, WeightError
from verl_core.rollout.interface import SamplingParams
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.scripted_sampling import choose
from verl_core.rollout.seeds import request_seed
from verl_core.trajectory import Segment
from verl_core.weights.shm import ShmSender

T = TypeVar("T")
LONG = 16  # tokens of the whole response of `long`
PROMPT = prompt_of(7).token_ids.tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of another model of the same shape."""
    return weights_of(tiny_model(tmp_path_factory.mktemp("other"), seed=1))


@pytest.fixture(scope="module")
def long(folder: Path) -> SamplingParams:
    """Parameters whose response does not end before max_tokens, so that there is time to disturb it."""

    async def body(engine: ScriptedEngine) -> SamplingParams:
        for seed in range(200):
            if len((await engine.generate("r", PROMPT, sampled(seed))).token_ids) == LONG:
                return sampled(seed)
        raise AssertionError("no long response among 200 seeds")

    return with_engine(folder, body)


async def tokens_done(engine: ScriptedEngine, count: int) -> None:
    """Wait until the only running request has `count` tokens."""
    while not any(len(request.tokens) >= count for request in engine._running):
        await asyncio.sleep(0.005)


def model_of(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(model_of(folder).state_dict())


def with_engine(folder: Path, body: Callable[[ScriptedEngine], Awaitable[T]], **rollout: object) -> T:
    async def main() -> T:
        engine = ScriptedEngine(config_of(**rollout), str(folder))
        await engine.start()
        try:
            return await body(engine)
        finally:
            await engine.shutdown()

    return asyncio.run(asyncio.wait_for(main(), 60))


def sampled(seed: int, tokens: int = 16, **more: float) -> SamplingParams:
    return SamplingParams(tokens, seed=seed, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_log_probs_are_those_of_a_plain_forward_at_the_temperature(folder: Path, temperature: float) -> None:
    async def body(engine: ScriptedEngine) -> list:
        return [await engine.generate("r", PROMPT, sampled(seed, temperature=temperature)) for seed in range(5)]

    for found in with_engine(folder, body):
        ids = torch.tensor([[*PROMPT, *found.token_ids]])
        with torch.no_grad():
            logits = model_of(folder)(ids).logits[0, len(PROMPT) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1).gather(1, ids[0, len(PROMPT) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found.log_probs), expected, atol=2e-5, rtol=0)
        assert found.segments == (Segment(0, len(found.token_ids)),)


def test_greedy_is_the_argmax_of_a_plain_forward(folder: Path) -> None:
    found = with_engine(folder, lambda engine: engine.generate("r", PROMPT, sampled(3, 12, temperature=0.0)))
    ids, model = list(PROMPT), model_of(folder)
    for token, log_prob in zip(found.token_ids, found.log_probs, strict=True):
        with torch.no_grad():
            row = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)
        assert token == int(row.argmax())
        assert log_prob == pytest.approx(float(row[token]), abs=2e-5)
        ids.append(token)


def test_sampled_frequencies_follow_the_model() -> None:
    """Chi-square of 20,000 draws against softmax(logits / T), 9 degrees of freedom: above 27.9 once in a thousand."""
    logits, generator = torch.linspace(-1, 1.5, 10), torch.Generator().manual_seed(5)
    counts = torch.zeros(10)
    for _ in range(20_000):
        counts[choose(logits, SamplingParams(1, temperature=0.8), generator)[0]] += 1
    expected = 20_000 * torch.softmax(logits / 0.8, -1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.9


def test_top_k_and_top_p_renormalise() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    generator = torch.Generator().manual_seed(1)
    draws = {choose(logits, SamplingParams(1, top_k=2), generator) for _ in range(200)}
    assert {token for token, _ in draws} == {0, 1}
    assert dict(draws)[0] == pytest.approx(float(torch.log(torch.tensor(0.5 / 0.8))), abs=1e-6)
    draws = {choose(logits, SamplingParams(1, top_p=0.9), generator) for _ in range(400)}
    assert {token for token, _ in draws} == {0, 1, 2}  # 0.5 + 0.3 < 0.9: the third is needed, the fourth is not
    assert dict(draws)[1] == pytest.approx(float(torch.log(torch.tensor(0.3 / 0.95))), abs=1e-6)


def test_logits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(RolloutError, match="not finite"):
        choose(torch.tensor([0.0, float("nan")]), SamplingParams(1), torch.Generator())


def test_alone_or_among_32_others_gives_the_same_bits(folder: Path) -> None:
    wanted = [(prompt_of(number % 5).token_ids.tolist(), sampled(100 + number)) for number in range(32)]

    async def together(engine: ScriptedEngine) -> list:
        return await asyncio.gather(*(engine.generate(f"r{i}", *request) for i, request in enumerate(wanted)))

    crowd = with_engine(folder, together)
    for index in (0, 7, 31):  # each alone in a fresh engine
        alone = with_engine(folder, lambda engine, i=index: engine.generate("alone", *wanted[i]))
        assert alone == crowd[index]
    assert len({found.token_ids for found in crowd}) > 20


def test_ends_at_the_end_token_and_at_the_length(folder: Path) -> None:
    async def body(engine: ScriptedEngine) -> list:
        return [await engine.generate("r", PROMPT, sampled(seed)) for seed in range(60)]

    found = with_engine(folder, body)
    assert {one.stop_reason for one in found} == {"stop", "length"}
    for one in found:
        assert (one.token_ids[-1] == END) == (one.stop_reason == "stop")
        assert END not in one.token_ids[:-1]
        assert len(one.token_ids) == 16 or one.stop_reason == "stop"


def test_max_tokens_is_cut_to_the_model_length(folder: Path) -> None:
    long = [5] * 45  # max_model_len = 32 + 16
    found = with_engine(folder, lambda engine: engine.generate("r", long, sampled(1, 1000)))
    assert len(found.token_ids) <= 3


@pytest.mark.parametrize(
    ("ids", "tokens", "message"),
    [
        ([], 4, "empty"),
        ([VOCAB], 4, "outside"),
        ([-1], 4, "outside"),
        ([5] * 48, 4, "max_model_len 48"),
        ([5], 0, "max_tokens 0"),
    ],
)
def test_impossible_requests_are_refused(folder: Path, ids: list[int], tokens: int, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        with_engine(folder, lambda engine: engine.generate("r", ids, sampled(1, tokens)))


def test_abort_keeps_what_there_is(folder: Path, long: SamplingParams) -> None:
    whole = with_engine(folder, lambda engine: engine.generate("r", PROMPT, long))

    async def body(engine: ScriptedEngine) -> tuple:
        running = asyncio.create_task(engine.generate("r", PROMPT, long))
        await tokens_done(engine, 3)
        before = time.monotonic()
        count = await engine.abort_all()
        return await running, count, time.monotonic() - before

    part, count, took = with_engine(folder, body, scripted_delay_s=0.05)
    done = len(part.token_ids)
    assert part.stop_reason == "abort"
    assert 3 <= done < LONG
    assert (part.token_ids, part.log_probs) == (whole.token_ids[:done], whole.log_probs[:done])
    assert sum(segment.length for segment in part.segments) == done
    assert (count, took < 1.0) == (1, True)


def test_delays_run_side_by_side_and_the_loop_answers(folder: Path) -> None:
    async def body(engine: ScriptedEngine) -> tuple[float, float]:
        start = time.monotonic()
        tasks = [asyncio.create_task(engine.generate(f"r{i}", PROMPT, sampled(i, 4))) for i in range(40)]
        await asyncio.sleep(0.01)
        asked = time.monotonic()
        await engine.health()
        answered = time.monotonic() - asked
        await asyncio.gather(*tasks)
        return time.monotonic() - start, answered

    took, answered = with_engine(folder, body, scripted_delay_s=0.1)
    assert took < 40 * 0.3  # one after another would take 40 x 4 x 0.1 s
    assert answered < 0.2


def test_sleep_freezes_and_wake_goes_on_with_the_same_bits(folder: Path, long: SamplingParams) -> None:
    whole = with_engine(folder, lambda engine: engine.generate("r", PROMPT, long))

    async def body(engine: ScriptedEngine) -> tuple:
        running = asyncio.create_task(engine.generate("r", PROMPT, long))
        await tokens_done(engine, 2)
        await engine.sleep()
        late = asyncio.create_task(engine.generate("late", PROMPT, long))
        _, pending = await asyncio.wait([running, late], timeout=1.0)
        await engine.wake()
        return len(pending), await running, await late

    assert with_engine(folder, body, scripted_delay_s=0.02) == (2, whole, whole)


def test_waiting_at_a_sleeping_engine_is_bounded(folder: Path) -> None:
    async def body(engine: ScriptedEngine) -> None:
        await engine.sleep()
        await engine.generate("r9", PROMPT, sampled(1))

    with pytest.raises(DeadlineExceeded, match="r9 at a sleeping engine"):
        with_engine(folder, body, request_timeout_s=0.2)


def test_new_weights_in_flight_start_a_segment(
    folder: Path, other: dict[str, torch.Tensor], tmp_path: Path, long: SamplingParams
) -> None:
    sender = ShmSender(tmp_path / "weights", 1 << 14)  # small buckets: the set needs several

    async def body(engine: ScriptedEngine) -> tuple:
        running = asyncio.create_task(engine.generate("r", PROMPT, long))
        await tokens_done(engine, 3)
        await engine.update_weights(sender.publish(other.items(), 5))
        return await running, engine.version

    found, version = with_engine(folder, body, scripted_delay_s=0.05)
    sender.close()
    assert version == 5
    assert [segment.weight_version for segment in found.segments] == [0, 5]
    cut = found.segments[0].length
    ids = torch.tensor([[*PROMPT, *found.token_ids]])
    model = model_of(folder)
    model.load_state_dict(other)
    with torch.no_grad():
        rows = torch.log_softmax(model(ids).logits[0, len(PROMPT) - 1 : -1], -1)
    expected = rows.gather(1, ids[0, len(PROMPT) :, None])[cut:, 0]
    torch.testing.assert_close(torch.tensor(found.log_probs[cut:]), expected, atol=2e-5, rtol=0)


def test_updated_engine_equals_an_engine_started_with_these_weights(
    folder: Path, other: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    sender = ShmSender(tmp_path / "weights", 1 << 20)

    async def updated(engine: ScriptedEngine) -> object:
        await engine.generate("before", PROMPT, sampled(3))  # fills the prefix cache with old states
        await engine.update_weights(sender.publish(other.items(), 0))
        return await engine.generate("r", PROMPT, sampled(3))

    fresh = tiny_model(tmp_path / "fresh", seed=1)
    assert with_engine(folder, updated) == with_engine(fresh, lambda e: e.generate("r", PROMPT, sampled(3)))
    sender.close()


def test_broken_weights_leave_the_engine_as_it_was(
    folder: Path, other: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    sender = ShmSender(tmp_path / "weights", 1 << 20)
    name = "model.layers.1.mlp.up_proj.weight"
    broken = [
        {key: value for key, value in other.items() if key != name},
        {**other, "surplus": torch.zeros(2)},
        {**other, name: other[name].T.contiguous()},
        {**other, name: torch.full_like(other[name], float("nan"))},
    ]

    async def body(engine: ScriptedEngine) -> tuple:
        before = await engine.generate("r", PROMPT, sampled(4))
        for weights in broken:
            with pytest.raises(WeightError):
                await engine.update_weights(sender.publish(weights.items(), 9))
        return before, await engine.generate("r", PROMPT, sampled(4)), engine.version

    before, after, version = with_engine(folder, body)
    sender.close()
    assert (after, version) == (before, 0)


def test_shut_down_engine_is_dead_for_running_and_new_requests(folder: Path) -> None:
    async def main() -> None:
        engine = ScriptedEngine(config_of(scripted_delay_s=0.05), str(folder))
        with pytest.raises(EngineDead):
            await engine.health()
        await engine.start()
        running = asyncio.create_task(engine.generate("r", PROMPT, sampled(1)))
        await asyncio.sleep(0.1)
        await engine.shutdown()
        with pytest.raises(EngineDead):
            await running
        for call in (engine.health(), engine.generate("r", PROMPT, sampled(1))):
            with pytest.raises(EngineDead):
                await call

    asyncio.run(asyncio.wait_for(main(), 30))


def test_cancelled_request_stops_computing(folder: Path) -> None:
    async def body(engine: ScriptedEngine) -> tuple[int, int]:
        task = asyncio.create_task(engine.generate("r", PROMPT, sampled(1)))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await engine.abort_all(), len((await engine.generate("next", PROMPT, sampled(1))).token_ids)

    running, tokens = with_engine(folder, body, scripted_delay_s=0.02)
    assert running == 0
    assert tokens > 0


def test_seeds_differ_in_every_argument_and_fit_63_bits() -> None:
    seeds = {
        request_seed(seed, uid, session, done)
        for seed in (1, 2)
        for uid in ("a", "b")
        for session in range(16)
        for done in (0, 1, 5)
    }
    assert len(seeds) == 2 * 2 * 16 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(1, "a", 11) != request_seed(1, "a1", 1)  # fields cannot run into each other
    assert request_seed(42, "00ff", 3) == 8547927075469932930  # stays the same over versions: runs can be repeated
