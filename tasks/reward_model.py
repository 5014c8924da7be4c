"""The reward model of a run, made once. Invariant: cached by where it lies and by all that decides its weights, the
pairs and the model it starts from included."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.assets import MADE_ONCE, made_key
from tasks.literals import folder_in_place, location
from tasks.ray_config import DRIVER
from verl_core.config import RunConfig, from_dict, stable_hash, to_dict
from verl_core.trainer import assets


class RewardModel(NamedTuple):
    """Folder of a sequence classifier with one label; loss and accuracy on held-out pairs."""

    model: FlyteDirectory
    loss: float
    accuracy: float


@task(requests=DRIVER, cache=MADE_ONCE)
def reward_model(config: dict, place: str, key: str) -> RewardModel:
    """Train the reward model of `reward_training`, from pairs that are read or built."""
    from verl_core.reward_training import train_reward_model

    made = train_reward_model(from_dict(config), place)
    return RewardModel(folder_in_place(made.path), made.loss, made.accuracy)


@task(requests=DRIVER)
def name_reward_model(config: dict, model: FlyteDirectory) -> dict:
    """The configuration that names the trained model."""
    return to_dict(assets.with_reward_model(from_dict(config), location(model)))


def reward_place(config: dict, ready: RunConfig) -> dict[str, str]:
    """Where the model belongs, and the key of its cache.

    Args:
        config: as it was resolved, before assets were named.
        ready: with data files and start policy in place.

    Raises:
        DataError: the pairs cannot be read.
    """
    from verl_core.reward_training import recipe_of

    place = assets.reward_folder(from_dict(config))
    return {"place": place, "key": made_key([place], stable_hash(recipe_of(ready)))}
