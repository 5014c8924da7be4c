"""Verifiers that come with the house. Each module registers its functions when imported."""
