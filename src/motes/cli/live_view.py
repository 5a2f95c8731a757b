"""Learning before one's eyes: a panel with a picture that sharpens, or plain lines."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from motes.core.axes import Float
from motes.output.learning import Snapshot
from motes.training.initialization import STARTS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 40  # characters of the curve of the bound
ACROSS = 22  # characters of the picture


@contextlib.contextmanager
def learning_panel(title: str) -> Iterator[Callable[[Snapshot], None]]:
    """Shows snapshots as they come, on standard error."""
    from rich.console import Console
    from rich.live import Live
    from rich.panel import Panel

    console = Console(stderr=True)
    if not draws_pictures(console.is_terminal, console.color_system, console.encoding):
        print(title, file=sys.stderr)
        yield lambda snapshot: print(plain_line(snapshot), file=sys.stderr, flush=True)
        return
    bounds: list[float] = []
    waiting = Panel("making clips, trying rough starts ...", title=title, expand=False)
    with Live(waiting, console=console, refresh_per_second=4) as live:

        def show(snapshot: Snapshot) -> None:
            if not snapshot.start:
                bounds.append(snapshot.bound)
            live.update(panel(title, snapshot, bounds), refresh=True)

        yield show


def draws_pictures(is_terminal: bool, colours: str | None, encoding: str) -> bool:
    """Whether a panel can be drawn: grey block characters, in lines that can be drawn anew."""
    return is_terminal and colours in ("256", "truecolor") and encoding.lower().startswith("utf")


def plain_line(snapshot: Snapshot) -> str:
    """A snapshot in words."""
    return f"{where(snapshot)}, bound {snapshot.bound:.1f} nats a clip"


def where(snapshot: Snapshot) -> str:
    """Which step of what; in the run itself steps a second, and the time left at that pace."""
    if snapshot.start:
        return f"rough start {snapshot.start}/{len(STARTS)}, step {snapshot.step}/{snapshot.of}"
    left = (snapshot.of - snapshot.step) / snapshot.rate
    place = f"step {snapshot.step}/{snapshot.of}"
    return f"{place}, {snapshot.rate:.1f} steps/s, {left:.0f} s left"


def panel(title: str, snapshot: Snapshot, bounds: Sequence[float]) -> "RenderableType":
    """The picture on the left; progress, bound and its curve on the right."""
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    words, sides = Table.grid(), Table.grid(padding=(0, 3))
    for line in (
        ProgressBar(total=snapshot.of, completed=snapshot.step, width=SPARKS),
        Text(where(snapshot)),
        Text(),
        Text.assemble("bound ", (f"{snapshot.bound:.1f}", "bold"), " nats a clip"),
        Text(sparkline(bounds, SPARKS), style="cyan"),
        Text(),
        Text("left: how it draws one ball; nobody told it", style="dim"),
    ):
        words.add_row(line)
    sides.add_row(half_blocks(resized(snapshot.glyph, ACROSS)), words)
    return Panel(sides, title=title, expand=False)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars from the lowest to the highest of them."""
    shown = np.array(values[-width:])
    if len(shown) == 0:
        return ""
    low, high = shown.min(), shown.max()
    heights = (shown - low) / (high - low if high > low else 1.0)
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)


def resized(
    picture: Float[np.ndarray, "rows columns"], side: int
) -> Float[np.ndarray, "side side"]:
    """The picture with so many rows and columns, each the average of what it stands for."""
    for axis in (0, 1):
        parts = np.array_split(picture, min(side, picture.shape[axis]), axis)
        picture = np.concatenate([part.mean(axis, keepdims=True) for part in parts], axis)
    return picture


def half_blocks(picture: Float[np.ndarray, "rows columns"]) -> "Text":
    """A picture of levels in [0, 1] in a terminal, two rows in a line of characters."""
    from rich.text import Text

    levels = np.pad(picture, ((0, len(picture) % 2), (0, 0)))
    greys = (255 * levels.clip(0, 1)).round().astype(int).tolist()
    lines = []
    for upper, lower in zip(greys[::2], greys[1::2], strict=True):
        cells = (("▀", f"{_grey(a)} on {_grey(b)}") for a, b in zip(upper, lower, strict=True))
        lines.append(Text.assemble(*cells))
    return Text("\n").join(lines)


def _grey(level: int) -> str:
    return f"#{level:02x}{level:02x}{level:02x}"
