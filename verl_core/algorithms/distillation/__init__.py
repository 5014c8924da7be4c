"""On-policy distillation: how far the policy is from a teacher on what the policy sampled. A new loss is a new file
here with a function under `@DISTILLATION_LOSSES.register(name)`."""

from verl_core.algorithms.distillation.as_reward import distillation_advantages
from verl_core.algorithms.distillation.interface import DISTILLATION_LOSSES, DistillationInputs
from verl_core.algorithms.registry import import_siblings

import_siblings(__name__, __path__)

__all__ = ["DISTILLATION_LOSSES", "DistillationInputs", "distillation_advantages"]
