"""Read the inputs of a query: options, model, and clips or a video."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from motes.cli.options import Json, ModelName, NumObjects, Out, time_span
from motes.cli.progress import bar
from motes.core.axes import Tensor, UInt8
from motes.core.errors import InputError
from motes.core.files import check_output_paths
from motes.data import load_clips
from motes.models.model import Model, load
from motes.output.overlay import check_overlay
from motes.video import VideoMap, find_preparation, load_video_map, open_video, whole_clip

CLIP_FPS = 10.0  # frame rate of animations of clips without time stamps
Images = Callable[[], Iterator[UInt8[np.ndarray, "height width 3"]]]


@dataclass(frozen=True)
class Options:
    """Options that infer, forecast and interpolate share."""

    clips: Positional[Path]
    """npz or npy file of clips, or a video: mp4, mov, avi, GIF, TIFF, folder of images."""
    model: ModelName[str | None] = None
    """shipped model or run folder; default: cannonballs-48, for a video cannonballs-structured."""
    num_objects: NumObjects[int | None] = None
    """number of objects in a clip; default: the number in the file, else inferred."""
    out: Out[Path | None] = None
    """output file: CSV or Parquet table; default: name of the input with -COMMAND.csv."""
    gif: Path | None = None
    """GIF to write: the first clip, as the model predicts its frames."""
    overlay: Path | None = None
    """mp4 or GIF to write: the video with tracks and 90 % ellipses, dashed where not observed."""
    plot: Path | None = None
    """PNG to write: the paths over the first frame."""
    start: float = 0.0
    """first second of the video to use."""
    end: float | None = None
    """last second of the video to use; default: all."""
    seed: int = 0
    """random seed of the draws that predicted frames average."""
    as_json: Json = False
    """print one JSON line instead of text."""

    @property
    def has_video(self) -> bool:
        """Whether the input is a video, not a file of clips."""
        return self.clips.suffix.lower() not in (".npz", ".npy")

    @property
    def model_name(self) -> str:
        """The model to query; the default for videos needs no training on similar clips."""
        default = "cannonballs-structured" if self.has_video else "cannonballs-48"
        return default if self.model is None else self.model

    def table(self, command: str) -> Path:
        """Return the path of the table to write."""
        source = self.clips.resolve() if self.clips.name in ("", "..") else self.clips  # a folder
        return self.out or source.with_name(f"{source.stem}-{command}.csv")


QueryOptions = Annotated[Options, arg(name="")]  # its fields become options of the command


@dataclass(frozen=True, eq=False)
class QueryClips:
    """Clips of a query and where they come from."""

    frames: Tensor  # [B, T, height, width]
    observed: Tensor | None  # [B, T]; None: every frame was observed
    num_objects: Any  # from the option, else from the file, else None
    video_map: VideoMap | None = None  # from clip pixels and frames to those of the video
    images: Images | None = None  # of the video

    def select(self, clips: slice, frames: slice = slice(None)) -> "QueryClips":
        """Return the same for some of the clips or frames."""
        observed = None if self.observed is None else self.observed[clips, frames]
        return replace(self, frames=self.frames[clips, frames], observed=observed)

    @property
    def fps(self) -> float:
        """Frames per second."""
        return CLIP_FPS if self.video_map is None else self.video_map.fps


def read_inputs(
    command: str, options: Options, num_observed: int | None = None
) -> tuple[Model, QueryClips]:
    """Return the model and the clips of a query.

    Everything that can be checked before the query runs is checked here, output paths too.

    Args:
        command: infer, forecast or interpolate.
        options: Of the command line.
        num_observed: Keep only this many frames of each clip; None: all.
    """
    if options.overlay is not None:
        check_overlay(options.overlay)
    check_output_paths(options.table(command), options.gif, options.overlay, options.plot)
    model = load(options.model_name)
    clips = _read_video(model, options) if options.has_video else _read_clips(options)
    if num_observed is not None:
        num_frames = clips.frames.shape[1]
        if not 2 <= num_observed <= num_frames:
            raise InputError(
                f"num_observed is {num_observed}; give 2 to {num_frames}, the frames of the clips"
            )
        clips = clips.select(slice(None), slice(num_observed))
    if options.overlay is not None:
        check_overlay(options.overlay, clips.frames.shape[1])
    return model, clips


def _read_clips(options: Options) -> QueryClips:
    if (options.start, options.end) != (0.0, None):
        raise InputError("start and end are for videos; a file of clips is used as a whole")
    clips, stored = load_clips(options.clips), load_video_map(options.clips)
    counts = clips.num_objects if options.num_objects is None else options.num_objects
    return QueryClips(clips.frames, clips.observed, counts, stored and stored[0])


def _read_video(model: Model, options: Options) -> QueryClips:
    """Return a video as one clip, prepared like the clips that the model was trained on."""
    span = time_span(options.start, options.end)
    video, (height, width) = open_video(options.clips), model.image_size
    if not model.black_and_white and (video.height, video.width) != (height, width):
        raise InputError(
            f"{options.clips} has {video.height}x{video.width} pixels; this model was trained on "
            f"unprepared frames of {height}x{width}: scale the video to that size"
        )
    with bar("reading", video.num_frames) as progress:
        preparation = find_preparation(options.model_name)
        whole = whole_clip(
            options.clips, height, width, preparation, span, progress, in_colour=model.in_colour
        )
    return QueryClips(whole.frames, None, options.num_objects, whole.where, whole.pictures)
