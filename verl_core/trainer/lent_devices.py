"""LentDevices: inference servers on the trainer's own devices, which serve while the trainer has nothing to train on.

Invariant: when a stage that trains begins, none of these servers is in the pool, none has a request inside, and all
sleep. A request that was inside goes on elsewhere with the tokens it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from verl_core.rollout.servers import Servers
from verl_core.trainer.lending import Lending
from verl_core.weights.interface import WeightManifest

METRIC = "separate_async/lending"


class Pool(Protocol):
    """Who is told which servers there are: the agent workers' manager."""

    def set_servers(self, servers: Mapping[str, Any]) -> None:
        """The pool's members from now on."""


class LentDevices:
    """Args:
    lending: decides.
    own: the rollout's servers, which never leave.
    lent: those on the trainer's devices.
    pool: the agent workers.
    clock: monotonic seconds; replaced in tests.
    """

    def __init__(
        self, lending: Lending, own: Servers, lent: Servers, pool: Pool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lending, self.is_out = lending, True  # whatever an earlier process left
        self._own, self._lent, self._pool, self._clock = own, lent, pool, clock

    def offer(self, ready: int, manifest: Callable[[], WeightManifest]) -> dict[str, float]:
        """After a publication: lend if that pays. `manifest` gives what was published."""
        decision = self.lending.decide(ready)
        metrics = {f"{METRIC}/lent": float(decision.lend), f"{METRIC}/threshold": float(self.lending.threshold)}
        if decision.gain_s is not None:
            metrics[f"{METRIC}/gain_s"] = decision.gain_s
        if decision.cost_s is not None:
            metrics[f"{METRIC}/cost_s"] = decision.cost_s
        if decision.lend:
            started = self._clock()
            self.is_out = True
            self._lent.update_weights(manifest())
            self._lent.wake()
            self._lent.gate("open")
            self._pool.set_servers({**self._own.handles, **self._lent.handles})
            self.lending.switched(True, self._clock() - started)
        return metrics

    def take_back(self) -> None:
        """The trainer wants its devices. Nothing when it has them."""
        if not self.is_out:
            return
        started = self._clock()
        self._pool.set_servers(self._own.handles)  # first nobody sends anything more
        self._lent.gate("reject")  # then what is on its way is sent elsewhere, and never parked here
        self._lent.sleep(abort=True)
        self.is_out = False
        self.lending.switched(False, self._clock() - started)
