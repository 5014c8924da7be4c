"""Data files and start policy, made once. Invariant: cached by where the result lies and by all that decides its
content, the rows it is made from included; a result that was deleted since is made again, whatever the cache says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from flytekit import Cache, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.literals import file_in_place, folder_in_place, location
from tasks.ray_config import DRIVER
from verl_core.config import RunConfig, from_dict, stable_hash
from verl_core.record.rundir import file_sha256
from verl_core.trainer import assets

MADE_ONCE = Cache(version="1", serialize=True, ignored_inputs=("config",))


class DataFiles(NamedTuple):
    """Parquet or JSONL in verl's columns; `val` may be empty."""

    train: list[FlyteFile]
    val: list[FlyteFile]


@task(requests=DRIVER, cache=MADE_ONCE)
def prepare_data(config: dict, key: str) -> DataFiles:
    """Build the dataset of `data.prepare`, or name the files that are given."""
    train, val = assets.data_files(from_dict(config))
    return DataFiles([file_in_place(path) for path in train], [file_in_place(path) for path in val])


@task(requests=DRIVER, cache=MADE_ONCE)
def start_policy(config: dict, key: str) -> FlyteDirectory:
    """Train the tiny policy of `warm_start`, or name the model folder that is given."""
    return folder_in_place(assets.model_folder(from_dict(config)))


@task(requests=DRIVER, cache=MADE_ONCE)
def teacher_policies(config: dict, key: str) -> list[FlyteDirectory]:
    """Train the teachers that are made here, in the order of their names; none where all of them are given."""
    return [folder_in_place(folder) for _, folder in sorted(assets.teacher_folders(from_dict(config)).items())]


def data_key(config: RunConfig) -> str:
    """Key of `prepare_data`'s cache: the places of files that are given; of rows that are built, also what from."""
    source = config.data.prepare
    if not source.enabled:
        return made_key([*config.data.train_files, *config.data.val_files])
    return made_key([assets.data_folder(config)], file_digest(source.file) if source.file else "")


def policy_key(config: RunConfig) -> str:
    """Key of `start_policy`'s cache: the place of a model that is given; of one that is made, also its recipe.

    Raises:
        DataError: the rows that the policy would be taught cannot be read.
    """
    if not config.warm_start.enable:
        return made_key([config.actor_rollout_ref.model.path])
    from verl_core.warm_start import recipe_of

    return made_key([assets.policy_folder(config)], stable_hash(recipe_of(config)))


def teachers_key(config: RunConfig) -> str:
    """Key of `teacher_policies`' cache: places and recipes of the teachers that are made.

    Raises:
        DataError: the rows that they would be taught cannot be read.
    """
    making = assets.teachers_made(config)
    if not making:
        return made_key([])
    from verl_core.warm_start import recipe_of

    places = [assets.policy_folder(apart) for apart in making.values()]
    return made_key(places, stable_hash([[name, recipe_of(apart)] for name, apart in making.items()]))


def file_digest(file: str) -> str:
    """Hex sha256 of a local file; empty when there is none, which whoever reads it will tell."""
    return file_sha256(Path(file)) if os.path.isfile(file) else ""


def made_key(places: list[str], content: str = "") -> str:
    """Places and content while all places exist, else a key that no cached result has: flytekit cannot load a cached
    literal whose file was deleted since, so such a result must not be found."""
    there = all(_is_there(place) for place in places)
    return json.dumps([*places, content] if there else [*places, uuid4().hex])


def with_assets(
    config: dict, data: DataFiles, policy: FlyteDirectory, teachers: list[FlyteDirectory] | None = None
) -> RunConfig:
    """The configuration that names data files, policy and teachers by their places."""
    train, val = [location(file) for file in data.train], [location(file) for file in data.val]
    typed = from_dict(config)
    made = dict(zip(sorted(assets.teachers_made(typed)), map(location, teachers or []), strict=bool(teachers)))
    return assets.with_assets(typed, train, val, location(policy), made)


def _is_there(path: str) -> bool:
    return "://" in path or os.path.exists(path)
