"""An adapter that is pushed to a server: vLLM's own LoRA layers and the scripted engine against the torch model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from tests.rollout.test_engine_vllm import LONG_IDS, PROMPT_IDS, tiny_config
from verl_core.config.schema import RunConfig
from verl_core.errors import ModelError, WeightError
from verl_core.rollout.engines import build_engine
from verl_core.rollout.engines.vllm_adapter import install
from verl_core.rollout.interface import Generation, RolloutEngine, SamplingParams
from verl_core.trajectory import Segment
from verl_core.weights.adapter import A, AdapterSpec, B, ExpectedAdapter, adapter_of, delta, modules_in
from verl_core.weights.shm import ShmSender, weights_folder

pytestmark = pytest.mark.timeout(600)

ERRORS = Path(__file__).resolve().parents[2] / "docs/errors.md"
T = TypeVar("T")
LIMIT = 1e-3
Tensors = dict[str, torch.Tensor]


class Served:
    """An engine under an adapter, and the torch model that it should equal at each version."""

    def __init__(self, runner: asyncio.Runner, config: RunConfig, base: Any, sender: ShmSender) -> None:
        self.runner, self.config, self.sender = runner, config, sender
        spec = adapter_of(config.actor_rollout_ref.model)
        assert spec is not None
        self.scaling, folder = spec.scaling, config.actor_rollout_ref.model.path
        self.shapes = ExpectedAdapter.from_folder(spec, folder).shapes
        self.base, self.versions = base, {0: {name: torch.zeros(shape) for name, shape in self.shapes.items()}}
        self.engine: RolloutEngine = build_engine(config, "cpu")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 240))

    def generate(self, ids: list[int], seed: int = 1, tokens: int = 24) -> Generation:
        return self.run(self.engine.generate("r", ids, SamplingParams(max_tokens=tokens, seed=seed)))

    def push(self, seed: int) -> Tensors:
        version, random = self.engine.version + 1, torch.Generator().manual_seed(seed)
        self.versions[version] = {n: 0.15 * torch.randn(s, generator=random) for n, s in self.shapes.items()}
        manifest = self.sender.publish(self.versions[version].items(), version)
        self.run(self.engine.update_weights(manifest))
        return self.versions[version]

    def gap(self, ids: list[int], answer: Generation, version: int) -> float:
        """Largest difference in nats between what the engine says of its tokens and torch under W + scaling B A."""
        adapter, weights = self.versions[version], dict(self.base.named_parameters())
        merged = {
            f"{module}.weight": weights[f"{module}.weight"] + delta(adapter, module, self.scaling)
            for module in modules_in(adapter)
        }
        whole = torch.tensor([[*ids, *answer.token_ids]])
        with torch.no_grad():
            logits = torch.func.functional_call(self.base, merged, (), {"input_ids": whole}).logits[0].double()
        rows = torch.log_softmax(logits, -1)[len(ids) - 1 : -1]
        want = rows[torch.arange(len(answer.token_ids)), torch.tensor(answer.token_ids)].numpy()
        return float(np.abs(want - np.array(answer.log_probs)).max())


@pytest.fixture(
    scope="module",
    params=["inproc-tied", "inproc-untied", "scripted-tied", pytest.param("async-tied", marks=pytest.mark.slow)],
)
def served(
    request: pytest.FixtureRequest, write_policy: Callable[[bool], Path], make_policy: Callable[..., Any]
) -> Iterator[Served]:
    process, kind = request.param.split("-")
    config = tiny_config(write_policy(kind == "tied"), "inproc" if process == "scripted" else process)
    config.actor_rollout_ref.rollout.name = "scripted" if process == "scripted" else "vllm"
    config.actor_rollout_ref.model.lora_rank = 5  # vLLM rounds it up to 8
    config.actor_rollout_ref.model.exclude_modules = ["k_proj"]  # one third of a packed layer has none
    sender = ShmSender(weights_folder(f"test-adapter-{os.getpid()}-{request.param}"), 1 << 16)
    with asyncio.Runner() as runner:
        made = Served(runner, config, make_policy(kind == "tied", 0), sender)
        made.run(made.engine.start())
        yield made
        made.run(made.engine.shutdown())
        sender.remove()


def test_log_probs_are_those_of_the_adapted_model_after_each_push(served: Served) -> None:
    answer = served.generate(PROMPT_IDS)
    assert served.gap(PROMPT_IDS, answer, 0) < LIMIT  # before the first push: the base
    for version in (1, 2):
        served.push(seed=version)
        for ids in (PROMPT_IDS, LONG_IDS):
            answer = served.generate(ids)
            assert answer.segments == (Segment(version, len(answer.token_ids)),)
            assert served.gap(ids, answer, version) < LIMIT
            assert served.gap(ids, answer, version - 1) > 0.05  # the test can tell


def test_many_at_once_and_a_prompt_that_was_cached(served: Served) -> None:
    served.generate(LONG_IDS)
    served.push(seed=7)

    async def together() -> list[Generation]:
        params = [SamplingParams(max_tokens=12, seed=seed) for seed in range(8)]
        return list(await asyncio.gather(*(served.engine.generate(f"r{p.seed}", LONG_IDS, p) for p in params)))

    for answer in served.run(together()):
        assert served.gap(LONG_IDS, answer, served.engine.version) < LIMIT


def test_a_request_that_runs_goes_on_under_the_new_adapter(served: Served) -> None:
    before = served.engine.version

    async def cross() -> Generation:
        work = asyncio.create_task(served.engine.generate("r", LONG_IDS, SamplingParams(max_tokens=120, seed=3)))
        await asyncio.sleep(0.05)
        version, random = before + 1, torch.Generator().manual_seed(11)
        served.versions[version] = {n: 0.15 * torch.randn(s, generator=random) for n, s in served.shapes.items()}
        await served.engine.update_weights(served.sender.publish(served.versions[version].items(), version))
        return await work

    answer = served.run(cross())
    done = 0
    for segment in answer.segments:
        ids = [*LONG_IDS, *answer.token_ids[:done]]
        part = slice(done, done + segment.length)
        piece = Generation(answer.token_ids[part], answer.log_probs[part], "length", ())
        assert served.gap(ids, piece, segment.weight_version) < LIMIT
        done += segment.length
    assert done == len(answer.token_ids)


def test_a_layer_that_vllm_would_leave_out_is_refused() -> None:
    """vLLM's manager ignores weights of layers that it did not wrap."""
    added: list[Any] = []
    manager = SimpleNamespace(
        model=object(),
        modules={"model.layers.0.self_attn.qkv_proj": None, "model.layers.0.mlp.down_proj": None},
        packed_modules={"model.layers.0.self_attn.qkv_proj": [f"model.layers.0.self_attn.{n}_proj" for n in "qkv"]},
        remove_adapter=added.append,
        add_adapter=added.append,
        activate_adapter=added.append,
    )
    runner = SimpleNamespace(
        lora_manager=SimpleNamespace(
            _adapter_manager=manager, lora_config=SimpleNamespace(lora_dtype=torch.float32), vocab_size=16
        )
    )
    spec = AdapterSpec(2, 4, ("all-linear",))

    def tensors(*modules: str) -> Tensors:
        return {f"model.layers.0.{m}{end}": torch.zeros(2, 2) for m in modules for end in (A, B)}

    with pytest.raises(ModelError) as caught:
        install(runner, spec, tensors("self_attn.q_proj", "mlp.router"))
    assert f"```text\n{caught.value}\n```" in ERRORS.read_text()
    assert added == []
    install(runner, spec, tensors("self_attn.q_proj", "mlp.down_proj"))
    assert len(added) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: dict(list(t.items())[1:]), "1 missing"),
        (lambda t: {**t, "model.embed_tokens.weight": torch.zeros(2, 2)}, "1 tensors are unknown"),
        (lambda t: {n: x[:, :-1] if n.endswith(A) else x for n, x in t.items()}, "has shape"),
        (lambda t: {n: x * float("nan") if n.endswith(B) else x for n, x in t.items()}, "NaN"),
    ],
)
def test_what_is_not_the_adapter_is_refused_whole(
    served: Served, spoil: Callable[[Tensors], Tensors], message: str
) -> None:
    good = served.push(seed=20)
    version = served.engine.version
    manifest = served.sender.publish(spoil(good).items(), version + 1)
    with pytest.raises(WeightError, match=message):
        served.run(served.engine.update_weights(manifest))
    assert served.engine.version == version
    assert served.gap(PROMPT_IDS, served.generate(PROMPT_IDS), version) < LIMIT


def test_a_staged_adapter_that_is_missing_is_an_error_of_the_call(served: Served) -> None:
    """The workers hold another version than the one that the engine believes to be there."""
    if served.config.actor_rollout_ref.rollout.name == "scripted":
        pytest.skip("holds what it staged itself")
    served.push(seed=40)
    version = served.engine.version
    held = [(name, torch.zeros(shape)) for name, shape in served.shapes.items()]
    served.run(served.engine.stage_weights(served.sender.publish(held, version + 1)))
    engine: Any = served.engine
    engine._staged = version + 2
    message = f"^the staged adapter is missing: weight version {version + 2} was not received"
    with pytest.raises(WeightError, match=message):
        served.run(engine.swap_weights())
    assert engine.version == version
    served.run(engine.health())
    assert served.gap(PROMPT_IDS, served.generate(PROMPT_IDS), version) < LIMIT
    served.push(seed=41)  # and the next one is taken
    assert served.gap(PROMPT_IDS, served.generate(PROMPT_IDS), version + 1) < LIMIT
