"""What the run directory already holds. Invariant: a directory is never continued under another configuration."""

from __future__ import annotations

import yaml

from verl_core.config import RunConfig, from_dict, resume_difference, to_yaml
from verl_core.errors import CheckpointError, ConfigError
from verl_core.record.checkpoints import Checkpoint, CheckpointStore
from verl_core.record.rundir import CONFIG, RunDir


def agree_with_past(run: RunDir, config: RunConfig) -> None:
    """Write the configuration into a fresh directory; compare it with what a used one was started with.

    Raises:
        ConfigError: the directory is in use and trainer.resume_mode=disable, or it belongs to another configuration.
    """
    if run.exists(CONFIG):
        if config.trainer.resume_mode == "disable":
            raise ConfigError(
                f"{run.root} holds a run already and trainer.resume_mode=disable. Choose another "
                "trainer.experiment_name, remove the directory, or set trainer.resume_mode=auto to go on with it."
            )
        differences = resume_difference(from_dict(yaml.safe_load(run.read(CONFIG))), config)
        if differences:
            raise ConfigError(
                f"{run.root} belongs to another configuration: {'; '.join(differences)}. Put these settings back, or "
                "choose another trainer.experiment_name."
            )
    run.publish_bytes(CONFIG, to_yaml(config).encode())


def start_checkpoint(run: RunDir, config: RunConfig) -> Checkpoint | None:
    """The checkpoint that `trainer.resume_mode=resume_path` names, of this run or another.

    Raises:
        CheckpointError: it is missing or broken.
    """
    if config.trainer.resume_mode != "resume_path":
        return None
    try:
        return CheckpointStore(run).open(config.trainer.resume_from_path, check_config=False)
    except CheckpointError as error:
        raise CheckpointError(f"trainer.resume_from_path={config.trainer.resume_from_path!r}: {error}") from error
