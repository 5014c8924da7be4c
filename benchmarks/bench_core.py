"""`make bench-core`: what the core costs, measured in one run: the store, the update, the quickstart's step, a Flyte
node."""

from __future__ import annotations

import shutil

from benchmarks import bench_nodes, bench_store, bench_update, runs
from benchmarks.goals import OUT, Goal, report

ROOT = OUT / "bench_core"
STEPS = 20


def main() -> None:
    """Measure everything and write out/bench_core.json."""
    store = bench_store.measure()
    update = bench_update.measure()
    nodes = bench_nodes.measure()
    quickstart = quickstart_overhead()
    report(
        "bench_core.json",
        [
            Goal("sample_latency_ms_10k", store["sample_latency_ms_10k"], "<=", 50),
            Goal("store_speedup_512", store["store_speedup_512"], ">=", 8),
            Goal("update_ratio", update["update_ratio"], ">=", 0.9),
            Goal("step_overhead_share", quickstart["step_overhead_share"], "<=", 0.10),
            Goal("flyte_node_ms", nodes["flyte_node_ms"], "<=", 60),
        ],
        {"store": store, "update": update, "nodes": nodes, "quickstart": quickstart},
    )


def quickstart_overhead() -> dict[str, float]:
    """Twenty steps of the quickstart, as its users run them; timings per stage beside the share."""
    from statistics import fmean

    from verl_core.record.rundir import RunDir
    from verl_core.record.step_record import read_metrics

    shutil.rmtree(ROOT, ignore_errors=True)
    settings = [
        f"trainer.default_local_dir={ROOT}",
        f"trainer.total_training_steps={STEPS}",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "data.prepare.val_size=0",
    ]
    log = ROOT / "quickstart.log"
    runs.finish(runs.start(runs.by_flyte("configs/quickstart.yaml", settings), log), log)
    root = ROOT / "quickstart"
    steps = [read_metrics(RunDir(root), step) for step in range(1, STEPS + 1)]
    names = sorted({name for row in steps for name in row if name.startswith("timing_s/")})
    means = {name: fmean(row.get(name, 0.0) for row in steps) for name in names}
    return {"step_overhead_share": runs.summary_of(root)["step_overhead_share"], **means}


if __name__ == "__main__":
    main()
