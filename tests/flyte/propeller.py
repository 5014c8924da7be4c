"""An emulator of FlytePropeller: runs a packaged workflow, each node through the real container entrypoint.

Stands for the cluster in tests. For a node it writes inputs.pb, fills the templates of the container's arguments, runs
them in a fresh process with a pod's environment and reads outputs.pb, futures.pb or error.pb, as propeller's plugins
do. Independent nodes run together; one failure ends the others. It proves imports, types, wiring, dynamic graphs and
retries; not admission, pods, KubeRay, quotas or the console.
"""

from __future__ import annotations

import concurrent.futures as cf
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
from flyteidl.admin import launch_plan_pb2, task_pb2, workflow_pb2
from flyteidl.core import compiler_pb2, dynamic_job_pb2, errors_pb2, literals_pb2
from flyteidl.core import workflow_pb2 as core_workflow

Literals = dict[str, literals_pb2.Literal]
EXECUTION = "emulated"
CRASHED = "container ended without a word"


@dataclass(frozen=True)
class Package:
    """What `pyflyte package` wrote, by name."""

    tasks: dict[str, task_pb2.TaskSpec]
    workflows: dict[str, workflow_pb2.WorkflowSpec]
    plans: dict[str, launch_plan_pb2.LaunchPlan]


def load_package(path: Path) -> Package:
    """The entities of a package file; the number at the end of a member's name is its resource type."""
    package = Package({}, {}, {})
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if not member.name.endswith(".pb"):
                continue
            data, kind = archive.extractfile(member).read(), member.name.removesuffix(".pb").rpartition("_")[2]
            if kind == "1":
                task = task_pb2.TaskSpec.FromString(data)
                package.tasks[task.template.id.name] = task
            elif kind == "2":
                workflow = workflow_pb2.WorkflowSpec.FromString(data)
                package.workflows[workflow.template.id.name] = workflow
            elif kind == "3":
                plan = launch_plan_pb2.LaunchPlan.FromString(data)
                package.plans[plan.id.name] = plan
    return package


def upstream(node: core_workflow.Node) -> set[str]:
    """Ids of the nodes that must end before this one."""
    found = set(node.upstream_node_ids)
    for binding in node.inputs:
        found |= set(_promised(binding.binding))
    return found - {"", "start-node"}


def _promised(data: literals_pb2.BindingData) -> Iterator[str]:
    kind = data.WhichOneof("value")
    if kind == "promise":
        yield data.promise.node_id
    parts = data.collection.bindings if kind == "collection" else data.map.bindings.values() if kind == "map" else ()
    for part in parts:
        yield from _promised(part)


def compile_workflow(template: core_workflow.WorkflowTemplate, package: Package) -> compiler_pb2.CompiledWorkflow:
    """What the control plane makes of a workflow: checks ids, bindings and order, and adds the connections.

    Raises:
        ValueError: an unknown node, input or task, an input that nothing is bound to, or a cycle.
    """
    compiled = compiler_pb2.CompiledWorkflow(template=template)
    ids = {node.id for node in template.nodes}
    for node in template.nodes:
        if missing := upstream(node) - ids:
            raise ValueError(f"{node.id} depends on unknown nodes {missing}")
        for source in sorted(upstream(node)):
            compiled.connections.upstream[node.id].ids.append(source)
            compiled.connections.downstream[source].ids.append(node.id)
        wanted, bound = set(_interface(node, package)), {binding.var for binding in node.inputs}
        if wanted != bound:
            raise ValueError(f"{node.id}: unknown inputs {bound - wanted}, unbound inputs {wanted - bound}")
    done: set[str] = set()
    while done != ids:
        ready = {node.id for node in template.nodes if node.id not in done and upstream(node) <= done}
        if not ready:
            raise ValueError(f"a cycle among {sorted(ids - done)}")
        done |= ready
    return compiled


def _interface(node: core_workflow.Node, package: Package) -> Sequence[str]:
    kind = node.WhichOneof("target")
    if kind == "task_node":
        return package.tasks[node.task_node.reference_id.name].template.interface.inputs.variables
    return package.workflows[_workflow_name(node)].template.interface.inputs.variables


def _workflow_name(node: core_workflow.Node) -> str:
    reference = node.workflow_node
    return getattr(reference, reference.WhichOneof("reference")).name


@dataclass(frozen=True)
class Attempt:
    """One container that ran: node path, task name and type, seconds, exit code, and the log for a look."""

    node: str
    task: str
    type: str
    number: int
    started: float
    ended: float
    exit_code: int
    log: Path


class NodeFailed(RuntimeError):
    """A node failed for good."""


@dataclass
class Propeller:
    """Args:
    package: entities to run.
    root: folder for inputs, outputs and logs of all nodes.
    image: folder that stands for the image's working directory.
    env: environment on top of what every pod gets.
    node_s: limit of one container, seconds.
    aborts: whether the failure of one node ends the others; False shows what they do by themselves.
    """

    package: Package
    root: Path
    image: Path
    env: Mapping[str, str] = field(default_factory=dict)
    node_s: float = 900.0
    aborts: bool = True
    attempts: list[Attempt] = field(default_factory=list)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, workflow: str, inputs: Literals) -> Literals:
        """Outputs of a workflow; inputs that are not given come from its default launch plan."""
        defaults = self.package.plans[workflow].spec.default_inputs.parameters
        given = {name: parameter.default for name, parameter in defaults.items() if parameter.HasField("default")}
        template = self.package.workflows[workflow].template
        return self._graph(template.nodes, {**given, **inputs}, template.outputs, "", self.package.tasks)

    def task(self, name: str, inputs: Literals) -> Literals:
        """Outputs of one task, as the only node of a graph."""
        template = self.package.tasks[name].template
        return self._tries(template, template.metadata.retries.retries, inputs, name, self.package.tasks)

    def kill(self, here: str) -> float:
        """SIGKILL the container of a node, as a lost host does; the moment, on the clock of `Attempt`."""
        process = self._running[here]
        process.kill()
        return time.monotonic()

    def spans(self, name: str) -> list[Attempt]:
        """Attempts of nodes of a task."""
        return [attempt for attempt in self.attempts if attempt.task == name]

    def _graph(self, nodes, inputs: Literals, outputs, path: str, tasks) -> Literals:
        done: dict[str, Literals] = {"": inputs, "start-node": inputs}
        pending, running = {node.id: node for node in nodes}, {}
        with cf.ThreadPoolExecutor(16) as pool:
            while pending or running:
                for key in [key for key, node in pending.items() if upstream(node) <= set(done)]:
                    running[pool.submit(self._node, pending.pop(key), done, path, tasks)] = key
                for future in cf.wait(running, return_when=cf.FIRST_COMPLETED).done:
                    key = running.pop(future)
                    if future.exception() is not None:
                        self._abort()
                        raise future.exception()
                    done[key] = future.result()
        return {binding.var: resolve(binding.binding, done) for binding in outputs}

    def _abort(self) -> None:
        if not self.aborts:
            return
        self._stop.set()
        for process in list(self._running.values()):
            process.terminate()

    def _node(self, node, done, path: str, tasks) -> Literals:
        inputs = {binding.var: resolve(binding.binding, done) for binding in node.inputs}
        here = f"{path}/{node.id}".lstrip("/")
        if node.WhichOneof("target") == "workflow_node":
            template = self.package.workflows[_workflow_name(node)].template
            return self._graph(template.nodes, inputs, template.outputs, here, tasks)
        template = tasks[node.task_node.reference_id.name].template
        retries = max(node.metadata.retries.retries, template.metadata.retries.retries)
        return self._tries(template, retries, inputs, here, tasks)

    def _tries(self, template, retries: int, inputs: Literals, here: str, tasks) -> Literals:
        for number in range(retries + 1):
            outcome = self._attempt(template, inputs, here, number, tasks)
            if not isinstance(outcome, str):
                return outcome
            if self._stop.is_set() or (number == retries) or not outcome.startswith((CRASHED, "RECOVERABLE")):
                raise NodeFailed(f"{here}: {outcome}")
        raise NodeFailed(here)

    def _attempt(self, template, inputs: Literals, here: str, number: int, tasks) -> Literals | str:
        """Outputs, or why there are none."""
        folder = self.root / here / str(number)
        for name in ("out", "raw", "checkpoint"):
            (folder / name).mkdir(parents=True)
        (folder / "inputs.pb").write_bytes(literals_pb2.LiteralMap(literals=inputs).SerializeToString())
        code = self._container(template, folder, here, number)
        error, futures, outputs = (folder / "out" / name for name in ("error.pb", "futures.pb", "outputs.pb"))
        if error.exists():
            said = errors_pb2.ErrorDocument.FromString(error.read_bytes()).error
            return f"{errors_pb2.ContainerError.Kind.Name(said.kind)} {said.code}: {said.message}"
        if futures.exists():
            job = dynamic_job_pb2.DynamicJobSpec.FromString(futures.read_bytes())
            known = {**tasks, **{task.id.name: task_pb2.TaskSpec(template=task) for task in job.tasks}}
            return self._graph(job.nodes, inputs, job.outputs, here, known)
        if outputs.exists():
            return dict(literals_pb2.LiteralMap.FromString(outputs.read_bytes()).literals)
        return f"{CRASHED}: exit code {code}, see {folder / 'log.txt'}"

    def _container(self, template, folder: Path, here: str, number: int) -> int:
        places = {
            "{{.input}}": f"file://{folder / 'inputs.pb'}",
            "{{.outputPrefix}}": f"file://{folder / 'out'}",
            "{{.rawOutputDataPrefix}}": f"{folder / 'raw'}",
            "{{.checkpointOutputPrefix}}": f"file://{folder / 'checkpoint'}",
            "{{.prevCheckpointPrefix}}": "",
        }
        arguments = []
        for argument in template.container.args:
            for mark, value in places.items():
                argument = argument.replace(mark, value)
            arguments.append("" if argument == '""' else argument)
        started = time.monotonic()
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                arguments, cwd=self.image, env=self._pod_env(template, number), stdout=log, stderr=subprocess.STDOUT
            )
            self._running[here] = process
            try:
                code = process.wait(self.node_s)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            del self._running[here]
        name = template.id.name.rpartition(".")[2]
        ended = time.monotonic()
        self.attempts.append(Attempt(here, name, template.type, number, started, ended, code, folder / "log.txt"))
        return code

    def _pod_env(self, template, number: int) -> dict[str, str]:
        identity = template.id
        own = {
            "FLYTE_INTERNAL_EXECUTION_ID": EXECUTION,
            "FLYTE_INTERNAL_EXECUTION_PROJECT": identity.project,
            "FLYTE_INTERNAL_EXECUTION_DOMAIN": identity.domain,
            "FLYTE_INTERNAL_PROJECT": identity.project,
            "FLYTE_INTERNAL_DOMAIN": identity.domain,
            "FLYTE_INTERNAL_NAME": identity.name,
            "FLYTE_INTERNAL_VERSION": identity.version,
            "FLYTE_INTERNAL_TASK_NAME": identity.name,
            "FLYTE_INTERNAL_TASK_VERSION": identity.version,
            "FLYTE_ATTEMPT_NUMBER": str(number),
            "PYTHONPATH": str(self.image),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        return {**os.environ, **{pair.key: pair.value for pair in template.container.env}, **own, **self.env}


def resolve(data: literals_pb2.BindingData, done: Mapping[str, Literals]) -> literals_pb2.Literal:
    """The literal behind a binding, attribute paths into lists, maps and dataclasses followed."""
    kind = data.WhichOneof("value")
    literal = literals_pb2.Literal()
    if kind == "promise":
        literal = done[data.promise.node_id][data.promise.var]
        for step in data.promise.attr_path:
            literal = _attribute(literal, step)
    elif kind == "collection":
        literal.collection.literals.extend(resolve(part, done) for part in data.collection.bindings)
        literal.collection.SetInParent()
    elif kind == "map":
        for name, part in data.map.bindings.items():
            literal.map.literals[name].CopyFrom(resolve(part, done))
        literal.map.SetInParent()
    else:
        literal.scalar.CopyFrom(data.scalar)
    return literal


def _attribute(literal: literals_pb2.Literal, step: literals_pb2.PromiseAttribute) -> literals_pb2.Literal:
    if step.WhichOneof("value") == "int_value":
        return literal.collection.literals[step.int_value]
    if literal.HasField("map"):
        return literal.map.literals[step.string_value]
    value = msgpack.unpackb(literal.scalar.binary.value)[step.string_value]
    found = literals_pb2.Literal()
    found.scalar.binary.value, found.scalar.binary.tag = msgpack.packb(value), "msgpack"
    return found
