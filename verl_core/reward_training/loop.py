"""Training: all steps of a reward model, with checkpoints. Invariant: which pairs a step trains on is a function of the
seed and the step, so a training that goes on from a checkpoint ends with the weights of one that never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from verl_core.config.schema import RewardTrainingConfig, RunConfig
from verl_core.data.order import EpochOrders
from verl_core.data.preferences import Preference
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.engine.checkpoint import Progress, load, save
from verl_core.engine.loading import copy_tokenizer
from verl_core.engine.preference_trainer import PreferenceTrainer
from verl_core.engine.publishing import DTYPES
from verl_core.engine.ranks import Ranks
from verl_core.engine.reward_network import new_reward_network
from verl_core.engine.sharding import shard, whole_parameters
from verl_core.errors import DataError
from verl_core.models.folder import published
from verl_core.warm_start.sft import one_thread

Row = dict[str, float]
_CURVE, _RECIPE = "curve.jsonl", "recipe.txt"
_ORDER = 2  # keeps the random stream of the order apart from those that build pairs


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is trained on, and what is only judged."""

    train: Sequence[Preference]
    held_out: Sequence[Preference]


@dataclass
class Training:
    """A training under way.

    Attributes:
        progress: folder of its newest checkpoint.
        orders: of the pairs, epoch after epoch.
        recipe: digest of what decides the weights; another one's checkpoint is not gone on from.
        curve: one row per checkpoint.
    """

    settings: RewardTrainingConfig
    trainer: PreferenceTrainer
    pairs: Pairs
    orders: EpochOrders
    ranks: Ranks
    base: str
    progress: Path
    recipe: str
    curve: list[Row]

    @classmethod
    def begin(
        cls, config: RunConfig, base: str, tokenizer: ChatTokenizer, pairs: Pairs, progress: Path, recipe: str
    ) -> Training:
        """From the checkpoint in `progress` if it is of this recipe, else from `base`.

        Raises:
            DataError: there are no pairs, or one does not fit into a micro-batch or the model.
            ModelError: `base` cannot be used.
        """
        settings = config.reward_training
        device = torch.device(_device(config.trainer.device))
        pad = tokenizer.inner.pad_token_id
        model = new_reward_network(base, DTYPES[config.actor_rollout_ref.model.dtype], pad)
        _refuse_unfit(pairs, settings.max_token_len_per_gpu // 2, model.max_positions)
        ranks = Ranks.alone(device)
        shard(model, ranks)
        trainer = PreferenceTrainer(model, ranks, settings)
        orders = EpochOrders(len(pairs.train), (settings.seed, _ORDER))
        self = cls(settings, trainer, pairs, orders, ranks, base, progress, recipe, [])
        self._resume()
        return self

    def run(self, say: Callable[[str], None]) -> list[Row]:
        """Train to the last step; a row of numbers for every checkpoint, the start and the end included."""
        with one_thread() if self.ranks.device.type == "cpu" else nullcontext():
            if not self.curve:
                self._note({}, say)
            while self.trainer.steps_done < self.settings.steps:
                numbers = self.trainer.step(self._drawn(self.trainer.steps_done))
                done = self.trainer.steps_done
                if done % self.settings.save_freq == 0 or done == self.settings.steps:
                    self._note(numbers, say)
                    self._save()
        return self.curve

    def write(self, folder: str) -> None:
        """The model in transformers' form with its tokenizer, into an existing folder."""
        model = self.trainer.model
        model.write(folder, {name: tensor.cpu() for name, tensor in whole_parameters(model)})
        copy_tokenizer(self.base, folder)

    def _drawn(self, step: int) -> list[Preference]:
        """The pairs of a step (from 0): epoch after epoch, each in an order of its own."""
        count, size = len(self.pairs.train), self.settings.batch_size
        drawn: list[Preference] = []
        for slot in range(step * size, (step + 1) * size):
            epoch, at = divmod(slot, count)
            drawn.append(self.pairs.train[int(self.orders.of(epoch)[at])])
        return drawn

    def _note(self, numbers: Row, say: Callable[[str], None]) -> None:
        row = {"step": float(self.trainer.steps_done)} | {f"train/{name}": value for name, value in numbers.items()}
        if self.pairs.held_out:
            scores = self.trainer.judge(self.pairs.held_out)
            row |= {"val/loss": scores.loss, "val/accuracy": scores.accuracy, "val/distance": scores.distance}
        self.curve.append(row)
        say(f"step {self.trainer.steps_done}/{self.settings.steps}, " + _words(row))

    def _save(self) -> None:
        done = Progress(self.trainer.steps_done, self.trainer.steps_done)
        with published(self.progress) as scratch:
            save(str(scratch), self.trainer.model, self.trainer.optimizer, done, self.ranks)
            (scratch / _CURVE).write_text("".join(json.dumps(row) + "\n" for row in self.curve))
            (scratch / _RECIPE).write_text(self.recipe)

    def _resume(self) -> None:
        note = self.progress / _RECIPE
        if not note.is_file() or note.read_text() != self.recipe:
            return
        done = load(str(self.progress), self.trainer.model, self.trainer.optimizer)
        self.trainer.steps_done = done.updates_done
        self.curve = [json.loads(line) for line in (self.progress / _CURVE).read_text().splitlines()]


def _refuse_unfit(pairs: Pairs, budget: int, positions: int) -> None:
    if not pairs.train:
        raise DataError("there are no pairs to train on: give reward_training.train_files, or reward_training.pairs")
    longest = max(pair.length for split in (pairs.train, pairs.held_out) for pair in split)
    if longest > budget:
        raise DataError(
            f"a pair has {longest} tokens on one side; reward_training.max_token_len_per_gpu must be twice that"
        )
    if positions and longest > positions:
        raise DataError(f"a pair has {longest} tokens on one side, the model reads {positions}; shorten the data")


def _device(asked: str) -> str:
    if asked != "auto":
        return asked
    return "cuda" if torch.cuda.is_available() else "cpu"


def _words(row: Row) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in row.items() if name.endswith(("loss", "accuracy")))
