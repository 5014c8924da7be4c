"""Supervised fine-tuning on rows of chat messages. Invariant: it trains by the engine of reinforcement learning; only
rows, objective and loop are its own."""
