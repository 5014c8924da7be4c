"""Flyte tasks: literals in, one call of verl_core, literals out. Nothing about RL is decided here."""
