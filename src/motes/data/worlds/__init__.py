"""Generators of clips whose truth is known."""

from motes.data.worlds.registry import WORLDS, Recipe, bar_columns, make, physics_of

__all__ = ["WORLDS", "Recipe", "bar_columns", "make", "physics_of"]
