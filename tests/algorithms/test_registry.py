"""Names: those of the configuration are exactly those that exist; one name is one function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from verl_core.algorithms.advantages import ADVANTAGES
from verl_core.algorithms.aggregation import AGGREGATIONS
from verl_core.algorithms.kl import KL_ESTIMATORS
from verl_core.algorithms.policy_losses import POLICY_LOSSES
from verl_core.algorithms.policy_losses.covariance import MARKINGS
from verl_core.algorithms.registry import Registry
from verl_core.config import names
from verl_core.errors import ConfigError


def test_every_registry_holds_exactly_the_names_the_configuration_allows() -> None:
    assert set(ADVANTAGES.names()) == set(names.ADV_ESTIMATORS)
    assert set(POLICY_LOSSES.names()) == set(names.POLICY_LOSSES)
    assert set(AGGREGATIONS.names()) == set(names.LOSS_AGG_MODES)
    assert set(KL_ESTIMATORS.names()) == set(names.KL_TYPES)
    assert set(MARKINGS.names()) < set(POLICY_LOSSES.names())


def test_a_second_function_under_a_name_is_refused() -> None:
    registry: Registry[Callable[[], None]] = Registry("thing", "a.b")

    @registry.register("x")
    def first() -> None: ...

    def second() -> None: ...

    registry.register("x")(first)
    with pytest.raises(ConfigError, match="two functions claim the thing 'x'"):
        registry.register("x")(second)


def test_an_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.adv_estimator='grop'.*Did you mean 'grpo'.*Known: .*grpo"):
        ADVANTAGES.get("grop")


def test_the_algorithms_import_neither_ray_nor_vllm_nor_transfer_queue() -> None:
    code = """
import sys
import verl_core.algorithms.advantages, verl_core.algorithms.policy_losses, verl_core.algorithms.kl_control
bad = {"ray", "vllm", "transfer_queue", "transformers"} & set(sys.modules)
sys.exit(", ".join(sorted(bad)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
