"""The tiny model of the engine's tests."""

from tests.engine.conftest import tiny_model

__all__ = ["tiny_model"]
