"""RankWorker: one rank of a network that is trained. A plain class; a `RankGroup` makes Ray actors of it, the classes
of `local` use it in process.

Invariant: `steps_done` is true of the weights. An update or a load that broke half way leaves the worker unsettled,
and an unsettled worker does nothing but load.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import ClassVar

import torch

from verl_core.batch import TrainBatch
from verl_core.config import config_hash
from verl_core.config.schema import RunConfig
from verl_core.engine.checkpoint import Progress, load, load_start, save
from verl_core.engine.digest import weights_digest
from verl_core.engine.network import Network
from verl_core.engine.ranks import Ranks, open_store
from verl_core.engine.sharding import shard, whole_parameters
from verl_core.engine.training import Training
from verl_core.engine.updater import Updater
from verl_core.errors import PolicyError, ResourceError

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


class RankWorker:
    """Network and optimizer on one rank; a subclass says which.

    Args:
        rank: 0..config.world_size - 1.
        total_training_steps: global steps of the run.
        device: cpu or cuda.
        share_cores: limit torch's threads to this rank's share of its host's cores; else leave them alone.
    """

    noun: ClassVar[str]  # what messages call it

    def __init__(
        self, config: RunConfig, rank: int, total_training_steps: int, device: str, share_cores: bool = False
    ) -> None:
        self._config, self._rank = config, rank
        self._total, self._device = total_training_steps, device
        self._steps_done, self._settled = 0, False
        if share_cores:
            torch.set_num_threads(share_of_cores(config))

    def training(self) -> Training:
        """How the network is trained."""
        raise NotImplementedError

    def build(self) -> Network:
        """The network as it starts, whole, on the host. Raises ModelError: the folder cannot be used."""
        raise NotImplementedError

    @property
    def start_folder(self) -> str:
        """Where the network starts from."""
        raise NotImplementedError

    def corner(self, folder: str) -> str:
        """Where in a checkpoint the network lies."""
        return folder

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
        """Meet the other ranks (not when alone), read the model, cut it over the ranks.

        Raises:
            ModelError: the model cannot be used.
            ResourceError: the run uses GPUs and this process sees none.
        """
        device = _device(self._device, self._rank, self.noun)
        self._ranks = Ranks.alone(device) if self._config.world_size == 1 else self._join(device, host, port)
        self._model = self.build()
        shard(self._model, self._ranks)
        self._updater = self._new_updater()
        self._settled = True

    def status(self) -> WorkerStatus:
        """See WorkerStatus."""
        return WorkerStatus(
            self._rank, os.getpid(), identity_of(self._config, self._total), self._steps_done, self._settled
        )

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See TrainedEngine. Collective; every rank returns the same metrics."""
        self._refuse_unsettled()
        if step != self._steps_done + 1:
            raise ValueError(
                f"update of step {step} was asked for, the weights are those after step {self._steps_done}"
            )
        before = self._updater.updates_done
        self._settled = False
        try:
            metrics = self._trained(batch, step)
        except Exception:
            self._settled = self._updater.updates_done == before  # nothing moved: still those of steps_done
            raise
        self._steps_done, self._settled = step, True
        return metrics

    def save(self, folder: str) -> None:
        """See TrainedEngine. Collective; rank 0 writes."""
        self._refuse_unsettled()
        progress = Progress(self._steps_done, self._updater.updates_done)
        save(self.corner(folder), self._model, self._updater.optimizer, progress, self._ranks, self._tokenizer)

    def load(self, folder: str) -> None:
        """See TrainedEngine."""
        self._settled = False
        progress = load(self.corner(folder), self._model, self._updater.optimizer)
        self._steps_done, self._updater.updates_done = progress.steps_done, progress.updates_done
        self._settled = True

    def reset(self) -> None:
        """See TrainedEngine."""
        self._settled = False
        load_start(self.start_folder, self._model)
        self._updater = self._new_updater()
        self._steps_done, self._settled = 0, True

    def weights_sha256(self) -> str:
        """See TrainedEngine. Collective; the same on every rank."""
        return weights_digest(whole_parameters(self._model))

    def close(self) -> None:
        """Leave the group."""
        self._ranks.leave()

    @property
    def _tokenizer(self) -> str:
        """Where the tokenizer that is saved beside the network comes from; empty = it needs none."""
        return ""

    def _trained(self, batch: TrainBatch, step: int) -> dict[str, float]:
        return self._updater.run(batch, step)

    def _new_updater(self) -> Updater:
        return Updater(self._model, self._ranks, self.training(), self._config.trainer.seed)

    def _address(self) -> str:
        """Ranks and servers of a run on one node sit on one host."""
        return LOOPBACK if self._config.trainer.nnodes == 1 else socket.gethostbyname(socket.gethostname())

    def _join(self, device: torch.device, host: str, port: int) -> Ranks:
        limit, world = self._config.trainer.init_timeout_s, self._config.world_size
        if self._rank > 0:
            self._store = open_store(host, port, world, False, limit)
        return Ranks.join(self._rank, world, device, self._store, self._config.actor_rollout_ref.actor.call_timeout_s)

    def _refuse_unsettled(self) -> None:
        if not self._settled:
            raise PolicyError(
                f"{self.noun} rank {self._rank} holds weights between steps {self._steps_done} and "
                f"{self._steps_done + 1}: an update or a load broke half way. Load a checkpoint first"
            )


def _device(kind: str, rank: int, noun: str) -> torch.device:
    """The rank's device. Raises ResourceError where there is none."""
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ResourceError(
            f"{noun} rank {rank} was placed on a GPU and sees none: check the driver of its node, or set "
            "trainer.device=cpu"
        )
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def share_of_cores(config: RunConfig) -> int:
    """Torch threads of each rank on this host: its cores divided by the ranks on it."""
    return max(1, len(os.sched_getaffinity(0)) // config.trainer.n_gpus_per_node)
