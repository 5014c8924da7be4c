"""Where settings come from: files, mappings, `defaults:`, overrides. Invariant: layers are ordered, later ones win.

`defaults: [a, b]` names recipes that come before the file that names them. A recipe that is reached twice keeps its
first place, so what a recipe changes is not undone by a base that another one also names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_core.config.typed import shown
from verl_core.errors import ConfigError

RECIPES = Path(__file__).resolve().parents[2] / "configs"  # beside verl_core: the checkout, or its copy in an image
CONFIG_INPUT = "the given configuration"


@dataclass(frozen=True)
class Layer:
    """One source: its name for messages, and its settings."""

    name: str
    tree: DictConfig


def source_layers(source: str | Mapping[str, Any], recipes: Path = RECIPES) -> list[Layer]:
    """The layers of a source and its defaults, the first wins least.

    Args:
        source: path of a YAML file, or a mapping that was loaded already.
        recipes: folder in which `defaults:` are looked up when they do not lie beside the file that names them.

    Raises:
        ConfigError: a file or default is missing, is not a mapping, or names itself through its defaults.
    """
    found: dict[str, Layer] = {}
    if isinstance(source, Mapping):
        _collect(CONFIG_INPUT, _mapping(source), [recipes], (), found)
    else:
        path = Path(source)
        if not path.is_file():
            raise ConfigError(f"no configuration file {source}{_known_recipes(recipes)}")
        _collect(_name(path, recipes), _load(path), [path.parent, recipes], (str(path.resolve()),), found)
    return list(found.values())


def override_layers(overrides: Sequence[str]) -> tuple[list[Layer], list[str]]:
    """One layer per well-formed override (`a.b=value`, the value in YAML), and a message for each of the others."""
    layers, problems = [], []
    for text in overrides:
        try:
            layers.append(_override(text))
        except ConfigError as error:
            problems.append(str(error))
    return layers, problems


def _collect(name: str, tree: DictConfig, folders: list[Path], trail: tuple[str, ...], found: dict[str, Layer]) -> None:
    defaults = OmegaConf.to_container(tree).get("defaults", []) if "defaults" in tree else []  # type: ignore[union-attr]
    if not isinstance(defaults, list) or not all(isinstance(entry, str) for entry in defaults):
        raise ConfigError(f"{name}: defaults: expected a list of recipe names such as [base], got {shown(defaults)}")
    for entry in defaults:
        path = _find(entry, folders, name)
        if str(path.resolve()) in trail:
            chain = " -> ".join(Path(step).stem for step in (*trail, str(path)))
            raise ConfigError(f"{name}: defaults go in a circle: {chain}; take one of them out")
        _collect(
            _name(path, folders[-1]), _load(path), [path.parent, folders[-1]], (*trail, str(path.resolve())), found
        )
    body = tree.copy()
    body.pop("defaults", None)
    found.setdefault(trail[-1] if trail else name, Layer(name, body))


def _find(entry: str, folders: list[Path], name: str) -> Path:
    for folder in folders:
        path = folder / (entry if entry.endswith((".yaml", ".yml")) else f"{entry}.yaml")
        if path.is_file():
            return path
    places = " and ".join(dict.fromkeys(str(folder) for folder in folders))
    raise ConfigError(f"{name}: defaults: no recipe {entry!r} in {places}{_known_recipes(folders[-1])}")


def _load(path: Path) -> DictConfig:
    try:
        tree = OmegaConf.create(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{path} must hold a mapping of settings, not a {type(tree).__name__}")
    return tree


def _mapping(source: Mapping[str, Any]) -> DictConfig:
    try:
        return OmegaConf.create(dict(source))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{CONFIG_INPUT} cannot be read: {error}") from error


def _override(text: str) -> Layer:
    key, equals, _ = text.partition("=")
    if text.startswith(("+", "~")):
        raise ConfigError(f"override {text!r}: no Hydra here; write {text.lstrip('+~')!r}")
    if not equals or not key.strip():
        raise ConfigError(f"override {text!r}: write key=value, for example trainer.total_training_steps=5")
    try:
        return Layer(f"override {text}", OmegaConf.from_dotlist([text]))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"override {text!r}: the value is not YAML: {error}") from error


def _name(path: Path, recipes: Path) -> str:
    return f"configs/{path.name}" if path.resolve().parent == recipes.resolve() else str(path)


def _known_recipes(recipes: Path) -> str:
    known = sorted(path.stem for path in recipes.glob("*.yaml"))
    return f" (recipes: {', '.join(known)})" if known else ""
