"""`motes infer | forecast | interpolate | sample`: read inputs, query the model, write outputs."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from motes.cli.options import Json, ModelName, NumObjects, Out, time_span
from motes.cli.terminal import bar, join_paths, print_result, print_warnings
from motes.core.errors import InputError
from motes.core.files import all_or_none, check_output_paths

if TYPE_CHECKING:
    from motes.models.model import Model
    from motes.output.tracks import QueryClips
    from motes.queries.answer import Answer

MAX_GIF_FPS = 50.0
TableFormat = Literal["csv", "parquet", "trackpy", "napari", "trackmate", "mot"]
SUFFIXES = {  # the usual ones; `motes.output.formats` knows more
    "csv": ".csv",
    "parquet": ".parquet",
    "trackpy": ".trackpy.csv",
    "napari": ".napari",
    "trackmate": ".xml",
    "mot": ".txt",
}


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
    """output file; default: name of the input with -COMMAND and the suffix of the format."""
    format: TableFormat | None = None
    """format of the output file; default: by its suffix, else CSV."""
    corrections: Path | None = None
    """JSON or CSV file of pins, forbidden detections and swaps, in pixels of the video."""
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
    device: str = "cpu"
    """cpu or cuda."""
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
        suffix = SUFFIXES[self.format or "csv"]
        return self.out or source.with_name(f"{source.stem}-{command}{suffix}")


QueryOptions = Annotated[Options, arg(name="")]  # its fields become options of the command


def infer(options: QueryOptions) -> None:
    """Infer where each object is in every frame; write a table.

    Example: motes infer clips.npz --out tracks.csv

    Example: motes infer juggling.mp4 --model runs/juggling --overlay tracks.mp4
    """
    model, clips = read_inputs("infer", options)
    _answer("infer", options, model, clips)


def forecast(
    options: QueryOptions,
    *,
    num_observed: Annotated[int | None, arg(aliases=("--seen",))] = None,
    horizon: int = 25,
) -> None:
    """Predict the frames after a clip; write a table, observed frames first.

    Example: motes forecast clips.npz --num-observed 5 --horizon 25 --overlay forecast.gif

    Args:
        options: options of every query.
        num_observed: use only this many frames of each clip; default: all.
        horizon: number of frames to predict.
    """
    from motes.queries import MAX_FRAMES, check_whole

    model, clips = read_inputs("forecast", options, num_observed)
    _answer("forecast", options, model, clips, check_whole("horizon", horizon, 1, MAX_FRAMES))


def interpolate(options: QueryOptions, *, hide: tuple[str, ...]) -> None:
    """Hide frames from the model and fill them in; write a table.

    Example: motes interpolate clips.npz --hide 5:25 --out filled.csv

    Args:
        options: options of every query.
        hide: frames to hide, counted from 0: numbers, or ranges start:end that exclude the end.
    """
    import torch

    model, clips = read_inputs("interpolate", options)
    observed = torch.ones(clips.frames.shape[:2], dtype=torch.bool)
    if clips.observed is not None:
        observed &= clips.observed
    for text in hide:
        observed[:, _frame_range(text, clips.frames.shape[1])] = False
    _answer("interpolate", options, model, replace(clips, observed=observed))


def sample(
    out: Out[Path] = Path("samples.npz"),
    model: ModelName[str] = "cannonballs-48",
    num_clips: int = 8,
    num_objects: NumObjects[int] = 2,
    num_frames: int = 30,
    gif: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    as_json: Json = False,
) -> None:
    """Draw new clips from the model.

    Example: motes sample --num-clips 8 --num-objects 3 --gif sampled.gif

    Args:
        out: output file: npz with frames (binary, except for the layered model) and positions.
        model: shipped model or run folder.
        num_clips: number of clips.
        num_objects: number of objects in a clip.
        num_frames: number of frames in a clip.
        gif: GIF to write: the first clip.
        seed: random seed of the clips.
        device: cpu or cuda.
        as_json: print one JSON line instead of text.
    """
    from motes import queries
    from motes.data import Clips, pack, save_clips, write_gif
    from motes.models.model import load

    loaded = load(model, device=device)
    answer = queries.sample(loaded, num_clips, num_objects, num_frames, seed=seed).cpu()
    video = pack(answer.frames > 0.5) if not loaded.renderer.grey_levels else answer.frames
    with all_or_none():
        save_clips(out, Clips(video, answer.num_objects, answer.pixels, answer.path_pixels))
        if gif is not None:
            write_gif(gif, answer.frames[0])
    record = {"verb": "sample", "clips": num_clips, "out": str(out), "gif": gif and str(gif)}
    text = f"sampled {num_clips} clips of {num_objects} objects: {join_paths(out, gif)}"
    print_result(record, as_json, text)


def read_inputs(
    command: str, options: Options, num_observed: int | None = None
) -> tuple["Model", "QueryClips"]:
    """Return the model and the clips of a query.

    Everything that can be checked before the query runs is checked here, output paths too.

    Args:
        command: infer, forecast or interpolate.
        options: Of the command line.
        num_observed: Keep only this many frames of each clip; None: all.
    """
    from motes.models.model import load
    from motes.output.corrections import in_clip, read_corrections
    from motes.output.tracks import check_overlay

    if options.overlay is not None:
        check_overlay(options.overlay)
    check_output_paths(options.table(command), options.gif, options.overlay, options.plot)
    model = load(options.model_name, device=options.device)
    clips = _read_video(model, options) if options.has_video else _read_clips(options)
    if options.corrections is not None:
        listed = read_corrections(options.corrections)
        clips = replace(clips, corrections=tuple(in_clip(listed, clips.video_map)))
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


def _read_clips(options: Options) -> "QueryClips":
    from motes.data import load_clips
    from motes.output.tracks import QueryClips
    from motes.video import load_video_map

    if (options.start, options.end) != (0.0, None):
        raise InputError("start and end are for videos; a file of clips is used as a whole")
    clips, stored = load_clips(options.clips), load_video_map(options.clips)
    counts = clips.num_objects if options.num_objects is None else options.num_objects
    return QueryClips(clips.frames, clips.observed, counts, stored and stored[0])


def _read_video(model: "Model", options: Options) -> "QueryClips":
    """Return a video as one clip, prepared like the clips that the model was trained on."""
    from motes.output.tracks import QueryClips
    from motes.video import find_preparation, open_video, whole_clip

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
    print_warnings(whole.warnings)
    return QueryClips(whole.frames, None, options.num_objects, whole.where, whole.pictures)


def _answer(
    command: str, options: Options, model: "Model", clips: "QueryClips", horizon: int = 0
) -> None:
    """Query the model, write the requested files, all or none, and print the result."""
    from motes.data import write_gif
    from motes.output import tracks
    from motes.output.formats import object_diameter

    answer = _query(model, clips, horizon, options.seed)
    (num_clips, num_frames), table = answer.observed.shape, options.table(command)
    with all_or_none():
        if options.gif is not None:
            # The first clip is queried alone: frames of all clips would take long to draw.
            first = replace(clips.select(slice(1)), num_objects=answer.num_objects[:1])
            drawn = _query(model, first, horizon, options.seed).frames[0]
            write_gif(options.gif, drawn, min(clips.fps, MAX_GIF_FPS))
        if options.plot is not None:
            tracks.plot_answer(options.plot, clips, answer)
        if options.overlay is not None:
            with bar("drawing", num_frames) as progress:
                tracks.overlay_answer(options.overlay, clips, answer, progress)
        diameter = object_diameter(model, clips.video_map)
        tracks.write_table(table, answer, clips.video_map, options.format, diameter)
    counts = answer.num_objects.tolist()
    others = {name: getattr(options, name) for name in ("gif", "overlay", "plot")}
    record = {
        "verb": command,
        "clips": num_clips,
        "frames": num_frames,
        "num_objects": counts,
        "out": str(table),
        **{name: path and str(path) for name, path in others.items()},
    }
    warning = answer.fit.warning if answer.fit is not None else None
    if warning is not None:
        print(f"motes: warning: {warning}", file=sys.stderr)
        record["warning"] = warning
    text = f"{command}: {num_clips} clips, {sum(counts)} tracks of {num_frames} frames: "
    print_result(record, options.as_json, text + join_paths(table, *others.values()))


def _query(model: "Model", clips: "QueryClips", horizon: int, seed: int) -> "Answer":
    """Return the answer about all frames of the clips and `horizon` more."""
    import torch
    from torch.nn.functional import pad

    from motes import queries

    frames, observed, num_objects = clips.frames, clips.observed, clips.num_objects
    options: dict[str, Any] = {"seed": seed, "corrections": clips.corrections}
    if observed is None and horizon == 0:
        return queries.infer(model, frames, num_objects, **options).cpu()
    if observed is None:
        return queries.forecast(model, frames, num_objects, horizon, **options).cpu()
    if horizon > 0:
        unobserved = torch.zeros_like(frames[:, :1]).expand(-1, horizon, *frames.shape[2:])
        frames, observed = torch.cat([frames, unobserved], 1), pad(observed, (0, horizon))
    return queries.interpolate(model, frames, observed, num_objects, **options).cpu()


def _frame_range(text: str, num_frames: int) -> slice:
    """Return the frames that `5` or `5:25` stands for."""
    start, colon, end = text.partition(":")
    try:
        first = int(start)
        last = int(end) if colon else first + 1
    except ValueError:
        raise InputError(f"hide is {text!r}; give a frame like 5 or a range like 5:25") from None
    if not 0 <= first < last <= num_frames:
        raise InputError(
            f"hide is {text!r}; the clips have frames 0 to {num_frames - 1}, and a range must end "
            "after its start"
        )
    return slice(first, last)
