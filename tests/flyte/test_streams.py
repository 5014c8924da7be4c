"""An asynchronous run as two long nodes that run at the same time, and how the end of either ends both."""

from __future__ import annotations

import concurrent.futures as cf
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.rendezvous import Pulse, Rendezvous
from tests.flyte.propeller import EXECUTION, Literals, NodeFailed, Package, Propeller
from tests.flyte.test_cli import pyflyte_run
from tests.flyte.test_propeller import TRAIN, address, by_node, dynamic_job, head, inputs, literals
from tests.rollout.local import bound_s
from verl_core.config import RunConfig, resolve, to_dict
from verl_core.record.rundir import RunDir
from verl_core.trainer.ray_session import namespace_of
from verl_core.trainer.run import ready

__all__ = ["address", "head"]
MODES = ("colocate_async", "separate_async")
ROLLOUT, TRAINER = "tasks.streams.rollout_stream", "tasks.streams.train_stream"


def run_in_one_process(repo_root: Path, tmp_path: Path, *overrides: str) -> tuple[int, str, float]:
    """`pyflyte run` of the scripted recipe: exit code, what it printed on one line, and when it ended."""
    given = [f"trainer.default_local_dir={tmp_path}", "trainer.experiment_name=one", *overrides]
    recipe = str(repo_root / "configs" / "scripted.yaml")
    command = ["workflows/train.py", "train", "--config", recipe, "--overrides", json.dumps(given)]
    done = pyflyte_run(repo_root, *command, limit_s=600)
    return done.returncode, " ".join((done.stdout + done.stderr).replace("│", " ").split()), time.time()


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_both_modes_run_under_pyflyte_run(repo_root: Path, tmp_path: Path, mode: str) -> None:
    code, said, _ = run_in_one_process(
        repo_root, tmp_path, f"trainer.v1.trainer_mode={mode}", "trainer.total_training_steps=3"
    )
    assert code == 0, said
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert summary["steps"] == 3
    (folder,) = (tmp_path / "one" / "rendezvous").iterdir()
    accounts = {side: json.loads((folder / side).read_text()) for side in ("rollout", "trainer")}
    assert {side: account["state"] for side, account in accounts.items()} == {"rollout": "done", "trainer": "done"}
    report = re.search(r"RolloutReport\(seconds=([\d.]+), tokens=(\d+), restarts=0\)", said)
    assert report is not None, said
    assert float(report[1]) > 0
    assert int(report[2]) >= 3 * 16 * 2  # 16 samples a step, each with a token and the end token


FAILURES = {
    "rollout": (
        ["actor_rollout_ref.rollout.agent.default_agent_loop=no_such_module.Loop"],
        r"ConfigError.*no_such_module",
    ),
    "trainer": (["reward.custom_reward_function.path={folder}/broken.py"], r"RewardError.*no such table"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("side", list(FAILURES))
def test_an_error_of_either_side_is_what_pyflyte_run_shows(repo_root: Path, tmp_path: Path, side: str) -> None:
    (tmp_path / "broken.py").write_text(
        "def compute_score(*args, **kwargs):\n    raise RuntimeError('no such table')\n"
    )
    overrides, expected = FAILURES[side]
    code, said, ended = run_in_one_process(
        repo_root,
        tmp_path,
        "trainer.v1.trainer_mode=separate_async",
        *(text.format(folder=tmp_path) for text in overrides),
    )
    assert code == 1
    assert re.search(expected, said), said
    (folder,) = (tmp_path / "one" / "rendezvous").iterdir()
    account = json.loads((folder / side).read_text())
    assert account["state"] == "failed"
    assert re.search(expected, " ".join(account["error"].split()))
    assert ended - account["time"] < bound_s("error of the trainer")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_streams_run_at_the_same_time_on_a_held_cluster(
    package: Package, image: Path, address: str, tmp_path: Path
) -> None:
    propeller = Propeller(package, tmp_path / "flyte", image, {"RAY_ADDRESS": address, "VERL_RAY_CLIENT": address})
    given = inputs(
        tmp_path,
        "trainer.v1.trainer_mode=separate_async",
        "trainer.total_training_steps=2",
        "trainer.experiment_name=emulated-streams",
        "ray.max_hours=3",
    )
    outputs = propeller.run(TRAIN, given)

    nodes = by_node(propeller)
    assert {"cluster", "rollout-stream", "train-stream", "release"} < set(nodes)
    assert not {name for name in nodes if name.startswith(("begin", "update", "finish"))}
    assert all(attempt.exit_code == 0 and attempt.number == 0 for attempt in propeller.attempts)
    rollout, train, held = nodes["rollout-stream"], nodes["train-stream"], nodes["cluster"]
    assert rollout.type == train.type == "python-task"
    common = min(rollout.ended, train.ended) - max(rollout.started, train.started)
    assert common > 0.8 * (train.ended - train.started)
    assert held.started < train.started
    assert train.ended < held.ended
    assert nodes["release"].started >= max(rollout.ended, train.ended)

    graph = {node.id: node for node in dynamic_job(tmp_path / "flyte").nodes}
    upstream = {name: {binding.binding.promise.node_id for binding in node.inputs} for name, node in graph.items()}
    assert {frozenset(upstream[name]) for name in ("cluster", "rollout-stream", "train-stream")} == {frozenset({""})}
    assert {"rollout-stream", "train-stream"} <= upstream["release"]
    assert {graph[name].metadata.timeout.seconds for name in ("rollout-stream", "train-stream")} == {3 * 3600}
    assert {graph[name].metadata.retries.retries for name in ("rollout-stream", "train-stream")} == {0}

    run = tmp_path / "runs" / "emulated-streams"
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    assert outputs["steps"].scalar.primitive.integer == 2
    assert outputs["checkpoint"].scalar.blob.uri == str(run / "checkpoints" / "000002")
    decks = list((tmp_path / "flyte").rglob("deck.html"))
    assert [deck.parts[-4] for deck in decks] == ["train-stream"]
    assert "<svg" in decks[0].read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_streams_reach_the_held_cluster_through_ray_client(
    package: Package, image: Path, head: tuple[str, str], tmp_path: Path
) -> None:
    """As on a cluster, where the pods of the two streams have no Ray of their own."""
    inside, outside = head
    propeller = Propeller(package, tmp_path / "flyte", image, {"RAY_ADDRESS": inside, "VERL_RAY_CLIENT": outside})
    overrides = ["trainer.v1.trainer_mode=colocate_async", "trainer.total_training_steps=2"]
    propeller.run(TRAIN, inputs(tmp_path, *overrides, "trainer.experiment_name=emulated-streams-client"))
    run = tmp_path / "runs" / "emulated-streams-client"
    assert json.loads((run / "summary.json").read_text())["steps"] == 2


@dataclass
class Pair:
    """Both streams as processes of their own, without anybody who would end one for the other."""

    propeller: Propeller
    config: RunConfig
    given: Literals
    pool: cf.ThreadPoolExecutor

    def __post_init__(self) -> None:
        self.sides = {side: self.pool.submit(self.propeller.task, side, self.given) for side in (ROLLOUT, TRAINER)}

    def wait_for_step(self, step: int, seconds: float = 300.0) -> None:
        """Until the trainer has done it."""
        record = self.run_dir / "steps" / f"{step:06d}" / "record.json"
        until = time.monotonic() + seconds
        while not record.exists():
            for side in self.sides.values():
                assert not side.done() or side.result()  # raises what ended it
            assert time.monotonic() < until, f"no {record}"
            time.sleep(0.1)

    def ends(self, side: str, fault: str, since: float) -> str:
        """Why the side ended, which must be as soon after `since` as docs/errors.md says."""
        within = bound_s(fault)
        with pytest.raises(NodeFailed) as told:
            self.sides[side].result(timeout=10 * within)
        (attempt,) = self.propeller.spans(side.rpartition(".")[2])
        assert attempt.ended - since < within, told.value
        return " ".join(str(told.value).split())

    @property
    def run_dir(self) -> Path:
        return Path(self.config.trainer.default_local_dir) / self.config.trainer.experiment_name

    def lose(self, actor: str) -> float:
        """An actor of the run is gone for good."""
        import ray

        ray.kill(ray.get_actor(actor, namespace=namespace_of(self.config)))
        return time.monotonic()


@pytest.fixture
def pair(package: Package, image: Path, address: str, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Starts a long run on the session's Ray, which stands for the held cluster."""
    propeller = Propeller(
        package, tmp_path / "flyte", image, {"RAY_ADDRESS": address, "VERL_RAY_CLIENT": address}, aborts=False
    )
    overrides = [
        f"trainer.default_local_dir={tmp_path / 'runs'}",
        "trainer.experiment_name=emulated-pair",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.total_training_steps=5000",
        "trainer.test_freq=-1",
        "data.prepare.val_size=0",
        "ray.up_timeout_s=200",
    ]
    config = ready(resolve({"defaults": ["scripted"]}, overrides).config)
    rendezvous = Rendezvous(RunDir(tmp_path / "runs" / "emulated-pair"), EXECUTION)
    rendezvous.publish(address)
    with Pulse(rendezvous, "holder"), cf.ThreadPoolExecutor(2) as pool:
        yield lambda: Pair(propeller, config, literals(config=to_dict(config), meeting="m"), pool)
        for process in list(propeller._running.values()):
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_rollout_task_ends_the_trainer(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.wait_for_step(1)
    killed = both.propeller.kill(ROLLOUT)
    said = both.ends(TRAINER, "rollout task killed", killed)
    assert "StreamFailed: the rollout side fell silent: no heartbeat for 25 s" in said
    assert "'tokens'" in said  # its last numbers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_trainer_ends_the_rollout_task(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.wait_for_step(1)
    killed = both.propeller.kill(TRAINER)
    assert "StreamFailed: the trainer side fell silent: no heartbeat for 25 s" in both.ends(
        ROLLOUT, "trainer task killed", killed
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_that_is_gone_for_good_ends_both_in_its_words(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.wait_for_step(1)
    lost = both.lose("server-0")
    fault = "a server, agent worker or store process is gone for good"
    for side in (ROLLOUT, TRAINER):  # whichever met it first
        assert "server-0 is gone for good: ActorDiedError" in both.ends(side, fault, lost)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_error_of_the_trainer_ends_both_in_its_words(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.wait_for_step(1)
    lost = both.lose("policy-0")
    said = both.ends(TRAINER, "error of the trainer", lost)
    met = r"(RankFailure|PolicyError): .*policy"  # the call that meets the death first, or one after it
    assert re.search(met, said, re.S), said
    told = both.ends(ROLLOUT, "error of the trainer", lost)
    assert re.search(f"StreamFailed: the trainer side failed: {met}", told, re.S), told


def test_a_graph_names_its_meeting_anew() -> None:
    from tasks.graph import new_meeting

    first, second = new_meeting(), new_meeting()
    assert first != second
    assert re.fullmatch(r"[A-Za-z0-9._-]+", first)  # a folder's name
