"""Errors, axes, files and memory: what every other package may use."""
