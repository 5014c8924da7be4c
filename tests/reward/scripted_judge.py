"""A worker of a reward model that does what the ids say: 900 hangs, 901 ends the process, 902 raises, 903 gives NaN,
everything else scores its sum. 904 ends the process the first time only; 905 ends it for good."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from verl_core.trajectory import Int32

HANG, DIE, RAISE, NAN, DIE_ONCE, STUCK = 900, 901, 902, 903, 904, 905


class ScriptedJudge:
    """Args:
    folder: where it notes that it died once.
    """

    def __init__(self, folder: str) -> None:
        self._once, self._stuck = Path(folder) / "died", Path(folder) / "stuck"

    def facts(self) -> int:
        """A sign of life: the process."""
        if self._stuck.exists():
            time.sleep(600)
        return os.getpid()

    def score(self, rows: Sequence[Int32]) -> list[float]:
        """Do what the first special id says."""
        ids = np.concatenate(rows)
        if HANG in ids:
            time.sleep(600)
        if DIE in ids:
            os._exit(1)
        if STUCK in ids:
            self._stuck.touch()
            os._exit(1)
        if DIE_ONCE in ids and not self._once.exists():
            self._once.touch()
            os._exit(1)
        if RAISE in ids:
            raise ValueError("no such expert")
        return [float("nan") if NAN in row else float(row.sum()) for row in rows]
