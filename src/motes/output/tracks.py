"""Tracks as files: tables, overlays on the video, plots of the paths.

Units are those of the map to the video, or its pixels and seconds; without a map, pixels and frames
of clips.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from motes.core.axes import Float, Tensor, UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.data.gif import encode_gif, gif_delay
from motes.output.plots import DPI, INFERRED, Style, View, frame_axes, outline, png
from motes.queries.answer import COLUMNS, Answer
from motes.queries.corrections import Correction
from motes.video import VideoMap
from motes.video.source import write_mp4

# Okabe and Ito's palette for colour-blind readers, in an order that suits dark scenes.
COLOURS = ("#56b4e9", "#e69f00", "#f0e442", "#cc79a7", "#009e73", "#d55e00", "#ffffff", "#0072b2")
TAIL = 30  # frames of the path drawn behind an object
SHOWN_DRAWS = 24  # of a path that can fork
DASHES = 6  # of the ellipse of an object that is not detected
MAX_ELLIPSES = 12  # in a plot, along the part of a path without detections
MAX_GIF_FRAMES = 600
MAX_GIF_SIDE = 640  # pixels
CLIP_FPS = 10.0  # frame rate of animations of clips without time stamps
CLIP_SIDE = 480  # pixels of the longer side of an overlay on a clip
Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True, eq=False)
class QueryClips:
    """Clips of a query and where they come from."""

    frames: Tensor  # [B, T, height, width]
    observed: Tensor | None  # [B, T]; None: every frame was observed
    num_objects: Any  # from the option, else from the file, else None
    video_map: VideoMap | None = None  # from clip pixels and frames to those of the video
    images: Callable[[], Iterator[Picture]] | None = None  # of the video
    corrections: tuple[Correction, ...] = ()  # in pixels and frames of the clips
    shown: Tensor | None = None  # frames to draw on, if there are more than those of the query

    def select(self, clips: slice, frames: slice = slice(None)) -> "QueryClips":
        """Return the same for some of the clips or frames; the others can still be drawn on."""
        observed = None if self.observed is None else self.observed[clips, frames]
        kept = range(len(self.frames))[clips]
        corrections = tuple(entry for entry in self.corrections if entry.clip in kept)
        if kept and kept[0] > 0:
            corrections = tuple(replace(part, clip=part.clip - kept[0]) for part in corrections)
        return replace(
            self,
            frames=self.frames[clips, frames],
            observed=observed,
            corrections=corrections,
            shown=(self.frames if self.shown is None else self.shown)[clips],
        )

    @property
    def fps(self) -> float:
        """Frames per second."""
        return CLIP_FPS if self.video_map is None else self.video_map.fps

    def background(self, factor: int) -> tuple[VideoMap, Iterator[Picture]]:
        """Return images to draw on and the map to them: the video, or the first clip enlarged."""
        if self.images is not None and self.video_map is not None:
            return self.video_map, self.images()
        times = np.arange(self.frames.shape[1])[None]
        scale, offset = np.full(2, float(factor)), np.full(2, (factor - 1) / 2)
        return VideoMap(scale, offset, times / CLIP_FPS, times), self._enlarged(factor)

    def _enlarged(self, factor: int) -> Iterator[Picture]:
        for frame in (self.frames if self.shown is None else self.shown)[0]:
            levels = (255 * frame.float()).round().to(torch.uint8).numpy()
            large = levels.repeat(factor, axis=0).repeat(factor, axis=1)
            yield large if large.ndim == 3 else np.repeat(large[..., None], 3, axis=2)


def answer_in_video(answer: Answer, where: VideoMap) -> Answer:
    """Return the answer with pixels of a frame mapped to pixels of the video.

    Velocities become pixels per second.

    Law: a point, its covariance and its velocity are mapped alike
    (test_answers_are_mapped_to_the_pixels_and_seconds_of_the_video).
    """
    return replace(
        answer,
        pixels=where.points(answer.pixels),
        pixel_covariances=where.covariances(answer.pixel_covariances),
        pixel_velocities=where.velocities(answer.pixel_velocities),
        path_pixels=where.points(answer.path_pixels),
        path_pixel_covariances=where.covariances(answer.path_pixel_covariances),
        draw_paths=lambda: torch.stack([where.points(paths) for paths in answer.draws]),
    )


def answer_in_units(answer: Answer, where: VideoMap) -> Answer:
    """Return the answer in lengths and seconds, or in video pixels if the map has no units.

    Covariances follow by the delta method. The motion of a camera is taken out.
    """
    units = where.units
    if units is None:
        return answer_in_video(answer, where)
    pixels, path = where.scene_points(answer.pixels), where.scene_points(answer.path_pixels)
    spread, path_spread = answer.pixel_covariances, answer.path_pixel_covariances
    return replace(
        answer,
        pixels=units.points(pixels),
        pixel_covariances=units.covariances(pixels, where.covariances(spread)),
        pixel_velocities=units.velocities(path, where.velocities(answer.pixel_velocities)),
        path_pixels=units.points(path),
        path_pixel_covariances=units.covariances(path, where.covariances(path_spread)),
        draw_paths=lambda: torch.stack(
            [units.points(where.scene_points(paths)) for paths in answer.draws]
        ),
    )


def unit_of(where: VideoMap | None) -> str:
    """Return the unit of the lengths in a table."""
    return "px" if where is None or where.units is None else where.units.length


def table(answer: Answer, where: VideoMap | None) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Return column names and rows; with a map, video frame numbers and times in seconds.

    With units there is a column of their name; if there are several recordings, one of theirs.
    """
    if where is None:
        return list(COLUMNS), answer.rows()
    where = where.extended(answer.observed.shape[1])
    names = where.recordings
    unit = () if where.units is None else (where.units.length,)

    def rows() -> Iterator[tuple[Any, ...]]:
        for clip, frame, *rest in answer_in_units(answer, where).rows():
            name = () if names is None else (names[clip],)
            number, time = int(where.numbers[clip, frame]), float(where.times[clip, frame])
            yield (*name, clip, number, *rest, time, *unit)

    columns = [*(["recording"] if names else []), *COLUMNS, "time", *(["unit"] if unit else [])]
    return columns, rows()


def write_table(
    path: Path,
    answer: Answer,
    where: VideoMap | None,
    format: str | None = None,
    diameter: float | None = None,
) -> None:
    """Write the table in a format of `motes.output.formats`; without a name, in the suffix's."""
    from motes.output.formats import write_tracks

    write_tracks(path, *table(answer, where), format, diameter)


def tracks_of(answer: Answer, clip: int, style: Style = INFERRED) -> View:
    """Return the objects of one clip of an answer, without frames.

    Drawn paths are kept where the future or a gap can fork.
    """
    present = slice(int(answer.num_objects[clip]))
    forked = answer.forks and not bool(answer.observed[clip].all())
    draws = answer.draws[:SHOWN_DRAWS, clip, present].cpu().numpy() if forked else None
    return View(
        draws=draws,
        style=style,
        pixels=answer.pixels[clip, present].cpu().numpy(),
        pixel_covariances=answer.pixel_covariances[clip, present].cpu().numpy(),
        path_pixels=answer.path_pixels[clip, present].cpu().numpy(),
        path_pixel_covariances=answer.path_pixel_covariances[clip, present].cpu().numpy(),
        observed=answer.observed[clip].cpu().numpy(),
        detected=answer.found[clip, present].cpu().numpy(),
    )


def plot_answer(path: Path, clips: QueryClips, answer: Answer) -> None:
    """Plot the paths of the first clip, with axes in the pixels of the table."""
    video_map, images = clips.background(1)
    tracks = tracks_of(answer_in_video(answer, video_map), 0)
    num_frames = answer.observed.shape[1]
    title = f"{len(tracks.pixels)} objects in {num_frames} frames"
    if clips.video_map is not None:
        title += f", {num_frames / clips.fps:.1f} s"
    plot_paths(path, tracks, next(images), title)


def plot_paths(path: Path, view: View, image: Picture, title: str) -> None:
    """Write a PNG of the paths over an image: solid where detected, else dotted with ellipses."""
    from matplotlib.figure import Figure

    height, width = image.shape[:2]
    figure = Figure(figsize=(6.4, max(6.4 * height / width, 2.0) + 0.4), dpi=DPI)
    axis = figure.add_axes((0.1, 0.08, 0.88, 0.86))
    axis.imshow(image // np.uint8(2))
    for n, points in enumerate(view.path_pixels):
        colour = COLOURS[n % len(COLOURS)]
        axis.plot(*points.T, ":", color=colour, lw=1.2)
        detected = np.where(view.detected[n, :, None], points, np.nan)
        axis.plot(*detected.T, "-", color=colour, lw=1.6, label=f"object {n}")
        for drawn in view.branches(n):
            lost = np.where(view.detected[n, :, None], np.nan, drawn)
            axis.plot(*lost.T, "-", color=colour, lw=0.6, alpha=0.35, zorder=1)
        hidden = np.flatnonzero(~view.detected[n])
        for t in hidden[:: max(-(-len(hidden) // MAX_ELLIPSES), 1)]:
            ring = outline(view.pixels[n, t], view.pixel_covariances[n, t])
            # Faint: many overlap, and none may hide a path.
            axis.fill(*ring.T, facecolor=(colour, 0.05), edgecolor=(colour, 0.4), lw=0.8, zorder=1)
    frame_axes(axis, (height, width))
    axis.set(xlabel="x, pixels", ylabel="y, pixels")
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=8, framealpha=0.6)
    with atomic_path(path) as temporary:
        temporary.write_bytes(png(figure))


def check_overlay(path: Path, num_frames: int = 0) -> None:
    """Raise `InputError` unless a file of this name can hold so many frames."""
    suffix = path.suffix.lower()
    if suffix not in (".mp4", ".gif"):
        raise InputError(f"overlay is {path}; expected a name that ends in .mp4 or .gif")
    if suffix == ".gif" and num_frames > MAX_GIF_FRAMES:
        raise InputError(
            f"overlay is {path} with more than {MAX_GIF_FRAMES} frames; write an .mp4, or take "
            "less with --start and --end"
        )


def overlay_answer(
    path: Path, clips: QueryClips, answer: Answer, progress: Callable[[int], None]
) -> None:
    """Draw the tracks of the first clip on the video, or on the enlarged clip."""
    longer_side = max(clips.frames.shape[2:4])
    video_map, images = clips.background(max(1, round(CLIP_SIDE / longer_side)))
    drawn = draw_tracks(images, tracks_of(answer_in_video(answer, video_map), 0), progress)
    write_animation(path, drawn, clips.fps)


def draw_tracks(
    images: Iterator[Picture], view: View, progress: Callable[[int], None] = lambda done: None
) -> Iterator[Picture]:
    """Yield the images with paths and 90 % ellipses, dashed where an object is not detected.

    Images may end before the tracks do, as in a forecast; the last one is repeated, darker.
    """
    last = None
    for t in range(view.pixels.shape[1]):
        image = next(images, None)
        if image is None:
            if last is None:
                return
            image = last // np.uint8(3)
        else:
            last = image
        yield _draw_frame(image, view, t)
        progress(t + 1)


def write_animation(path: Path, images: Iterator[Picture], fps: float) -> None:
    """Write images as an mp4 or a GIF, by the suffix of the name."""
    check_overlay(path)
    write = write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    write(path, images, fps)


def _write_gif(path: Path, images: Iterator[Picture], fps: float) -> None:
    from PIL import Image

    stills: list[Image.Image] = []
    for picture in images:
        check_overlay(path, len(stills) + 1)
        still = Image.fromarray(picture)
        still.thumbnail((MAX_GIF_SIDE, MAX_GIF_SIDE))
        # By coverage: a palette of the commonest colours would lose the thin lines. One for all
        # frames: colours of a scene at rest should not flicker.
        palette = stills[0] if stills else still.quantize(128, Image.Quantize.MAXCOVERAGE)
        stills.append(still.quantize(palette=palette, dither=Image.Dither.NONE))
    content = encode_gif(stills, gif_delay(fps))
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _draw_frame(picture: Picture, view: View, t: int) -> Picture:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    line = max(1, round(min(image.size) / 200))
    font = ImageFont.load_default(max(10.0, min(image.size) / 40))
    for n, path in enumerate(view.path_pixels):
        colour = COLOURS[n % len(COLOURS)]
        since = _last_detection(view, n, t)
        for drawn in view.branches(n)[:, max(since, t - TAIL) : t + 1] if since < t else ():
            draw.line([(float(x), float(y)) for x, y in drawn], fill=_dimmed(colour), width=1)
        tail = path[max(0, t - TAIL) : t + 1]
        if len(tail) > 1:
            draw.line([(float(x), float(y)) for x, y in tail], fill=colour, width=line)
        ring = outline(view.pixels[n, t], view.pixel_covariances[n, t])
        _draw_ring(draw, ring, colour, line, solid=bool(view.detected[n, t]))
        x, y = view.pixels[n, t]
        radius = float(np.abs(ring - (x, y)).max()) + 2
        draw.text((float(x) + radius, float(y) - radius), str(n), fill=colour, font=font)
    return np.asarray(image)


def _last_detection(view: View, n: int, t: int) -> int:
    """Return the last frame up to t in which an object was detected, 0 if there is none."""
    seen = np.flatnonzero(view.detected[n, : t + 1])
    return int(seen[-1]) if len(seen) else 0


def _dimmed(colour: str) -> tuple[int, ...]:
    """Return half of a colour."""
    return tuple(int(colour[i : i + 2], 16) // 2 for i in (1, 3, 5))


def _draw_ring(
    draw: Any, ring: Float[np.ndarray, "corners 2"], colour: str, width: int, solid: bool
) -> None:
    """Draw a closed line, or dashes."""
    corners = [(float(x), float(y)) for x, y in ring]
    if solid:
        draw.line([*corners, corners[0]], fill=colour, width=width)
        return
    step = math.ceil(len(corners) / (2 * DASHES))
    for start in range(0, len(corners), 2 * step):
        draw.line(corners[start : start + step + 1], fill=colour, width=width)
