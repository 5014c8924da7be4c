"""Saving and loading what is trained. Invariant: a checkpoint is whole tensors under Hugging Face names, so any number
of ranks can load what any number of ranks saved, bit for bit.

There is no state of a random generator to save: dropout is off, and the one random choice, the order of mini-batches,
is a function of (trainer.seed, step, epoch).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from verl_core.engine.loading import copy_tokenizer
from verl_core.engine.network import Network
from verl_core.engine.ranks import Ranks
from verl_core.engine.sharding import assign, trained, whole, whole_parameters
from verl_core.errors import CheckpointError, ModelError

OPTIMIZER, PROGRESS = "optimizer.safetensors", "progress.json"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the weights are: global steps and optimizer steps (the schedule's clock)."""

    steps_done: int
    updates_done: int


def save(
    folder: str, model: Network, optimizer: torch.optim.Optimizer, progress: Progress, ranks: Ranks, tokenizer: str = ""
) -> None:
    """Write everything into a folder, empty or made now; rank 0 writes. Collective.

    Args:
        tokenizer: model folder or .gguf file that the tokenizer is copied from; empty = the model needs none.
    """
    state = _on_rank_0(whole_parameters(model), ranks)
    moments = _on_rank_0(_whole_moments(model, optimizer), ranks)
    if ranks.rank == 0:
        from safetensors.torch import save_file

        Path(folder).mkdir(exist_ok=True)
        model.write(folder, state)
        if tokenizer:
            copy_tokenizer(tokenizer, folder)
        save_file(moments, str(Path(folder) / OPTIMIZER))
        (Path(folder) / PROGRESS).write_text(json.dumps(asdict(progress)) + "\n")
    ranks.gathered(None)  # no rank returns before the files are there


def load(folder: str, model: Network, optimizer: torch.optim.Optimizer) -> Progress:
    """Inverse of `save`; every rank reads the folder. No communication.

    Raises:
        CheckpointError: a file is missing or unreadable, or the folder holds another model.
    """
    place = Path(folder)
    try:
        progress = Progress(**json.loads((place / PROGRESS).read_text()))
        found = model.read(folder)
    except (OSError, ValueError, TypeError, ModelError) as error:
        raise CheckpointError(f"the checkpoint {folder!r} cannot be read: {error}") from error
    ours = dict(trained(model))
    _same_tensors(folder, found, ours)
    for name, parameter in ours.items():
        assign(parameter, found[name])
    _load_moments(place / OPTIMIZER, model, optimizer)
    return progress


def load_start(folder: str, model: Network) -> None:
    """Weights of a model folder, whatever else is held. No communication. Raises ModelError: the folder cannot be
    used.
    """
    fresh = model.read(folder, start=True)
    for name, parameter in trained(model):
        assign(parameter, fresh[name])


def _on_rank_0(named: Iterable[tuple[str, torch.Tensor]], ranks: Ranks) -> dict[str, torch.Tensor]:
    """All tensors, in host memory, on rank 0; nothing elsewhere, but every rank walks the iterator."""
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        if ranks.rank == 0:
            kept[name] = tensor.cpu()
    return kept


def _whole_moments(model: Network, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """AdamW's state, `<moment>/<parameter>`; nothing for a parameter that was never updated."""
    for name, parameter in trained(model):
        for key, tensor in optimizer.state.get(parameter, {}).items():
            yield f"{key}/{name}", whole(tensor)


def _load_moments(place: Path, model: Network, optimizer: torch.optim.Optimizer) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(place), framework="pt") as file:
            held = set(file.keys())
            for name, parameter in trained(model):
                optimizer.state.pop(parameter, None)
                if f"step/{name}" not in held:
                    continue
                state = {key: torch.zeros_like(parameter) for key in MOMENTS}
                for key, moment in state.items():
                    assign(moment, file.get_tensor(f"{key}/{name}"))
                step = file.get_tensor(f"step/{name}").to(parameter.device)
                optimizer.state[parameter] = {"step": step, **state}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the optimizer state {str(place)!r} cannot be read: {error}") from error


def _same_tensors(folder: str, found: dict[str, torch.Tensor], ours: dict[str, torch.nn.Parameter]) -> None:
    differ = sorted(set(found) ^ set(ours)) or [name for name in ours if found[name].shape != ours[name].shape]
    if differ:
        raise CheckpointError(
            f"the checkpoint {folder!r} holds another model: {len(differ)} tensors differ, first {differ[0]}"
        )
