"""Errors, tensor axes, atomic files and memory budgets, used by every other package."""
