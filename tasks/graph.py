"""The shape of a run's graph. Invariant: it stays small enough for the cluster, which keeps its state as one object."""

from __future__ import annotations

from uuid import uuid4

from tasks.place import execution_name
from verl_core.config import RunConfig
from verl_core.errors import ConfigError

MAX_NODES = 400  # above some thousand nodes etcd refuses the object; the console is slow long before
STAGES = 4


def new_meeting() -> str:
    """Under which the two streams of one graph find each other; those of an earlier execution are never found."""
    return f"{execution_name()}-{uuid4().hex[:8]}"


def planned_steps(config: RunConfig) -> range:
    """The steps of the whole run, those included that an earlier attempt finished: their nodes give back what is there.

    Raises:
        DataError, ModelError, CheckpointError: data, model folder or start checkpoint cannot be used.
    """
    from verl_core.data.chat import chat_tokenizer
    from verl_core.data.dataset import training_stream
    from verl_core.record.rundir import RunDir
    from verl_core.trainer.past import first_step_of
    from verl_core.trainer.prompts import total_steps
    from verl_core.trainer.ray_session import run_root

    tokenizer = chat_tokenizer(config)
    total = total_steps(config, training_stream(config, config.data.train_files, tokenizer))
    return range(first_step_of(RunDir(run_root(config)), config), total + 1)


def chunks_of(steps: range, config: RunConfig) -> list[tuple[int, int]]:
    """(first, last) step of each node, or of each chain of four nodes when trainer.steps_per_node is 1.

    Raises:
        ConfigError: the graph would have more than MAX_NODES nodes; says which steps_per_node is enough.
    """
    size = config.trainer.steps_per_node
    pieces = [(first, min(first + size, steps.stop) - 1) for first in range(steps.start, steps.stop, size)]
    nodes = len(pieces) * (STAGES if size == 1 else 1)
    if nodes > MAX_NODES:
        raise ConfigError(
            f"{len(steps)} steps with trainer.steps_per_node={size} make a graph of {nodes} nodes; a cluster keeps at "
            f"most {MAX_NODES}. Set trainer.steps_per_node={max(2, -(-len(steps) // MAX_NODES))} or more."
        )
    return pieces
