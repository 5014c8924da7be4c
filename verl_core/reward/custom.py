"""The user's own reward function. Invariant: what is returned can be called with the four names of the contract."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import cast

from verl_core.config.schema.reward import CustomRewardConfig
from verl_core.errors import RewardError
from verl_core.reward.interface import RewardFunction

_CONTRACT = "compute_score(data_source, solution_str, ground_truth, extra_info)"
_KEY = "reward.custom_reward_function"


def load_custom(config: CustomRewardConfig) -> RewardFunction:
    """The function `config.name` of a .py file or dotted module; loaded once per process.

    Raises:
        RewardError: file or module missing, its import fails, no such function, `async`, or other parameters.
    """
    return _load(config.path, config.name)


@functools.cache
def _load(path: str, name: str) -> RewardFunction:
    module = _from_file(Path(path)) if path.endswith(".py") else _from_module(path)
    if name not in vars(module):
        functions = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise RewardError(f"{path} has no {name!r}; set {_KEY}.name to one of its functions: {', '.join(functions)}")
    function = vars(module)[name]
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise RewardError(f"{name!r} in {path} must be a plain function (not async): {_CONTRACT}")
    _check_signature(function, f"{name!r} in {path}")
    return cast(RewardFunction, function)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RewardError(f"reward file {path} does not exist (seen from {Path.cwd()}); correct {_KEY}.path")
    spec = importlib.util.spec_from_file_location(f"verl_user_reward_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RewardError(f"reward file {path} is not Python; correct {_KEY}.path")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        raise RewardError(f"importing {path} failed: {type(error).__name__}: {error}") from error
    return module


def _from_module(path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise RewardError(
            f"module {path!r} of {_KEY}.path cannot be imported: {error}. Give a .py file, or install the module"
        ) from error
    except Exception as error:  # the user's code may raise anything
        raise RewardError(f"importing {path!r} failed: {type(error).__name__}: {error}") from error


def _check_signature(function: object, where: str) -> None:
    if not callable(function):
        raise RewardError(f"{where} is not callable")
    try:
        signature = inspect.signature(function)
    except ValueError:  # built-ins may have none; calling them will tell
        return
    try:
        signature.bind(data_source="", solution_str="", ground_truth=None, extra_info={})
    except TypeError as error:
        raise RewardError(f"{where} is called as {_CONTRACT}, by these names, but {error}") from error
