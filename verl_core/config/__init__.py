"""Configuration: a strict tree, composed from recipes and overrides, refused with reasons before anything starts."""

from verl_core.config.compose import Resolved, resolve
from verl_core.config.schema import RunConfig
from verl_core.config.wire import config_hash, from_dict, resume_difference, stable_hash, to_dict, to_yaml

__all__ = [
    "Resolved",
    "RunConfig",
    "config_hash",
    "from_dict",
    "resolve",
    "resume_difference",
    "stable_hash",
    "to_dict",
    "to_yaml",
]
