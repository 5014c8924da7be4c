"""Launch plans: what runs on a schedule. Invariant: every input has a default, else a schedule fails when it fires.

Their runs lie below VERL_RUNS_DIR as it was when they were registered: a folder of a volume that all pods mount. It
cannot be a URL here, since the quickstart's data and start policy are made in it.
"""

from __future__ import annotations

import os
from datetime import datetime

from flytekit import CronSchedule, LaunchPlan

from workflows.promotion import train_and_promote

# Replaced by the time of the kickoff when the schedule fires; used as it is when the plan is launched by hand.
BY_HAND = datetime(2000, 1, 1)

RUNS = os.environ.get("VERL_RUNS_DIR", "/mnt/verl/runs")
CONFIG = {"defaults": ["quickstart"], "trainer": {"default_local_dir": RUNS}}

nightly = LaunchPlan.get_or_create(
    workflow=train_and_promote,
    name="nightly_regression",
    default_inputs={
        "config": CONFIG,
        "overrides": ["trainer.experiment_name=nightly"],
        "floor": 0.75,
        "kickoff": BY_HAND,
    },
    schedule=CronSchedule(schedule="0 2 * * *", kickoff_time_input_arg="kickoff"),
    max_parallelism=8,
)

weekly = LaunchPlan.get_or_create(
    workflow=train_and_promote,
    name="weekly_refresh",
    default_inputs={
        "config": CONFIG,
        # Longer, and from other data than the night's.
        "overrides": [
            "trainer.experiment_name=weekly",
            "trainer.total_training_steps=200",
            "data.prepare.seed=2",
            "data.prepare.train_size=4096",
        ],
        "floor": 0.9,
        "kickoff": BY_HAND,
    },
    schedule=CronSchedule(schedule="0 4 * * 0", kickoff_time_input_arg="kickoff"),
    max_parallelism=8,
)
