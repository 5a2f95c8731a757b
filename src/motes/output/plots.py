"""Figures of clips, answers, scores and learned models: pure functions of arrays and numbers.

Nothing is shown or saved. Colours follow the paper's figures (truth black, inferred blue, forecast
red, interpolated cyan) in shades that colour-blind readers can distinguish; lines and markers
differ too.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from motes.core.axes import Bool, Float, Int
from motes.data.gif import encode_gif
from motes.evaluation.labels import line_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.9  # probability inside an ellipse
CORNERS = 48  # of the polygon that draws it
DPI = 120
MARGIN = 6  # pixels around the panels of an animation
TITLE = 22  # pixels above them
SNAPSHOTS = 8  # of a sprite during training
Record = dict[str, Any]


@dataclass(frozen=True)
class Style:
    """Label, colours on white and on black, line and marker of one kind of track."""

    label: str
    colour: str
    on_black: str
    line: str
    marker: str


TRUTH = Style("truth", "#000000", "#ffffff", "-", "o")
INFERRED = Style("inferred", "#0072b2", "#6db3ff", "-", ".")
FORECAST = Style("forecast", "#d55e00", "#ff8a4c", "--", "^")
INTERPOLATED = Style("interpolated", "#0e9fc4", "#45e0f0", "-.", "s")


def _no_frames() -> Float[np.ndarray, "0 0 0"]:
    return np.zeros((0, 0, 0), np.float32)


@dataclass(frozen=True, eq=False)
class View:
    """One clip as arrays, present objects only: the truth, or the answer to a query.

    The fields mean the same as those of `motes.queries.answer.Answer`; frames may be left out.
    """

    style: Style
    pixels: Float[np.ndarray, "N T 2"]
    pixel_covariances: Float[np.ndarray, "N T 2 2"]
    path_pixels: Float[np.ndarray, "N T 2"]
    path_pixel_covariances: Float[np.ndarray, "N T 2 2"]
    observed: Bool[np.ndarray, " T"]
    detected: Bool[np.ndarray, "N T"]
    frames: Float[np.ndarray, "F height width *channels"] = field(default_factory=_no_frames)
    mean_frames: Float[np.ndarray, "F height width *channels"] = field(default_factory=_no_frames)
    draws: Float[np.ndarray, "S N T 2"] | None = None  # where paths can fork

    def branches(self, n: int) -> Float[np.ndarray, "S T 2"]:
        """Return the drawn paths of an object, none where its path cannot fork."""
        return self.pixels[:0, :] if self.draws is None else self.draws[:, n]


def png(figure: "Figure") -> bytes:
    """Return the figure as a PNG file."""
    buffer = io.BytesIO()
    # Without matplotlib's version and web address.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def pdf(figure: "Figure") -> bytes:
    """Return the figure as a PDF file; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="pdf", metadata={"Creator": None, "CreationDate": None})
    return buffer.getvalue()


def outline(
    mean: Float[np.ndarray, "2"], covariance: Float[np.ndarray, "2 2"]
) -> Float[np.ndarray, "corners 2"]:
    """Return points on the ellipse that holds 90 % of a Gaussian.

    Law: every point has squared Mahalanobis distance -2 log(1 - 0.9)
    (test_every_point_of_an_outline_has_the_distance_of_its_probability).
    """
    eigenvalues, vectors = np.linalg.eigh(covariance)
    radii = np.sqrt(-2 * math.log(1 - LEVEL) * eigenvalues.clip(0))
    angles = np.linspace(0, 2 * math.pi, CORNERS, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    points: Float[np.ndarray, "corners 2"] = mean + (circle * radii) @ vectors.T
    return points


def overlaid(frames: Float[np.ndarray, "T height width"]) -> Float[np.ndarray, "height width"]:
    """Return one image of all frames, the later ones lighter and on top.

    Law: a white pixel of the last frame stays white (test_the_last_frame_is_lightest_and_on_top).
    """
    canvas: Float[np.ndarray, "height width"] = np.zeros_like(frames[0])
    for frame, shade in zip(frames, np.linspace(0.3, 1, len(frames)), strict=True):
        canvas = (1 - frame) * canvas + frame * frames.dtype.type(shade)
    return canvas


def strip(views: Sequence[View], times: Sequence[int]) -> "Figure":
    """Draw frames at some times, a row for each view, with the ellipses of all positions."""
    figure, axes = axes_grid(len(views), len(times), cell=1.25, room=(0.35, 0.3))
    for row, view in zip(axes, views, strict=True):
        for axis, t in zip(row, times, strict=True):
            show_frame(axis, view.frames[t])
            _frame_border(axis, view.style.on_black if not view.observed[t] else "#888888")
            for mean, covariance in zip(
                view.pixels[:, t], view.pixel_covariances[:, t], strict=True
            ):
                axis.plot(*closed(outline(mean, covariance)).T, color=view.style.on_black, lw=1)
        row[0].set_ylabel(view.style.label, fontsize=9)
    for axis, t in zip(axes[0], times, strict=True):
        axis.set_title(f"frame {t + 1}", fontsize=9)
    return figure


def trajectories(clips: Sequence[Sequence[View]]) -> "Figure":
    """Draw tracks in pixels: a row for each clip, a column for each view after the truth."""
    figure, axes = axes_grid(len(clips), len(clips[0]) - 1, cell=2.8, room=(0.3, 0.3))
    for row, (truth, *answers) in zip(axes, clips, strict=True):
        for axis, view in zip(row, answers, strict=True):
            frame_axes(axis, truth.frames.shape[1:3])
            _draw_track(axis, view)
            for path in truth.path_pixels:
                axis.plot(*path.T, color=truth.style.colour, lw=0.9, label=truth.style.label)
                axis.plot(*path[0], "o", mfc="none", mec=truth.style.colour, ms=7)
    for axis in axes[0]:
        legend(axis, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return figure


def overlays(
    rows: Sequence[Sequence[tuple[str, Float[np.ndarray, "T height width"]]]],
) -> "Figure":
    """Draw clips overlaid in time, side by side under their titles."""
    figure, axes = axes_grid(len(rows), len(rows[0]), cell=2.0, room=(0.1, 0.3 * len(rows)))
    for row, clips in zip(axes, rows, strict=True):
        for axis, (title, frames) in zip(row, clips, strict=True):
            show_frame(axis, overlaid(frames))
            axis.set_title(title, fontsize=9)
    return figure


def animation(views: Sequence[View], scale: int = 5) -> bytes:
    """Return an animated GIF of the views side by side; hidden frames have coloured borders.

    A pixel of the clip becomes `scale` pixels; a clip of w x h makes a GIF of
    views * (scale w + 2 MARGIN) by scale h + 2 MARGIN + TITLE.
    """
    pictures = [_still(views, t, scale) for t in range(len(views[0].frames))]
    return encode_gif(pictures, [120] * (len(pictures) - 1) + [1500])


def _still(views: Sequence[View], t: int, scale: int) -> Any:
    """One frame of the animation as a palette image."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = (scale * side for side in views[0].frames.shape[1:3])
    cell = width + 2 * MARGIN
    canvas = Image.new("RGB", (cell * len(views), height + 2 * MARGIN + TITLE), "#1c1c1e")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(13)
    for place, view in enumerate(views):
        left, top = place * cell + MARGIN, MARGIN + TITLE
        colour, hidden = view.style.on_black, not view.observed[t]
        border = (left - 4, top - 4, left + width + 3, top + height + 3)
        draw.rectangle(border, fill=colour if hidden else "#666666")
        levels = Image.fromarray((255 * view.frames[t]).round().astype(np.uint8))
        canvas.paste(levels.resize((width, height), Image.Resampling.NEAREST), (left, top))
        for n, path in enumerate(view.path_pixels):
            ring = closed(outline(view.pixels[n, t], view.pixel_covariances[n, t]))
            for points, thickness in ((path[: t + 1], 2), (ring, 1)):
                corners = (points + 0.5) * scale + (left, top)
                draw.line([tuple(corner) for corner in corners], fill=colour, width=thickness)
        state = "hidden" if hidden else "shown"
        title = f"{view.style.label}  {t + 1}/{len(view.frames)} {state}"
        draw.text((left, 5), title, fill=colour, font=font)
    return canvas.quantize(64)


def closed(points: Float[np.ndarray, "corners 2"]) -> Float[np.ndarray, "corners_1 2"]:
    """Return the points and the first one again."""
    return np.concatenate([points, points[:1]])


def axes_grid(
    rows: int, columns: int, cell: float, room: tuple[float, float]
) -> tuple["Figure", Any]:
    """Return a figure of square cells (inches) with room at the left and on top, and its axes."""
    from matplotlib.figure import Figure

    size = (columns * cell + room[0], rows * cell + room[1])
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def frame_axes(axis: Any, frame_size: Sequence[int]) -> None:
    """Make an axis the plane of a frame, y down."""
    height, width = frame_size
    axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), aspect="equal")
    axis.tick_params(labelsize=7)


def show_frame(axis: Any, frame: Float[np.ndarray, "height width"]) -> None:
    """Show a frame in grey, without ticks."""
    axis.imshow(frame, cmap="gray", vmin=0, vmax=1)
    frame_axes(axis, frame.shape[:2])
    axis.set(xticks=[], yticks=[])


def _frame_border(axis: Any, colour: str) -> None:
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2)


def legend(axis: Any, **options: Any) -> None:
    """Add a legend with each label once."""
    handles, labels = axis.get_legend_handles_labels()
    drawn = dict(zip(labels, handles, strict=True))
    axis.legend(drawn.values(), drawn.keys(), fontsize=8, **options)


def shared_legend(figure: "Figure", axes: Iterable[Any]) -> None:
    """Add one legend above all panels, with each label once."""
    once: dict[str, Any] = {}
    for axis in axes:
        axis.tick_params(labelsize=7, which="both")
        handles, labels = axis.get_legend_handles_labels()
        once |= dict(zip(labels, handles, strict=True))
    place: dict[str, Any] = dict(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    figure.legend(list(once.values()), list(once), **place)


def _draw_track(axis: Any, view: View) -> None:
    """Draw paths as lines, positions in observed frames as markers, ellipses in hidden frames."""
    style, observed = view.style, view.observed
    for n, path in enumerate(view.path_pixels):
        axis.plot(*path.T, style.line, color=style.colour, lw=3, alpha=0.7, label=style.label)
        for drawn in view.branches(n)[:, ~observed]:
            axis.plot(*drawn.T, "-", color=style.colour, lw=0.5, alpha=0.3)
        axis.plot(*view.pixels[n, observed].T, style.marker, color=style.colour, ms=4, alpha=0.6)
        for t in np.flatnonzero(~observed):
            ring = outline(path[t], view.path_pixel_covariances[n, t])
            axis.fill(*ring.T, facecolor=style.colour, edgecolor="none", alpha=0.1)


def horizon(records: Mapping[str, Record]) -> "Figure":
    """Draw errors and losses of forecasts against the number of frames ahead."""
    counts = list(next(iter(records.values()))["by_count"])
    figure, axes = axes_grid(2, len(counts), cell=2.9, room=(0.3, 0.6))
    for column, count in enumerate(counts):
        for row, score in enumerate(("forecast_rmse_curve", "forecast_loss_curve")):
            for name, record in records.items():
                curve = record.get("curves", {}).get(count, {}).get(score)
                if curve is not None:
                    _draw_curve(axes[row, column], curve, *line_of(name))
        axes[0, column].set(yscale="log")
        axes[0, column].set_title(f"N = {count}", fontsize=9)
        axes[1, column].set(xlabel="frames ahead", ylim=(0, None))
    axes[0, 0].set_ylabel("RMSE to the path, px", fontsize=9)
    axes[1, 0].set_ylabel("frame loss, nats per pixel", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure


def _draw_curve(axis: Any, curve: Record, label: str, colour: str, line: Any) -> None:
    """Draw one curve with a band of two standard errors."""
    value, error = np.array(curve["value"]), np.array(curve["error"])
    ahead = np.arange(1, len(value) + 1)
    axis.plot(ahead, value, color=colour, ls=line, lw=1.6, label=label)
    axis.fill_between(ahead, value - 2 * error, value + 2 * error, color=colour, alpha=0.15, lw=0)


def reliability(record: Record) -> "Figure":
    """Draw how often the truth lies inside regions of each probability."""
    figure, axes = axes_grid(1, len(record["by_count"]), cell=2.9, room=(0.3, 0.5))
    levels = np.arange(0.05, 1, 0.05)
    styles = (
        ("infer", "inferred", INFERRED),
        ("forecast", "forecast", FORECAST),
        ("interpolation", "gap", INTERPOLATED),
    )
    for axis, count in zip(axes[0], record["by_count"], strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=0.8)
        for query, label, style in styles:
            curve = record["curves"][count][f"{query}_reliability"]
            axis.plot(
                levels, curve["value"], color=style.colour, ls=style.line, marker=style.marker,
                ms=4, lw=1.2, label=label,
            )  # fmt: skip
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the region")
        axis.set_title(f"N = {count}", fontsize=9)
    axes[0, 0].set_ylabel("share of the truth inside", fontsize=9)
    shared_legend(figure, axes.flat)
    return figure


def training_curve(
    steps: Int[np.ndarray, " S"],
    bounds: Float[np.ndarray, " S"],
    sprites: Float[np.ndarray, "S cells cells"],
) -> "Figure":
    """Draw the sprite at some steps of a run, and the ELBO below.

    Most changes early, so the snapshots are denser there.
    """
    from matplotlib.figure import Figure

    ranks = np.linspace(0, 1, min(SNAPSHOTS, len(steps)))
    shown = np.unique(np.round((len(steps) - 1) * ranks**2).astype(int))
    figure = Figure(figsize=(1.25 * SNAPSHOTS, 3.6), dpi=DPI, layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.0, 1.5))[:, 0]
    for axis, index in zip(above.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        axis.imshow(sprites[index], cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"step {steps[index]}", fontsize=9)
    curve = below.subplots()
    curve.plot(steps, bounds, color=INFERRED.colour, lw=2)
    curve.plot(steps[shown], bounds[shown], "o", color=INFERRED.colour, ms=5)
    curve.set_xlabel("step", fontsize=8)
    curve.set_ylabel("ELBO, nats per clip", fontsize=8)
    curve.tick_params(labelsize=7)
    return figure


def latent_grid(
    tiles: Float[np.ndarray, "G G height width *channels"],
    centroids: Float[np.ndarray, "G G 2"],
    expected: Float[np.ndarray, "G G 2"],
    folded: Bool[np.ndarray, "G_1 G_1"],
    visited: Float[np.ndarray, "M 2"],
) -> "Figure":
    """Draw one object at each node of a latent grid: a sheet of tiles, and where they appear.

    Args:
        tiles: What the renderer draws at each node.
        centroids: Their centroids in pixels; NaN where next to nothing is drawn.
        expected: Where the affine pixel map puts the nodes.
        folded: Which cells are turned over.
        visited: True positions, to show where the model could learn.
    """
    figure, axes = axes_grid(1, 2, cell=4.2, room=(0.3, 0.7))
    sheet, warp = axes[0]
    border = [(0, 0), (0, 0), (0, 2), (0, 2), *[(0, 0)] * (tiles.ndim - 4)]
    framed = np.pad(tiles, border, constant_values=0.45)
    rows = [np.concatenate(list(row), axis=1) for row in framed]
    sheet.imshow(np.concatenate(rows), cmap="gray", vmin=0, vmax=1)
    sheet.set_xticks([])
    sheet.set_yticks([])
    sheet.set_title("one object, drawn at each node of the grid", fontsize=9)
    frame_axes(warp, tiles.shape[2:4])
    warp.plot(*visited.T, ".", color="#bbbbbb", ms=2, zorder=0, label="true positions")
    for lines, colour, width, label in (
        (expected, "#888888", 0.6, "affine pixel map"),
        (centroids, INFERRED.colour, 1.4, "centroids of the tiles"),
    ):
        for line in (*lines, *lines.swapaxes(0, 1)):
            warp.plot(*line.T, color=colour, lw=width, label=label)
    for i, j in np.argwhere(folded):
        corners = centroids[[i, i, i + 1, i + 1], [j, j + 1, j + 1, j]]
        warp.fill(*corners.T, color=FORECAST.colour, alpha=0.5, hatch="//", label="folded")
    shared_legend(figure, [warp])
    return figure


def initial_states(
    frame_size: tuple[int, int],
    true_points: Float[np.ndarray, "M 2"],
    true_steps: Float[np.ndarray, "M 2"],
    means: Float[np.ndarray, "K 2"],
    covariances: Float[np.ndarray, "K 2 2"],
    steps: Float[np.ndarray, "K 2"],
) -> "Figure":
    """Draw true first positions and steps, and the learned initial-state components over them."""
    figure, axes = axes_grid(1, 1, cell=4.2, room=(0.3, 0.3))
    axis = axes[0, 0]
    frame_axes(axis, frame_size)
    arrows = dict(angles="xy", scale_units="xy", scale=0.25)  # four frames of motion
    axis.quiver(*true_points.T, *true_steps.T, color="#aaaaaa", width=0.003, **arrows)
    axis.plot(*true_points.T, ".", color="#666666", ms=3, label="true initial states")
    for mean, covariance in zip(means, covariances, strict=True):
        axis.plot(*closed(outline(mean, covariance)).T, color=INFERRED.colour, lw=1.6)
        axis.plot(*mean, "s", color=INFERRED.colour, ms=6, label="learned components")
    axis.quiver(*means.T, *steps.T, color=INFERRED.colour, width=0.01, zorder=3, **arrows)
    legend(axis, loc="lower center")
    return figure
