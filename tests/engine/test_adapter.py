"""A policy with a low-rank adapter against the formula W + alpha / rank x B A written out over the plain model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import MakeBatch, MakeConfig
from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.digest import weights_digest
from verl_core.engine.loading import load_model
from verl_core.engine.local import LocalPolicy
from verl_core.engine.merging import main as merge
from verl_core.engine.sharding import trained
from verl_core.engine.worker_group import PolicyGroup
from verl_core.errors import CheckpointError, ModelError
from verl_core.weights.adapter import read_adapter
from verl_core.weights.shm import ShmReceiver

RANK, ALPHA = 4, 12
Adapter = dict[str, torch.Tensor]
MakeLora = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def make_lora(make_config: MakeConfig) -> MakeLora:
    def make(model: dict[str, Any] | None = None, **overrides: Any) -> RunConfig:
        config = make_config(**{"optim_lr": 1e-2, "ppo_mini_batch_size": 4, **overrides})
        config.actor_rollout_ref.model.lora_rank, config.actor_rollout_ref.model.lora_alpha = RANK, ALPHA
        for name, value in (model or {}).items():
            section = config.actor_rollout_ref.model
            target, field = (section.lora, name.removeprefix("lora.")) if name.startswith("lora.") else (section, name)
            setattr(target, field, value)
        return config

    return make


def adapter_of(policy: LocalPolicy) -> Adapter:
    return {name: tensor.detach().clone() for name, tensor in trained(policy._worker._model)}


def saved(policy: LocalPolicy, folder: Path) -> str:
    folder.mkdir()
    policy.save(str(folder))
    return str(folder)


def documented(message: str) -> bool:
    return f"```text\n{message}\n```" in (Path(__file__).resolve().parents[2] / "docs/errors.md").read_text()


def by_hand(model: Any, adapter: Adapter) -> dict[str, torch.Tensor]:
    """Every adapted weight, as a function of A and B."""
    weights = dict(model.named_parameters())
    out = {}
    for name, a in adapter.items():
        if name.endswith("lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            added = ALPHA / RANK * adapter[f"{module}.lora_B.weight"] @ a
            out[f"{module}.weight"] = weights[f"{module}.weight"] + added
    return out


def test_a_step_moves_a_and_b_as_the_formula_says_and_nothing_else(
    make_lora: MakeLora, make_batch: MakeBatch, tmp_path: Path, tiny_model: str
) -> None:
    config, batch = make_lora(), make_batch()
    policy = LocalPolicy(config, 5, str(tmp_path))
    base = load_model(tiny_model)
    adapter = {name: tensor.requires_grad_() for name, tensor in adapter_of(policy).items()}
    assert len(adapter) == 2 * 7 * 2
    with torch.no_grad():  # away from B = 0, where A has no gradient
        for name, tensor in trained(policy._worker._model):
            if "lora_B" in name:
                tensor.copy_(0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))))
                adapter[name].copy_(tensor)
    optim = config.actor_rollout_ref.actor.optim
    adam = torch.optim.AdamW(adapter.values(), lr=optim.lr, betas=(0.9, 0.999), eps=optim.eps, weight_decay=0.01)
    total = torch.zeros(())
    for row in range(len(batch)):
        ids, places, cells = _row(batch, row)
        logits = torch.func.functional_call(base, by_hand(base, adapter), (), {"input_ids": ids[None]}).logits[0]
        log_p = torch.log_softmax(logits, -1)[places - 1, ids[places]]
        advantage, old = (torch.from_numpy(batch.columns[n][cells]) for n in ("advantages", "old_log_probs"))
        ratio = torch.exp(log_p - old)
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        total = total + torch.where(advantage < 0, torch.minimum(loss, -advantage * 3.0), loss).sum()
    (total / int(batch.response_mask.sum())).backward()
    norm = torch.nn.utils.clip_grad_norm_(adapter.values(), 1.0)
    adam.step()
    metrics = policy.update(batch, 1)
    assert metrics["actor/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for name, tensor in adapter_of(policy).items():
        torch.testing.assert_close(tensor, adapter[name].detach(), rtol=0, atol=1e-4)
    updater = policy._worker._updater
    held = {id(p) for group in updater.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for _, p in trained(policy._worker._model)}
    frozen = [(n, p) for n, p in policy._worker._model.lm.named_parameters() if "lora_" not in n]
    plain = [(name.replace(".base_layer.", "."), p) for name, p in frozen]
    assert weights_digest(plain) == weights_digest(base.named_parameters())


def _row(batch: TrainBatch, row: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    start, end = batch.response_offsets[row], batch.response_offsets[row + 1]
    prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
    ids = torch.from_numpy(np.concatenate([prompt, batch.response_ids[start:end]]).astype(np.int64))
    cells = np.arange(start, end)[batch.response_mask[start:end]]
    return ids, torch.from_numpy(len(prompt) + cells - start), cells


def test_the_reference_is_the_base_exactly_and_no_second_model(
    make_lora: MakeLora, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch()
    base = LocalPolicy(make_config(), 5, str(tmp_path / "base")).old_log_probs(batch).log_probs
    policy = LocalPolicy(make_lora(use_kl_loss=True), 5, str(tmp_path / "lora"))
    assert policy._worker._reference is None
    assert (policy.old_log_probs(batch).log_probs == base).all()  # B is zero
    for step in (1, 2):
        policy.update(batch, step)
    assert np.abs(policy.old_log_probs(batch).log_probs - base).max() > 0.05
    assert (policy.ref_log_probs(batch).log_probs == base).all()
    before = policy.weights_sha256()
    policy.update(batch, 3)  # asking the reference left the adapter on, and trainable
    assert policy.weights_sha256() != before


def test_micro_batches_and_recomputing_change_nothing(
    make_lora: MakeLora, make_batch: MakeBatch, tmp_path: Path
) -> None:
    results, numbers = [], []
    for number, settings in enumerate(
        (
            {},
            {"ppo_max_token_len_per_gpu": 40},
            {"ppo_max_token_len_per_gpu": 18, "enable_gradient_checkpointing": True},
        )
    ):
        policy = LocalPolicy(make_lora(ppo_mini_batch_size=2, **settings), 5, str(tmp_path / str(number)))
        numbers.append(policy.update(make_batch(), 1))
        results.append(adapter_of(policy))
    for other, told in zip(results[1:], numbers[1:], strict=True):
        # Adam hides the scale of a gradient, so norms are compared too.
        assert told["actor/grad_norm"] == pytest.approx(numbers[0]["actor/grad_norm"], rel=1e-3)
        for name, tensor in results[0].items():
            # Adam's first step is lr g / (|g| + eps): where g is near eps, the last bits of a sum show.
            torch.testing.assert_close(tensor, other[name], rtol=0, atol=2e-4)


def test_resumed_equals_undisturbed_and_a_reset_is_the_start(
    make_lora: MakeLora, make_batch: MakeBatch, tmp_path: Path
) -> None:
    policy = LocalPolicy(make_lora(), 5, str(tmp_path))
    start = policy.weights_sha256()
    policy.update(make_batch(seed=1), 1)
    folder = saved(policy, tmp_path / "c")
    metrics, after = policy.update(make_batch(seed=2), 2), policy.weights_sha256()
    other = LocalPolicy(make_lora(), 5, str(tmp_path))
    assert other.weights_sha256() == start
    other.load(folder)
    assert (other.steps_done(), other.update(make_batch(seed=2), 2)) == (1, metrics)
    assert other.weights_sha256() == after
    other.reset()
    assert (other.steps_done(), other.weights_sha256()) == (0, start)
    warm = LocalPolicy(make_lora({"lora_adapter_path": folder}), 5, str(tmp_path))
    policy.load(folder)
    assert warm.weights_sha256() == policy.weights_sha256()


def test_the_folder_loads_in_peft_and_the_merged_one_in_plain_transformers(
    make_lora: MakeLora,
    make_batch: MakeBatch,
    tmp_path: Path,
    tiny_model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from peft import PeftModel
    from transformers import AutoTokenizer

    policy = LocalPolicy(make_lora({"lora.save_merged": True}), 5, str(tmp_path))
    policy.update(make_batch(), 1)
    folder = saved(policy, tmp_path / "c")
    out = tmp_path / "exported"
    assert merge([tiny_model, folder, str(out)]) == 0
    assert merge([tiny_model, folder, folder]) == 1  # nothing is replaced
    assert "is there already: name a folder that is not" in capsys.readouterr().err
    ids = torch.arange(3, 20)[None]
    base = load_model(tiny_model)
    with torch.no_grad():
        plain = base(input_ids=ids).logits
        want = torch.func.functional_call(base, by_hand(base, read_adapter(folder)), (), {"input_ids": ids}).logits
        assert float((want - plain).abs().max()) > 0.05
        models = [PeftModel.from_pretrained(base, folder), load_model(f"{folder}/merged"), load_model(str(out))]
        for model in models:
            torch.testing.assert_close(model(input_ids=ids).logits, want, rtol=0, atol=1e-4)
    for made in (out, f"{folder}/merged"):
        assert AutoTokenizer.from_pretrained(made).encode("hi") == AutoTokenizer.from_pretrained(tiny_model).encode(
            "hi"
        )
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert documented(str(caught.value).replace(folder, "<adapter>"))


def test_an_adapter_belongs_to_its_base(
    make_lora: MakeLora, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = LocalPolicy(make_lora(), 5, str(tmp_path))
    folder = saved(policy, tmp_path / "c")
    shutil.copytree(tiny_model, tmp_path / "moved")
    moved = make_lora({"path": str(tmp_path / "moved")})
    LocalPolicy(moved, 5, str(tmp_path)).load(folder)  # the same weights elsewhere
    other = load_model(tiny_model)
    with torch.no_grad():
        other.model.norm.weight += 1
    other.save_pretrained(tmp_path / "other")
    strange = LocalPolicy(make_lora({"path": str(tmp_path / "other")}), 5, str(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        strange.load(folder)
    told = str(caught.value).replace(folder, "<adapter>").replace(tiny_model, "<base>")
    assert documented(told.replace(str(tmp_path / "other"), "<other>"))
    assert merge([str(tmp_path / "other"), folder, str(tmp_path / "no")]) == 1
    assert merge([str(tmp_path / "nowhere"), folder, str(tmp_path / "no")]) == 1
    assert "nowhere' has no weights: name a folder with" in capsys.readouterr().err
    with pytest.raises(ModelError, match=f"was trained on '{tiny_model}', whose weights are not those of"):
        LocalPolicy(make_lora({"path": str(tmp_path / "other"), "lora_adapter_path": folder}), 5, str(tmp_path))
    (Path(folder) / "base.json").unlink()  # as peft writes it: nobody can tell
    LocalPolicy(make_lora({"path": str(tmp_path / "other"), "lora_adapter_path": folder}), 5, str(tmp_path))
    policy.save(folder)
    settings = Path(folder) / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "lora_alpha": 99}))
    with pytest.raises(CheckpointError, match="has rank 4 and alpha 99"):
        policy.load(folder)


@pytest.mark.parametrize("merge", [False, True])
def test_what_is_published(make_lora: MakeLora, make_batch: MakeBatch, tmp_path: Path, merge: bool) -> None:
    policy = LocalPolicy(make_lora({"lora.merge": merge}), 5, str(tmp_path / "w"))
    policy.update(make_batch(), 1)
    received = {name: tensor.clone() for name, tensor in ShmReceiver().receive(policy.publish(1))}
    if not merge:
        assert weights_digest(received.items()) == policy.weights_sha256()
        return
    base = load_model(make_lora().actor_rollout_ref.model.path)
    want = dict(base.named_parameters()) | by_hand(base, adapter_of(policy))
    assert list(received) == list(dict(base.named_parameters()))
    for name, tensor in want.items():
        torch.testing.assert_close(received[name], tensor.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": ["q_porj"]}, r"target_modules: 'q_porj' is no linear layer.*did you mean q_proj\?"),
        ({"target_modules": ["lm_head"]}, "'lm_head' is no linear layer of the model"),
        ({"exclude_modules": ["mpl"]}, "exclude_modules: 'mpl' is no linear layer of the model"),
        ({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, "leaves no module"),
        ({"lora_adapter_path": "/nowhere"}, "cannot be read"),
    ],
)
def test_modules_that_are_not_there(
    make_lora: MakeLora, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        LocalPolicy(make_lora(settings), 5, str(tmp_path))
    assert documented(str(caught.value)) or "q_porj" not in message


def test_chosen_modules_alone_carry_an_adapter(make_lora: MakeLora, tmp_path: Path) -> None:
    config = make_lora({"target_modules": ["q_proj", "mlp.up_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"]})
    names = {name.rpartition(".lora_")[0] for name in adapter_of(LocalPolicy(config, 5, str(tmp_path)))}
    assert names == {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "model.layers.1.self_attn.q_proj"}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("recompute", [False, True])
def test_two_ranks_give_the_numbers_of_one(
    make_lora: MakeLora, make_batch: MakeBatch, tmp_path: Path, recompute: bool
) -> None:
    settings = {"use_kl_loss": True, "kl_loss_coef": 0.2, "ppo_max_token_len_per_gpu": 40}
    one = LocalPolicy(make_lora({"lora.merge": True}, **settings), 5, str(tmp_path / "one"))
    config = make_lora({"lora.merge": True}, world=2, enable_gradient_checkpointing=recompute, **settings)
    pair = PolicyGroup.attach_or_launch(
        config, f"verl-lora-{recompute}", 5, lambda rank: {"num_cpus": 0}, str(tmp_path / "two"), "cpu"
    )
    try:
        batch = make_batch()
        assert (pair.ref_log_probs(batch).log_probs == pair.old_log_probs(batch).log_probs).all()
        for step in (1, 2):
            batch = make_batch(seed=step)
            np.testing.assert_allclose(
                pair.ref_log_probs(batch).log_probs, one.ref_log_probs(batch).log_probs, atol=1e-5
            )
            assert pair.update(batch, step) == pytest.approx(one.update(batch, step), rel=1e-3, abs=1e-5)
        for folder, policy in (("p", pair), ("o", one)):
            (tmp_path / folder).mkdir()
            policy.save(str(tmp_path / folder))
        ours, theirs = read_adapter(tmp_path / "o"), read_adapter(tmp_path / "p")
        for name, tensor in ours.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=5e-5)
        pushed = [
            {name: tensor.clone() for name, tensor in ShmReceiver().receive(policy.publish(1))}
            for policy in (pair, one)
        ]
        for name, tensor in pushed[0].items():
            torch.testing.assert_close(tensor, pushed[1][name], rtol=0, atol=5e-5)
        one.load(str(tmp_path / "p"))
        assert one.weights_sha256() == pair.weights_sha256()
    finally:
        pair.shutdown()
