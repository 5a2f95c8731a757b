"""Scores of models and baselines against the truth."""
