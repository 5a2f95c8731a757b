"""Draw every figure of the paper, and our own, from stored records; no model is loaded.

Usage: python -m experiments.paper_figures [--out figures] [--only 3 6 horizon]
"""

import argparse
import sys
from pathlib import Path

from experiments.paper_figures.figures import FIGURES
from experiments.paper_figures.stored import Stored
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.output.plots import pdf, png


def draw(out: Path, stored: Stored, only: list[str]) -> list[str]:
    """Write the figures as PNG and PDF files and return their names."""
    wanted = only or list(FIGURES)
    for name in wanted:
        if name not in FIGURES:
            raise InputError(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    out.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        figure = FIGURES[name](stored)
        title = f"figure-{int(name):02d}" if name.isdigit() else name
        for suffix, content in (("png", png(figure)), ("pdf", pdf(figure))):
            with atomic_path(out / f"{title}.{suffix}") as temporary:
                temporary.write_bytes(content)
    return wanted


def main(arguments: list[str] | None = None) -> int:
    """Parse the options, draw, and return the exit code."""
    parser = argparse.ArgumentParser(prog="experiments.paper_figures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder to write")
    parser.add_argument("--records", type=Path, help="folder of records; default: all stored ones")
    parser.add_argument("--model", default="cannonballs-48", help="model whose examples are shown")
    named = "numbers of the paper's figures, or horizon, reliability, latent-map, seeds"
    parser.add_argument("--only", nargs="*", default=[], help=named)
    given = parser.parse_args(arguments)
    try:
        drawn = draw(given.out, Stored(given.model, given.records), given.only)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"drew {len(drawn)} figures as PNG and PDF: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
