"""How many tokens a second the policy updates, against a bare torch loop on the same model, batch, padding and threads.

The bare loop has everything that makes a step fast and nothing that makes it safe: micro-batches ready on the device
before the clock starts, logits at the response's positions only, the clipped loss written out, fused AdamW. Ours is
the whole call as the trainer makes it: the batch through Ray to the worker, planning, padding, registries, metrics,
checks, and the answer
    back.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.loading import load_model
from verl_core.engine.plan import micro_batches
from verl_core.engine.rank_worker import share_of_cores
from verl_core.engine.worker_group import PolicyGroup
from verl_core.trajectory import Segment, Trajectory

RAY_ENVIRONMENT = {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled", "RAY_ENABLE_AUTO_CONNECT": "0"}


@dataclass(frozen=True)
class Case:
    """A model and a batch.

    Attributes:
        groups, n: prompts, and rows of each.
        prompt, response: tokens; every row draws its lengths between half and all of them.
        budget: tokens of a micro-batch.
        repeats: timed updates of each side; the best counts, as the machine may be shared.
    """

    name: str
    hidden: int
    layers: int
    vocabulary: int
    groups: int
    n: int
    prompt: int
    response: int
    budget: int
    repeats: int


SMALL = Case("3 layers, 128 wide", 128, 3, 64, groups=32, n=8, prompt=24, response=16, budget=4096, repeats=8)
MEDIUM = Case("30M", 512, 8, 8192, groups=4, n=2, prompt=64, response=64, budget=1024, repeats=7)


def measure(cases: tuple[Case, ...] = (SMALL, MEDIUM)) -> dict[str, float]:
    """`update_ratio` (ours / bare in tokens per second, the lowest over the cases) and the numbers behind it."""
    os.environ.update(RAY_ENVIRONMENT)
    import ray

    out: dict[str, float] = {}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for case in cases:
            ours, bare = _rates(case)
            out |= {f"{case.name}: ours tokens/s": ours, f"{case.name}: bare tokens/s": bare}
            out[f"{case.name}: ratio"] = ours / bare
    finally:
        ray.shutdown()
    return {"update_ratio": min(value for name, value in out.items() if name.endswith("ratio")), **out}


def _rates(case: Case) -> tuple[float, float]:
    """Tokens per second of both sides, measured turn and turn about."""
    batch = _batch(case)
    tokens = len(batch.prompt_ids) + len(batch.response_ids)
    with tempfile.TemporaryDirectory() as scratch:
        config = _config(case, _model(case, scratch))
        group = PolicyGroup.attach_or_launch(
            config, f"bench-{os.getpid()}", 10_000, lambda rank: {"num_cpus": 0}, str(Path(scratch) / "weights"), "cpu"
        )
        try:
            torch.set_num_threads(share_of_cores(config))
            bare = _bare_loop(case, config, batch)
            steps = iter(range(1, 10_000))
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(case.repeats + 1):
                times[0].append(_timed(lambda: group.update(batch, next(steps))))
                times[1].append(_timed(bare))
        finally:
            group.shutdown()
    ours, theirs = (tokens / min(side[1:]) for side in times)  # the first of each warms up
    return ours, theirs


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _bare_loop(case: Case, config: RunConfig, batch: TrainBatch) -> Callable[[], None]:
    """One optimizer step of plain torch over ready-made tensors."""
    model = load_model(config.actor_rollout_ref.model.path)
    adam = torch.optim.AdamW(model.parameters(), lr=config.actor_rollout_ref.actor.optim.lr, fused=True)
    lengths = batch.prompt_lengths + batch.response_lengths
    pieces = [_tensors(batch, rows) for rows in micro_batches(list(range(len(batch))), lengths, case.budget)]
    tokens = len(batch.response_ids)

    def step() -> None:
        for input_ids, positions, targets, old, advantages in pieces:
            states = model.model(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)[positions]
            log_p = torch.log_softmax(model.lm_head(states), dim=-1).gather(-1, targets[:, None]).squeeze(-1)
            ratio = torch.exp(log_p - old)
            loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).sum() / tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def _tensors(batch: TrainBatch, rows: list[int]) -> tuple[torch.Tensor, ...]:
    """Right-padded ids, places that predict a response token, that token, its old log-prob and advantage."""
    part = batch.select(rows)
    width = int((part.prompt_lengths + part.response_lengths).max())
    ids, positions = torch.zeros(len(rows), width, dtype=torch.int64), []
    for row in range(len(rows)):
        prompt = part.prompt_ids[part.prompt_offsets[row] : part.prompt_offsets[row + 1]]
        response = part.response_ids[part.response_offsets[row] : part.response_offsets[row + 1]]
        ids[row, : len(prompt) + len(response)] = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
        positions += [row * width + len(prompt) - 1 + step for step in range(len(response))]
    return (
        ids,
        torch.tensor(positions),
        torch.from_numpy(part.response_ids.astype(np.int64)),
        torch.from_numpy(part.columns["old_log_probs"]),
        torch.from_numpy(part.columns["advantages"]),
    )


def _batch(case: Case) -> TrainBatch:
    """Random ids, everything trainable, old log-probs near those of a new model."""
    random = np.random.default_rng(0)
    rows = []
    for group in range(case.groups):
        prompt = random.integers(2, case.vocabulary, int(random.integers(case.prompt // 2, case.prompt + 1)))
        for session in range(case.n):
            length = int(random.integers(case.response // 2, case.response + 1))
            rows.append(
                Trajectory(
                    uid=f"{group:032x}",
                    session=session,
                    index=0,
                    ordinal=group,
                    prompt_ids=prompt.astype(np.int32),
                    response_ids=random.integers(2, case.vocabulary, length).astype(np.int32),
                    response_mask=np.ones(length, dtype=np.bool_),
                    rollout_log_probs=np.full(length, -np.log(case.vocabulary), dtype=np.float32),
                    segments=(Segment(0, length),),
                    stop_reason="stop",
                    data_source="bench",
                )
            )
    batch = TrainBatch.from_trajectories(rows, [0.0] * len(rows))
    batch = batch.with_column("old_log_probs", batch.columns["rollout_log_probs"])
    return batch.with_column("advantages", random.normal(size=len(batch.response_ids)).astype(np.float32))


def _config(case: Case, model: str) -> RunConfig:
    config = RunConfig()
    config.trainer.device = "cpu"
    config.data.train_batch_size = case.groups
    config.data.max_response_length = case.response
    config.actor_rollout_ref.model.path = model
    actor = config.actor_rollout_ref.actor
    actor.ppo_mini_batch_size = case.groups  # one optimizer step on each side
    actor.ppo_max_token_len_per_gpu = case.budget
    actor.optim.lr = 1e-5
    return config


def _model(case: Case, folder: str) -> str:
    """A Llama of the case's size with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = max(1, case.hidden // 64)
    config = LlamaConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.hidden,
        intermediate_size=case.hidden * 3,
        num_hidden_layers=case.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=case.prompt + case.response,
        tie_word_embeddings=True,
    )
    path = Path(folder) / "model"
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


if __name__ == "__main__":
    print(json.dumps({**measure(), "cases": [asdict(SMALL), asdict(MEDIUM)]}, indent=1))
