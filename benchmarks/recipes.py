"""`make recipes`: every recipe of configs/ that learns on this machine, run as a user would, out/recipes.json.

A recipe passes when it beats its own start by 0.2: in validation accuracy (greedy, before and after), or, where that
starts high, in the mean training reward of its last five steps against its first five. Invariant: what is reported is
read from the run's summary.json; nothing is rerun until it passes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.goals import OUT, Goal, report

ROOT = OUT / "recipes"
GAIN = 0.2
LIMIT_S = 3600.0
RECIPES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_plus_plus",
    "ppo",
    "dapo",
    "gspo",
    "cispo",
    "lora",
    "distillation",
    "reward_model",
    "tool_agent",
)
NO_SCALE = ("reward_model",)  # their rewards have none: only validation counts


def main() -> None:
    """Run the recipes one after the other, write what each gained."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="RECIPE")
    arguments.add_argument("--resume", action="store_true", help="keep the recipes that were run to their end")
    asked = arguments.parse_args()
    if not asked.resume:
        for name in asked.only:
            shutil.rmtree(ROOT / name, ignore_errors=True)
    begun, rows = time.monotonic(), []
    for place, name in enumerate(asked.only):
        rows.append(learned(name))
        spent = time.monotonic() - begun
        left = spent / (place + 1) * (len(asked.only) - place - 1)
        print(f"{name}: {line(rows[-1])}; {place + 1} of {len(asked.only)}, about {left / 60:.0f} min left", flush=True)
    report("recipes.json", [Goal(row["name"], row["gain"], ">=", GAIN) for row in rows], {"recipes": rows})


def learned(name: str) -> dict[str, Any]:
    """Run a recipe, unless it has a summary, and say what it gained."""
    folder, log = ROOT / name, ROOT / f"{name}.log"
    if not (folder / "summary.json").exists():
        overrides = [f"trainer.default_local_dir={ROOT}", f"trainer.experiment_name={name}"]
        runs.finish(runs.start(runs.by_flyte(f"configs/{name}.yaml", overrides), log), log, LIMIT_S)
    return gained(name, folder)


def gained(name: str, folder: Path) -> dict[str, Any]:
    """Reward and accuracy before and after, the larger gain, wall time in seconds."""
    summary = runs.summary_of(folder)
    reward = (summary["reward_first5"], summary["reward_last5"])
    accuracy = (summary["val_before"], summary["val_after"])
    counted = (accuracy,) if name in NO_SCALE else (reward, accuracy)
    gains = [after - before for before, after in counted if before is not None and after is not None]
    return {
        "name": name,
        "reward_before": reward[0],
        "reward_after": reward[1],
        "accuracy_before": accuracy[0],
        "accuracy_after": accuracy[1],
        "gain": round(max(gains), 4) if gains else None,
        "steps": summary["steps"],
        "seconds": round(summary["wall_s"], 1),
    }


def line(row: dict[str, Any]) -> str:
    """One recipe for the console."""
    return json.dumps({key: value for key, value in row.items() if key != "name"})


if __name__ == "__main__":
    main()
