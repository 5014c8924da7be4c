"""Policy losses. A new one is a new file here with one function under `@POLICY_LOSSES.register(name)`."""

from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs
from verl_core.algorithms.registry import import_siblings

import_siblings(__name__, __path__)

__all__ = ["POLICY_LOSSES", "PolicyLossInputs"]
