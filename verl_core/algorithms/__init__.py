"""The mathematics: pure torch, no Ray, no vLLM, no files. One idea per module, one registry per kind.

Invariant of every function here: a cell whose mask is False never reaches a result or a gradient, whatever it holds
(NaN included), and every denominator is an argument or is computed over whole groups; none depends on how rows were
split.
"""
