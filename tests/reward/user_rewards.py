"""Reward functions of a user, good and bad. What they do is chosen by the response, so that one process sees all of
it."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def hang_ignoring_errors() -> None:
    """Nothing that is raised inside ends it."""
    while True:
        try:
            time.sleep(3600)
        except BaseException:  # noqa: BLE001 - the point of it
            continue


def refuse() -> None:
    """Raise as user code does."""
    raise ValueError("cannot score this")


ORDERS: dict[str, Callable[[], Any]] = {
    "hang": lambda: time.sleep(3600),
    "hang ignoring errors": hang_ignoring_errors,
    "exit": lambda: os._exit(3),
    "crash": lambda: ctypes.string_at(0),
    "raise": refuse,
    "leave": lambda: sys.exit(1),
    "nan": lambda: math.nan,
    "inf": lambda: {"score": math.inf},
    "text": lambda: "1.0",
    "no score": lambda: {"acc": 1.0},
    "modules": lambda: {"score": 1.0, "heavy": sorted({"torch", "vllm", "transformers", "ray"} & set(sys.modules))},
    "pid": lambda: {"score": 1.0, "pid": os.getpid()},
}


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> Any:
    """Length of the response, unless the response is an order to misbehave."""
    if solution_str in ORDERS:
        return ORDERS[solution_str]()
    return {"score": np.float32(len(solution_str)), "acc": np.bool_(True), "object": object()}


def slow(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """Half the usual limit of the tests for every sample."""
    time.sleep(0.5)
    return 1.0


async def asynchronous(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """Not allowed."""
    return 1.0


def other_names(source: str, answer: str) -> float:
    """Not allowed."""
    return 1.0


not_a_function = 3
