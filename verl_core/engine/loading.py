"""Reading a model from disk. Invariant: what comes back has real weights, in float32, and nothing random in its
forward pass.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from verl_core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

CAUSAL, BACKBONE = "AutoModelForCausalLM", "AutoModel"  # names in transformers
CLASSIFIER = "AutoModelForSequenceClassification"
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def load_model(path: str) -> PreTrainedModel:
    """The causal LM at `path`, on the CPU, float32, in evaluation mode (dropout off).

    Args:
        path: folder in Hugging Face form, or a `.gguf` file (dequantised).

    Raises:
        ModelError: no such place, no weights in it, or not a causal LM.
    """
    return _load(path, CAUSAL, "actor_rollout_ref.model.path")


def load_backbone(path: str) -> PreTrainedModel:
    """The same without the head that makes logits; for the critic.

    Raises:
        ModelError: see `load_model`.
    """
    return _load(path, BACKBONE, "critic.model.path")


def load_classifier(path: str) -> PreTrainedModel:
    """The sequence classifier with one label at `path`: a reward model.

    Raises:
        ModelError: see `load_model`; also another number of labels.
    """
    model = _load(path, CLASSIFIER, "reward.reward_model.model_path")
    if model.config.num_labels != 1:
        raise ModelError(
            f"{path!r} is a classifier with {model.config.num_labels} labels; a reward model has one. Train one with "
            "workflows/reward_model.py, or name another in reward.reward_model.model_path"
        )
    return model


def _load(path: str, kind: str, key: str) -> PreTrainedModel:
    place = Path(path)
    if place.suffix == ".gguf":
        model = _clean(_from_pretrained(place.parent, kind, gguf_file=place.name), kind)
    else:
        _check_folder(place, key)
        model = _from_pretrained(place, kind)
    model.eval()
    return model


def max_positions(path: str) -> int:
    """Longest row that the causal LM at `path` may be given; 0 = its configuration does not say.

    Raises:
        ModelError: no such place, or its configuration cannot be read.
    """
    from transformers import AutoConfig

    place, options = Path(path), {}
    if place.suffix == ".gguf":
        place, options = place.parent, {"gguf_file": place.name}
    else:
        _check_folder(place, "actor_rollout_ref.model.path")
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=True, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read the configuration of the model at {path!r}: {error}") from error
    return positions_of(config)


def positions_of(config: PretrainedConfig) -> int:
    """Longest row of a model with this configuration; 0 = it does not say."""
    return int(config.get_text_config().to_dict().get("max_position_embeddings") or 0)


def copy_tokenizer(path: str, folder: str) -> None:
    """Put the tokenizer of the model at `path` into `folder`, byte for byte where it is made of files."""
    source, target = Path(path), Path(folder)
    if source.suffix == ".gguf":
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
        return
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            (target / name).write_bytes((source / name).read_bytes())


def _check_folder(place: Path, key: str) -> None:
    if (place / "adapter_config.json").is_file() and not (place / "config.json").is_file():
        raise ModelError(
            f"{key}={str(place)!r} is an adapter, not a model. Name its base there and the adapter in "
            "actor_rollout_ref.model.lora_adapter_path, or merge them: python -m verl_core.engine.merging"
        )
    if not (place / "config.json").is_file():
        raise ModelError(
            f"{key}={str(place)!r} is not a model folder: it has no config.json. "
            "Give a folder with config.json, weights and tokenizer, or a .gguf file"
        )
    if not any(any(place.glob(pattern)) for pattern in WEIGHT_PATTERNS):
        raise ModelError(
            f"the model folder {str(place)!r} has no weights (looked for {', '.join(WEIGHT_PATTERNS)}); "
            "download or save the weights into it"
        )


def _from_pretrained(folder: Path, kind: str, **options: Any) -> PreTrainedModel:
    import transformers
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()  # one bar per rank would shred the console
    # OSError: missing or unreadable files; ValueError: architecture unknown; RuntimeError: shapes disagree.
    loader: Any = getattr(transformers, kind)
    try:
        loaded = loader.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise ModelError(f"cannot load a causal LM from {str(folder)!r}: {error}") from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(
            f"the weights in {str(folder)!r} lack {len(missing)} tensors of the model, first {missing[0]!r}: "
            "they would be random. Save the whole model"
        )
    return model


def _clean(model: PreTrainedModel, kind: str) -> PreTrainedModel:
    """The same model without its marks of quantisation, which forbid saving."""
    import transformers

    config = copy.deepcopy(model.config)
    del config.quantization_config
    fresh: PreTrainedModel = getattr(transformers, kind).from_config(config, dtype=torch.float32)
    fresh.load_state_dict(model.state_dict())
    if kind == CAUSAL:
        fresh.generation_config = model.generation_config
    return fresh
