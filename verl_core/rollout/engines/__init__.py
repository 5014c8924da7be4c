"""Inference engines behind RolloutEngine. To add one: a module here, a line in `ENGINES`, a name in RolloutConfig."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from verl_core.config.schema import RunConfig
from verl_core.errors import ConfigError
from verl_core.rollout.interface import RolloutEngine


def build_engine(config: RunConfig, device: str) -> RolloutEngine:
    """The engine that `actor_rollout_ref.rollout.name` asks for, not started.

    Raises:
        ConfigError: the name is unknown, or the engine cannot run on the device.
    """
    name = config.actor_rollout_ref.rollout.name
    if name not in ENGINES:
        raise ConfigError(f"actor_rollout_ref.rollout.name={name!r} is no engine; known: {', '.join(ENGINES)}")
    return ENGINES[name](config, device)


def _vllm(config: RunConfig, device: str) -> RolloutEngine:
    process = config.actor_rollout_ref.rollout.engine_process
    if process == "inproc" and device != "cpu":
        raise ConfigError("actor_rollout_ref.rollout.engine_process=inproc is for CPUs: use async or auto")
    if process == "inproc" or (process == "auto" and device == "cpu"):
        from verl_core.rollout.engines.vllm_inproc import VllmInprocEngine

        return VllmInprocEngine(config)
    from verl_core.rollout.engines.vllm_async import VllmAsyncEngine

    return VllmAsyncEngine(config, device)


def _scripted(config: RunConfig, device: str) -> RolloutEngine:
    module = importlib.import_module("verl_core.rollout.scripted")  # imported late: it brings transformers' models
    engine: RolloutEngine = module.ScriptedEngine(config, config.actor_rollout_ref.model.path)
    return engine


ENGINES: dict[str, Callable[[RunConfig, str], RolloutEngine]] = {"vllm": _vllm, "scripted": _scripted}
