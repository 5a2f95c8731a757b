"""The layered sprite family: opaque sprites of several classes before a background."""
