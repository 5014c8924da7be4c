"""Which failures Flyte may try again. Invariant: a pod that fails for a lost cluster says so in a way that makes
`retries` count, and everything else ends the execution at once.

Flyte's entrypoint reports every exception of a task as final, unless it is a FlyteRecoverableException.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flytekit.exceptions.user import FlyteRecoverableException

from tasks.place import is_local
from verl_core.errors import DeadlineExceeded, EngineDead, PolicyError, ResourceError, StoreError

# ConnectionError is what Ray Client raises when the head is gone.
_PASSING = (ResourceError, DeadlineExceeded, EngineDead, PolicyError, StoreError, ConnectionError)


@contextmanager
def retried() -> Iterator[None]:
    """Failures inside the block that another attempt may not have count against the task's `retries`.

    Raises:
        FlyteRecoverableException: in a pod, in place of such a failure, with its kind and its message. Locally, where
            nothing is tried again, the failure itself is raised.
    """
    try:
        yield
    except Exception as error:
        if is_local() or not is_passing(error):
            raise
        raise FlyteRecoverableException(f"{type(error).__name__}: {error}") from error


def is_passing(error: Exception) -> bool:
    """True if processes, devices or the whole cluster were lost; False if somebody has to change something first."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):  # raised by what an actor did: judged by what that was
        return is_passing(error.cause)
    return isinstance(error, (*_PASSING, RayError))
