"""The packaged workflows: they compile, every input of a schedule has a value, RayJobs ask for what they should."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from flyteidl.core import literals_pb2
from flytekit.models.core.compiler import CompiledWorkflowClosure
from flytekit.remote.entities import FlyteWorkflow
from google.protobuf.json_format import MessageToDict

from tests.flyte.conftest import IMAGE, PYFLYTE, clean_env
from tests.flyte.propeller import Package, compile_workflow

WORKFLOWS = (
    "workflows.train.train",
    "workflows.evaluate.evaluate",
    "workflows.reward_model.reward_model_training",
    "workflows.sft.train",
    "workflows.warm_start.warm_start",
    "workflows.promotion.train_and_promote",
)


def test_every_workflow_is_packaged(package: Package) -> None:
    assert set(package.workflows) == set(WORKFLOWS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_compiles_and_the_client_reads_it_back(package: Package, name: str) -> None:
    from flyteidl.core import compiler_pb2

    spec = package.workflows[name]
    closure = compiler_pb2.CompiledWorkflowClosure(primary=compile_workflow(spec.template, package))
    closure.sub_workflows.extend(compile_workflow(sub.template, package) for sub in _used(package, name))
    for task in package.tasks.values():
        closure.tasks.add().template.CopyFrom(task.template)
    read = FlyteWorkflow.promote_from_closure(CompiledWorkflowClosure.from_flyte_idl(closure))
    assert [node.id for node in read.flyte_nodes] == [node.id for node in spec.template.nodes]


def _used(package: Package, name: str) -> list:
    """Workflows that are nodes of `name`."""
    nodes = package.workflows[name].template.nodes
    used = [node.workflow_node.sub_workflow_ref.name for node in nodes if node.HasField("workflow_node")]
    return [package.workflows[each] for each in used]


def test_train_is_resolve_then_assets_then_session(package: Package) -> None:
    template = package.workflows["workflows.train.train"].template
    tasks = {node.id: node.task_node.reference_id.name.rpartition(".")[2] for node in template.nodes}
    assert sorted(tasks.values()) == ["prepare_data", "resolve_config", "session", "start_policy", "teacher_policies"]


def test_a_cached_task_ignores_what_does_not_decide_its_content(package: Package) -> None:
    made = {f"tasks.assets.{name}" for name in ("prepare_data", "start_policy", "teacher_policies")}
    made.add("tasks.reward_model.reward_model")
    for name in made:
        metadata = package.tasks[name].template.metadata
        assert metadata.discoverable
        assert list(metadata.cache_ignore_input_vars) == ["config"]
    cached = {name for name, task in package.tasks.items() if task.template.metadata.discoverable}
    assert cached == made | {"tasks.evaluation.score_checkpoint"}


@pytest.mark.parametrize(("name", "cron"), [("nightly_regression", "0 2 * * *"), ("weekly_refresh", "0 4 * * 0")])
def test_a_scheduled_plan_needs_no_input(package: Package, name: str, cron: str) -> None:
    plan = package.plans[name].spec
    wanted = set(package.workflows[plan.workflow_id.name].template.interface.inputs.variables)
    given = {key for key, value in plan.default_inputs.parameters.items() if value.HasField("default")}
    given |= set(plan.fixed_inputs.literals)
    assert given == wanted
    schedule = plan.entity_metadata.schedule
    assert schedule.cron_schedule.schedule == cron
    assert schedule.kickoff_time_input_arg == "kickoff"


def test_the_configurations_of_the_plans_resolve(package: Package) -> None:
    """A schedule must not be the first to find out that a recipe or a key is gone."""
    from flytekit.core.context_manager import FlyteContextManager
    from flytekit.core.type_engine import TypeEngine
    from flytekit.models.literals import Literal

    from tasks.config import require_shared
    from verl_core.config import resolve

    def native(literal: literals_pb2.Literal, kind: type) -> object:
        context = FlyteContextManager.current_context()
        return TypeEngine.to_python_value(context, Literal.from_flyte_idl(literal), kind)

    for name in ("nightly_regression", "weekly_refresh"):
        inputs = package.plans[name].spec.default_inputs.parameters
        config = native(inputs["config"].default, dict)
        overrides = native(inputs["overrides"].default, list[str])
        resolved = resolve(config, overrides).config
        assert resolved.trainer.val_before_train
        require_shared(resolved.trainer.default_local_dir)


def test_the_holder_is_a_ray_job_that_goes_away_at_once(package: Package) -> None:
    template = package.tasks["tasks.cluster.hold_cluster"].template
    job = MessageToDict(template.custom)
    assert template.type == "ray"
    assert job["shutdownAfterJobFinishes"] is True
    assert job.get("ttlSecondsAfterFinished", 0) == 0
    assert template.metadata.timeout.seconds == 0  # the node's own limit, from ray.max_hours, decides


def test_a_step_node_is_a_plain_container_without_devices(package: Package) -> None:
    for stage in ("begin", "rollout", "reward", "advantage", "update", "steps"):
        template = package.tasks[f"tasks.stages.{stage}"].template
        assert template.type == "python-task"
        assert "GPU" not in str(template.container.resources)
        assert package.tasks[f"tasks.stage_jobs.{stage}_job"].template.type == "ray"
        assert template.metadata.retries.retries == 2


def test_decks_do_not_list_the_environment(package: Package) -> None:
    with_deck = {name for name, task in package.tasks.items() if task.template.metadata.generates_deck.value}
    last = {"tasks.finish.finish", "tasks.finish.finish_job", "tasks.sft.fine_tune_job"}
    assert with_deck == last | {"tasks.streams.train_stream", "tasks.streams.train_stream_job"}


def test_registration_passes_offline(image: Path) -> None:
    command = [PYFLYTE, "register", "--dry-run", "--non-fast", "--image", IMAGE, "--version", "v1", "workflows"]
    done = subprocess.run(command, cwd=image, env=clean_env(image), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (*WORKFLOWS, "nightly_regression", "weekly_refresh", "tasks.cluster.hold_cluster"):
        assert f"{name} (Dry run Mode)" in done.stdout
