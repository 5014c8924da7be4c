"""Fixtures of other folders that the tests of distillation share."""

from tests.engine.conftest import make_batch
from tests.rollout.conftest import policy_folder, write_policy
from tests.trainer.conftest import assets, make_config

__all__ = ["assets", "make_batch", "make_config", "policy_folder", "write_policy"]
