"""Opening a run: its folder, its lock, its actors. Invariant: one open trainer per run and process; a second
`open_trainer` of the same run gives the first one back, so that Flyte nodes of one local process share everything
that is warm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from verl_core.config import RunConfig, config_hash
from verl_core.data.tokenizer import load_tokenizer
from verl_core.metrics import open_sinks
from verl_core.record.checkpoints import CheckpointStore
from verl_core.record.journal import Journal
from verl_core.record.owner import OwnerLock
from verl_core.record.rundir import RunDir
from verl_core.reward.registry import check_sources
from verl_core.trainer.actors import launch_actors, weights_folder
from verl_core.trainer.past import agree_with_past, start_checkpoint
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.prompts import streams, total_steps
from verl_core.trainer.ray_session import start_ray
from verl_core.trainer.registry import get_trainer_cls
from verl_core.trainer.session import NoLedger, Session
from verl_core.trainer.step_files import StepFiles
from verl_core.transfer.replay_buffer import ReplayBuffer

_OPEN: dict[str, tuple[PPOTrainer, contextlib.ExitStack]] = {}


@contextlib.contextmanager
def open_trainer(config: RunConfig, owner: str | None = None) -> Iterator[PPOTrainer]:
    """The run's trainer. It stays open when the block ends; `close_trainer` ends it.

    Args:
        owner: name under which several processes may hold the run together (a Flyte execution id); None = this one
        only.

    Raises:
        ConfigError, DataError, ModelError, RewardError: before Ray starts.
        ResourceError, DeadlineExceeded: devices or actors are not to be had.
    """
    key = run_root(config)
    if key not in _OPEN:
        with contextlib.ExitStack() as stack:
            trainer = _open(config, owner, stack)
            _OPEN[key] = (trainer, stack.pop_all())
    yield _OPEN[key][0]


def close_trainer(config: RunConfig) -> None:
    """End the run's actors and let its folder go. Idempotent."""
    held = _OPEN.pop(run_root(config), None)
    if held is not None:
        held[1].close()


def run_root(config: RunConfig) -> str:
    """Path or URL of the run directory."""
    return f"{config.trainer.default_local_dir.rstrip('/')}/{config.trainer.experiment_name}"


def _open(config: RunConfig, owner: str | None, stack: contextlib.ExitStack) -> PPOTrainer:
    trainer_cls = get_trainer_cls(config.trainer.v1.trainer_mode)
    run = RunDir(run_root(config))
    stack.enter_context(OwnerLock.acquire(run, owner))
    agree_with_past(run, config)
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    stream, validation = streams(config, tokenizer)
    sources = sorted({row.data_source for row in stream.rows})
    check_sources(sources, config.reward)
    total = total_steps(config, stream)
    journal = Journal(run)
    stack.callback(journal.close)
    sinks = open_sinks(config, run, total)
    stack.callback(sinks.close)
    start_ray(config)
    actors = launch_actors(config, total, sources, weights_folder(config))
    stack.callback(actors.shutdown)
    return trainer_cls(
        Session(
            config=config,
            config_hash=config_hash(config),
            total_steps=total,
            run=run,
            files=StepFiles(run),
            journal=journal,
            checkpoints=CheckpointStore(run, config.trainer.max_actor_ckpt_to_keep, config),
            start_checkpoint=start_checkpoint(run, config),
            stream=stream,
            validation=validation,
            tokenizer=tokenizer,
            policy=actors.policy,
            servers=actors.servers,
            buffer=ReplayBuffer(
                actors.stores[0], config.trainer.v1.buffer, actors.agents.dispatch, journal, stream.reissue
            ),
            validation_buffer=ReplayBuffer(
                actors.stores[1],
                config.trainer.v1.buffer,
                actors.agents.dispatch,
                NoLedger(),
                (validation or stream).reissue,
            ),
            scorer=actors.scorer,
            sinks=sinks,
        )
    )
