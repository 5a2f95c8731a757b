"""Runs in notebooks: a training curve as inline SVG, and a progress bar that updates in place."""

import json
import logging
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from motes.core.errors import require
from motes.queries.quality import Quality

LOG = logging.getLogger("motes")
WIDTH, HEIGHT = 420, 140  # pixels of a curve


class RunFolder:
    """A run folder that displays itself: how far it is, its curve, its files.

    Example: `motes.output.notebook.RunFolder("runs/mine")` as the last line of a cell.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        require(
            (self.folder / "config.json").is_file(),
            f"got {folder}; expected a run folder, which holds config.json",
        )

    def __repr__(self) -> str:
        """Return the folder in a line."""
        return f"RunFolder({str(self.folder)!r})"

    def bounds(self) -> list[tuple[int, float]]:
        """Return steps and bounds in nats per clip, as logged."""
        path, found = self.folder / "log.jsonl", []
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        for text in lines:
            line = json.loads(text)
            if "bound" in line and "step" in line:
                found.append((int(line["step"]), float(line["bound"])))
        return found

    def _repr_html_(self) -> str:
        bounds = self.bounds()
        files = ", ".join(sorted(path.name for path in self.folder.iterdir()))
        state = f"step {bounds[-1][0]}, bound {bounds[-1][1]:.1f} nats per clip" if bounds else ""
        quality = Quality.load(self.folder)
        words = "" if quality is None else f"<br>{escape(str(quality))}"
        text = f"<p><b>{escape(str(self.folder))}</b> {state}{words}</p>"
        return f'<div class="motes">{text}{curve(bounds)}<p>{escape(files)}</p></div>'


def curve(points: list[tuple[int, float]]) -> str:
    """Return a curve as inline SVG; nothing for less than two points.

    The vertical scale leaves out the lowest tenth of the values, which are those of the start.
    """
    if len(points) < 2:
        return ""
    values = sorted(value for _, value in points)
    low, high = values[len(values) // 10], values[-1]
    span, last = (high - low) or 1.0, max(step for step, _ in points) or 1
    places = " ".join(
        f"{WIDTH * step / last:.1f},{HEIGHT - HEIGHT * max((value - low) / span, 0):.1f}"
        for step, value in points
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="bound by step">'
        f'<polyline points="{places}" fill="none" stroke="#0b6bcb" stroke-width="2"/></svg>'
    )


def training_progress(
    show: Callable[[str], None] | None = None,
) -> Callable[[dict[str, Any]], None]:
    """Return a `report` for `motes.training.train.train` that shows a bar in the notebook.

    Without a notebook it logs lines to the logger `motes`. For tests, `show` receives the HTML.
    """
    shown = show or _notebook_display()
    points: list[tuple[int, float]] = []

    def report(line: dict[str, Any]) -> None:
        if "bound" not in line or "of" not in line:
            return
        points.append((int(line["step"]), float(line["bound"])))
        left = (line["of"] - line["step"]) / max(float(line["iterations_per_second"]), 1e-9)
        text = f"step {line['step']} of {line['of']}, {left:.0f} s left, bound {line['bound']:.1f}"
        if shown is None:
            LOG.info(text)
        else:
            bar = f'<progress max="{line["of"]}" value="{line["step"]}"></progress>'
            shown(f'<div class="motes">{bar} {escape(text)}<br>{curve(points)}</div>')

    return report


def _notebook_display() -> Callable[[str], None] | None:
    """Return a function that shows HTML in one place of a notebook; None outside of one."""
    try:
        from IPython import get_ipython  # type: ignore[import-not-found, unused-ignore]
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    handle = display(HTML(""), display_id=True)

    def show(html: str) -> None:
        handle.update(HTML(html))

    return show
