"""session: the graph of a run, sized by its configuration: hold_cluster beside begin, steps, finish; or beside the two
streams of an asynchronous run; then release."""

from __future__ import annotations

from typing import Any, NamedTuple

from flytekit import dynamic
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.assets import DataFiles, with_assets
from tasks.cluster import hold_cluster, release
from tasks.graph import chunks_of, new_meeting, planned_steps
from tasks.literals import RolloutReport
from tasks.ray_config import DRIVER, limit, ray_config
from tasks.ray_job import RayTaskConfig
from tasks.reward_model import name_reward_model, reward_model, reward_place
from tasks.step_tasks import PER_TASK, SHARED
from tasks.streaming import StreamingRayConfig
from tasks.streams import rollout_stream, rollout_stream_job, train_stream, train_stream_job
from verl_core.config import RunConfig, to_dict
from verl_core.config.kind import require_kind
from verl_core.config.names import ASYNC_MODES


class TrainResult(NamedTuple):
    """summary.json, report.html, folder of the last checkpoint, steps done, seconds the Ray cluster was held, and what
    the rollout side of an asynchronous run did."""

    summary: FlyteFile
    report: FlyteFile
    checkpoint: FlyteDirectory
    steps: int
    held_s: float
    rollout: RolloutReport


@dynamic(requests=DRIVER)
def session(
    config: dict,
    train: list[FlyteFile],
    val: list[FlyteFile],
    policy: FlyteDirectory,
    teachers: list[FlyteDirectory],
) -> TrainResult:
    """All nodes of the run. The holder has no edge to the steps, nor have the two streams to each other: they run at
    the same time."""
    ready = with_assets(config, DataFiles(train, val), policy, teachers)
    require_kind(ready, supervised=False)  # before a cluster is asked for
    literal: Any
    literal, held, rollout = to_dict(ready), 0.0, RolloutReport()
    if ready.trains_reward_model:
        made = reward_model(config=literal, **reward_place(config, ready)).with_overrides(node_name="reward-model")
        literal = name_reward_model(config=literal, model=made.model).with_overrides(node_name="name-reward-model")
    if ready.ray.mode == "shared":
        size = ray_config(ready.ray, StreamingRayConfig)
        held = hold_cluster(config=literal).with_overrides(
            node_name="cluster", task_config=size, timeout=limit(ready.ray)
        )
    if ready.trainer.use_v1 and ready.trainer.v1.trainer_mode in ASYNC_MODES:
        rollout, done = streams_graph(ready, literal)
    else:
        done = steps_graph(ready, literal)
    end = release(config=literal, after=done.steps, rollout=rollout).with_overrides(node_name="release")
    return TrainResult(done.summary, done.report, done.checkpoint, end.steps, held, end.rollout)


def streams_graph(ready: RunConfig, literal: dict) -> tuple[Any, Any]:
    """Both sides of an asynchronous run; gives their outputs."""
    generate, train, given = rollout_stream, train_stream, {"config": literal, "meeting": new_meeting()}
    sizes: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    if ready.ray.mode == "split":
        generate, train = rollout_stream_job, train_stream_job
        sizes = (
            {"task_config": ray_config(ready.ray, StreamingRayConfig, ready.ray.rollout)},
            {"task_config": ray_config(ready.ray, StreamingRayConfig)},
        )
    extra = {"timeout": limit(ready.ray)}
    rollout = generate(**given).with_overrides(node_name="rollout-stream", **extra, **sizes[0])
    return rollout, train(**given).with_overrides(node_name="train-stream", **extra, **sizes[1])


def steps_graph(ready: RunConfig, literal: dict) -> Any:
    """begin, then four nodes per step or one node per chunk of steps, then finish; gives the outputs of finish."""
    shared = ready.ray.mode == "shared"
    nodes = SHARED if shared else PER_TASK
    extra: dict[str, Any] = {"timeout": limit(ready.ray)}
    if not shared:
        extra["task_config"] = ray_config(ready.ray, RayTaskConfig)
    config, note = nodes.begin(config=literal).with_overrides(node_name="begin", **extra)
    for first, last in chunks_of(planned_steps(ready), ready):
        if ready.trainer.steps_per_node > 1:
            name = f"steps-{first:06d}-{last:06d}"
            done = nodes.steps(config=config, first=first, last=last, after=note)
            note = done.with_overrides(node_name=name, **extra).note
            continue
        for stage in (nodes.rollout, nodes.reward, nodes.advantage, nodes.update):
            done = stage(config=config, step=first, after=note)
            note = done.with_overrides(node_name=f"{stage.__name__.removesuffix('_job')}-{first:06d}", **extra).note
    return nodes.finish(config=config, after=note).with_overrides(node_name="finish", **extra)
