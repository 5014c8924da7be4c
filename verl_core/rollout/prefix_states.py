"""What a scripted model knows after a prefix, kept for whoever comes by the same prefix again.

Invariant: a kept state is bit for bit what recomputing it would give. States are only ever extended the way a lone
request extends them (the whole prompt in one pass, then one token at a time), and never changed once made.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class PrefixState:
    """Logits float32 [V] of the next token, and the key-value cache behind them."""

    logits: torch.Tensor
    cache: Any

    def forked_cache(self) -> Any:
        """A cache that can be extended. Layers replace their tensors when they grow, so sharing them is safe."""
        fork = copy.copy(self.cache)
        fork.layers = [copy.copy(layer) for layer in self.cache.layers]
        return fork

    @property
    def nbytes(self) -> int:
        """Bytes held by this state alone; states do not share memory."""
        layers = sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in self.cache.layers)
        return layers + int(self.logits.nbytes)


Key = tuple[tuple[int, ...], tuple[int, ...]]


class PrefixStates:
    """Least-recently-used states by (ids of the first pass, ids added one by one), bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._states: OrderedDict[Key, PrefixState] = OrderedDict()
        self._max_bytes, self._bytes = max_bytes, 0

    def get(self, key: Key) -> PrefixState | None:
        """The state, or None."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: Key, state: PrefixState) -> None:
        """Keep it; forget the least recently used ones beyond the bound. A state that alone exceeds it is not kept."""
        if key in self._states or state.nbytes > self._max_bytes:
            return
        self._states[key] = state
        self._bytes += state.nbytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._states.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Forget all: the weights changed."""
        self._states.clear()
        self._bytes = 0
