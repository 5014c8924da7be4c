"""`make simulate`: writes out/simulate.json and out/simulate.html. Goals stand here and nowhere else.

With a folder as argument the runs of the real loop are kept in it, and those that are there are used: for a machine
that is quiet only at times.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.goals import OUT, Goal, report
from benchmarks.simulate import published
from benchmarks.simulate.agreement import with_the_real_loop, without_the_real_loop
from benchmarks.simulate.picture import page
from benchmarks.simulate.real import measure
from benchmarks.simulate.sweep import DEVICES, ahead, curve, sweep, winners

AGREE, REPRODUCE = 0.05, 0.10


def main(arguments: list[str]) -> None:
    """All parts, each told as it begins."""
    torch.set_num_threads(1)
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    tell("1 of 4: closed form beside simulator")
    large = without_the_real_loop()
    tell("2 of 4: the real loop in three modes, some minutes")
    with _folder(arguments) as folder:
        small = with_the_real_loop(measure(Path(folder)))
    tell("3 of 4: the published table")
    table = _published()
    tell(f"4 of 4: sweep of {DEVICES[0]} to {DEVICES[-1]:,} devices")
    fitted = published.Fitted(table["fit"]["t0"], table["fit"]["token_s"])
    rows = sweep(
        fitted, lambda done, of: tell(f"        {done} of {of} runs") if done % 10 == 0 or done == of else None
    )
    details = {
        "agreement": {"real": small, "large": large},
        "published": table,
        "sweep": {"winners": winners(rows), "rows": rows},
        "curves": {
            "split": {str(devices): curve("middle", devices, fitted) for devices in DEVICES},
            "ahead": {tail: ahead(tail, 256, fitted) for tail in ("short", "middle", "long")},
        },
        "seconds": round(time.monotonic() - began, 1),
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "simulate.html").write_text(page(details))
    tell("written out/simulate.html")
    report("simulate.json", goals(details), details)


def goals(details: dict[str, Any]) -> list[Goal]:
    """What has to be so."""
    real, large, table = details["agreement"]["real"], details["agreement"]["large"], details["published"]
    at_most = [
        ("real_samples_per_s_gap", max(row["samples_per_s_gap"] for row in real), AGREE),
        ("real_staleness_gap", max(row["staleness_gap"] for row in real), AGREE),
        ("closed_form_samples_per_s_gap", max(row["samples_per_s_gap"] for row in large), AGREE),
        ("closed_form_staleness_gap", max(row["staleness_gap"] for row in large), AGREE),
        ("published_ratio_error", table["worst_ratio_error"], REPRODUCE),
    ]
    swept = max(row["devices"] for row in details["sweep"]["winners"])
    return [*(Goal(name, round(value, 4), "<=", goal) for name, value, goal in at_most), _swept(swept)]


def _folder(arguments: list[str]) -> AbstractContextManager[str]:
    """The given folder, or one that goes away, in memory where there is such a place: a busy disk is not measured."""
    if arguments:
        Path(arguments[0]).mkdir(parents=True, exist_ok=True)
        return nullcontext(str(Path(arguments[0]).resolve()))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="simulate-", dir=memory)


def _swept(devices: int) -> Goal:
    return Goal("swept_devices", devices, ">=", 1024)


def _published() -> dict[str, Any]:
    """The table, the fit, its simulation, each row left out, other assumptions."""
    fitted = published.fit_all(published.CENTRE)
    hours = published.simulated_hours(published.CENTRE, fitted)
    rows = {mode: {"published": row.hours, "simulated": hours[mode]} for mode, row in published.TABLE.items()}
    return {
        "samples_per_prompt": {mode: row.implied_samples for mode, row in published.TABLE.items()},
        "fit": {"t0": fitted.t0, "token_s": fitted.token_s},
        "hours": rows,
        "ratio_to_sync": _ratios(rows),
        "worst_ratio_error": max(abs(ratio["error"]) for ratio in _ratios(rows).values()),
        "predicted_from_two_rows": published.left_out(published.CENTRE),
        "other_assumptions": published.bracket(),
    }


def _ratios(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    found = {}
    for mode in ("colocate_async", "separate_async"):
        told = rows[mode]["published"] / rows["sync"]["published"]
        simulated = rows[mode]["simulated"] / rows["sync"]["simulated"]
        found[mode] = {"published": told, "simulated": simulated, "error": simulated / told - 1.0}
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
