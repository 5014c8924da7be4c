"""The second table: the three modes with real vLLM on this machine, at the size of the quickstart.

What it can show on two cores: that the modes work with a real engine, how much of the time generation and training were
at once, and how stale samples became. What it cannot show is a gain in speed: server and trainer are processes on the
same cores, so while one generates the other computes slower, and responses of at most eight tokens have no tail.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks import runs
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import read_metrics

CONFIGS = {
    "sync": "configs/quickstart.yaml",
    "colocate_async": "configs/quickstart_colocate_async.yaml",
    "separate_async": "configs/quickstart_separate_async.yaml",
}
STEPS, SETTLING = 14, 4  # the first steps compile and fill
_MEANS = {
    "step_s": "timing_s/step",
    "generate_s": "timing_s/gen",
    "train_s": "timing_s/update_actor",
    "tokens_per_s": "perf/throughput",
    "overlap_s": "perf/overlap_s",
    "staleness_mean": "training/staleness/mean",
    "staleness_max": "training/staleness/max",
    "resumed_share": "training/resumed_share",
    "response_tokens": "response_length/mean",
    "longest_response": "response_length/max",
}


def execute(mode: str, root: Path) -> dict[str, float]:
    """A short run; means over its later steps."""
    settings = [
        f"trainer.default_local_dir={root}",
        f"trainer.experiment_name=vllm_{mode}",
        f"trainer.total_training_steps={STEPS}",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "trainer.logger=[jsonl]",
        "data.prepare.val_size=0",
    ]
    log = root / f"vllm_{mode}.log"
    runs.finish(runs.start(runs.in_process(CONFIGS[mode], settings), log), log)
    folder = RunDir(str(root / f"vllm_{mode}"))
    rows = [read_metrics(folder, step) for step in range(SETTLING + 1, STEPS + 1)]
    return {name: fmean(row.get(key, 0.0) for row in rows) for name, key in _MEANS.items()}
