"""Literals name files where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from flytekit import task, workflow
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.assets import data_key, prepare_data, with_assets
from tasks.literals import StageNote, StageResult, file_in_place, folder_in_place, location, stage_result
from verl_core.config import resolve, to_dict
from verl_core.trainer.stage import StageOutput


@task
def give(path: str) -> StageResult:
    """A stage's literals."""
    return stage_result(StageOutput("update", 3, path, "ab" * 32, {"actor/loss": 0.25}, "some/where/000003"))


@task
def folder(path: str) -> FlyteDirectory:
    """A folder's literal."""
    return folder_in_place(path)


@task
def places(file: FlyteFile, directory: FlyteDirectory, note: StageNote) -> list[str]:
    """Where they lie, as the next node sees it."""
    return [location(file), location(directory), note.stage, str(note.step), note.checkpoint, str(note.metrics)]


@workflow
def handed_on(file: str, directory: str) -> list[str]:
    """Out of one node, into the next."""
    given = give(path=file)
    return places(file=given.file, directory=folder(path=directory), note=given.note)


def test_a_local_file_is_neither_copied_nor_renamed(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(b"x")
    found = handed_on(file=str(file), directory=str(tmp_path))
    assert found == [str(file), str(tmp_path), "update", "3", "some/where/000003", "{'actor/loss': 0.25}"]


def test_a_url_stays_a_url() -> None:
    """No download: nobody could reach these."""
    found = handed_on(file="s3://nowhere/runs/a.parquet", directory="s3://nowhere/runs/checkpoint")
    assert found[:2] == ["s3://nowhere/runs/a.parquet", "s3://nowhere/runs/checkpoint"]


def test_a_cached_result_is_found_only_while_its_files_are_there(tmp_path: Path) -> None:
    """flytekit cannot load a cached literal whose file was deleted since."""
    config = resolve({"defaults": ["scripted"]}, [f"trainer.default_local_dir={tmp_path}"]).config
    assert data_key(config) != data_key(config)  # nothing there: a key that no result has
    made = prepare_data(config=to_dict(config), key="k")
    assert data_key(config) == data_key(config)
    other = resolve({"defaults": ["scripted"]}, [f"trainer.default_local_dir={tmp_path}", "data.prepare.seed=9"]).config
    assert data_key(other) != data_key(config)
    ready = with_assets(to_dict(config), made, folder_in_place(str(tmp_path)))
    assert ready.data.train_files == [location(made.train[0])]
    assert ready.actor_rollout_ref.model.path == str(tmp_path)


@pytest.mark.parametrize("path", ["a/b", "s3://bucket/b"])
def test_location_of_a_fresh_literal(path: str) -> None:
    assert location(file_in_place(path)) == path
    assert location(folder_in_place(path)) == path
