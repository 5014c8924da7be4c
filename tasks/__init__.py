"""Flyte tasks: literals in, one call of verl_core, literals out. Nothing about RL is decided here."""

import ray

# flytekit's Ray plugin leaves an unloaded stand-in for `ray` in sys.modules. If the first thing asked of it were a
# submodule, Python would load `ray.exceptions` twice, and `except RayError` would catch none of the errors Ray raises.
RAY_VERSION = ray.__version__
