"""`make crash-test`: SIGKILL at twenty random points of a scripted-engine run, resume each time; then the weights
must be those of an undisturbed run, every prompt trained once, none lost.

A kill takes every process of the run. It falls a random time after the attempt's first journal entry, so into
rollout, reward, update, checkpoint and record alike; one in five falls into start-up instead.

`--mode colocate_async` or `separate_async`: what is trained on then depends on what finished first, so the weights are
not compared, and the books are all the more: every prompt served is trained once or dropped with its reason.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import runs
from benchmarks.equivalence import share_with_gradient
from benchmarks.goals import OUT, Goal, report
from verl_core.config import names
from verl_core.record.accounting import accounting
from verl_core.record.rundir import RunDir

ROOT = OUT / "crash"
CONFIG = "configs/scripted.yaml"
START_LIMIT_S, LIVE_S, STARTUP_S = 300.0, 3.0, 8.0


@dataclass(frozen=True)
class Kill:
    """Where a kill fell: seconds after `start` or after the first `journal` entry, and the newest file it left."""

    after: str
    seconds: float
    newest: str


def main() -> None:
    """Run undisturbed, run with kills, compare, write out/crash.json."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--mode", choices=names.TRAINER_MODES, default="sync")
    asked = arguments.parse_args()
    shutil.rmtree(ROOT, ignore_errors=True)
    calm, hunted = (command(name, asked.steps, asked.mode) for name in ("calm", "hunted"))
    runs.finish(runs.start(calm, ROOT / "calm.log"), ROOT / "calm.log")
    dice, kills = random.Random(asked.seed), []
    log = ROOT / "hunted.log"
    while len(kills) < asked.kills:
        kill = hunt(runs.start(hunted, log), dice)
        if kill is None:
            break  # it reached the end before the kill
        kills.append(kill)
        print(f"kill {len(kills)}: {kill.seconds:.2f} s after {kill.after}, newest file {kill.newest}", flush=True)
    runs.finish(runs.start(hunted, log), log)
    judge(asked.kills, kills, asked.mode)


def command(name: str, steps: int, mode: str) -> list[str]:
    """The run, in a directory of its own; long enough that no kill comes after its end."""
    settings = [f"trainer.default_local_dir={ROOT}", f"trainer.experiment_name={name}"]
    pace = [
        f"trainer.total_training_steps={steps}",
        "actor_rollout_ref.rollout.scripted_delay_s=0.02",
        "trainer.save_freq=3",
        f"trainer.v1.trainer_mode={mode}",
    ]
    return runs.in_process(CONFIG, [*settings, *pace])


def hunt(process: subprocess.Popen[bytes], dice: random.Random) -> Kill | None:
    """Let the attempt live for a random time, then kill it; None when it ended by itself."""
    journal = ROOT / "hunted" / "journal.jsonl"
    size = journal.stat().st_size if journal.exists() else 0
    early = dice.random() < 0.2
    started = time.monotonic()
    while not early and (not journal.exists() or journal.stat().st_size <= size):
        if process.poll() is not None or time.monotonic() - started > START_LIMIT_S:
            runs.kill(process)
            raise RuntimeError(f"the attempt did not get to work: see {ROOT / 'hunted.log'}")
        time.sleep(0.01)
    seconds = dice.uniform(0.0, STARTUP_S if early else LIVE_S)
    time.sleep(seconds)
    if process.poll() is not None:
        return None
    runs.kill(process)
    return Kill("start" if early else "journal", seconds, newest_file(ROOT / "hunted"))


def newest_file(root: Path) -> str:
    """The file that was written last, relative to the run directory."""
    files = [path for path in root.rglob("*") if path.is_file()] if root.exists() else []
    return str(max(files, key=lambda path: path.stat().st_mtime_ns).relative_to(root)) if files else "none"


def judge(asked: int, kills: list[Kill], mode: str) -> None:
    """Compare both runs and write the verdict."""
    calm, hunted = runs.summary_of(ROOT / "calm"), runs.summary_of(ROOT / "hunted")
    accounts = accounting(RunDir(ROOT / "hunted"))
    same = calm["final_weights_sha256"] == hunted["final_weights_sha256"]
    details = {
        "kills": len(kills),
        "resumed": len(kills),
        "same_weights": same,
        "trained_twice": accounts.trained_twice,
        "lost": accounts.lost,
        "trained": accounts.trained,
        "served": accounts.served,
        "mode": mode,
        "dropped": accounts.dropped,
        "where": [vars(kill) for kill in kills],
        "hashes": {"calm": calm["final_weights_sha256"], "hunted": hunted["final_weights_sha256"]},
    }
    goals = [
        Goal("kills", len(kills), "==", asked),
        *([Goal("same_weights", same, "==", True)] if mode == "sync" else []),
        Goal("steps_with_gradient", share_with_gradient(ROOT / "calm"), ">=", 0.5),
        Goal("trained_twice", accounts.trained_twice, "==", 0),
        Goal("lost", accounts.lost, "==", 0),
        Goal("trained_of_undisturbed", accounts.trained, "==", accounting(RunDir(ROOT / "calm")).trained),
    ]
    report("crash.json" if mode == "sync" else f"crash_{mode}.json", goals, details)


if __name__ == "__main__":
    main()
