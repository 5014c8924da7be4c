"""CriticWorker: one rank of the critic. Invariant: in a checkpoint it lies in a folder of its own, so the policy's is
the same with and without a critic."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from verl_core.batch import TrainBatch
from verl_core.engine.publishing import DTYPES
from verl_core.engine.rank_worker import RankWorker
from verl_core.engine.scorer import ValueShare, score_values
from verl_core.engine.training import Training, critic_training
from verl_core.engine.value_model import ValueModel, value_model
from verl_core.errors import CheckpointError

CORNER = "critic"


class CriticWorker(RankWorker):
    """Critic and its optimizer, on one rank."""

    noun: ClassVar[str] = "critic"
    _model: ValueModel

    def training(self) -> Training:
        """See RankWorker."""
        return critic_training(self._config, self._total)

    @property
    def start_folder(self) -> str:
        """See RankWorker."""
        return self._config.critic_path

    def build(self) -> ValueModel:
        """See RankWorker."""
        model = value_model(self.start_folder, DTYPES[self._config.actor_rollout_ref.model.dtype])
        if self._config.critic.model.enable_gradient_checkpointing:
            model.checkpoint_activations()
        return model

    def corner(self, folder: str) -> str:
        """See RankWorker."""
        return str(Path(folder) / CORNER)

    def load(self, folder: str) -> None:
        """See TrainedEngine."""
        if not Path(self.corner(folder)).is_dir():
            raise CheckpointError(
                f"the checkpoint {folder!r} has no critic: its run trained without one. To go on from its policy, "
                f"start a new run with actor_rollout_ref.model.path={folder} and trainer.critic_warmup"
            )
        super().load(folder)

    def values(self, batch: TrainBatch) -> ValueShare:
        """This rank's rows. Collective."""
        self._refuse_unsettled()
        budget = self._config.critic.beside(self._config.actor_rollout_ref.actor).forward_budget
        return score_values(self._model, self._ranks, batch, budget)
