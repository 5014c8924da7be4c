"""The four stages as plain functions over (session, step). Invariant: a stage reads its inputs from the step's files
and its own output is on disk when it returns, so that a crash, a retry or a rerun costs only what was not finished."""

from verl_core.trainer.stages.advantage import advantage
from verl_core.trainer.stages.reward import reward
from verl_core.trainer.stages.rollout import rollout, serve
from verl_core.trainer.stages.update import close_step, update

__all__ = ["advantage", "close_step", "reward", "rollout", "serve", "update"]
