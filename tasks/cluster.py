"""hold_cluster: the task whose RayJob owns the devices for as long as the run lasts, and release, which ends it.

Invariant: the holder never outlives the run. It ends with the stop marker, with an error when no node was at work for
too long, and with its RayJob when any node of the execution fails.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from flytekit import task

from tasks.connect import rendezvous_of, run_of
from tasks.literals import RolloutReport
from tasks.place import is_local
from tasks.ray_config import SUBMITTER, ray_config
from tasks.rendezvous import SILENCE_S, Pulse, Rendezvous
from tasks.streaming import StreamingRayConfig
from verl_core.config import from_dict
from verl_core.config.schema import RayConfig
from verl_core.deadline import Deadline

_POLL_S = 2.0


class Released(NamedTuple):
    """Steps that are done, and what the rollout side did."""

    steps: int
    rollout: RolloutReport


# Size and time limit are those of the configuration: `session` puts them in place before the node is made.
@task(task_config=ray_config(RayConfig(), StreamingRayConfig), requests=SUBMITTER, retries=1)
def hold_cluster(config: dict) -> float:
    """Hold the Ray cluster until the run is over; gives the seconds it was held. Locally there is nothing to hold."""
    if is_local():
        return 0.0
    started, typed = time.monotonic(), from_dict(config)
    rendezvous = rendezvous_of(typed)
    with Pulse(rendezvous, "holder"):
        rendezvous.publish(own_address())
        wait_for_stop(rendezvous, idle_s=typed.ray.up_timeout_s, longest_s=typed.ray.max_hours * 3600)
    return time.monotonic() - started


@task(requests=SUBMITTER)
def release(config: dict, after: int, rollout: RolloutReport) -> Released:
    """The run is over: end its actors and let the cluster go. `after`, the last step, and what the rollout side
    reports, if there was one, put this node behind both."""
    from verl_core.trainer.open import close_trainer

    typed = from_dict(config)
    if is_local():
        close_trainer(typed)
    else:
        rendezvous_of(typed).stop()
        run_of(typed).remove("weights")  # what ray.mode=split published
    return Released(after, rollout)


def own_address() -> str:
    """Where nodes reach the cluster of this task: Ray Client on this pod, unless the platform says otherwise."""
    ip = os.environ.get("MY_POD_IP", "127.0.0.1")  # set by KubeRay
    return os.environ.get("VERL_RAY_CLIENT") or f"ray://{ip}:10001"


def wait_for_stop(rendezvous: Rendezvous, idle_s: float, longest_s: float) -> None:
    """Block until the stop marker.

    Raises:
        DeadlineExceeded: no node was at work for `idle_s`, or the run lasted longer than `longest_s`.
    """
    whole = Deadline("the end of the run that uses this cluster", longest_s, rendezvous.state)
    idle = Deadline("a node that uses this cluster", idle_s, rendezvous.state)
    while not rendezvous.stopped():
        whole.check()
        if rendezvous.silence("driver") < min(idle_s, SILENCE_S):
            idle = Deadline(idle.name, idle_s, rendezvous.state)
        idle.check()
        time.sleep(_POLL_S)
