"""`make equivalence`: one truth. The legacy path, the sync mode in process and the Flyte graph, and both asynchronous
modes when nothing is served ahead, give the same weights bit for bit from the same (scripted) rollouts; two ranks
differ by no more than the order of their sums allows."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks import runs
from benchmarks.goals import OUT, Goal, report
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import has_step_record, read_metrics

ROOT = OUT / "equivalence"
CONFIG = "configs/scripted.yaml"
TWO_RANKS_LIMIT = 1e-4  # float32 gradients summed in another order, over the steps of the run


def main() -> None:
    """Run all paths, compare, write out/equivalence.json."""
    shutil.rmtree(ROOT, ignore_errors=True)
    paths = {
        "legacy": runs.in_process(CONFIG, overrides("legacy", "trainer.use_v1=false")),
        "sync": runs.in_process(CONFIG, overrides("sync")),
        "flyte_1": runs.by_flyte(CONFIG, overrides("flyte_1", "trainer.steps_per_node=1")),
        "flyte_2": runs.by_flyte(CONFIG, overrides("flyte_2", "trainer.steps_per_node=2")),
        "colocate_async": runs.in_process(CONFIG, overrides("colocate_async", *on_policy("colocate_async"))),
        "separate_async": runs.in_process(CONFIG, overrides("separate_async", *on_policy("separate_async"))),
        "sync_2_ranks": runs.in_process(CONFIG, overrides("sync_2_ranks", "trainer.n_gpus_per_node=2")),
    }
    for name, command in paths.items():
        log = ROOT / f"{name}.log"
        runs.finish(runs.start(command, log), log)
        print(f"{name}: {runs.summary_of(ROOT / name)['final_weights_sha256']}", flush=True)
    hashes = {name: runs.summary_of(ROOT / name)["final_weights_sha256"] for name in paths}
    same = {name: digest for name, digest in hashes.items() if name != "sync_2_ranks"}
    difference = largest_difference(ROOT / "sync", ROOT / "sync_2_ranks")
    report(
        "equivalence.json",
        [
            Goal("distinct_hashes", len(set(same.values())), "==", 1),
            Goal("steps_with_gradient", share_with_gradient(ROOT / "sync"), ">=", 0.5),  # else equality proves nothing
            Goal("two_ranks_largest_difference", difference, "<=", TWO_RANKS_LIMIT),
        ],
        {"hashes": hashes, "config": CONFIG},
    )


def overrides(name: str, *more: str) -> list[str]:
    """Settings of one path: a run directory of its own, everything else equal."""
    return [f"trainer.default_local_dir={ROOT}", f"trainer.experiment_name={name}", *more]


def on_policy(mode: str) -> list[str]:
    """An asynchronous mode with zero warm-up and staleness bound 0."""
    return [
        f"trainer.v1.trainer_mode={mode}",
        f"trainer.v1.{mode}.num_warmup_batches=0",
        "trainer.v1.sampler.max_off_policy_threshold=0",
    ]


def largest_difference(one: Path, other: Path) -> float:
    """Largest absolute difference between the trained parameters of two runs' last checkpoints."""
    from safetensors.torch import load_file

    first, second = (load_file(last_checkpoint(root) / "model.safetensors") for root in (one, other))
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def share_with_gradient(root: Path) -> float:
    """Share of a run's steps whose gradient was not zero. A step is without one when all samples of each of its few
    groups are equally good."""
    run = RunDir(root)
    norms = [read_metrics(run, step)["actor/grad_norm"] for step in run.steps() if has_step_record(run, step)]
    return sum(norm > 1e-6 for norm in norms) / len(norms)


def last_checkpoint(root: Path) -> Path:
    """Folder of the checkpoint that `latest` names."""
    return root / (root / "latest").read_text().strip()


if __name__ == "__main__":
    main()
