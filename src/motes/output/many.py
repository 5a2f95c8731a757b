"""Overlays of tracks that come and go: rings, solid where seen, and the last steps behind them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from motes.output.tracks import COLOURS, Picture, write_animation
from motes.tracking.tracks import Tracks
from motes.video.source import Video, to_rgb

TAIL = 12  # frames of the path drawn behind an object
MIN_PROBABILITY = 0.5  # of existence of what is drawn


def overlay_tracks(
    path: Path,
    video: Video,
    tracks: Tracks,
    span: tuple[float, float],
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write an mp4 or GIF of a video with its tracks; dashed rings are not seen but believed."""
    write_animation(path, draw_many(_pictures(video, span), tracks, progress), video.fps or 10.0)


def _pictures(video: Video, span: tuple[float, float]) -> Iterator[Picture]:
    for frame in video.frames():
        if frame.time > span[1]:
            return
        if frame.time >= span[0]:
            yield to_rgb(frame.picture)


def draw_many(
    images: Iterator[Picture], tracks: Tracks, progress: Callable[[int], None]
) -> Iterator[Picture]:
    """Yield the images with rings around existing objects and lines along their last steps."""
    from PIL import Image, ImageDraw

    bounds = np.searchsorted(tracks.frame, np.arange(tracks.num_frames + 1))
    drawn = tracks.row_exists >= MIN_PROBABILITY
    for t, picture in enumerate(images):
        if t >= tracks.num_frames:
            return
        image = Image.fromarray(picture)
        draw = ImageDraw.Draw(image)
        rows = np.arange(bounds[t], bounds[t + 1])[drawn[bounds[t] : bounds[t + 1]]]
        early = slice(bounds[max(0, t - TAIL)], bounds[t + 1])
        tails = np.flatnonzero(
            drawn[early] & np.isin(tracks.particle[early], tracks.particle[rows])
        )
        tails = tails + early.start
        for row in rows:
            colour = COLOURS[int(tracks.particle[row]) % len(COLOURS)]
            tail = tails[tracks.particle[tails] == tracks.particle[row]]
            if len(tail) > 1:
                draw.line([tuple(point) for point in tracks.row_positions[tail]], fill=colour)
            (x, y), radius = tracks.row_positions[row], tracks.diameter / 2 + 2
            box = (x - radius, y - radius, x + radius, y + radius)
            if tracks.row_seen[row]:
                draw.ellipse(box, outline=colour)
            else:
                for angle in range(0, 360, 60):
                    draw.arc(box, angle, angle + 30, fill=colour)
        yield np.asarray(image)
        progress(t + 1)
