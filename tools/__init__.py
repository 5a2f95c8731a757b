"""Checks of the repository and generators of its pages."""
