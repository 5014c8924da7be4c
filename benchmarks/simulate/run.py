"""One simulated run: the product's trainer over simulated devices. Invariant: what is simulated is in `world`,
`agents`, `store`, `actors` and `memory`; trainer classes, stages, PromptFeed, ReplayBuffer, ServerPool and
StalenessPolicy are imported and run as they are, by virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from benchmarks.simulate.actors import NoText, SimulatedPolicy, SimulatedScorer, SimulatedServers
from benchmarks.simulate.agents import Agents, usage_of
from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import Lengths
from benchmarks.simulate.memory import MemoryFiles, MemoryJournal, NoCheckpoints, Recorder, no_folder, no_lock
from benchmarks.simulate.store import SimulatedStore
from benchmarks.simulate.streaming import streaming
from benchmarks.simulate.world import World
from verl_core.config import RunConfig
from verl_core.data.row import DatasetRow, PromptRow
from verl_core.data.stream import PromptStream
from verl_core.trainer.feed import PromptFeed, feed_plan
from verl_core.trainer.registry import get_trainer_cls
from verl_core.trainer.session import NoLedger, RolloutLedger, Session
from verl_core.transfer.accounting import Accounting
from verl_core.transfer.flight import Clock
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.staleness import staleness_policy

_FOREVER_S = 1e12  # virtual seconds: nothing expires, nothing is polled
_STALL_S = 1e9


@dataclass(frozen=True)
class Setup:
    """Everything a simulated run depends on.

    Attributes:
        mode: sync, colocate_async or separate_async.
        lengths, seed: of the responses.
        servers, server: how many, and how fast each is.
        trainer: speed of the trainer.
        batch_size, n, steps: groups of a step, sessions of a group, steps of the run.
        warmup: batches served ahead.
        strategy, threshold: of staleness; threshold None = no bound.
        prompt_tokens: of each prompt.
        workers: agent workers.
        grain: simulated tokens to a recorded one.
        bell_s: see SimulatedStore.
    streams: 1 = the product's loop, which trains on whole batches; k = training takes a k-th of the batch at a time, as
        verl's separate_async does (`streaming`).
    """

    mode: str
    lengths: Lengths
    servers: int
    server: ServerSpeed
    trainer: TrainerSpeed
    batch_size: int
    n: int
    steps: int
    warmup: float = 1.0
    strategy: str = "drop"
    threshold: int | None = 8
    prompt_tokens: int = 0
    workers: int = 1
    seed: int = 0
    grain: int = 1
    bell_s: float = 0.0
    streams: int = 1

    def config(self) -> RunConfig:
        """As the product's configuration has it."""
        config = RunConfig()
        config.data.train_batch_size = self.batch_size
        config.data.max_response_length = int(self.lengths.longest)
        config.actor_rollout_ref.rollout.n = self.n
        config.actor_rollout_ref.actor.use_kl_loss = False
        config.algorithm.use_kl_in_reward = False
        trainer = config.trainer
        trainer.val_before_train, trainer.test_freq, trainer.save_freq = False, -1, -1
        trainer.total_training_steps = self.steps
        v1 = trainer.v1
        v1.trainer_mode = self.mode
        v1.colocate_async.num_warmup_batches = v1.separate_async.num_warmup_batches = self.warmup
        v1.sampler.max_off_policy_threshold = self.threshold
        v1.sampler.max_off_policy_strategy = cast(Any, self.strategy)
        v1.buffer.lease_s = v1.buffer.poll_s = _FOREVER_S
        v1.buffer.stall_timeout_s = _STALL_S
        return config


@dataclass(frozen=True)
class Outcome:
    """What a run gave, in virtual seconds.

    Attributes:
        closed_at: when each step was closed.
        staleness: mean over the trajectories of each step.
        groups, samples: trained in each step.
        tokens: response tokens that were sampled in all.
        cut_tokens: tokens that resumed requests read again.
        rollout_busy_s: server seconds with a request inside; train_busy_s: seconds of the trainer.
        dropped: groups by kind of reason.
        accounting: of the buffer at the end.
        real_s: seconds that the simulation took.
        lengths: of every group that was generated, by ordinal.
    """

    closed_at: tuple[float, ...]
    staleness: tuple[float, ...]
    staleness_max: tuple[float, ...]
    groups: tuple[float, ...]
    n: int
    servers: int
    tokens: int
    cut_tokens: int
    occupancy_s: float
    rollout_busy_s: float
    train_busy_s: float
    dropped: dict[str, float]
    accounting: Accounting
    real_s: float
    lengths: dict[int, tuple[int, ...]] = field(repr=False, default_factory=dict)

    def window(self, first: int, last: int) -> Window:
        """Of steps first .. last, counted from 1: from the close of the one before `first`."""
        began = self.closed_at[first - 2] if first > 1 else 0.0
        seconds = self.closed_at[last - 1] - began
        rows = range(first - 1, last)
        samples = self.n * sum(self.groups[row] for row in rows)
        return Window(
            seconds=seconds,
            step_s=seconds / len(rows),
            samples_per_s=samples / seconds,
            staleness=float(np.mean([self.staleness[row] for row in rows])),
            staleness_max=max(self.staleness_max[row] for row in rows),
        )

    @property
    def rollout_busy(self) -> float:
        """Share of the servers' seconds."""
        return self.rollout_busy_s / (self.servers * self.closed_at[-1])

    @property
    def train_busy(self) -> float:
        """Share of the trainer's seconds."""
        return self.train_busy_s / self.closed_at[-1]


@dataclass(frozen=True)
class Window:
    """Some steps of a run: seconds, samples per second, staleness in weight versions (mean of steps' means)."""

    seconds: float
    step_s: float
    samples_per_s: float
    staleness: float
    staleness_max: float


def simulate(setup: Setup) -> Outcome:
    """Run it."""
    began = time.perf_counter()
    world = World(setup.servers, setup.server)
    store = SimulatedStore(world, setup.bell_s)
    agents = Agents(
        world, store, setup.lengths, setup.seed, setup.prompt_tokens, min(setup.workers, setup.batch_size), setup.grain
    )
    session, recorder = _session(setup, world, store, agents)
    trainer_cls = get_trainer_cls(setup.mode) if setup.streams == 1 else streaming(setup.streams)
    trainer_cls(session).fit()
    return _outcome(setup, world, agents, session, recorder, time.perf_counter() - began)


def _session(setup: Setup, world: World, store: SimulatedStore, agents: Agents) -> tuple[Session, Recorder]:
    config, cls = setup.config(), get_trainer_cls(setup.mode)
    stream = PromptStream(_rows(setup.batch_size), setup.batch_size, setup.seed, shuffle=False, n=setup.n)
    files, journal, recorder = MemoryFiles(), MemoryJournal(), Recorder(world)
    feed = PromptFeed(stream, feed_plan(config, setup.steps, 0, None, stream), files)
    clock, limits = Clock(world.clock, world.clock), config.trainer.v1.buffer
    ledger = RolloutLedger(cast(Any, journal))
    buffer = ReplayBuffer(
        store,
        limits,
        agents.dispatch,
        ledger,
        stream.reissue,
        clock=clock,
        policy=staleness_policy(config),
        refill=feed.replace if cls.ahead else None,
    )
    session = Session(
        config=config,
        config_hash="simulated",
        total_steps=setup.steps,
        run=no_folder(),
        files=cast(Any, files),
        journal=cast(Any, journal),
        checkpoints=cast(Any, NoCheckpoints()),
        start_checkpoint=None,
        stream=stream,
        feed=feed,
        validation=None,
        tokenizer=cast(Any, NoText()),
        policy=SimulatedPolicy(world, agents, setup.trainer),
        servers=cast(Any, SimulatedServers(world, agents, setup.trainer)),
        buffer=buffer,
        validation_buffer=ReplayBuffer(store, limits, agents.dispatch, NoLedger(), stream.reissue, clock=clock),
        scorer=SimulatedScorer(world, setup.trainer),
        sinks=cast(Any, recorder),
        lock=no_lock(),
        on_policy=cls.on_policy,
        ahead=cls.ahead,
        overlaps=cls.overlaps,
    )
    return session, recorder


def _rows(count: int) -> Sequence[PromptRow]:
    """Prompts of one token each: their true length is a number of the setup."""
    token = np.zeros(1, np.int32)
    return [PromptRow(DatasetRow(row, "simulated", [], "simulated", None), token) for row in range(count)]


def _outcome(
    setup: Setup, world: World, agents: Agents, session: Session, recorder: Recorder, real_s: float
) -> Outcome:
    busy, tokens = usage_of(world.servers, world.now)
    steps = recorder.steps
    kinds = sorted({name for step in steps for name in step if name.startswith("buffer/dropped/")})
    return Outcome(
        closed_at=tuple(recorder.closed_at),
        staleness=tuple(step["training/staleness/mean"] for step in steps),
        staleness_max=tuple(step["training/staleness/max"] for step in steps),
        groups=tuple(step["training/groups"] for step in steps),
        n=setup.n,
        servers=setup.servers,
        tokens=tokens,
        cut_tokens=agents.cut_tokens,
        occupancy_s=sum(server.occupancy_s for server in world.servers.values()),
        rollout_busy_s=busy,
        train_busy_s=cast(SimulatedPolicy, session.policy).busy_s,
        dropped={kind.rpartition("/")[2]: sum(step.get(kind, 0.0) for step in steps) for kind in kinds},
        accounting=session.buffer.accounting(),
        real_s=real_s,
        lengths=agents.lengths_of,
    )
