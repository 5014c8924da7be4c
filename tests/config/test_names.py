"""The literal names agree with the schema and with each other; each registry's own tests hold it to them."""

from __future__ import annotations

from verl_core.config import names
from verl_core.config.schema import AlgorithmConfig


def test_defaults_are_known_names() -> None:
    assert AlgorithmConfig().adv_estimator in names.ADV_ESTIMATORS
    assert AlgorithmConfig().kl_penalty in names.KL_TYPES
    assert names.GROUP_ESTIMATORS.issubset(names.ADV_ESTIMATORS)
