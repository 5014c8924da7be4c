"""Samplers: which row is served next, when that depends on what the run has learnt."""

from verl_core.data.samplers.interface import Sampler
from verl_core.data.samplers.registry import load_sampler

__all__ = ["Sampler", "load_sampler"]
