"""The killable process, with real hangs, exits and crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_core.config.schema.reward import CustomRewardConfig, RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.interface import Sample
from verl_core.reward.process import RewardProcess
from verl_core.reward.progress import Progress
from verl_core.reward.wire import packed_reward, packed_samples, unpacked_rewards
from verl_core.trajectory import Reward

USER = str(Path(__file__).with_name("user_rewards.py"))
LIMIT_S = 1.0


def samples(*solutions: str) -> list[Sample]:
    return [Sample(f"k{i}", "any", solution, None, {}) for i, solution in enumerate(solutions)]


def process_of(path: str, name: str = "compute_score", timeout_s: float = LIMIT_S) -> RewardProcess:
    custom = CustomRewardConfig(path, name)
    return RewardProcess(RewardConfig(timeout_s=timeout_s, custom_reward_function=custom))


@pytest.fixture
def process() -> Iterator[RewardProcess]:
    found = process_of(USER)
    yield found
    found.stop()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_failure_costs_its_own_sample_only(process: RewardProcess) -> None:
    orders = ["a", "hang", "bb", "exit", "crash", "ccc", "raise", "leave", "nan", "inf", "text", "no score", "dddd"]
    rewards = process.score(samples(*orders))
    assert [reward.key for reward in rewards] == [f"k{i}" for i in range(len(orders))]
    found = dict(zip(orders, rewards, strict=True))
    assert {order: reward.status for order, reward in found.items()} == {
        "a": "ok",
        "hang": "timeout",
        "bb": "ok",
        "exit": "raised",
        "crash": "raised",
        "ccc": "ok",
        "raise": "raised",
        "leave": "raised",
        "nan": "not_finite",
        "inf": "not_finite",
        "text": "bad_type",
        "no score": "bad_type",
        "dddd": "ok",
    }
    assert [found[order].score for order in ("a", "bb", "ccc", "dddd")] == [1.0, 2.0, 3.0, 4.0]
    assert "1 s (reward.timeout_s)" in found["hang"].reason
    assert "code 3" in found["exit"].reason
    assert "SIGSEGV" in found["crash"].reason
    assert "cannot score this" in found["raise"].reason


def test_a_function_that_swallows_every_error_is_killed_too(process: RewardProcess) -> None:
    process.load(["any"])
    pid = process.pid
    start = time.monotonic()
    hung, scored = process.score(samples("hang ignoring errors", "a"))
    assert (hung.status, scored.score) == ("timeout", 1.0)
    assert time.monotonic() - start < LIMIT_S + 10
    assert process.pid != pid
    assert not alive(pid)


def test_once_too_many_hung_the_rest_is_not_tried(process: RewardProcess) -> None:
    start = time.monotonic()
    orders = [*["hang"] * 22, "bb"]
    rewards = unpacked_rewards(process.score_packed(packed_samples(samples(*orders)), 2))
    assert time.monotonic() - start < 20 * LIMIT_S  # three of 22 were waited for
    assert [reward.key for reward in rewards] == [f"k{i}" for i in range(len(orders))]
    assert [reward.status for reward in rewards] == ["timeout"] * 23
    assert rewards[-1].reason.startswith("not tried after 3 failures, the last of k2: no score within 1 s")
    fewer = unpacked_rewards(process.score_packed(packed_samples(samples("hang", "a", "hang", "bb")), 2))
    assert [reward.status for reward in fewer] == ["timeout", "ok", "timeout", "ok"]


def test_a_slow_function_is_not_a_hanging_one() -> None:
    """Six samples of half the limit take three limits together; each is inside its own."""
    process = process_of(USER, "slow")
    assert [reward.status for reward in process.score(samples(*"abcdef"))] == ["ok"] * 6
    process.stop()


def test_one_process_serves_many_calls_and_stays_light(process: RewardProcess) -> None:
    (first,) = process.score(samples("pid"))
    (second,) = process.score(samples("pid"))
    assert first.components == second.components == {"pid": process.pid}
    (modules,) = process.score(samples("modules"))
    assert modules.components == {"heavy": []}
    assert process.score([]) == []


def test_a_process_that_was_killed_while_idle_is_replaced(process: RewardProcess) -> None:
    process.load(["any"])
    os.kill(process.pid, signal.SIGKILL)
    assert [reward.score for reward in process.score(samples("a", "bb"))] == [1.0, 2.0]


def test_stop_leaves_nothing_behind(process: RewardProcess) -> None:
    process.load(["any"])
    pid = process.pid
    process.stop()
    assert not alive(pid)
    assert process.pid == 0
    process.stop()


def test_import_time_is_not_a_samples_time(tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text(f"import time\ntime.sleep({1.5 * LIMIT_S})\ndef compute_score(**given): return 1.0\n")
    process = process_of(str(late))
    assert [reward.status for reward in process.score(samples("a"))] == ["ok"]
    process.stop()


def test_a_module_that_ends_the_process_is_an_error_not_a_loop(tmp_path: Path) -> None:
    deadly = tmp_path / "deadly.py"
    deadly.write_text("import os\nos._exit(7)\n")
    process = process_of(str(deadly))
    with pytest.raises(RewardError, match="code 7"):
        process.score(samples("a"))


def test_an_unknown_source_is_an_error_and_the_process_lives_on() -> None:
    process = RewardProcess(RewardConfig())
    with pytest.raises(RewardError, match="no reward function for data_source 'nothing'"):
        process.load(["nothing"])
    (reward,) = process.score([Sample("k", "one_digit_sums", "7", "7", {})])
    assert reward.score == 1.0
    process.stop()


def test_a_trivial_function_is_cheap() -> None:
    """Measured 10 to 15 ms for 256 samples on a quiet machine; the bound leaves room for busy neighbours."""
    process = RewardProcess(RewardConfig())
    batch = [Sample(f"k{i}", "one_digit_sums", str(i % 19), "7", {}) for i in range(256)]
    process.score(batch)
    took = []
    for _ in range(7):
        start = time.perf_counter()
        rewards = process.score(batch)
        took.append(time.perf_counter() - start)
    process.stop()
    assert sum(reward.score for reward in rewards) == len([i for i in range(256) if i % 19 == 7])
    assert min(took) < 0.03


def test_rewards_travel_together_and_the_culprit_is_still_known(process: RewardProcess) -> None:
    """A crash right after samples whose rewards were not sent yet costs none of them."""
    orders = [*"abc", "crash", *"def", "hang", "g"]
    rewards = process.score(samples(*orders))
    assert [reward.key for reward in rewards] == [f"k{i}" for i in range(len(orders))]
    assert [reward.status for reward in rewards] == ["ok"] * 3 + ["raised"] + ["ok"] * 3 + ["timeout", "ok"]


def test_progress_is_seen_by_another_process_after_a_kill() -> None:
    code = (
        "import sys; from verl_core.reward.progress import Progress; Progress(int(sys.argv[1])).write(41); import os; "
    )
    progress = Progress()
    killed = [sys.executable, "-c", code + "os.kill(os.getpid(), 9)", str(progress.descriptor)]
    ended = subprocess.run(killed, pass_fds=[progress.descriptor], timeout=60, check=False)
    assert (ended.returncode, progress.read()) == (-9, 41)
    progress.close()


def test_wire_gives_back_what_was_packed() -> None:
    rewards = [Reward("k0", 0.5, {"part": 1}, "ok", ""), Reward("k1", 0.0, {}, "timeout", "slow")]
    assert unpacked_rewards([packed_reward(reward) for reward in rewards]) == rewards
    asked = samples("a", "b")
    assert [Sample(*packed) for packed in packed_samples(asked)] == asked
