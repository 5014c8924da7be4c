"""A reward model made here, from pairs of a better and a worse response.

Layer note: like `warm_start` it trains before a run starts, with the networks and schedules of `engine`; it knows
nothing of ray, vllm or transfer_queue.
"""

from verl_core.reward_training.recipe import RewardModelResult, recipe_of, train_reward_model

__all__ = ["RewardModelResult", "recipe_of", "train_reward_model"]
