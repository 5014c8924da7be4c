"""A tiny policy made here and brought to the point where reinforcement learning can see a signal.

Layer note: apart from `engine`, this is the one package that trains, so it too imports transformers' models and torch.
It knows nothing of ray, vllm or transfer_queue; it runs once, before any of them starts.
"""

from verl_core.warm_start.model import make_tiny_policy
from verl_core.warm_start.recipe import WarmStartResult, recipe_of, warm_start

__all__ = ["WarmStartResult", "make_tiny_policy", "recipe_of", "warm_start"]
