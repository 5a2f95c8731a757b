"""Live view of the demo's training: a panel with the learned sprite, or plain lines."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from motes.core.axes import Float
from motes.output.demo import Snapshot
from motes.training.step import RESTARTS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40  # characters of the curve of the bound
IMAGE_WIDTH = 22  # characters of the sprite


@contextlib.contextmanager
def training_panel(title: str) -> Iterator[Callable[[Snapshot], None]]:
    """Yield a function that shows a snapshot on standard error."""
    from rich.console import Console
    from rich.live import Live
    from rich.panel import Panel

    console = Console(stderr=True)
    if not supports_images(console.is_terminal, console.color_system, console.encoding):
        print(title, file=sys.stderr)
        yield lambda snapshot: print(plain_line(snapshot), file=sys.stderr, flush=True)
        return
    bounds: list[float] = []
    waiting = Panel("making clips, running restarts ...", title=title, expand=False)
    with Live(waiting, console=console, refresh_per_second=4) as live:

        def show(snapshot: Snapshot) -> None:
            if not snapshot.restart:
                bounds.append(snapshot.bound)
            live.update(panel(title, snapshot, bounds), refresh=True)

        yield show


def supports_images(is_terminal: bool, colours: str | None, encoding: str) -> bool:
    """Return whether the terminal can show the panel: colours, Unicode and cursor movement."""
    return is_terminal and colours in ("256", "truecolor") and encoding.lower().startswith("utf")


def plain_line(snapshot: Snapshot) -> str:
    """Return a snapshot as one line of text."""
    return f"{progress_line(snapshot)}, bound {snapshot.bound:.1f} nats per clip"


def progress_line(snapshot: Snapshot) -> str:
    """Return the restart or step, and for steps also the speed and the time left."""
    if snapshot.restart:
        return f"restart {snapshot.restart}/{len(RESTARTS)}, step {snapshot.step}/{snapshot.of}"
    left = (snapshot.of - snapshot.step) / snapshot.rate
    return f"step {snapshot.step}/{snapshot.of}, {snapshot.rate:.1f} steps/s, {left:.0f} s left"


def panel(title: str, snapshot: Snapshot, bounds: Sequence[float]) -> "RenderableType":
    """Return the panel: the sprite on the left; progress, bound and its curve on the right."""
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines, columns = Table.grid(), Table.grid(padding=(0, 3))
    for line in (
        ProgressBar(total=snapshot.of, completed=snapshot.step, width=CURVE_WIDTH),
        Text(progress_line(snapshot)),
        Text(),
        Text.assemble("bound ", (f"{snapshot.bound:.1f}", "bold"), " nats per clip"),
        Text(sparkline(bounds, CURVE_WIDTH), style="cyan"),
        Text(),
        Text("left: the learned sprite of one ball", style="dim"),
    ):
        lines.add_row(line)
    columns.add_row(half_blocks(downsample(snapshot.sprite, IMAGE_WIDTH)), lines)
    return Panel(columns, title=title, expand=False)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last values as bars, scaled from their minimum to their maximum."""
    shown = np.array(values[-width:])
    if len(shown) == 0:
        return ""
    low, high = shown.min(), shown.max()
    heights = (shown - low) / (high - low if high > low else 1.0)
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)


def downsample(
    image: Float[np.ndarray, "rows columns"], side: int
) -> Float[np.ndarray, "side side"]:
    """Return the image averaged over blocks, with at most `side` rows and columns."""
    for axis in (0, 1):
        parts = np.array_split(image, min(side, image.shape[axis]), axis)
        image = np.concatenate([part.mean(axis, keepdims=True) for part in parts], axis)
    return image


def half_blocks(image: Float[np.ndarray, "rows columns"]) -> "Text":
    """Return an image with levels in [0, 1] as text, two rows per line of characters."""
    from rich.text import Text

    levels = np.pad(image, ((0, len(image) % 2), (0, 0)))
    greys = (255 * levels.clip(0, 1)).round().astype(int).tolist()
    rows = []
    for upper, lower in zip(greys[::2], greys[1::2], strict=True):
        cells = (("▀", f"{_grey(a)} on {_grey(b)}") for a, b in zip(upper, lower, strict=True))
        rows.append(Text.assemble(*cells))
    return Text("\n").join(rows)


def _grey(level: int) -> str:
    return f"#{level:02x}{level:02x}{level:02x}"
