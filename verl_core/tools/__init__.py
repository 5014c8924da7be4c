"""Tools that a policy may call: their contract, how calls are read out of a turn, how they are run. Knows nothing of
tokens, of engines or of Flyte."""
