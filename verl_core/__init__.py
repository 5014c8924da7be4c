"""The engine of verl-flyte. It knows nothing of Flyte: `workflows` and `tasks` call it, never the other way round."""
