"""Opening a run: its folder, its lock, its actors. Invariant: one open trainer per run and process; a second
`open_trainer` of the same run gives the first one back, so that Flyte nodes of one local process share everything
that is warm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from verl_core.config import RunConfig, config_hash
from verl_core.config.kind import require_kind
from verl_core.data.chat import chat_tokenizer
from verl_core.data.stream import PromptStream
from verl_core.metrics import open_sinks
from verl_core.record.checkpoints import Checkpoint, CheckpointStore
from verl_core.record.journal import Journal
from verl_core.record.owner import OwnerLock
from verl_core.record.rundir import RunDir
from verl_core.reward.registry import check_sources
from verl_core.trainer.actors import RunActors, launch_actors, weights_folder
from verl_core.trainer.away import Away
from verl_core.trainer.feed import FeedPlan, PromptFeed, feed_plan
from verl_core.trainer.lending import Lending
from verl_core.trainer.lent_devices import LentDevices
from verl_core.trainer.past import agree_with_past, record_opening, start_of
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.prompts import streams, total_steps
from verl_core.trainer.ray_session import run_root, start_ray
from verl_core.trainer.registry import get_trainer_cls
from verl_core.trainer.sampling import SamplingBook, mean_scores
from verl_core.trainer.scoring import check_reward_model
from verl_core.trainer.session import NoLedger, RolloutLedger, Session
from verl_core.trainer.stages.reward import scored_groups
from verl_core.trainer.step_files import StepFiles
from verl_core.trainer.teachers import check_teachers
from verl_core.transfer.availability import require_transfer_queue
from verl_core.transfer.constant_groups import constant_groups
from verl_core.transfer.refills import Cap
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.staleness import staleness_policy


@dataclass(frozen=True)
class _Held:
    """An open run: `own` ends what belongs to this process, the actors outlive it."""

    trainer: PPOTrainer
    actors: RunActors
    own: contextlib.ExitStack


_OPEN: dict[str, _Held] = {}


@contextlib.contextmanager
def open_trainer(
    config: RunConfig,
    owner: str | None = None,
    check: Callable[[], None] = lambda: None,
    away: Away | None = None,
) -> Iterator[PPOTrainer]:
    """The run's trainer. It stays open when the block ends: `close_trainer` ends the run's actors, `leave_trainer`
    does not.

    Args:
        owner: name under which several processes may hold the run together (a Flyte execution id); None = this one
            only.
        check: see Session.
        away: the rollout side, when another Ray cluster has it.

    Raises:
        ConfigError, DataError, ModelError, RewardError: before Ray starts.
        ResourceError, DeadlineExceeded: devices or actors are not to be had.
    """
    require_kind(config, supervised=False)
    key = run_root(config)
    if key in _OPEN and _OPEN[key].trainer.session.config_hash != config_hash(config):
        close_trainer(config)
    if key not in _OPEN:
        with contextlib.ExitStack() as stack:
            trainer, actors = _open(config, owner, away, stack)
            _OPEN[key] = _Held(trainer, actors, stack.pop_all())
    _OPEN[key].trainer.session.check = check
    yield _OPEN[key].trainer


def close_trainer(config: RunConfig) -> None:
    """End the run's actors and let its folder go. Idempotent."""
    held = _OPEN.pop(run_root(config), None)
    if held is not None:
        try:
            held.own.close()
        finally:
            held.actors.shutdown()


def leave_trainer(config: RunConfig) -> None:
    """Let the run's folder go and leave its actors to the next process. Idempotent."""
    held = _OPEN.pop(run_root(config), None)
    if held is not None:
        held.own.close()


def lent_devices(
    config: RunConfig, actors: RunActors, state: dict[str, Any] | None, start: Checkpoint | None
) -> LentDevices | None:
    """The servers on the trainer's devices, with what earlier steps of the run, or of the one it started from, taught
    about lending; None unless they are lent."""
    if actors.lent is None:
        return None
    lending = Lending(
        config.trainer.v1.separate_async.hybrid_rollout,
        rollout_devices=len(actors.servers.handles),
        trainer_devices=config.world_size,
        batch=config.data.train_batch_size,
        mini_batch=config.actor_rollout_ref.actor.ppo_mini_batch_size,
    )
    known = state or (start.extra.get("lending") if start is not None else None)
    if known is not None:
        lending.load_state_dict(known)
    return LentDevices(lending, actors.servers, actors.lent, actors.agents)


def _sampling(config: RunConfig, stream: PromptStream, plan: FeedPlan, files: StepFiles) -> SamplingBook | None:
    """The book of the stream's sampler, which it asks for what other processes drew; None without a sampler."""
    if stream.sampled is None:
        return None

    def outcomes(step: int) -> dict[int, float]:
        return mean_scores(files.trajectories(step), files.rewards(step), config.greedy_session)

    book = SamplingBook(stream.sampled, files, plan.start_step, plan.start_sampling, outcomes, config.greedy_session)
    stream.recover = book.recover
    return book


def _open(
    config: RunConfig, owner: str | None, away: Away | None, own: contextlib.ExitStack
) -> tuple[PPOTrainer, RunActors]:
    trainer_cls = get_trainer_cls(config.trainer.v1.trainer_mode)
    run = RunDir(run_root(config))
    lock = own.enter_context(OwnerLock.acquire(run, owner))
    agree_with_past(run, config, owner)
    if config.trainer.use_v1:
        require_transfer_queue()
    tokenizer = chat_tokenizer(config)
    stream, validation = streams(config, tokenizer)
    sources = sorted({row.source.data_source for rows in (stream, validation) if rows for row in rows.rows})
    check_sources(sources, config.reward)
    total = total_steps(config, stream)
    check_teachers(config, sources)
    check_reward_model(config)
    start, checkpoint = start_of(run, config, stream.identity(), owner)
    files = StepFiles(run)
    done = files.first_open_step(start.step) - 1
    journal = own.enter_context(contextlib.closing(Journal(run)))
    sinks = own.enter_context(open_sinks(config, run, total, done))
    start_ray(config)
    actors = launch_actors(config, total, sources, weights_folder(config), away)
    own.callback(actors.leave)
    guard = own.enter_context(contextlib.ExitStack())
    guard.callback(actors.shutdown)  # until the run is open
    limits, dispatch = config.trainer.v1.buffer, actors.agents.dispatch
    asked = validation or stream
    plan = feed_plan(config, total, start.step, checkpoint, stream)
    feed = PromptFeed(stream, plan, files, _sampling(config, stream, plan, files))
    filtered = config.algorithm.filter_groups
    buffer = ReplayBuffer(
        actors.stores[0],
        limits,
        dispatch,
        RolloutLedger(journal),
        stream.reissue,
        policy=staleness_policy(config),
        refill=feed.replace if trainer_cls.ahead or filtered.enable else None,
        filters=[constant_groups(filtered.metric)] if filtered.enable else [],
        check=lambda: session.check(),
        score=(lambda groups: scored_groups(session, groups)) if filtered.enable else None,
        kept=feed.kept,
        cap=Cap(filtered.max_num_gen_batches, filtered.when_capped),
    )
    session: Session = Session(
        config=config,
        config_hash=config_hash(config),
        total_steps=total,
        run=run,
        files=files,
        journal=journal,
        checkpoints=CheckpointStore(run, config.trainer.max_actor_ckpt_to_keep, config),
        start_checkpoint=checkpoint,
        stream=stream,
        feed=feed,
        validation=validation,
        tokenizer=tokenizer,
        policy=actors.policy,
        critic=actors.critic,
        teachers=actors.teachers,
        servers=actors.servers,
        buffer=buffer,
        validation_buffer=ReplayBuffer(
            actors.stores[1], limits, dispatch, NoLedger(), asked.reissue, check=lambda: session.check()
        ),
        scorer=actors.scorer,
        sinks=sinks,
        lock=lock,
        lent=lent_devices(config, actors, files.lending(done), checkpoint),
        on_policy=trainer_cls.on_policy,
        ahead=trainer_cls.ahead,
        overlaps=trainer_cls.overlaps,
    )
    record_opening(run, config, start)
    trainer = trainer_cls(session)
    guard.pop_all()
    return trainer, actors
