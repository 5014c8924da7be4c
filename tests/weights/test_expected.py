"""A set of weights passes only when it replaces the whole model with finite values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from verl_core.errors import ModelError, WeightError
from verl_core.weights.expected import ExpectedWeights, is_finite

SHAPES = {"model.embed_tokens.weight": (6, 4), "model.norm.weight": (4,)}


def model_folder(path: Path, tied: bool, split: bool = False) -> Path:
    tensors = {name: torch.ones(shape) for name, shape in SHAPES.items()} | {"lm_head.weight": torch.ones(6, 4)}
    if split:
        for number, (name, tensor) in enumerate(tensors.items()):
            save_file({name: tensor}, path / f"model-{number}.safetensors")
    else:
        save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return path


def push(tied: bool) -> dict[str, torch.Tensor]:
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    return weights if tied else weights | {"lm_head.weight": torch.randn(6, 4)}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_whole_set_passes(tmp_path: Path, tied: bool, split: bool) -> None:
    expected = ExpectedWeights.from_folder(model_folder(tmp_path, tied, split))
    weights = push(tied)
    assert expected.check(weights).keys() == weights.keys()


def test_a_tied_head_may_come_if_it_is_the_embedding(tmp_path: Path) -> None:
    expected = ExpectedWeights.from_folder(model_folder(tmp_path, tied=True))
    weights = push(tied=True)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    assert "lm_head.weight" not in expected.check(weights)
    weights["lm_head.weight"][0, 0] += 1
    with pytest.raises(WeightError, match="ties"):
        expected.check(weights)


def test_refusals(tmp_path: Path) -> None:
    expected = ExpectedWeights.from_folder(model_folder(tmp_path, tied=False))
    whole = push(tied=False)
    norm = whole["model.norm.weight"]
    cases = [
        (whole | {"model.extra": norm}, "no weights named model.extra"),
        ({k: v for k, v in whole.items() if k != "lm_head.weight"}, "missing: lm_head.weight"),
        (whole | {"model.norm.weight": norm.view(2, 2)}, "shape"),
        (whole | {"model.norm.weight": torch.tensor([1.0, float("nan"), 1.0, 1.0])}, "NaN or infinity"),
        (whole | {"model.norm.weight": torch.tensor([1.0, float("-inf"), 1.0, 1.0])}, "NaN or infinity"),
        (whole | {f"model.layers.{i}.x": norm for i in range(5)}, "and 2 more"),
    ]
    for weights, message in cases:
        with pytest.raises(WeightError, match=message):
            expected.check(weights)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        ExpectedWeights.from_folder(tmp_path)
    (model_folder(tmp_path, tied=True) / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        ExpectedWeights.from_folder(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_finite_agrees_with_the_slow_way(dtype: torch.dtype) -> None:
    for position in (None, 0, 499, 999):
        for value in (float("nan"), float("inf"), float("-inf"), torch.finfo(dtype).max):
            tensor = torch.randn(1000).to(dtype)
            if position is not None:
                tensor[position] = value
            assert is_finite(tensor) == bool(torch.isfinite(tensor).all())
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.zeros(3, dtype=torch.int64))
