"""Opponents and limits; none of them knows our models."""
