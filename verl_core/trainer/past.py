"""What the run directory already holds, and where the run started. Invariant: a directory is never continued under
another configuration, from another start, or on other data.

    config.yaml    the settings, published once the run is open
    start.json     step and digest of the weights it started from, identity of the data, who opened it first
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from verl_core.config import RunConfig, from_dict, resume_difference, to_yaml
from verl_core.errors import CheckpointError, ConfigError, DataError
from verl_core.record.checkpoints import Checkpoint, CheckpointStore, content_digest
from verl_core.record.journal import PATH as JOURNAL
from verl_core.record.rundir import CONFIG, RunDir

START = "start.json"


@dataclass(frozen=True)
class Start:
    """Where a run started.

    Attributes:
        step: 0, or that of the checkpoint it was told to start from.
        checkpoint: path or URL of that checkpoint; empty = the start policy of the configuration.
        digest: of the checkpoint's manifest.
        data: identity of the training rows and their order.
        owner: execution that opened the run first; empty without one.
    """

    step: int
    checkpoint: str
    digest: str
    data: dict[str, Any]
    owner: str = ""


def agree_with_past(run: RunDir, config: RunConfig, owner: str | None = None) -> None:
    """Compare a used directory with what it was started with. An attempt that never got to work leaves no trace here.

    Raises:
        ConfigError: the directory is in use and trainer.resume_mode=disable, or it belongs to another configuration.
    """
    if not run.exists(CONFIG):
        return
    known = known_start(run)
    mine = owner is not None and known is not None and known.owner == owner
    if config.trainer.resume_mode == "disable" and not mine and run.exists(JOURNAL):
        raise ConfigError(
            f"{run.root} holds a run already and trainer.resume_mode=disable. Choose another "
            "trainer.experiment_name, remove the directory, or set trainer.resume_mode=auto to go on with it."
        )
    differences = resume_difference(from_dict(yaml.safe_load(run.read(CONFIG))), config)
    if differences:
        raise ConfigError(
            f"{run.root} belongs to another configuration: {'; '.join(differences)}. Put these settings back, "
            "choose another trainer.experiment_name, or remove the directory if nothing of it is wanted."
        )


def known_start(run: RunDir) -> Start | None:
    """Where the run of this directory started; None before its first opening."""
    return Start(**json.loads(run.read(START))) if run.exists(START) else None


def first_step_of(run: RunDir, config: RunConfig) -> int:
    """Step after the start of this run. Raises CheckpointError like `start_of`."""
    known = known_start(run)
    if known is not None:
        return known.step + 1
    if config.trainer.resume_mode != "resume_path":
        return 1
    return _opened(run, config.trainer.resume_from_path).step + 1


def start_of(
    run: RunDir, config: RunConfig, data: dict[str, Any], owner: str | None
) -> tuple[Start, Checkpoint | None]:
    """Where this run starts: as recorded, else as configured, which is not recorded yet.

    Raises:
        CheckpointError: trainer.resume_from_path is missing or broken, or not the checkpoint that the run started from.
        DataError: the data files hold other rows than when the run started.
    """
    known = known_start(run)
    asked = config.trainer.resume_from_path if config.trainer.resume_mode == "resume_path" else ""
    path = asked or (known.checkpoint if known is not None else "")
    checkpoint = _opened(run, path) if path else None
    digest = content_digest(path) if checkpoint else ""
    start = Start(checkpoint.step if checkpoint else 0, path, digest, data, owner or "")
    if known is None:
        return start, checkpoint
    if known.digest != digest:
        raise CheckpointError(
            f"{run.root} started from {known.checkpoint or 'the start policy'}, trainer.resume_from_path names "
            f"{asked}. To branch from it choose another trainer.experiment_name; to go on set trainer.resume_mode=auto."
        )
    if known.data != data:
        raise DataError(
            f"the training data is not what {run.root} was started with: {_difference(known.data, data)}. Put the "
            "files back, or choose another trainer.experiment_name."
        )
    return known, checkpoint


def record_opening(run: RunDir, config: RunConfig, start: Start) -> None:
    """The run is open and will work: write its start down (once) and its settings."""
    if not run.exists(START):
        run.publish_bytes(START, json.dumps(asdict(start), indent=1, sort_keys=True).encode())
    run.publish_bytes(CONFIG, to_yaml(config).encode())


def _opened(run: RunDir, path: str) -> Checkpoint:
    try:
        return CheckpointStore(run).open(path, check_config=False)
    except CheckpointError as error:
        raise CheckpointError(f"trainer.resume_from_path={path!r}: {error}") from error


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    return "; ".join(f"{key}: {before.get(key)} -> {after[key]}" for key in after if before.get(key) != after[key])
