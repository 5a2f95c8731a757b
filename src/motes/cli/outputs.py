"""Write the outputs of a query: table, animation, overlay and plot."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from motes.cli.inputs import CLIP_FPS, Images, Options, QueryClips
from motes.cli.options import join_paths, print_result
from motes.cli.progress import bar
from motes.core.axes import Tensor, UInt8
from motes.core.files import all_or_none
from motes.data import write_gif
from motes.output.overlay import draw_tracks, write_overlay
from motes.output.path_plot import write_paths
from motes.output.tables import in_video, write_table
from motes.output.views import tracks_of
from motes.queries.answer import Answer
from motes.video import VideoMap

CLIP_SIDE = 480  # pixels of the longer side of an overlay on a clip
MAX_GIF_FPS = 50.0


def write_outputs(
    command: str,
    table: Path,
    options: Options,
    clips: QueryClips,
    answer: Answer,
    first_frames: Tensor | None,
) -> None:
    """Write the requested files, all or none, and print the result.

    Args:
        command: infer, forecast or interpolate.
        table: Path of the table.
        options: Of the command line, with the other paths.
        clips: The clips of the query.
        answer: Of the query.
        first_frames: Predicted frames of the first clip, [T, height, width], for the GIF.
    """
    num_frames = answer.observed.shape[1]
    with all_or_none():
        if options.gif is not None and first_frames is not None:
            write_gif(options.gif, first_frames, min(clips.fps, MAX_GIF_FPS))
        if options.plot is not None:
            _write_plot(options, clips, answer)
        if options.overlay is not None:
            _write_overlay(options, clips, answer)
        write_table(table, answer, clips.video_map)
    counts = answer.num_objects.tolist()
    record = {
        "verb": command,
        "clips": len(counts),
        "frames": num_frames,
        "num_objects": counts,
        "out": str(table),
        "gif": options.gif and str(options.gif),
        "overlay": options.overlay and str(options.overlay),
        "plot": options.plot and str(options.plot),
    }
    paths = join_paths(table, options.gif, options.overlay, options.plot)
    text = f"{command}: {len(counts)} clips, {sum(counts)} tracks of {num_frames} frames: {paths}"
    print_result(record, options.as_json, text)


def _write_plot(options: Options, clips: QueryClips, answer: Answer) -> None:
    """Plot the paths of the first clip, with axes in the pixels of the table."""
    assert options.plot is not None
    video_map, images = _background(clips, 1)
    tracks = tracks_of(in_video(answer, video_map), 0)
    num_frames = answer.observed.shape[1]
    title = f"{len(tracks.pixels)} objects in {num_frames} frames"
    if clips.video_map is not None:
        title += f", {num_frames / clips.fps:.1f} s"
    write_paths(options.plot, tracks, next(images()), title)


def _write_overlay(options: Options, clips: QueryClips, answer: Answer) -> None:
    """Draw the tracks of the first clip on the video, or on the enlarged clip."""
    assert options.overlay is not None
    longer_side = max(clips.frames.shape[2:4])
    video_map, images = _background(clips, max(1, round(CLIP_SIDE / longer_side)))
    tracks = tracks_of(in_video(answer, video_map), 0)
    with bar("drawing", answer.observed.shape[1]) as progress:
        drawn = _with_progress(draw_tracks(images(), tracks), progress)
        write_overlay(options.overlay, drawn, clips.fps)


def _with_progress(
    images: Iterator[UInt8[np.ndarray, "height width 3"]], progress: Callable[[int], None]
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    for count, image in enumerate(images):
        yield image
        progress(count + 1)


def _background(clips: QueryClips, factor: int) -> tuple[VideoMap, Images]:
    """Return the map to the images to draw on, and the images: the video, or the enlarged clip."""
    if clips.images is not None and clips.video_map is not None:
        return clips.video_map, clips.images
    clip = clips.frames[0]
    times = np.arange(len(clip))[None]
    video_map = VideoMap(
        np.full(2, float(factor)), np.full(2, (factor - 1) / 2), times / CLIP_FPS, times
    )

    def images() -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        for frame in clip:
            levels = (255 * frame.float()).round().to(torch.uint8).numpy()
            large = levels.repeat(factor, axis=0).repeat(factor, axis=1)
            yield large if large.ndim == 3 else np.repeat(large[..., None], 3, axis=2)

    return video_map, images
