"""FSDP2 over the ranks, and the way back to whole tensors.

Invariant: gradients are summed over ranks, never averaged, because losses already carry global denominators. FSDP2
averages by default, and asks nccl for a scaled sum when told otherwise; gloo knows neither. A plain sum with divide
factor 1 works on both (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from verl_core.engine.network import Network
from verl_core.engine.ranks import Ranks


def shard(model: Network, ranks: Ranks) -> None:
    """Place the model: on the device when alone; else every layer, and the rest as the root, cut over the ranks.

    Each rank reads the whole model on the host first and keeps its part.
    """
    if ranks.mesh is None:
        model.to(ranks.device)
        return
    low = model.compute_dtype == torch.bfloat16
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if low else None, reduce_dtype=torch.float32 if low else None
    )
    for module in model.exact():
        fully_shard(module, mesh=ranks.mesh)
    for module in [*model.layers(), model]:
        fully_shard(module, mesh=ranks.mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def trained(model: Network) -> list[tuple[str, nn.Parameter]]:
    """Parameters that are trained, by the name they are saved under, tied ones once, in the model's order."""
    every = model.named_parameters()
    return [(model.saved_name(name), parameter) for name, parameter in every if parameter.requires_grad]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor, detached. Collective for sharded ones."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def whole_parameters(model: Network) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and full tensor, one at a time. All ranks must walk it to the end."""
    for name, parameter in trained(model):
        yield name, whole(parameter)


@torch.no_grad()
def assign(target: torch.Tensor, full: torch.Tensor) -> None:
    """Copy a full tensor, which every rank holds, into a possibly sharded one. No communication."""
    if isinstance(target, DTensor):
        full = full.to(target.device, target.dtype)
        target.copy_(distribute_tensor(full, target.device_mesh, target.placements, src_data_rank=None))
    else:
        target.copy_(full)


def clip_gradients(model: Network, limit: float) -> float:
    """Scale gradients to a global norm of at most `limit`; returns the norm before, the same on every rank."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    return float(whole(norm))
