"""Timings of the package against plain or other code, each checked to agree before it counts."""
