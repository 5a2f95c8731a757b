"""`motes infer | forecast | interpolate | sample`: read inputs, query the model, write outputs."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from motes.cli import batch, long_recordings
from motes.cli.options import (
    HERE,
    NO_LENGTHS,
    Json,
    LengthOptions,
    ModelName,
    NumObjects,
    Out,
    ProcessOptions,
    time_span,
)
from motes.cli.terminal import bar, join_paths, print_result, print_warnings
from motes.core.errors import InputError
from motes.core.files import all_or_none, check_output_paths

if TYPE_CHECKING:
    import torch

    from motes.models.model import Model
    from motes.output.tracks import QueryClips
    from motes.queries.answer import Answer
    from motes.video.recordings import Recording

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
MAX_COUNTED = 100  # frames beyond which the number of objects is that of most frames
PICTURES = ("gif", "overlay", "plot")  # options that name further outputs


@dataclass(frozen=True)
class Options:
    """Options that infer, forecast and interpolate share."""

    clips: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            help="npz or npy file of clips, or a video: mp4, mov, avi, GIF, TIFF, folder of "
            "images; several, folders of videos and patterns in quotes give one table."
        ),
    ]
    model: Annotated[
        ModelName[str | None],
        arg(
            help="shipped model or run folder; default: for clips cannonballs-48, for a video a "
            "quick model that is trained on the video itself."
        ),
    ] = None
    num_objects: NumObjects[int | None] = None
    """number of objects in a clip; default: of the file, else inferred (long videos: the usual)."""
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
    source_fps: float | None = None
    """frames per second of a video without time stamps (folder, TIFF, array, some GIFs)."""
    lengths: LengthOptions = NO_LENGTHS
    """the size of things."""
    processes: ProcessOptions = HERE
    """where the work is done."""
    stretch: int | None = None
    """frames of a video that infer takes at once; default: all up to 10,000, else 2,000."""
    resume: bool = False
    """skip recordings that are done, and stretches of a long one."""
    full_resolution: bool = True
    """let infer fit positions in a shrunk video to its own pixels: two more passes over it."""
    force: bool = False
    """answer even if the recording is of another kind than those that the model learned from."""
    seed: int = 0
    """random seed of the draws that predicted frames average."""
    device: str = "cpu"
    """cpu or cuda."""
    as_json: Json = False
    """print one JSON line instead of text."""

    def table(self, command: str) -> Path:
        """Return the path of the table to write."""
        suffix = SUFFIXES[self.format or "csv"]
        if self.out is not None:
            return self.out
        if len(self.clips) != 1:
            return Path(f"recordings-{command}{suffix}")
        (given,) = self.clips
        source = given.resolve() if given.name in ("", "..") else given  # a folder
        return source.with_name(f"{source.stem.strip('*?[]') or 'recordings'}-{command}{suffix}")


QueryOptions = Annotated[Options, arg(name="")]  # its fields become options of the command


@dataclass(frozen=True)
class Query:
    """A question about one or several recordings; can be sent to another process."""

    command: str
    options: Options
    num_observed: int | None = None  # use only this many frames of each clip; None: all
    horizon: int = 0  # frames to predict after them
    hide: tuple[str, ...] = ()  # frames to hide


def is_video(path: Path) -> bool:
    """Return whether an input is a video, not a file of clips."""
    return path.suffix.lower() not in (".npz", ".npy")


def infer(options: QueryOptions) -> None:
    """Infer where each object is in every frame; write a table.

    Example: motes infer clips.npz --out tracks.csv

    Example: motes infer juggling.mp4 --model runs/juggling --overlay tracks.mp4

    Example: motes infer monday/ 'tuesday/*.mp4' --model runs/rig --scale 0.5mm/px -o tracks.csv
    """
    run(Query("infer", options))


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
    from motes.queries import MAX_FRAMES
    from motes.queries.validation import check_whole

    frames = check_whole("horizon", horizon, 1, MAX_FRAMES)
    run(Query("forecast", options, num_observed, frames))


def interpolate(options: QueryOptions, *, hide: tuple[str, ...]) -> None:
    """Hide frames from the model and fill them in; write a table.

    Example: motes interpolate clips.npz --hide 5:25 --out filled.csv

    Args:
        options: options of every query.
        hide: frames to hide, counted from 0: numbers, or ranges start:end that exclude the end.
    """
    run(Query("interpolate", options, hide=hide))


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
    from motes.models.checkpoint import load

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


def run(query: Query) -> None:
    """Answer a query about one recording or several; write the table and print the result."""
    from motes.output.tracks import check_overlay
    from motes.video.recordings import are_many, find_recordings

    options, table = query.options, query.options.table(query.command)
    if options.overlay is not None:
        check_overlay(options.overlay)
    check_output_paths(table, *(getattr(options, name) for name in PICTURES))
    options.lengths.units()  # whether they can be read
    if are_many(options.clips):
        _run_many(query, find_recordings(options.clips), table)
        return
    model, force = _model_of(query, options.clips, table), _is_forced(options, options.clips[0])
    query = replace(query, options=replace(options, model=model, force=force))
    record = answer(query, table, show_progress=True)
    print_warnings(record["warnings"])
    text = f"{query.command}: {record['clips']} clips, {sum(record['num_objects'])} tracks of "
    files = join_paths(table, *(getattr(options, name) for name in PICTURES))
    print_result(record, options.as_json, f"{text}{record['frames']} frames: {files}")


def _model_of(query: Query, paths: tuple[Path, ...], table: Path) -> str:
    """Return the model to query; for videos, without one, a quick model of the videos."""
    if query.options.model is not None:
        return query.options.model
    videos = [path for path in paths if is_video(path)]
    if not videos:
        return "cannonballs-48"
    from motes.cli.quick_model import quick_model

    return str(quick_model(videos, query.options, table.with_name(f"{table.stem}-model")))


def _is_forced(options: Options, path: Path) -> bool:
    """Return whether an answer is given in any case: a quick model learned from the recording."""
    return options.force or (options.model is None and is_video(path))


def _run_many(query: Query, recordings: "list[Recording]", table: Path) -> None:
    """Answer a query about several recordings, in one table, and say which of them failed."""
    from motes.models.checkpoint import find_model
    from motes.output.merge import merge_tables

    options, folder = query.options, batch.parts_folder(table)
    fixes = _split_corrections(options.corrections, recordings, folder)
    model = find_model(_model_of(query, tuple(found.path for found in recordings), table)).resolve()
    weights = [(file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(model.iterdir())]
    jobs = []
    for recording in recordings:
        own = replace(
            options,
            clips=(recording.path.resolve(),),
            model=str(model),
            force=_is_forced(options, recording.path),
            gif=_named(options.gif, recording),
            overlay=_named(options.overlay, recording),
            plot=_named(options.plot, recording),
            corrections=fixes.get(recording.name),
            # What changes nothing in the part of a recording:
            out=None,
            format=None,
            processes=HERE,
            resume=False,
            as_json=False,
        )
        part, one = batch.part_path(folder, recording, ".csv"), replace(query, options=own)
        key = batch.job_key(recording.path, one, weights)
        one = replace(one, options=replace(own, resume=options.resume))
        jobs.append(batch.Job(recording.name, answer, one, part, key))
    places = options.processes
    results = batch.run_jobs(jobs, batch.Workers(places.jobs, places.cluster, options.resume))
    batch.write_summary(folder, results)
    batch.require_some(results)
    done = [result for result in results if result.failed is None]
    parts = [(result.recording, result.part) for result in done]
    tracks = merge_tables(table, parts, options.format, done[0].record["diameter"])
    record = {
        "verb": query.command,
        "recordings": {result.recording: result.record["num_objects"] for result in done},
        "failed": batch.failures(results),
        "tracks": tracks,
        "warnings": batch.recording_warnings(results),
        "out": str(table),
    }
    print_warnings(batch.recording_warnings(results))
    text = f"{query.command}: {len(done)} of {len(results)} recordings, {tracks} tracks: {table}"
    print_result(record, options.as_json, text)
    batch.require_all(results, folder)


def _split_corrections(
    path: Path | None, recordings: "list[Recording]", folder: Path
) -> dict[str, Path]:
    """Write the corrections of each recording to a file, whose name changes with its content."""
    from motes.output.corrections import read_corrections_of, write_corrections

    if path is None:
        return {}
    own = read_corrections_of(path, [recording.name for recording in recordings])
    files = {}
    for name, corrections in own.items():
        code = hashlib.sha256(repr((name, corrections)).encode()).hexdigest()[:16]
        files[name] = folder / f"corrections-{code}.json"
        write_corrections(files[name], corrections)
    return files


def _named(path: Path | None, recording: "Recording") -> Path | None:
    """Return the path of a further output with the name of the recording in it."""
    if path is None:
        return None
    name = recording.name.replace("/", "_")
    return Path(os.path.abspath(path.with_name(f"{path.stem}-{name}{path.suffix}")))


def answer(query: Query, table: Path, show_progress: bool = False) -> dict[str, Any]:
    """Query the model about one recording, write the requested files, all or none.

    Return what was written, with the warnings.
    """
    from motes.data import write_gif
    from motes.output import tracks
    from motes.output.formats import object_diameter

    options = query.options
    if is_video(options.clips[0]) and long_recordings.is_long(query, options.clips[0]):
        return long_recordings.answer(query, table, show_progress)
    model, clips, warnings = read_inputs(query, show_progress)
    found = _query(model, clips, query.horizon, options.seed)
    fit, (num_clips, num_frames) = found.fit, found.observed.shape
    if fit is not None and not options.force and options.corrections is None:
        fit.require_same_kind()
    if query.command == "infer" and options.full_resolution:
        found = _at_full_resolution(model, clips, found)
    with all_or_none():
        if options.gif is not None:
            # The first clip is queried alone: frames of all clips would take long to draw.
            first = replace(clips.select(slice(1)), num_objects=found.num_objects[:1])
            drawn = _query(model, first, query.horizon, options.seed).frames[0]
            write_gif(options.gif, drawn, min(clips.fps, MAX_GIF_FPS))
        if options.plot is not None:
            tracks.plot_answer(options.plot, clips, found)
        if options.overlay is not None:
            with bar("drawing", num_frames, hidden=not show_progress) as progress:
                tracks.overlay_answer(options.overlay, clips, found, progress)
        diameter = object_diameter(model, clips.video_map)
        tracks.write_table(table, found, clips.video_map, options.format, diameter)
    record: dict[str, Any] = {
        "verb": query.command,
        "clips": num_clips,
        "frames": num_frames,
        "num_objects": found.num_objects.tolist(),
        "unit": tracks.unit_of(clips.video_map),
        "diameter": diameter,
        "out": str(table),
        **{name: _text(getattr(options, name)) for name in PICTURES},
    }
    warning = None if fit is None else fit.warning
    if warning is not None:
        record["warning"] = warning
        warnings = [*warnings, warning]
    return {**record, "warnings": warnings}


def _at_full_resolution(model: "Model", clips: "QueryClips", found: "Answer") -> "Answer":
    """Return the answer with positions fitted to the pixels of the recording, where they can be."""
    from motes.output.formats import object_diameter
    from motes.output.full_resolution import can_refine, refine_answer

    where, pictures = clips.video_map, clips.images
    if not can_refine(clips) or where is None or pictures is None:
        return found
    diameter = object_diameter(model, replace(where, units=None))
    return refine_answer(found, where, pictures, diameter)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def read_inputs(
    query: Query, show_progress: bool = False
) -> tuple["Model", "QueryClips", list[str]]:
    """Return the model, the clips of a query and warnings about them.

    Everything that can be checked before the query runs is checked here.
    """
    import torch

    from motes.models.checkpoint import load
    from motes.output.corrections import in_clip, read_corrections
    from motes.output.tracks import check_overlay

    options, (path,) = query.options, query.options.clips
    name = options.model or "cannonballs-48"
    model = load(name, device=options.device)
    read = _read_video if is_video(path) else _read_clips
    clips, warnings = read(model, options, name, show_progress)
    if options.corrections is not None:
        listed = read_corrections(options.corrections)
        clips = replace(clips, corrections=tuple(in_clip(listed, clips.video_map)))
    units = options.lengths.units()
    if units is not None and clips.video_map is not None:
        clips = replace(clips, video_map=replace(clips.video_map, units=units))
    elif units is not None:
        raise InputError(
            f"{path} does not say where its clips are in a video, so lengths mean nothing; give a "
            "video or clips by motes prepare"
        )
    if query.num_observed is not None:
        num_frames = clips.frames.shape[1]
        if not 2 <= query.num_observed <= num_frames:
            raise InputError(
                f"num_observed is {query.num_observed}; give 2 to {num_frames}, the frames of the "
                "clips"
            )
        clips = clips.select(slice(None), slice(query.num_observed))
    if query.command == "interpolate":
        observed = torch.ones(clips.frames.shape[:2], dtype=torch.bool)
        if clips.observed is not None:
            observed &= clips.observed
        for text in query.hide:
            observed[:, _frame_range(text, clips.frames.shape[1])] = False
        clips = replace(clips, observed=observed)
    if options.overlay is not None:
        check_overlay(options.overlay, clips.frames.shape[1])
    return model, clips, warnings


def _read_clips(
    model: "Model", options: Options, name: str, show_progress: bool
) -> tuple["QueryClips", list[str]]:
    from motes.data import load_clips
    from motes.output.tracks import QueryClips
    from motes.video import load_video_map

    if (options.start, options.end, options.stretch) != (0.0, None, None):
        raise InputError(
            "start, end and stretch are for videos; a file of clips is used as a whole"
        )
    (path,) = options.clips
    clips, stored = load_clips(path), load_video_map(path)
    counts = clips.num_objects if options.num_objects is None else options.num_objects
    return QueryClips(clips.frames, clips.observed, counts, stored and stored[0]), []


def _read_video(
    model: "Model", options: Options, name: str, show_progress: bool
) -> tuple["QueryClips", list[str]]:
    """Return a video as one clip, prepared like the clips that the model was trained on."""
    from motes.output.tracks import QueryClips
    from motes.video import find_preparation, open_video, whole_clip

    (path,), span = options.clips, time_span(options.start, options.end)
    video, (height, width) = open_video(path), model.image_size
    if not model.black_and_white and (video.height, video.width) != (height, width):
        raise InputError(
            f"{path} has {video.height}x{video.width} pixels; this model was trained on "
            f"unprepared frames of {height}x{width}: scale the video to that size"
        )
    with bar("reading", video.num_frames, hidden=not show_progress) as progress:
        whole = whole_clip(
            *(path, height, width, find_preparation(name), span, progress),
            in_colour=model.in_colour,
            source_fps=options.source_fps,
        )
    count, warnings = options.num_objects, list(whole.warnings)
    if count is None and model.black_and_white and whole.frames.shape[1] > MAX_COUNTED:
        count = max(_usual_count(whole.frames[0]), 1)
        warnings.append(
            f"{count} objects, as usual in a frame; give --num-objects if that is wrong"
        )
    return QueryClips(whole.frames, None, count, whole.where, whole.pictures), warnings


def _usual_count(frames: "torch.Tensor") -> int:
    """Return the most frequent number of objects in prepared frames."""
    from motes.video.foreground import blob_masses, typical_count

    levels = (255 * frames).round().byte().numpy()
    return typical_count([blob_masses(frame) for frame in levels])


def _query(model: "Model", clips: "QueryClips", horizon: int, seed: int) -> "Answer":
    """Return the answer about all frames of the clips and `horizon` more."""
    import torch
    from torch.nn.functional import pad

    from motes import queries
    from motes.queries.absences import infer_recording

    frames, observed, num_objects = clips.frames, clips.observed, clips.num_objects
    options: dict[str, Any] = {"seed": seed, "corrections": clips.corrections}
    if observed is None and horizon == 0:
        return infer_recording(model, frames, num_objects, **options).cpu()
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
