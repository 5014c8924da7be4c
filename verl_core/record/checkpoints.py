"""CheckpointStore: whole checkpoints of one run. Invariant: a crash at any instant leaves a store from which
`newest_whole` gives the newest checkpoint whose `save` returned, or a newer whole one.

Order of a save: files, MANIFEST, fsync, rename to `checkpoints/000012`, then the pointer `latest`, then pruning. A step
that is saved again gets the name `000012.1`, so that nothing is deleted before the pointer moved.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config import RunConfig, from_dict, resume_difference, to_dict
from verl_core.errors import CheckpointError, ConfigError, RecordError
from verl_core.record import disk
from verl_core.record.canonical import plain
from verl_core.record.manifest import NAME as MANIFEST
from verl_core.record.manifest import CheckpointManifest
from verl_core.record.rundir import RunDir

FOLDER = "checkpoints"
LATEST = "latest"

_NAME = re.compile(r"(\d{6,})(?:\.(\d+))?")
_NOT_WHOLE = f"has no {MANIFEST}: its save never finished"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint. `folder` is local; beside an object store it is a copy that lives as long as this object."""

    step: int
    path: str
    folder: Path
    extra: dict[str, Any]
    saved_at: float = 0.0
    _download: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)


class CheckpointStore:
    """Args:
    keep: how many to keep, None = all. The one that `latest` names is never removed.
    config: of this run; saved with each checkpoint, and a checkpoint of another configuration is refused. None = no
        check.
    """

    def __init__(self, rundir: RunDir, keep: int | None = None, config: RunConfig | None = None) -> None:
        if keep is not None and keep < 1:
            raise ConfigError(f"trainer.max_actor_ckpt_to_keep must be at least 1 or null, got {keep}")
        self._rundir, self._keep, self._config = rundir, keep, config
        self._told: set[str] = set()  # broken ones that the log has already

    def save(self, step: int, write: Callable[[Path], None], extra: dict[str, Any]) -> Checkpoint:
        """Make a checkpoint durable and let `latest` name it.

        Args:
            write: fills an empty local folder.
            extra: JSON that belongs to the checkpoint.

        Raises:
            CheckpointError: `write` left nothing in the folder.
        """
        name, extra = self._free_name(step), plain(extra)
        path = f"{FOLDER}/{name}"
        with self._staging(name) as (folder, copy):
            write(folder)
            config = None if self._config is None else to_dict(self._config)
            manifest = CheckpointManifest.of_folder(folder, step, extra, config, round(time.time(), 3))
            if not manifest.files:
                raise CheckpointError(_nothing_written(step, folder))
            (folder / MANIFEST).write_bytes(manifest.to_json())
            self._publish(folder, path, manifest)
        self._rundir.publish_bytes(LATEST, f"{path}\n".encode())
        self._prune(name)
        kept = folder if self._rundir.local is None else self._rundir.local / path
        return Checkpoint(step, path, kept, extra, manifest.saved_at, copy)

    def newest_whole(self, at_most: int | None = None) -> Checkpoint | None:
        """The checkpoint that `latest` names, or when that is broken or of a step after `at_most` the newest whole one
        before it. None when there is none; what can be done without one, the caller knows. A broken one is logged once.

        Raises:
            CheckpointError: the newest whole one is of another configuration.
        """
        for name in self._candidates(at_most):
            path = f"{FOLDER}/{name}"
            try:
                checkpoint = self._open(self._rundir, path, check_config=False)
            except CheckpointError as error:
                if name not in self._told:
                    _log.warning("checkpoint of step %d is broken and was skipped: %s: %s", _key(name)[0], path, error)
                self._told.add(name)
                continue
            self._refuse_other_config(checkpoint.folder, path)
            return checkpoint
        return None

    def open(self, target: int | str, check_config: bool = True) -> Checkpoint:
        """One checkpoint: by step of this run, or by path or URL of a checkpoint folder of any run.

        Raises:
            CheckpointError: it is missing or broken, or (unless check_config is False) of another configuration.
        """
        if isinstance(target, int):
            names = [name for name in self._sorted_names() if _key(name)[0] == target]
            if not names:
                known = ", ".join(str(step) for step in self.steps()) or "none"
                raise CheckpointError(f"no checkpoint of step {target} in {self._rundir.root}; there are: {known}")
            latest = self._latest()
            name = latest if latest in names else names[0]
            return self._open(self._rundir, f"{FOLDER}/{name}", check_config)
        return self._open(*_located(target), check_config)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, broken ones included, in order."""
        return sorted({_key(name)[0] for name in self._sorted_names()})

    def _open(self, rundir: RunDir, path: str, check_config: bool) -> Checkpoint:
        download = None
        if rundir.local is not None:
            folder = rundir.local / path
        else:
            download = tempfile.TemporaryDirectory(prefix="verl-checkpoint-")
            folder = Path(download.name, "checkpoint")
            rundir.storage.download(path, folder)
        try:
            manifest = CheckpointManifest.from_json((folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"it {_NOT_WHOLE}") from None
        manifest.check(folder)
        if check_config:
            self._refuse_other_config(folder, path)
        return Checkpoint(manifest.step, path, folder, manifest.extra, manifest.saved_at, download)

    def _refuse_other_config(self, folder: Path, path: str) -> None:
        saved = CheckpointManifest.from_json((folder / MANIFEST).read_bytes()).config
        if self._config is None or saved is None:
            return
        try:
            differences = resume_difference(from_dict(saved), self._config)
        except ConfigError as error:
            raise CheckpointError(f"checkpoint {path} was saved by a version with other settings: {error}") from error
        if differences:
            raise CheckpointError(
                f"checkpoint {path} in {self._rundir.root} belongs to another configuration: "
                f"{'; '.join(differences)}. Put these settings back, choose another trainer.experiment_name, or branch "
                "from the checkpoint instead."
            )

    def _latest(self) -> str | None:
        """Name that the pointer holds; None without a pointer."""
        if not self._rundir.exists(LATEST):
            return None
        name = self._rundir.read(LATEST).decode(errors="replace").strip().removeprefix(f"{FOLDER}/")
        return name if _NAME.fullmatch(name) else ""

    def _candidates(self, at_most: int | None) -> list[str]:
        """What to try, best first. Checkpoints newer than the pointer's belong to an abandoned line, or to a save that
        did not return: they are not tried while there is a pointer that can be read."""
        latest, names = self._latest(), self._sorted_names()
        if latest:
            names = [latest, *(name for name in names if _key(name)[0] <= _key(latest)[0] and name != latest)]
        return [name for name in names if at_most is None or _key(name)[0] <= at_most]

    def _sorted_names(self) -> list[str]:
        """Names in the folder, newest step and revision first."""
        names = [name for name in self._rundir.names(FOLDER) if _NAME.fullmatch(name)]
        return sorted(names, key=_key, reverse=True)

    def _free_name(self, step: int) -> str:
        taken, name, revision = set(self._rundir.names(FOLDER)), f"{step:06d}", 0
        while name in taken:
            revision += 1
            name = f"{step:06d}.{revision}"
        return name

    @contextmanager
    def _staging(self, name: str) -> Iterator[tuple[Path, tempfile.TemporaryDirectory[str] | None]]:
        """An empty local folder, gone when the block fails; beside an object store also what keeps it alive."""
        if self._rundir.local is None:
            copy = tempfile.TemporaryDirectory(prefix="verl-checkpoint-")
            try:
                yield Path(copy.name), copy
            except Exception:
                copy.cleanup()
                raise
            return
        parent = self._rundir.local / FOLDER
        disk.make_folder(parent)
        folder = parent / disk.temp_name(name)
        os.mkdir(folder)
        try:
            yield folder, None
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _publish(self, folder: Path, path: str, manifest: CheckpointManifest) -> None:
        if self._rundir.local is not None:
            disk.sync_tree(folder)
            os.rename(folder, self._rundir.local / path)
            disk.sync(self._rundir.local / FOLDER)
            return
        for name in [*manifest.files, MANIFEST]:  # the manifest last: it makes the checkpoint whole
            self._rundir.publish_file(f"{path}/{name}", folder / name)

    def _prune(self, newest: str) -> None:
        if self._keep is None:
            return
        line = [name for name in self._sorted_names() if _key(name) <= _key(newest)]
        kept = {newest, *line[: self._keep]}
        for name in self._sorted_names():
            if name not in kept:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """First the mark that makes it a checkpoint, then the bytes."""
        path = f"{FOLDER}/{name}"
        if self._rundir.local is None:
            self._rundir.remove(f"{path}/{MANIFEST}")
            self._rundir.remove(path)
            return
        doomed = self._rundir.local / FOLDER / disk.temp_name(name)
        os.rename(self._rundir.local / path, doomed)
        disk.sync(doomed.parent)
        disk.remove_tree(doomed)


def content_digest(target: str) -> str:
    """Hex sha256 of a checkpoint folder's manifest (path or URL), which holds the hash of each of its files.

    Raises:
        CheckpointError: there is no whole checkpoint.
    """
    rundir, name = _located(target)
    if not rundir.exists(f"{name}/{MANIFEST}"):
        raise CheckpointError(f"{target} {_NOT_WHOLE}")
    return hashlib.sha256(rundir.read(f"{name}/{MANIFEST}")).hexdigest()


def _located(target: str) -> tuple[RunDir, str]:
    """(folder or prefix around it, name) of a checkpoint folder; no folder is created."""
    root, _, name = target.rstrip("/").rpartition("/")
    rundir = RunDir(root or ".") if "://" in target or Path(root or ".").is_dir() else None
    if rundir is None or not rundir.exists(name):
        raise CheckpointError(f"there is no checkpoint folder at {target}")
    return rundir, name


def _nothing_written(step: int, folder: Path) -> str:
    return (
        f"the checkpoint of step {step} has no files: the policy's rank 0 wrote on another host, where {folder} is "
        "another folder. Put trainer.default_local_dir on a file system that all hosts share, or run this process on "
        "the host of rank 0."
    )


def _key(name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise RecordError(f"{name!r} is not the name of a checkpoint folder")
    return int(match[1]), int(match[2] or 0)
