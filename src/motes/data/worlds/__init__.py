"""Simulated clips with ground truth."""

from motes.data.worlds.registry import WORLDS, Recipe, make, occluder_columns, physics_of

__all__ = ["WORLDS", "Recipe", "make", "occluder_columns", "physics_of"]
