"""Tests of the package; helper modules lie beside this file."""
