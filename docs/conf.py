"""Sphinx settings: `make site` builds these pages and the API reference, offline."""

import importlib.metadata

project = "motes"
author = "the motes authors"
release = version = importlib.metadata.version("motes")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"motes {release}"
exclude_patterns = ["images"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": False}
nitpicky = False
myst_heading_anchors = 3
# Pages link to source files and notes, which are on disk beside the site but not part of it.
# Generated sections begin at the third level; `layers` is a block that a test reads.
suppress_warnings = ["myst.xref_missing", "ref.python", "myst.header", "misc.highlighting_failure"]
