"""Off-policy correction: importance weights and rejection by the distance of two policies' log-probs."""

from verl_core.algorithms.correction.correct import WEIGHTS, Corrected, correct

__all__ = ["WEIGHTS", "Corrected", "correct"]
