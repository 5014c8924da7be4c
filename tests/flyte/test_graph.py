"""How steps become nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.graph import MAX_NODES, chunks_of
from verl_core.config.schema import RunConfig
from verl_core.errors import ConfigError


def config_of(steps_per_node: int) -> RunConfig:
    config = RunConfig()
    config.trainer.steps_per_node = steps_per_node
    return config


def test_one_step_per_chain_of_four_nodes() -> None:
    assert chunks_of(range(1, 4), config_of(1)) == [(1, 1), (2, 2), (3, 3)]


def test_the_last_chunk_is_what_is_left() -> None:
    assert chunks_of(range(3, 11), config_of(3)) == [(3, 5), (6, 8), (9, 10)]


@given(first=st.integers(1, 50), count=st.integers(0, 300), size=st.integers(2, 40))
def test_every_step_is_in_exactly_one_chunk(first: int, count: int, size: int) -> None:
    steps = range(first, first + count)
    covered = [step for a, b in chunks_of(steps, config_of(size)) for step in range(a, b + 1)]
    assert covered == list(steps)


def test_a_graph_that_no_cluster_would_take_is_refused_with_the_way_out() -> None:
    assert len(chunks_of(range(1, 101), config_of(1))) == 100  # 400 nodes: just allowed
    with pytest.raises(ConfigError, match=r"101 steps .* 404 nodes.*steps_per_node=2 or more") as told:
        chunks_of(range(1, 102), config_of(1))
    assert str(MAX_NODES) in str(told.value)
    with pytest.raises(ConfigError, match=r"steps_per_node=3 or more"):
        chunks_of(range(1, 1002), config_of(2))
    assert len(chunks_of(range(1, 1002), config_of(3))) <= MAX_NODES
