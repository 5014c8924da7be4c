"""Flyte workflows: the wiring of tasks, and nothing else."""
