"""`resolve`: from what the user wrote to a checked RunConfig. Invariant: all problems are told at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_core.config.checking import problems_of
from verl_core.config.derived import derive
from verl_core.config.keys import leaf_types, paths
from verl_core.config.layers import RECIPES, Layer, override_layers, source_layers
from verl_core.config.schema import RunConfig
from verl_core.config.typed import TypedReader
from verl_core.errors import ConfigError

DEFAULT = "default"


@dataclass(frozen=True)
class Resolved:
    """A checked configuration.

    Attributes:
        config: every setting.
        origin: every setting's dotted key -> the file or override that set it last, `default`, or the setting that its
            default follows from.
    """

    config: RunConfig
    origin: dict[str, str]


def resolve(source: str | Mapping[str, Any], overrides: Sequence[str] = (), recipes: Path = RECIPES) -> Resolved:
    """Compose, type and check a configuration.

    Args:
        source: path of a YAML file, or an already loaded mapping. Both may name recipes in `defaults:`.
        overrides: `a.b=value`, the value in YAML; the last one wins.
        recipes: folder of the recipes that `defaults:` may name.

    Raises:
        ConfigError: names every problem found: unknown keys, wrong types, contradictions, settings without effect.
    """
    overriding, malformed = override_layers(overrides)
    layers = [*source_layers(source, recipes), *overriding]
    written = _written(layers)
    reader = TypedReader(written)
    config = reader.read(_merged(layers))
    derived = derive(config)
    problems = malformed + reader.problems + problems_of(config, written, reader.mistyped)
    if problems:
        raise ConfigError(report(problems))
    return Resolved(config, {key: derived.get(key, written.get(key, DEFAULT)) for key in leaf_types()})


def report(problems: Sequence[str]) -> str:
    """The one message for all problems."""
    head = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{head} in the configuration:", *(f"  - {problem}" for problem in problems)])


def _written(layers: Sequence[Layer]) -> dict[str, str]:
    """Dotted key -> name of the last layer that sets it. Interpolations count as set where they are written."""
    return {key: layer.name for layer in layers for key, _ in paths(_plain(layer))}


def _plain(layer: Layer) -> dict[Any, Any]:
    tree = OmegaConf.to_container(layer.tree, resolve=False)
    return dict(tree) if isinstance(tree, dict) else {}


def _merged(layers: Sequence[Layer]) -> dict[Any, Any]:
    """One plain tree. The defaults lie at the bottom: an interpolation may refer to a setting nobody wrote down."""
    try:
        whole = OmegaConf.merge(asdict(RunConfig()), *(layer.tree for layer in layers))
        tree = OmegaConf.to_container(whole, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"an interpolation in the configuration cannot be resolved: {error}") from error
    return dict(tree) if isinstance(tree, dict) else {}
