"""Advantage estimators. A new one is a new file here with one function under `@ADVANTAGES.register(name)`."""

from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.registry import import_siblings

import_siblings(__name__, __path__)

__all__ = ["ADVANTAGES", "AdvantageInputs", "Advantages"]
