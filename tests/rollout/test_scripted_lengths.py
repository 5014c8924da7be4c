"""Drawn lengths, slots and pace of the scripted engine."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest
import torch

from tests.config.test_checks import problems
from tests.rollout.agent_cases import END, config_of, tiny_model
from tests.rollout.test_scripted import PROMPT, model_of, sampled, weights_of, with_engine
from verl_core.config.schema.rollout import ScriptedLengthsConfig
from verl_core.errors import ModelError
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.scripted_lengths import LengthDraw, length_draw
from verl_core.rollout.seeds import attempt_seed
from verl_core.weights.shm import ShmSender

LENGTHS = ScriptedLengthsConfig(median=5, p99=12, cap=14)
DRAW = LengthDraw(5, 12, 14, 42)
NAMES = [f"{number:032x}_{session}" for number in range(6) for session in range(3)]
S = "actor_rollout_ref.rollout.scripted_lengths"
SCRIPTED = "actor_rollout_ref.rollout.name=scripted"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def test_draws_are_log_normal_with_the_asked_median_percentile_and_cap() -> None:
    """ln L of 20,000 requests against N(ln 100, (ln 8 / 2.3263)^2): sample mean and deviation lie within five of their
    own standard errors; the two quantiles within 5%."""
    draw = LengthDraw(100, 800, 1600, 7)
    lengths = [draw.of(f"{number:032x}_{number % 8}") for number in range(20_000)]
    inner = sorted(lengths)
    assert inner[10_000] == pytest.approx(100, rel=0.05)
    assert inner[19_800] == pytest.approx(800, rel=0.05)
    assert max(lengths) == 1600
    normal = statistics.NormalDist(4.60517, 0.89387)
    for share in (0.1, 0.25, 0.75, 0.9):
        assert inner[int(20_000 * share)] == pytest.approx(2.71828 ** normal.inv_cdf(share), rel=0.06)
    above = sum(length == 1600 for length in lengths) / 20_000
    assert above == pytest.approx(1 - statistics.NormalDist().cdf(2.77259 / 0.89387), abs=0.0008)


def test_a_draw_depends_on_seed_and_request_alone() -> None:
    assert [LengthDraw(5, 12, 14, 42).of(name) for name in NAMES] == [DRAW.of(name) for name in NAMES]
    assert [LengthDraw(5, 12, 14, 43).of(name) for name in NAMES] != [DRAW.of(name) for name in NAMES]
    assert len({DRAW.of(name) for name in NAMES}) > 4
    assert [DRAW.of(name) for name in NAMES[:6]] == [4, 5, 7, 4, 3, 6]  # runs can be repeated by later versions
    assert length_draw(config_of()) is None
    assert length_draw(config_of(scripted_lengths=ScriptedLengthsConfig(5, 12))) == LengthDraw(5, 12, 16, 42)


def test_the_end_token_comes_at_the_drawn_length_and_never_before(folder: Path) -> None:
    async def body(engine: ScriptedEngine) -> list[Generation]:
        return [await engine.generate(name, PROMPT, sampled(seed)) for seed, name in enumerate(NAMES)]

    for name, found in zip(NAMES, with_engine(folder, body, scripted_lengths=LENGTHS), strict=True):
        assert len(found.token_ids) == DRAW.of(name)
        assert found.stop_reason == "stop"
        assert [token == END for token in found.token_ids] == [False] * (DRAW.of(name) - 1) + [True]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_are_of_the_distribution_without_the_end_token(folder: Path, temperature: float) -> None:
    name = next(name for name in NAMES if DRAW.of(name) >= 5)
    found = with_engine(
        folder,
        lambda engine: engine.generate(name, PROMPT, sampled(3, temperature=temperature)),
        scripted_lengths=LENGTHS,
    )
    ids = torch.tensor([[*PROMPT, *found.token_ids]])
    with torch.no_grad():
        logits = model_of(folder)(ids).logits[0, len(PROMPT) - 1 : -1]
    kept = torch.softmax(logits / (temperature or 1.0), -1)
    kept[:, END] = 0.0
    kept = kept / kept.sum(-1, keepdim=True)
    expected = kept.log().gather(1, ids[0, len(PROMPT) :, None])[:-1, 0]
    torch.testing.assert_close(torch.tensor(found.log_probs[:-1]), expected, atol=2e-5, rtol=0)
    assert found.log_probs[-1] == 0.0  # nothing else could come


def test_a_length_outlives_cuts_and_new_weights(folder: Path, tmp_path: Path) -> None:
    """Cut at every place, and gone on with on another engine with other weights."""
    name = max(NAMES, key=DRAW.of)
    sender = ShmSender(tmp_path / "weights", 1 << 20)
    other = weights_of(tiny_model(tmp_path / "other", seed=1))

    async def rest(engine: ScriptedEngine) -> list[Generation]:
        whole = await engine.generate(name, PROMPT, sampled(1))
        await engine.update_weights(sender.publish(other.items(), 1))
        parts = []
        for done in range(1, len(whole.token_ids)):
            ids = [*PROMPT, *whole.token_ids[:done]]
            parts.append(
                await engine.generate(name, ids, SamplingParams(16 - done, seed=attempt_seed(1, done), done=done))
            )
        return [whole, *parts]

    whole, *parts = with_engine(folder, rest, scripted_lengths=LENGTHS)
    sender.close()
    assert len(whole.token_ids) == DRAW.of(name) > 8
    assert [done + len(part.token_ids) for done, part in enumerate(parts, start=1)] == [DRAW.of(name)] * len(parts)


def test_max_tokens_is_stronger_than_the_draw(folder: Path) -> None:
    name = max(NAMES, key=DRAW.of)
    found = with_engine(folder, lambda engine: engine.generate(name, PROMPT, sampled(1, 3)), scripted_lengths=LENGTHS)
    assert (len(found.token_ids), found.stop_reason) == (3, "length")


def test_a_model_without_end_token_cannot_have_drawn_lengths(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "endless")
    for file in ("config.json", "generation_config.json"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace(f'"eos_token_id": {END}', '"eos_token_id": null'))

    async def nothing(engine: ScriptedEngine) -> None:
        return None

    with_engine(folder, nothing)
    with pytest.raises(ModelError, match="names no end token"):
        with_engine(folder, nothing, scripted_lengths=LENGTHS)


# ---- slots and pace


def test_requests_beyond_the_slots_wait_their_turn(folder: Path) -> None:
    """Six requests of five tokens at 0.1 s in two slots: pair after pair, 0.5 s each, in the order they came."""
    ended: list[tuple[str, float]] = []

    async def body(engine: ScriptedEngine) -> int:
        began = time.monotonic()

        async def one(name: str) -> None:
            await engine.generate(name, PROMPT, sampled(1))
            ended.append((name, time.monotonic() - began))

        tasks = [asyncio.create_task(one(f"r{index}")) for index in range(6)]
        await asyncio.sleep(0.25)
        working = sum(len(request.tokens) > 0 for request in engine._running)
        await asyncio.gather(*tasks)
        return working

    five = ScriptedLengthsConfig(5, 5)
    assert with_engine(folder, body, max_num_seqs=2, scripted_delay_s=0.1, scripted_lengths=five) == 2
    assert [{name for name, _ in ended[place : place + 2]} for place in (0, 2, 4)] == [
        {"r0", "r1"},
        {"r2", "r3"},
        {"r4", "r5"},
    ]
    assert all(seconds >= 0.5 * (place // 2 + 1) for place, (_, seconds) in enumerate(ended))


def test_slots_come_back_whatever_ends_a_request(folder: Path) -> None:
    async def body(engine: ScriptedEngine) -> list[int]:
        counts = []
        for _ in range(3):
            tasks = [asyncio.create_task(engine.generate(f"r{index}", PROMPT, sampled(1))) for index in range(4)]
            await asyncio.sleep(0.03)
            tasks[0].cancel()  # one that runs
            tasks[3].cancel()  # one that waits
            await engine.abort_all()
            parts = await asyncio.gather(*tasks, return_exceptions=True)
            counts += [len(part.token_ids) for part in parts if isinstance(part, Generation)]
        whole = await asyncio.wait_for(asyncio.gather(*(engine.generate("w", PROMPT, sampled(1)) for _ in "ab")), 30)
        return [*counts, *(len(part.token_ids) for part in whole)]

    counts = with_engine(
        folder, body, max_num_seqs=2, scripted_delay_s=0.2, scripted_lengths=ScriptedLengthsConfig(9, 9)
    )
    assert counts[1::2][:3] == [0, 0, 0]  # what waited has nothing
    assert counts[-2:] == [9, 9]


def test_a_late_token_does_not_move_the_next_one(folder: Path) -> None:
    """Every token of this request waits some 20 ms for the engine's thread; still the last one is due a whole number of
    delays of 30 ms after an earlier one."""

    async def body(engine: ScriptedEngine) -> tuple[float, float]:
        began = time.monotonic()
        task = asyncio.create_task(engine.generate("r", PROMPT, sampled(1)))
        while not any(request.due for request in engine._running):
            await asyncio.sleep(0.001)
        (request,) = engine._running
        first = request.due
        while not task.done():
            await engine._in_thread(lambda: time.sleep(0.02))
        assert len((await task).token_ids) == 16
        return (request.due - first) / 0.03, time.monotonic() - began

    delays, seconds = with_engine(folder, body, scripted_delay_s=0.03, scripted_lengths=ScriptedLengthsConfig(16, 16))
    assert delays == pytest.approx(round(delays), abs=1e-6)
    assert 1 <= round(delays) <= 15
    assert seconds >= 16 * 0.03


# ---- settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{S}.median=3"], f"{S}.median: has no effect with actor_rollout_ref.rollout.name=vllm"),
        ([SCRIPTED, f"{S}.p99=3"], f"{S}.p99: has no effect with {S}.median=0"),
        ([SCRIPTED, f"{S}.median=4", f"{S}.p99=3"], f"{S}.p99: 3 is less than {S}.median=4"),
        ([SCRIPTED, f"{S}.median=4"], f"{S}.p99: 0 is less than {S}.median=4"),
        ([SCRIPTED, f"{S}.median=4", f"{S}.p99=9", f"{S}.cap=3"], f"{S}.cap: 3 tokens are less than {S}.median=4"),
        (
            [SCRIPTED, f"{S}.median=4", f"{S}.p99=9", f"{S}.cap=9", "data.max_response_length=8"],
            f"{S}.cap: 9 tokens are more than data.max_response_length=8",
        ),
        ([SCRIPTED, f"{S}.median=0.5", f"{S}.p99=9"], f"{S}.median: must be 0 or at least 1"),
    ],
)
def test_lengths_that_cannot_be_drawn_are_refused(overrides: list[str], message: str) -> None:
    told = problems(*overrides)
    assert any(message in line for line in told), told


def test_lengths_that_can_be_drawn_are_accepted() -> None:
    lengths = [f"{S}.median=4", f"{S}.p99=32", f"{S}.cap=64", "data.max_response_length=64"]
    assert problems(SCRIPTED, "actor_rollout_ref.rollout.max_num_seqs=4", *lengths) == []
