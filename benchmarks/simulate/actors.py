"""Actors: what a Session has in place of Ray actors: servers, a policy and a scorer that take virtual time. Invariant:
nothing here decides anything; loop, hooks, stages, feed, buffer and staleness are the product's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.simulate.agents import Agents
from benchmarks.simulate.devices import TrainerSpeed
from benchmarks.simulate.world import World
from verl_core.batch import TrainBatch
from verl_core.engine.interface import LogProbs
from verl_core.reward.interface import Sample
from verl_core.rollout.usage import ServerUsage
from verl_core.trajectory import Reward
from verl_core.weights.interface import WeightManifest

_LOG_PROB_SHARE = 0.25  # of a token's training: one forward pass beside forward and backward (6 + 2 of 8 flops)


class SimulatedServers:
    """`Servers` as the trainer's hooks use them.

    Attributes:
        under_way: weight version that `begin_update` began to load and nobody waited for yet.
    """

    def __init__(self, world: World, agents: Agents, speed: TrainerSpeed) -> None:
        self._world, self._agents, self._speed = world, agents, speed
        self._asleep = False
        self._pending: WeightManifest | None = None
        self.under_way: int | None = None

    def version(self) -> int:
        """Of all servers, -1 when they differ."""
        self.settle()
        versions = {server.version for server in self._world.servers.values()}
        return versions.pop() if len(versions) == 1 else -1

    def sleep(self, level: int = 1, abort: bool = True) -> None:
        """Cut off what runs, then give the devices up."""
        self.settle()
        if self._asleep:
            return
        self._asleep = True
        self._agents.cut()
        self._still(True)
        self._world.advance(self._speed.sleep_s)

    def wake(self) -> None:
        """Go on."""
        self.settle()
        if not self._asleep:
            return
        self._world.advance(self._speed.wake_s)
        self._asleep = False
        self._still(False)
        self._agents.resume()

    def update_weights(self, manifest: WeightManifest) -> None:
        """Receive while awake servers generate; then they stand still to switch, with everything cut off."""
        self.settle()
        self._world.advance(self._speed.publish_s)
        if self._asleep:
            self._set(manifest.version)
            return
        self._agents.cut()
        self._still(True)
        self._world.advance(self._speed.switch_s)
        self._set(manifest.version)
        self._still(False)
        self._agents.resume()

    def begin_update(self, manifest: WeightManifest) -> None:
        """Load and wake while the caller goes on. Nothing that it does meanwhile takes virtual time, so the seconds
        pass when somebody waits."""
        self.settle()
        self._pending, self.under_way = manifest, manifest.version

    def settle(self) -> None:
        """Wait for what `begin_update` began."""
        manifest, self._pending, self.under_way = self._pending, None, None
        if manifest is not None:
            self.update_weights(manifest)
            self.wake()

    def usage(self) -> dict[str, ServerUsage]:
        """Accounts in virtual seconds."""
        accounts = {}
        for name, server in self._world.servers.items():
            server.settle(self._world.now)
            accounts[name] = ServerUsage("simulated", self._world.now, server.busy_s, tokens=server.tokens)
        return accounts

    def _still(self, still: bool) -> None:
        for server in self._world.servers.values():
            server.halt(still, self._world.now)
        self._world.touch(list(self._world.servers.values()))

    def _set(self, version: int) -> None:
        for server in self._world.servers.values():
            server.version = version


class SimulatedPolicy:
    """PolicyEngine: every call takes its time and changes nothing but the step.

    Attributes:
        busy_s: seconds it worked.
    """

    def __init__(self, world: World, agents: Agents, speed: TrainerSpeed) -> None:
        self._world, self._agents, self._speed = world, agents, speed
        self._step = 0
        self.busy_s = 0.0

    def steps_done(self) -> int:
        """See PolicyEngine."""
        return self._step

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """One forward pass."""
        self.work(batch.keys, _LOG_PROB_SHARE)
        zeros = np.zeros(len(batch.response_ids), np.float32)
        return LogProbs(zeros, zeros)

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """Not simulated: a run without reference never asks."""
        raise NotImplementedError("the simulated run has no reference policy")

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """All mini-batches."""
        self.work(batch.keys, 1.0 - _LOG_PROB_SHARE)
        self.close(batch.keys, step)
        return {}

    def work(self, keys: Sequence[str], share: float) -> None:
        """Spend `share` of the training of these trajectories."""
        seconds = share * self._speed.seconds(sum(self._agents.tokens_of[key] for key in keys))
        self.busy_s += seconds
        self._world.advance(seconds)

    def close(self, keys: Sequence[str], step: int) -> None:
        """The weights of `step` are there; these trajectories will not be asked for again."""
        self._step = step
        for key in keys:
            del self._agents.tokens_of[key]

    def publish(self, version: int) -> WeightManifest:
        """Nothing but the number; the time is the servers'."""
        return WeightManifest(version, "shm", "", (), ())

    def save(self, folder: str) -> None:
        """Nothing to save."""

    def load(self, folder: str) -> None:
        """Nothing was saved."""
        raise NotImplementedError("a simulated run starts at step 0 and never resumes")

    def reset(self) -> None:
        """Back to step 0."""
        self._step = 0

    def weights_sha256(self) -> str:
        """No weights."""
        return ""

    def shutdown(self) -> None:
        """Nothing runs."""


class SimulatedScorer:
    """Scores in `step_s`, which stands for everything in a step that does not depend on tokens."""

    def __init__(self, world: World, speed: TrainerSpeed) -> None:
        self._world, self._speed = world, speed

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        """Ones and zeros in turn, so that every group has a gradient."""
        self._world.advance(self._speed.step_s)
        return [Reward(sample.key, float(index % 2)) for index, sample in enumerate(samples)]

    def shutdown(self) -> None:
        """Nothing runs."""


class NoText:
    """Tokenizer of a run whose tokens mean nothing."""

    def batch_decode(self, rows: Sequence[Any]) -> list[str]:
        """Empty texts."""
        return [""] * len(rows)
