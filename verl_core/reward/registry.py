"""Which function scores which `data_source`. Invariant: a data source has exactly one function, found before training
starts.

A pattern is a whole data source (`gsm8k`) or, ending in `/`, a family (`reasoning_gym/`). The longest pattern that
fits wins.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verl_core.config.schema.reward import RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.composite import ROW, Part, parts_of, weighted
from verl_core.reward.custom import load_custom
from verl_core.reward.interface import RewardFunction

# Pattern -> module that registers it. Modules are imported on the first look-up only: their libraries take a second
# each.
_MATHS = (
    "gsm8k",
    "openai/gsm8k",
    "math",
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
    "HuggingFaceH4/MATH-500",
    "math_dapo",
    "aime24",
    "aime25",
    "math_verify",
    "math_verify/",
)
_CODE = ("code", "code/", "code_fraction", "code_fraction/", "apps", "taco", "codecontests", "codeforces")
_BUILT_IN = {
    **dict.fromkeys(_CODE, "verl_core.reward.verifiers.code"),
    "one_digit_sums": "verl_core.reward.verifiers.digits",
    "calculator": "verl_core.reward.verifiers.products",
    "reasoning_gym/": "verl_core.reward.verifiers.gym",
    "reasoning_gym_lenient/": "verl_core.reward.verifiers.gym",
    **dict.fromkeys(_MATHS, "verl_core.reward.verifiers.maths"),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    function: RewardFunction
    check: Callable[[str], None]
    bind: Callable[[RewardConfig], RewardFunction] | None


_entries: dict[str, _Entry] = {}


def register_reward(
    *patterns: str,
    check: Callable[[str], None] = lambda data_source: None,
    bind: Callable[[RewardConfig], RewardFunction] | None = None,
) -> Callable[[RewardFunction], RewardFunction]:
    """Decorator: the function scores the data sources that any of `patterns` fits.

    Args:
        check: called with a data source before training; raises RewardError when the function cannot score it.
        bind: gives the function to use under a configuration; None = always the decorated one.

    Raises:
        RewardError: no or an empty pattern, or another function has it already.
    """

    def register(function: RewardFunction) -> RewardFunction:
        if not patterns or not all(patterns):
            raise RewardError("register_reward needs a data source, or a prefix ending in '/'")
        for pattern in patterns:
            if pattern in _entries and _entries[pattern].function is not function:
                raise RewardError(f"data source {pattern!r} has a reward function already; use another name")
            _entries[pattern] = _Entry(function, check, bind)
        return function

    return register


def math_sources() -> tuple[str, ...]:
    """Patterns of the mathematics verifier."""
    return _MATHS


def code_sources() -> tuple[str, ...]:
    """Patterns of the code verifier."""
    return _CODE


def known_sources() -> list[str]:
    """All patterns, sorted."""
    return sorted({*_BUILT_IN, *_entries})


def reward_for(data_source: str, config: RewardConfig) -> RewardFunction:
    """The function for `data_source`: the user's own when the configuration names one, else the registry's. What it
    needs is imported when this returns.

    Raises:
        RewardError: nothing fits (the message lists what is known), or the function cannot be loaded.
    """
    if config.composite:
        local = [part for part in parts_of(config) if part.local]
        return weighted([(part, _part_function(part, data_source, config)) for part in local])
    if config.custom_reward_function.path:
        return load_custom(config.custom_reward_function)
    return _registered(data_source, config)


def _part_function(part: Part, data_source: str, config: RewardConfig) -> RewardFunction:
    if part.function:
        return load_custom(part.custom)
    return _registered(data_source if part.verifier == ROW else part.verifier, config)


def _registered(data_source: str, config: RewardConfig) -> RewardFunction:
    fitting = [pattern for pattern in known_sources() if _fits(pattern, data_source)]
    if not fitting:
        raise RewardError(_unknown(data_source))
    entry = _entry(max(fitting, key=len))
    entry.check(data_source)
    return entry.function if entry.bind is None else entry.bind(config)


def check_sources(sources: Iterable[str], config: RewardConfig | None = None) -> None:
    """Find a function for every data source of a dataset, so that a missing one is told before anything starts.

    Raises:
        RewardError: as `reward_for`, for the first source in sorted order without one.
    """
    settings = RewardConfig() if config is None else config
    model = settings.reward_model
    if not settings.composite and (settings.remote.url or (model.enable and model.in_validation)):
        return  # the service, or the reward model, scores them all
    for source in sorted(set(sources)):
        reward_for(source, settings)


def _fits(pattern: str, data_source: str) -> bool:
    return data_source.startswith(pattern) if pattern.endswith("/") else data_source == pattern


def _entry(pattern: str) -> _Entry:
    if pattern not in _entries:
        try:
            importlib.import_module(_BUILT_IN[pattern])
        except ModuleNotFoundError as error:
            raise RewardError(f"the verifier of {pattern!r} needs a package that is missing: {error.name}") from error
    return _entries[pattern]


def _unknown(data_source: str) -> str:
    known = known_sources()
    near = difflib.get_close_matches(data_source, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"no reward function for data_source {data_source!r}.{hint} Known (a name ending in '/' is a prefix): "
        f"{', '.join(known)}. Correct the column, or name your own function in reward.custom_reward_function.path"
    )
