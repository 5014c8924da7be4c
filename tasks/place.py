"""Where this code runs: under `pyflyte run` on a laptop, or in a pod of a Flyte execution."""

from __future__ import annotations

from flytekit import current_context
from flytekit.core.context_manager import FlyteContextManager


def is_local() -> bool:
    """True under `pyflyte run` and plain calls, False in a pod."""
    state = FlyteContextManager.current_context().execution_state
    return state is None or state.mode is None or bool(state.is_local_execution())


def execution_name() -> str:
    """Name of the Flyte execution; all nodes of one execution share it."""
    return str(current_context().execution_id.name)
