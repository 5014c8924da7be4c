"""Random batches for every estimator: uneven and single groups, sessions of several outputs, tool text, rejected and
unscored rows, NaN in every cell that must not be read. Numbers are multiples of 1/8, so that sums are exact and ties
are real ties."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from hypothesis import strategies as st

from verl_core.algorithms.advantages import AdvantageInputs

NAN = math.nan


@st.composite
def batches(draw: st.DrawFn, max_sessions: int = 8) -> AdvantageInputs:
    sessions, width = draw(st.integers(1, max_sessions)), draw(st.integers(1, 5))
    outputs = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=sessions, max_size=sessions))
    group_of = draw(st.lists(st.integers(0, 3), min_size=sessions, max_size=sessions))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    spread = draw(st.sampled_from([1, 4]))  # few distinct rewards: many ties

    def eighths(*shape: int) -> torch.Tensor:
        return torch.randint(-spread, spread + 1, shape, generator=generator) / 8

    rows = sum(outputs)
    session_index = torch.tensor([number for number, count in enumerate(outputs) for _ in range(count)])
    output_index = torch.tensor([3 * place + 1 for count in outputs for place in range(count)])
    group = torch.tensor(group_of)[session_index]
    own = torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.5, 0.8, 1.0]))
    own &= (torch.rand(rows, 1, generator=generator) < draw(st.sampled_from([0.7, 1.0]))).expand(-1, width)
    mask = own & (torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.5, 0.9, 1.0])))
    shuffle = torch.randperm(rows, generator=generator)

    def cells(values: torch.Tensor) -> torch.Tensor:
        return torch.where(own, values, NAN)

    chance = torch.rand(rows, width, generator=generator) * 0.9 + 0.05
    greedy = eighths(4)[group]
    batch = AdvantageInputs(
        token_rewards=cells(eighths(rows, width)),
        mask=mask,
        group_index=group,
        norm_by_std=draw(st.booleans()),
        sampled=own,
        session_index=session_index,
        output_index=output_index,
        baseline_rows=draw(st.sampled_from(["kept", "all"])),
        gamma=draw(st.sampled_from([1.0, 0.5])),
        lam=draw(st.sampled_from([1.0, 0.5])),
        values=cells(eighths(rows, width)),
        greedy_rewards=greedy,
        reward_parts=eighths(rows, 2),
        part_weights=draw(st.sampled_from([None, (1.0, 0.25)])),
        old_log_probs=cells(chance.log()),
        sum_pi_squared=cells(chance**2 + (1 - chance) ** 2 / 2),
        is_weights=cells(1 + eighths(rows, width)) if draw(st.booleans()) else None,
    )
    return rearranged(batch, shuffle)


def rearranged(batch: AdvantageInputs, order: torch.Tensor) -> AdvantageInputs:
    """The same batch with its rows in another order."""
    changed = {name: value[order] for name, value in tensors(batch).items()}
    return dataclasses.replace(batch, **changed)


def widened(batch: AdvantageInputs, extra: int) -> AdvantageInputs:
    """`extra` columns of padding, NaN wherever a number stands."""
    changed: dict[str, Any] = {}
    for name, value in tensors(batch).items():
        if value.shape == batch.mask.shape and name != "reward_parts":
            fill = False if value.dtype == torch.bool else NAN
            changed[name] = torch.cat([value, torch.full((len(value), extra), fill, dtype=value.dtype)], dim=1)
    return dataclasses.replace(batch, **changed)


def with_padding_rows(batch: AdvantageInputs, extra: int) -> AdvantageInputs:
    """`extra` rows without a single token, in a group and sessions of their own."""
    assert batch.session_index is not None
    changed: dict[str, Any] = {}
    for name, value in tensors(batch).items():
        if name == "session_index":
            more = int(value.max()) + 1 + torch.arange(extra)
        elif value.dtype == torch.int64:
            more = torch.full((extra,), int(value.max()) + 1)
        elif value.dtype == torch.bool:
            more = torch.zeros(extra, value.shape[1], dtype=torch.bool)
        else:
            more = torch.full((extra, *value.shape[1:]), NAN)
        changed[name] = torch.cat([value, more])
    return dataclasses.replace(batch, **changed)


def tensors(batch: AdvantageInputs) -> dict[str, torch.Tensor]:
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
