"""The whole way of a loss, on responses that the policy sampled: teacher's answer, columns, micro-batches, gradient;
and that it leads to the teacher. The other account knows one prefix at a time, and nothing of this project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.engine.conftest import VOCABULARY, tiny_model
from tests.engine.conftest import make_config as engine_config
from verl_core.algorithms.aggregation import Denominators
from verl_core.batch import TrainBatch
from verl_core.config import RunConfig
from verl_core.engine.distillation_term import TEACHER, TOPK, TOPK_IDS, DistillationTerm
from verl_core.engine.local import LocalPolicy
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.objective import PolicyObjective
from verl_core.rollout.teachers.torch_scoring import TorchScoring
from verl_core.trainer.teachers import request_of, scores_of, trained_rows
from verl_core.trajectory import Segment, Trajectory

__all__ = ["engine_config", "tiny_model"]

K, END = 5, 1
Answer = tuple[list[int], list[int]]  # prompt and response


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of another model over the same tokens."""
    torch.manual_seed(7)
    folder = str(tmp_path_factory.mktemp("teacher"))
    shape = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=32, initializer_range=0.3, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    return folder


def plain(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def sampled(model: Any, count: int, random: torch.Generator, longest: int = 4) -> list[Answer]:
    """Answers to random prompts of one to three tokens; an end token ends them."""
    answers: list[Answer] = []
    for width in (1, 2, 3):
        prompts = torch.randint(2, 8, (-(-count // 3), width), generator=random)
        ids = prompts
        for _ in range(longest):
            chances = model(input_ids=ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=random)], dim=1)
        for row in ids.tolist():
            response = row[width:]
            answers.append((row[:width], response[: response.index(END) + 1] if END in response else response))
    return answers[:count]


def batch_of(answers: list[Answer], masked: bool = False) -> TrainBatch:
    """Each answer a group of its own; with `masked` the second token of each is nobody's to train on."""
    rows = []
    for number, (prompt, response) in enumerate(answers):
        mask = np.ones(len(response), dtype=bool)
        mask[1:2] = not masked
        rows.append(
            Trajectory(
                uid=f"{number:032x}", session=0, index=0, ordinal=number, prompt_ids=np.asarray(prompt, np.int32),
                response_ids=np.asarray(response, np.int32), response_mask=mask,
                rollout_log_probs=np.full(len(response), np.nan, np.float32), segments=(Segment(0, len(response)),),
                stop_reason="stop", data_source="test",
            )
        )  # fmt: skip
    return TrainBatch.from_trajectories(rows, [0.0] * len(rows))


def taught(batch: TrainBatch, engine: TorchScoring) -> TrainBatch:
    """The batch with what the teacher says, by the way that a run takes."""
    requests = [request_of(batch, row) for row in trained_rows(batch)]
    answers = {request.key: row for request, row in zip(requests, engine.score(requests, K, VOCABULARY), strict=True)}
    scores = scores_of(batch, answers, K)
    batch = batch.with_column(TEACHER, scores.log_probs)
    return batch.with_column(TOPK_IDS, scores.topk_ids.astype(np.float32)).with_column(TOPK, scores.topk_log_probs)


def started(folder: str) -> TorchScoring:
    engine = TorchScoring(folder)
    engine.start()
    return engine


def configured(make: Callable[..., RunConfig], mode: str, tail: str = "bucket", **actor: Any) -> RunConfig:
    config = make(**actor)
    config.distillation.enabled = True
    loss: Any = config.distillation.distillation_loss
    loss.loss_mode, loss.topk, loss.use_task_rewards, loss.tail = mode, K, False, tail
    return config


def of_one_token(mode: str, p: torch.Tensor, q: torch.Tensor, token: int) -> torch.Tensor:
    """The formulas of docs/algorithms.md. Probabilities float32 [V]: p the teacher's, q the policy's."""
    if mode in ("k3", "k1+"):
        x = q[token].log() - p[token].log()
        if mode == "k1+":  # which has the gradient of k2
            return 0.5 * x.square()
        return (torch.exp(-x) - 1 + x).clamp(-10, 10)
    best = p.argsort(descending=True)[:K]
    inside, mass_p, mass_q = (p[best] * (p[best] / q[best]).log()).sum(), p[best].sum(), q[best].sum()
    if mode == "drop":
        return inside
    if mode == "renormalise":
        ratio = (p[best] / mass_p) / (q[best] / mass_q)
        return (p[best] / mass_p * ratio.log()).sum()
    return inside + (1 - mass_p) * ((1 - mass_p) / (1 - mass_q)).log()


def literal(mode: str, teacher: Any, policy: Any, answers: list[Answer], masked: bool) -> torch.Tensor:
    """Mean over trainable tokens, each predicted from its own prefix by a forward pass of its own."""
    losses = []
    for prompt, response in answers:
        for at, token in enumerate(response):
            if masked and at == 1:
                continue
            prefix = torch.tensor([prompt + response[:at]])
            with torch.no_grad():
                p = teacher(prefix).logits[0, -1].softmax(-1)
            losses.append(of_one_token(mode, p, policy(prefix).logits[0, -1].softmax(-1), token))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("mode", ["bucket", "renormalise", "drop", "k3", "k1+"])
def test_loss_and_gradient_are_those_of_a_literal_loop(
    mode: str, tiny_model: str, teacher: str, engine_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    policy = plain(tiny_model)
    answers = sampled(policy, 10, torch.Generator().manual_seed(3))
    batch = taught(batch_of(answers, masked=True), started(teacher))
    expected = literal(mode, plain(teacher), policy, answers, masked=True)
    expected.backward()

    topk = mode in ("bucket", "renormalise", "drop")
    settings = ("forward_kl_topk", mode) if topk else (mode,)
    config = configured(engine_config, *settings, ppo_mini_batch_size=10)
    engine = LocalPolicy(config, 4, str(tmp_path))
    model, actor = engine._worker._model, config.actor_rollout_ref.actor
    objective = PolicyObjective(actor, distillation=DistillationTerm(config.distillation.distillation_loss))
    whole = Denominators.of(batch.padded_mask())
    found = torch.zeros(())
    for rows in ([0, 3, 4], [9, 8, 7, 6, 5], [1, 2]):
        columns = objective.columns(single_update=True)
        micro = MicroBatch.build(batch, rows, torch.device("cpu"), trainable=True, columns=columns)
        piece = objective.piece(model, micro, whole)
        piece.loss.backward()
        found += piece.loss.detach()
    if mode != "k1+":  # whose value is another's
        assert float(found) == pytest.approx(float(expected.detach()), abs=1e-4)
    own = {name.removeprefix("lm."): part.grad for name, part in model.named_parameters()}
    for name, part in policy.named_parameters():
        assert part.grad is not None
        gradient = own[name]
        assert gradient is not None
        torch.testing.assert_close(gradient, part.grad, atol=2e-4, rtol=1e-3, msg=lambda text, name=name: name + text)
    model.zero_grad()
    if mode != "k1+":
        assert engine.update(batch, 1)["actor/distillation_loss"] == pytest.approx(float(expected.detach()), abs=1e-4)
    engine.shutdown()


@torch.no_grad()
def exact_kl(teacher: Any, policy: Any, answers: list[Answer]) -> float:
    """KL(policy, teacher), nats per token, over the whole vocabulary."""
    total, count = 0.0, 0
    for prompt, response in answers:
        ids = torch.tensor([prompt + response[:-1]])
        p, q = (model(ids).logits[0, len(prompt) - 1 :].log_softmax(-1) for model in (teacher, policy))
        total += float((q.exp() * (q - p)).sum())
        count += len(response)
    return total / count


@pytest.mark.parametrize("mode", ["forward_kl_topk", pytest.param("k1+", marks=pytest.mark.slow)])
def test_the_policy_becomes_the_teacher(
    mode: str, tiny_model: str, teacher: str, engine_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """On what it samples itself, step after step, it comes nearer by the exact distance."""
    steps = 40
    engine = LocalPolicy(configured(engine_config, mode, ppo_mini_batch_size=48, optim_lr=5e-3), steps, str(tmp_path))
    lm, target, scorer = engine._worker._model.lm, plain(teacher), started(teacher)
    random = torch.Generator().manual_seed(5)
    start = exact_kl(target, lm, sampled(lm, 40, random))
    for step in range(1, steps + 1):
        engine.update(taught(batch_of(sampled(lm, 48, random)), scorer), step)
    end = exact_kl(target, lm, sampled(lm, 40, random))
    assert end < 0.65 * start, (start, end)
    engine.shutdown()
