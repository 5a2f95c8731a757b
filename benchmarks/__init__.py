"""Timings of the package against a plain implementation and against other libraries."""
