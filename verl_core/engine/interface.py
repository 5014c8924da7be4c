"""What the trainer asks of the models: a policy, and where the estimator needs one a critic. Each is one driver-side
object in front of N ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from verl_core.batch import TrainBatch
from verl_core.trajectory import Float32
from verl_core.weights.interface import WeightManifest


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Flat columns aligned with TrainBatch.response_ids: float32 nats; `entropy` is None for the reference. `squares`,
    the sum over the vocabulary of squared probabilities, is there where the run's estimator reads it.
    """

    log_probs: Float32
    entropy: Float32 | None = None
    squares: Float32 | None = None


class TrainedEngine(Protocol):
    """A network that is trained step by step. Every call is bounded by a deadline.

    `steps_done` is the number of global steps whose update is in the weights; it is what makes Flyte nodes idempotent.
    An update reads nothing but the batch, so networks may be brought to a step one by one.
    """

    def steps_done(self) -> int:
        """Global step of the weights now held."""

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """All mini-batches and epochs of one global step; then steps_done == step. Returns metrics named as in verl.

        Raises:
            ValueError: step != steps_done() + 1.
        """

    def save(self, folder: str) -> None:
        """Write the network, optimizer, schedule and steps_done into the local folder of a checkpoint, each kind of
        network in its own corner. The caller makes it visible atomically."""

    def load(self, folder: str) -> None:
        """Inverse of `save`.

        Raises:
            CheckpointError: the folder is broken, or has no such network.
        """

    def reset(self) -> None:
        """Back to the start: the weights of the configuration, fresh optimizer and schedule, steps_done 0."""

    def weights_sha256(self) -> str:
        """Digest over names, dtypes, shapes and bytes of all trained parameters in name order."""

    def shutdown(self) -> None:
        """End the ranks."""


class CriticEngine(TrainedEngine, Protocol):
    """The critic."""

    def values(self, batch: TrainBatch) -> Float32:
        """float32 flat, aligned with TrainBatch.response_ids, in units of reward: what the current weights expect of
        the state before each token."""


class PolicyEngine(TrainedEngine, Protocol):
    """Policy (trained) and, when the run needs one, the frozen reference."""

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """Log-probs of the responses under the current weights at the rollout temperature, and the entropy."""

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """Same under the reference."""

    def publish(self, version: int) -> WeightManifest:
        """Publish the current weights for the servers."""
