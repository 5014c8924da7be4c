"""From an adapter to a model folder that knows nothing of adapters. Invariant: a weight of the result is
W + alpha / rank x B A, float32, and every other one is the base's.

python -m verl_core.engine.merging BASE ADAPTER OUT
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from verl_core.engine.adapted import same_base
from verl_core.engine.loading import copy_tokenizer, load_model
from verl_core.errors import ModelError, VerlError
from verl_core.models.folder import published
from verl_core.weights.adapter import SETTINGS, delta, modules_in, read_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def merged_model(base: str, adapter: str) -> PreTrainedModel:
    """The base with the adapter in its weights, float32, on the host.

    Args:
        adapter: folder as a checkpoint or peft holds it.

    Raises:
        ModelError: either cannot be read, or they do not belong together.
    """
    tensors = read_adapter(adapter)
    settings = json.loads((Path(adapter) / SETTINGS).read_text(encoding="utf-8"))
    model = load_model(base)
    for module in modules_in(tensors):
        try:
            weight = model.get_submodule(module).weight
            weight += delta(tensors, module, settings["lora_alpha"] / settings["r"])  # type: ignore[operator]
        except (AttributeError, KeyError, RuntimeError) as error:
            raise ModelError(f"the adapter {adapter!r} does not fit the model {base!r}: {module}: {error}") from error
    return model


def export(base: str, adapter: str, out: str) -> Path:
    """Write the merged model with its tokenizer into a new folder, which appears whole or not at all.

    Raises:
        ModelError: see `merged_model`; or the adapter was trained on another base, or `out` is there already.
    """
    if Path(out).exists():  # `published` would replace it, the base itself among others
        raise ModelError(f"{out!r} is there already: name a folder that is not, or remove it first")
    same_base(adapter, base)
    model = merged_model(base, adapter)
    with published(Path(out)) as scratch:
        model.save_pretrained(scratch)
        copy_tokenizer(base, str(scratch))
    return Path(out)


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m verl_core.engine.merging", description=export.__doc__)
    for name, about in (
        ("base", "the model folder that was adapted"),
        ("adapter", "a checkpoint folder of a LoRA run"),
        ("out", "folder to write"),
    ):
        parser.add_argument(name, help=about)
    try:
        sys.stdout.write(f"{export(**vars(parser.parse_args(arguments)))}\n")
    except VerlError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
