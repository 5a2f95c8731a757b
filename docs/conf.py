"""Sphinx settings: `make site` builds these pages and the API reference, offline."""

import importlib.metadata
import re
from typing import Any

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
napoleon_use_ivar = True
napoleon_attr_annotations = False  # axes such as *channels are no markup
myst_heading_anchors = 3
# Pages link to source files and notes, which are on disk beside the site but not part of it.
# Generated sections begin at the third level; `layers` is a block that a test reads.
suppress_warnings = ["myst.xref_missing", "ref.python", "myst.header", "misc.highlighting_failure"]


def as_restructured_text(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Turn indented formulas into literal blocks and escape axes such as *channels, in place."""
    found: list[str] = []
    for line in lines:
        formula = line.startswith("    ") and found[-1:] == [""] and found[-2:-1] != []
        if formula and not found[-2].startswith(" ") and not found[-2].endswith(":"):
            found += ["::", ""]
        if not line.startswith("    "):
            line = re.sub(r"(?<![\w*`])\*(?=\w)", r"\*", line)
            line = re.sub(r"((?<!`)`[^`]+`)(?=\w)", r"\1\\ ", line)  # `Module`s
        found.append(line)
    lines[:] = found


def setup(app: Any) -> None:
    """Register the conversion; it runs before Google-style sections are parsed."""
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
