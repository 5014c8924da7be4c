"""PolicyWorker: one rank of the policy. A plain class; `PolicyGroup` makes Ray actors of it, `LocalPolicy` uses it in
process.

Invariant: `steps_done` is true of the weights. An update or a load that broke half way leaves the worker unsettled,
and an unsettled worker does nothing but load.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch

from verl_core.batch import TrainBatch
from verl_core.config import config_hash
from verl_core.config.schema import RunConfig
from verl_core.engine.checkpoint import Progress, load, load_start, save
from verl_core.engine.digest import weights_digest
from verl_core.engine.loading import load_model
from verl_core.engine.model import PolicyModel, check_head
from verl_core.engine.publishing import DTYPES, Publisher, SenderFactory, folder_sender
from verl_core.engine.ranks import Ranks, open_store
from verl_core.engine.schedule import optimizer_steps
from verl_core.engine.scorer import Share, score
from verl_core.engine.sharding import shard, whole_parameters
from verl_core.engine.updater import Updater
from verl_core.errors import PolicyError, ResourceError
from verl_core.weights.interface import WeightManifest

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker says about itself.

    Attributes:
        pid: its process, for those who look from outside.
        identity: of configuration and length of the run; a group of another identity is not attached to.
        settled: the weights are exactly those after `steps_done` steps.
    """

    rank: int
    pid: int
    identity: str
    steps_done: int
    settled: bool


def identity_of(config: RunConfig, total_training_steps: int) -> str:
    """What makes two groups interchangeable."""
    return f"{config_hash(config)}/{total_training_steps}"


class PolicyWorker:
    """Policy, optimizer and, when the run needs one, the frozen reference, on one rank.

    Args:
        rank: 0..config.world_size - 1.
        total_training_steps: global steps of the run: the horizon of the learning rate.
        weights_folder: where weights are published on this host.
        device: cpu or cuda.
        share_cores: limit torch's threads to this rank's share of its host's cores; else leave them alone.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        total_training_steps: int,
        weights_folder: str,
        device: str,
        share_cores: bool = False,
    ) -> None:
        self._config, self._rank = config, rank
        self._total, self._folder, self._device = total_training_steps, weights_folder, device
        self._steps_done, self._settled = 0, False
        if share_cores:
            torch.set_num_threads(share_of_cores(config))

    def rendezvous(self) -> tuple[str, int]:
        """Rank 0: open the meeting point, and say where it is."""
        host = self._address()
        self._store = open_store(host, 0, self._config.world_size, True, self._config.trainer.init_timeout_s)
        return host, self._store.port

    def free_port(self) -> tuple[str, int]:
        """Rank 0: its address, as the servers of the run see it, and a port that was free a moment ago."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return self._address(), int(probe.getsockname()[1])

    def start(self, host: str = "", port: int = 0) -> None:
        """Meet the other ranks (not when alone), read the models, cut them over the ranks.

        Raises:
            ModelError: the model cannot be used.
            ResourceError: the run uses GPUs and this process sees none.
        """
        config = self._config
        device = _device(self._device, self._rank)
        self._ranks = Ranks.alone(device) if config.world_size == 1 else self._join(device, host, port)
        self._model = self._load(config.actor_rollout_ref.model.path)
        check_head(self._model)
        if config.actor_rollout_ref.model.enable_gradient_checkpointing:
            self._model.checkpoint_activations()
        shard(self._model, self._ranks)
        self._reference = self._frozen() if config.needs_reference else None
        self._updater = Updater(self._model, self._ranks, config, optimizer_steps(config, self._total))
        factory = folder_sender(config, device, self._folder)
        dtype = DTYPES[config.actor_rollout_ref.model.dtype]
        self._publisher = Publisher(self._model, self._ranks, dtype, factory)
        self._settled = True

    def status(self) -> WorkerStatus:
        """See WorkerStatus."""
        return WorkerStatus(
            self._rank, os.getpid(), identity_of(self._config, self._total), self._steps_done, self._settled
        )

    def old_log_probs(self, batch: TrainBatch) -> Share:
        """This rank's rows under the current weights, with entropy. Collective."""
        self._refuse_unsettled()
        return score(self._model, self._ranks, batch, self._forward_budget, with_entropy=True)

    def ref_log_probs(self, batch: TrainBatch) -> Share:
        """This rank's rows under the reference. Collective.

        Raises:
            ValueError: the run has no reference.
        """
        if self._reference is None:
            raise ValueError("this run has no reference: set algorithm.use_kl_in_reward or actor.use_kl_loss")
        return score(self._reference, self._ranks, batch, self._forward_budget, with_entropy=False)

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See PolicyEngine. Collective; every rank returns the same metrics."""
        self._refuse_unsettled()
        if step != self._steps_done + 1:
            raise ValueError(
                f"update of step {step} was asked for, the weights are those after step {self._steps_done}"
            )
        before = self._updater.updates_done
        self._settled = False
        try:
            metrics = self._updater.run(batch, step)
        except Exception:
            self._settled = self._updater.updates_done == before  # nothing moved: still those of steps_done
            raise
        self._steps_done, self._settled = step, True
        return metrics

    def publish(self, version: int) -> WeightManifest | None:
        """See PolicyEngine. Collective; None on ranks that have no sender."""
        self._refuse_unsettled()
        return self._publisher.publish(version)

    def use_sender(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on; needed for transports between devices."""
        self._publisher.use(factory)

    def save(self, folder: str) -> None:
        """See PolicyEngine. Collective; rank 0 writes."""
        self._refuse_unsettled()
        progress = Progress(self._steps_done, self._updater.updates_done)
        tokenizer = self._config.actor_rollout_ref.model.path
        save(folder, self._model, self._updater.optimizer, progress, self._ranks, tokenizer)

    def load(self, folder: str) -> None:
        """See PolicyEngine. The reference stays the one of the configuration."""
        self._settled = False
        progress = load(folder, self._model, self._updater.optimizer)
        self._steps_done, self._updater.updates_done = progress.steps_done, progress.updates_done
        self._settled = True

    def reset(self) -> None:
        """See PolicyEngine."""
        self._settled = False
        load_start(self._config.actor_rollout_ref.model.path, self._model)
        self._updater = Updater(self._model, self._ranks, self._config, optimizer_steps(self._config, self._total))
        self._steps_done, self._settled = 0, True

    def weights_sha256(self) -> str:
        """See PolicyEngine. Collective; the same on every rank."""
        return weights_digest(whole_parameters(self._model))

    def close(self) -> None:
        """Leave the group and free the sender."""
        self._publisher.close()
        self._ranks.leave()

    @property
    def _forward_budget(self) -> int:
        return self._config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu

    def _address(self) -> str:
        """Ranks and servers of a run on one node sit on one host."""
        return LOOPBACK if self._config.trainer.nnodes == 1 else socket.gethostbyname(socket.gethostname())

    def _join(self, device: torch.device, host: str, port: int) -> Ranks:
        limit, world = self._config.trainer.init_timeout_s, self._config.world_size
        if self._rank > 0:
            self._store = open_store(host, port, world, False, limit)
        return Ranks.join(self._rank, world, device, self._store, self._config.actor_rollout_ref.actor.call_timeout_s)

    def _load(self, path: str) -> PolicyModel:
        temperature = self._config.actor_rollout_ref.rollout.temperature
        return PolicyModel(load_model(path), temperature, DTYPES[self._config.actor_rollout_ref.model.dtype])

    def _frozen(self) -> PolicyModel:
        reference = self._load(self._config.actor_rollout_ref.model.path)
        reference.requires_grad_(False)
        shard(reference, self._ranks)
        return reference

    def _refuse_unsettled(self) -> None:
        if not self._settled:
            raise PolicyError(
                f"policy rank {self._rank} holds weights between steps {self._steps_done} and {self._steps_done + 1}: "
                "an update or a load broke half way. Load a checkpoint first"
            )


def _device(kind: str, rank: int) -> torch.device:
    """The rank's device. Raises ResourceError where there is none."""
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ResourceError(
            f"policy rank {rank} was placed on a GPU and sees none: check the driver of its node, or set "
            "trainer.device=cpu"
        )
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def share_of_cores(config: RunConfig) -> int:
    """Torch threads of each rank on this host: its cores divided by the ranks on it."""
    return max(1, len(os.sched_getaffinity(0)) // config.trainer.n_gpus_per_node)
