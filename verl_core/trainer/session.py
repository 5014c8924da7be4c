"""Session: one process' hold on a run: its folder, its journal and its actors.

Invariant: the policy and the servers are brought to the asked-for step before they are used. What is missing or
behind is rebuilt from the newest whole checkpoint and the stored batches after it, so that a fresh process (a Flyte
node, a resume) and the process that never stopped do the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.algorithms.kl_control import KLController, build_kl_controller
from verl_core.config import RunConfig
from verl_core.data.row import DatasetRow
from verl_core.data.stream import PromptStream
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.engine.interface import CriticEngine, PolicyEngine, TrainedEngine
from verl_core.metrics import MetricSinks
from verl_core.record.checkpoints import Checkpoint, CheckpointStore
from verl_core.record.journal import Journal
from verl_core.record.owner import OwnerLock
from verl_core.record.rundir import RunDir
from verl_core.reward.interface import Scorer
from verl_core.rollout.servers import Servers
from verl_core.rollout.teachers.group import Teachers
from verl_core.rollout.usage import ServerUsage
from verl_core.trainer.feed import PromptFeed
from verl_core.trainer.lent_devices import LentDevices
from verl_core.trainer.restore import bring_to
from verl_core.trainer.step_files import StepFiles
from verl_core.trajectory import Prompt
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.weights.interface import WeightManifest

# Generating and training; the rest of a step is overhead.
WORK = ("gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "teacher")
OVERLAP = "perf/overlap_s"
KL_STATE = "actor/reward_kl_penalty_coeff_next"


class NoLedger:
    """Validation prompts are not accounted for: they are asked again and again by design."""

    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        """Nothing."""


class RolloutLedger:
    """The journal as the replay buffer sees it. The buffer's groups end when their trajectories are on disk; that
    they are trained is known, and journaled, only when their step's record is written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        """Everything but `trained`."""
        if event != "trained":
            self._journal.record(event, uids, **detail)


@dataclass
class Session:
    """Everything a stage needs. Built by `verl_core.trainer.open.open_trainer`.

    Attributes:
        start_checkpoint: what the run started from; None = the start policy.
        on_policy: whether every token of step t must come from version t - 1.
        ahead: whether prompts are served before the step that needs them.
        overlaps: whether servers generate while the trainer works.
        lent: servers on the trainer's devices; None where nothing is lent.
        critic: None where no estimator reads values.
        teachers: None without distillation.
        began: when this process began to serve the step that it is in.
        waited: seconds of this step for which it waited for servers to load weights, before that.
        noted: numbers that hooks leave for the record of the step.
        feed: serves the training prompts of `stream`, in the order of its sampler where it has one.
        validation: the validation prompts, None without a validation set.
        buffer, validation_buffer: separate books; validation prompts are not accounted for.
        check: raises when the run cannot go on; called at stage boundaries and while groups are waited for.
    """

    config: RunConfig
    config_hash: str
    total_steps: int
    run: RunDir
    files: StepFiles
    journal: Journal
    checkpoints: CheckpointStore
    start_checkpoint: Checkpoint | None
    stream: PromptStream
    feed: PromptFeed
    validation: PromptStream | None
    tokenizer: ChatTokenizer
    policy: PolicyEngine
    servers: Servers
    buffer: ReplayBuffer
    validation_buffer: ReplayBuffer
    scorer: Scorer
    sinks: MetricSinks
    lock: OwnerLock
    on_policy: bool
    ahead: bool
    overlaps: bool
    check: Callable[[], None] = lambda: None
    lent: LentDevices | None = None
    critic: CriticEngine | None = None
    teachers: Teachers | None = None
    noted: dict[str, float] = field(default_factory=dict)
    _used: dict[str, ServerUsage] = field(default_factory=dict)
    _published: WeightManifest | None = None
    waited: float = 0.0
    began: float = 0.0
    _clock: dict[int, float] = field(default_factory=dict)
    _ended: tuple[int, float] = (-1, 0.0)  # the last step that ended in this process, and when

    # ---- where the run stands

    @property
    def start_step(self) -> int:
        """Step of the weights that the run starts from: 0, or that of the checkpoint it was told to start from."""
        return self.start_checkpoint.step if self.start_checkpoint is not None else 0

    def first_open_step(self) -> int:
        """The first step without a record."""
        return self.files.first_open_step(self.start_step)

    def note_resume(self) -> None:
        """Tell the journal that what was claimed for unfinished steps is open again. Nothing on a fresh run."""
        if self.journal.position > 0:
            step = self.first_open_step()
            rolled_out = step if self.files.finished("rollout", step) is not None else step - 1
            self.journal.resumed(step - 1, rolled_out=rolled_out)

    def saves_at(self, step: int) -> bool:
        """Whether the step ends with a checkpoint: the last one always does."""
        freq = self.config.trainer.save_freq
        return step == self.total_steps or (freq > 0 and step % freq == 0)

    def validates_at(self, step: int) -> bool:
        """Whether the step ends with a validation."""
        freq = self.config.trainer.test_freq
        return self.validation is not None and freq > 0 and (step == self.total_steps or step % freq == 0)

    # ---- prompts

    def validation_prompts(self, step: int) -> list[Prompt]:
        """All validation prompts; their uids differ from step to step."""
        if self.validation is None:
            return []
        rows = len(self.validation.rows)
        self.validation.seek(step * rows)
        return self.validation.take(rows, step)

    def truth_of(self, ordinal: int, validation: bool = False) -> tuple[Any, dict[str, Any]]:
        """(ground truth, extra info) of the row that was served at `ordinal`."""
        row = self._row_at(ordinal, validation)
        return row.ground_truth, row.extra_info

    def messages_of(self, ordinal: int, validation: bool = False) -> list[dict[str, Any]]:
        """The chat of the row that was served at `ordinal`."""
        return self._row_at(ordinal, validation).messages

    def _row_at(self, ordinal: int, validation: bool) -> DatasetRow:
        stream = self.validation if validation else self.stream
        if stream is None:
            raise ValueError("there is no validation set")
        return stream.row_at(ordinal)

    # ---- policy and servers

    @property
    def trained(self) -> dict[str, TrainedEngine]:
        """What an update trains, in its order, by name."""
        critic: dict[str, TrainedEngine] = {} if self.critic is None else {"critic": self.critic}
        return {**critic, "actor": self.policy}

    def stands_at(self, step: int) -> bool:
        """Whether all weights are those of the end of `step`; cheap."""
        return all(engine.steps_done() == step for engine in self.trained.values())

    def restore(self, step: int) -> None:
        """Bring all weights to the end of `step`, each network for itself: an update reads nothing but the batch."""
        for engine in self.trained.values():
            if engine.steps_done() != step:
                bring_to(self, engine, step)

    def wake_servers(self, version: int) -> None:
        """Servers awake, serving `version`. The policy holds that version when they do not."""
        self.publish(version)
        self.servers.wake()

    def publish(self, version: int) -> None:
        """Servers serve `version`; nothing when they do."""
        if self.servers.version() != version:
            self._published = self.policy.publish(version)
            self.servers.update_weights(self._published)

    def publish_soon(self, version: int) -> None:
        """Weights published; sleeping servers load them and wake while this process goes on. `settle_servers`, or the
        next command to the servers, waits for that."""
        self._published = self.policy.publish(version)
        self.servers.begin_update(self._published)

    def settle_servers(self) -> None:
        """Wait for what `publish_soon` began; the seconds are added to `waited`."""
        started = time.perf_counter()
        self.servers.settle()
        self.waited += time.perf_counter() - started

    def offer_devices(self, step: int) -> None:
        """After the publication of `step`: lend the trainer's devices if that pays and another step comes, and keep
        what was learnt. Nothing where none are lent."""
        if self.lent is None:
            return
        if step < self.total_steps:
            ready = self.buffer.sampleable(step + 1)
            self.noted |= self.lent.offer(ready, lambda: self._published or self.policy.publish(step))
        self.files.save_lending(step, self.lent.lending.state_dict())

    def save_checkpoint(self, step: int) -> str:
        """Checkpoint everything that changes; returns the folder's path or URL."""
        feed = self.feed.state_after(step)
        stream = {**self.stream.identity(), "ordinal": feed.next}
        kl = self.kl_control(step + 1).state_dict()
        state = {"stream": stream, "feed": feed.to_json(), "kl": kl, "step": step}
        if self.feed.sampling is not None:
            state["sampler"] = self.feed.sampling.after(step)
        if self.lent is not None:
            state["lending"] = self.lent.lending.state_dict()
        saved = self.checkpoints.save(step, self._save_trained, state)
        return self.run.url(saved.path)

    def _save_trained(self, folder: Path) -> None:
        for engine in self.trained.values():
            engine.save(str(folder))

    def kl_control(self, step: int) -> KLController:
        """The controller of the KL in the reward as it stands before `step`: its value travels in the step's
        numbers."""
        control = build_kl_controller(self.config.algorithm.kl_ctrl)
        if step - 1 > self.start_step:
            known = self.files.metrics(step - 1, ("advantage",))
            if KL_STATE in known:
                control.load_state_dict({"kl_coef": known[KL_STATE]})
        elif self.start_checkpoint is not None:
            control.load_state_dict(self.start_checkpoint.extra["kl"])
        return control

    # ---- numbers

    def used_since(self) -> list[ServerUsage]:
        """What each server did since the last call."""
        before, self._used = self._used, self.servers.usage()
        return [used.since(before.get(name)) for name, used in self._used.items()]

    @contextmanager
    def training(self, name: str, metrics: dict[str, float]) -> Iterator[None]:
        """Around work of the trainer's devices: its seconds as `timing_s/{name}`, and, where servers generate
        meanwhile, for how many of them one did, at least, added to `perf/overlap_s`."""
        before = self.servers.usage() if self.overlaps else {}
        started = time.perf_counter()
        yield
        metrics[f"timing_s/{name}"] = time.perf_counter() - started
        if self.overlaps:
            since = [used.since(before.get(server)) for server, used in self.servers.usage().items()]
            both = min(max((used.busy_s for used in since), default=0.0), metrics[f"timing_s/{name}"])
            metrics[OVERLAP] = metrics.get(OVERLAP, 0.0) + both

    def start_clock(self, step: int) -> None:
        """The step begins, in this process: where the one before ended, so nothing between steps is left out."""
        self.waited, self.noted = 0.0, {}
        before, ended = self._ended
        self._clock = {step: ended if before == step - 1 else time.perf_counter()}

    def step_clock(self, step: int, metrics: dict[str, float], tokens: int) -> dict[str, float]:
        """Wall time of the step that ends now, without validation, and what follows from it.

        A step whose rollout was done by another process, or before a crash, counts the seconds of its stages instead.

        Args:
            metrics: of all stages of the step.
            tokens: prompt and response tokens of the step.
        """
        worked = sum(metrics.get(f"timing_s/{part}", 0.0) for part in WORK)
        testing = metrics.get("timing_s/testing", 0.0)
        if step in self._clock:
            now = time.perf_counter()
            seconds, self._ended = now - self._clock[step] - testing, (step, now)
        else:
            seconds = sum(value for name, value in metrics.items() if name.startswith("timing_s/")) - testing
        return {
            "timing_s/step": seconds,
            "perf/time_per_step": seconds,
            "perf/total_num_tokens": float(tokens),
            "perf/throughput": tokens / max(seconds, 1e-9) / self.config.num_devices,
            "perf/overhead_share": max(0.0, 1.0 - worked / max(seconds, 1e-9)),
        }
