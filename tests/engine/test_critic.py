"""The critic against literal loops over the language model itself: values one row at a time, one global step; two
ranks, checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import MakeBatch, MakeConfig
from tests.engine.test_update import TWO, mask_of
from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.loading import load_model
from verl_core.engine.local import LocalCritic, LocalPolicy
from verl_core.engine.worker_group import CriticGroup
from verl_core.errors import CheckpointError, ModelError, PolicyError

Head = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def config(make_config: MakeConfig) -> RunConfig:
    """Two optimizer steps per global step, a clip that is met, gradients that are clipped."""
    config = make_config()
    config.algorithm.adv_estimator = "gae"
    config.critic.optim.lr, config.critic.optim.eps = 1e-3, 1e-5
    config.critic.cliprange_value = 0.2
    return config


@pytest.fixture
def started(config: RunConfig, tiny_model: str, tmp_path: Path) -> RunConfig:
    """The same from a critic whose head is not zero."""
    from safetensors.torch import save_file

    folder = tmp_path / "started"
    shutil.copytree(tiny_model, folder)
    random = torch.Generator().manual_seed(1)
    weight = 0.2 * torch.randn(1, 64, generator=random)
    save_file({"value_head.weight": weight, "value_head.bias": torch.tensor([0.3])}, folder / "value_head.safetensors")
    config.critic.model.path = str(folder)
    return config


def critic_batch(make_batch: MakeBatch, seed: int = 0, **shape: Any) -> TrainBatch:
    """The shared batch with old values and returns, NaN under the mask."""
    batch, random = make_batch(seed=seed, **shape), np.random.default_rng(seed + 100)
    for name in ("values", "returns"):
        column = np.where(batch.response_mask, random.normal(size=len(batch.response_ids)), np.nan)
        batch = batch.with_column(name, column.astype(np.float32))
    return batch


def ids_of(batch: TrainBatch, row: int) -> tuple[torch.Tensor, int]:
    """(prompt and response, length of the prompt)."""
    prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
    response = batch.response_ids[batch.response_offsets[row] : batch.response_offsets[row + 1]]
    return torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64)), len(prompt)


def head_of(config: RunConfig) -> Head:
    from safetensors.torch import load_file

    held = load_file(str(Path(config.critic.model.path) / "value_head.safetensors"))
    return held["value_head.weight"], held["value_head.bias"]


def literal_values(model: Any, head: Head, batch: TrainBatch, row: int) -> torch.Tensor:
    """[R]: last hidden state of the causal LM at prompt + t - 1, times the head. No padding."""
    ids, prompt = ids_of(batch, row)
    states = model(ids[None], output_hidden_states=True).hidden_states[-1][0]
    return (states[prompt - 1 : -1] @ head[0].T + head[1])[:, 0]


def test_a_new_critic_expects_nothing(config: RunConfig, make_batch: MakeBatch) -> None:
    assert not LocalCritic(config, 5).values(make_batch()).any()


def test_values_are_those_of_the_state_before_the_token(started: RunConfig, make_batch: MakeBatch) -> None:
    started.critic.forward_max_token_len_per_gpu = 30
    batch, critic = make_batch(), LocalCritic(started, 5)
    model, head = load_model(started.actor_rollout_ref.model.path), head_of(started)
    got = critic.values(batch)
    assert got.dtype == np.float32
    with torch.no_grad():
        expected = torch.cat([literal_values(model, head, batch, row) for row in range(len(batch))]).numpy()
    np.testing.assert_allclose(got, expected, atol=2e-5)
    # Another token t: the values up to t stay, that of t + 1 has seen it.
    row = int(np.argmax(batch.response_lengths))
    at = int(batch.response_offsets[row]) + 2
    batch.response_ids[at] = (batch.response_ids[at] + 5) % 40 + 2
    changed = np.flatnonzero(np.abs(critic.values(batch) - got) > 1e-4)
    assert changed[0] == at + 1
    assert changed[-1] < batch.response_offsets[row + 1]


def literal_step(config: RunConfig, batch: TrainBatch) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Token-mean clipped value loss, one row at a time, torch's plain AdamW."""
    critic, optim = config.critic, config.critic.optim
    model, head = load_model(config.actor_rollout_ref.model.path), head_of(config)
    head = (head[0].requires_grad_(), head[1].requires_grad_())
    trained = [*model.parameters(), *head]
    adam = torch.optim.AdamW(
        trained, lr=optim.lr, betas=tuple(optim.betas), eps=optim.eps, weight_decay=optim.weight_decay
    )
    sums = {"vf_loss": 0.0, "vf_clipfrac": 0.0, "vpred_mean": 0.0, "grad_norm": 0.0}
    everything = sum(int(mask_of(batch, row).sum()) for rows in TWO for row in rows)
    for rows in TWO:
        tokens = sum(int(mask_of(batch, row).sum()) for row in rows)
        for row in rows:
            start = int(batch.response_offsets[row])
            for step, value in enumerate(literal_values(model, head, batch, row)):
                if not batch.response_mask[start + step]:
                    continue
                old, target = (float(batch.columns[name][start + step]) for name in ("values", "returns"))
                low, high = old - critic.cliprange_value, old + critic.cliprange_value
                now = float(value.detach())
                held, free = min(max(now, low), high), (value - target) ** 2
                clipped = held != now and (held - target) ** 2 > (now - target) ** 2
                loss = 0.5 * (torch.tensor((held - target) ** 2) + 0 * value if clipped else free)
                (loss / tokens).backward(retain_graph=True)
                sums["vf_loss"] += float(loss.detach()) / tokens / 2
                sums["vf_clipfrac"] += clipped / everything
                sums["vpred_mean"] += float(value.detach()) / everything
        norm = float(torch.sqrt(sum((p.grad.square().sum() for p in trained if p.grad is not None), torch.zeros(()))))
        sums["grad_norm"] += norm / 2
        for parameter in trained:
            parameter.grad = None if parameter.grad is None else parameter.grad * min(1.0, 1.0 / (norm + 1e-6))
        adam.step()
        adam.zero_grad()
    named = {name.removeprefix("model."): tensor.detach() for name, tensor in model.named_parameters()}
    return named | {"value_head.weight": head[0].detach(), "value_head.bias": head[1].detach()}, sums


def weights_of(critic: LocalCritic | CriticGroup, folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    folder.mkdir()
    critic.save(str(folder))
    return {**load_file(folder / "critic/model.safetensors"), **load_file(folder / "critic/value_head.safetensors")}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 2e-5) -> None:
    assert set(one) == set(other)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("budget", [10_000, 30, 1])
def test_a_step_is_the_literal_loop_whatever_the_budget(
    started: RunConfig, make_batch: MakeBatch, tmp_path: Path, budget: int
) -> None:
    started.critic.ppo_max_token_len_per_gpu = budget
    batch, critic = critic_batch(make_batch), LocalCritic(started, 5)
    metrics = critic.update(batch, 1)
    expected, sums = literal_step(started, batch)
    assert sums["vf_clipfrac"] > 0.1
    assert {name.removeprefix("critic/"): value for name, value in metrics.items()} == pytest.approx(
        {**sums, "lr": 1e-3, "updates": 2.0, "empty_updates": 0.0}, rel=1e-3, abs=1e-5
    )
    assert_same(weights_of(critic, tmp_path / "saved"), expected)
    assert critic.steps_done() == 1


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one_and_their_checkpoint_fits_one(
    ray_cluster: object, started: RunConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    single = LocalCritic(started, 5)
    started.trainer.n_gpus_per_node = 2
    pair = CriticGroup.attach_or_launch(started, "verl-engine-critic", 5, lambda rank: {"num_cpus": 0}, "cpu")
    try:
        assert pair.weights_sha256() == single.weights_sha256()
        # A mini-batch of one row leaves a rank without work: it still takes part.
        batches = [critic_batch(make_batch, seed=1), critic_batch(make_batch, seed=5, groups=1, n=1)]
        for step, batch in enumerate(batches, start=1):
            np.testing.assert_allclose(pair.values(batch), single.values(batch), atol=5e-5)
            assert pair.update(batch, step) == pytest.approx(single.update(batch, step), rel=2e-4, abs=2e-5)
        assert_same(weights_of(pair, tmp_path / "two"), weights_of(single, tmp_path / "one"), tolerance=5e-5)
        digest = pair.weights_sha256()
        pair.reset()
        assert (pair.steps_done(), pair.values(batches[0]).any()) == (0, True)
        single.load(str(tmp_path / "two"))
        assert (single.steps_done(), single.weights_sha256()) == (2, digest)
    finally:
        pair.shutdown()


def test_resumed_equals_undisturbed_bit_for_bit(config: RunConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    config.critic.optim.lr_scheduler_type, config.critic.shuffle = "cosine", True
    critic = LocalCritic(config, 3)
    start = critic.weights_sha256()
    critic.update(critic_batch(make_batch, seed=1), 1)
    weights_of(critic, tmp_path / "c")
    metrics = critic.update(critic_batch(make_batch, seed=2), 2)
    other = LocalCritic(config, 3)
    other.load(str(tmp_path / "c"))
    assert other.update(critic_batch(make_batch, seed=2), 2) == metrics
    assert other.weights_sha256() == critic.weights_sha256()
    other.reset()
    assert (other.weights_sha256(), other.steps_done()) == (start, 0)


def test_a_saved_critic_may_be_the_start_of_another(config: RunConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    critic, batch = LocalCritic(config, 5), critic_batch(make_batch)
    critic.update(batch, 1)
    weights_of(critic, tmp_path / "c")
    config.critic.model.path = str(tmp_path / "c/critic")
    heir = LocalCritic(config, 5)
    assert (heir.weights_sha256(), heir.steps_done()) == (critic.weights_sha256(), 0)
    heir.update(batch, 1)
    heir.reset()
    assert heir.weights_sha256() == critic.weights_sha256()


def test_a_checkpoint_without_a_critic_or_with_half_of_one_is_refused(
    config: RunConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    (tmp_path / "policy").mkdir()
    LocalPolicy(config, 5, str(tmp_path)).save(str(tmp_path / "policy"))
    critic = LocalCritic(config, 5)
    with pytest.raises(CheckpointError) as caught:
        critic.load(str(tmp_path / "policy"))
    told = str(caught.value).replace(str(tmp_path / "policy"), "<root>/mine/checkpoints/000004")
    assert f"```text\n{told}\n```" in (Path(__file__).resolve().parents[2] / "docs/errors.md").read_text()
    critic.values(make_batch())  # nothing had moved
    weights_of(critic, tmp_path / "c")
    (tmp_path / "c/critic/value_head.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the value head .* cannot be read"):
        critic.load(str(tmp_path / "c"))
    with pytest.raises(PolicyError, match="critic rank 0 holds weights between steps 0 and 1"):
        critic.values(make_batch())


def test_what_lies_under_the_mask_plays_no_part_and_a_number_that_is_not_finite_is_told(
    started: RunConfig, make_batch: MakeBatch
) -> None:
    batch, digests = critic_batch(make_batch), set()
    for fill in (np.nan, 1e30):
        columns = {n: np.where(batch.response_mask, one, fill).astype(np.float32) for n, one in batch.columns.items()}
        critic = LocalCritic(started, 5)
        critic.update(TrainBatch(**{**vars(batch), "columns": columns}), 1)
        digests.add(critic.weights_sha256())
    assert len(digests) == 1
    batch = critic_batch(make_batch, tools=False)
    batch.columns["returns"][0] = np.nan
    with pytest.raises(
        PolicyError, match=rf"step 1: the critic's loss is not finite.*{batch.keys[0]}.*critic.optim.lr"
    ):
        LocalCritic(started, 5).update(batch, 1)


def test_the_policy_waits_while_the_critic_warms_up(config: RunConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    config.trainer.critic_warmup = 1
    policy = LocalPolicy(config, 5, str(tmp_path))
    start = policy.weights_sha256()
    assert policy.update(make_batch(), 1) == {"actor/updates": 0.0}
    assert (policy.steps_done(), policy.weights_sha256()) == (1, start)
    assert policy.update(make_batch(), 2)["actor/updates"] == 2
    assert policy.weights_sha256() != start


def test_a_critic_needs_a_model_folder(config: RunConfig, tmp_path: Path) -> None:
    config.critic.model.path = str(tmp_path)
    with pytest.raises(ModelError, match=r"critic.model.path='.*' is not a model folder"):
        LocalCritic(config, 5)
