"""What a person asks about, and where the answer goes: clips or a video in, files out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from tyro.conf import arg

from motes.cli.options import Json, listed, seconds, tell
from motes.cli.progress import bar
from motes.core.axes import Tensor, UInt8
from motes.core.errors import InputError
from motes.core.files import all_or_none, check_places
from motes.data import load_clips, write_gif
from motes.models.checkpoint import read_config, write_text
from motes.models.model import Model
from motes.output.overlay import Trails, check_overlay, draw_trails, write_overlay
from motes.output.path_plot import write_paths
from motes.output.tables import in_video, write_table
from motes.queries.answer import Answer
from motes.video import VideoMap, find_preparation, load_video_map, open_video, whole_clip
from motes.video.prepare import PREPARATION, preparation_to_json

CLIP_FPS = 10.0  # of animations of clips that have no clock
CLIP_SIDE = 480  # pixels of the longer side of a clip that is drawn by itself
Pictures = Callable[[], Iterator[UInt8[np.ndarray, "height width 3"]]]


@dataclass(frozen=True)
class Options:
    """What every question about clips can be told."""

    model: str | None = None
    """shipped model or run folder; default: cannonballs-48, of a video cannonballs-structured."""
    num_objects: int | None = None
    """objects in every clip; default: what the file says, else inferred."""
    overlay: Path | None = None
    """mp4 or GIF to write: the video with tracks, 90 % ellipses and dashed ghosts."""
    plot: Path | None = None
    """PNG to write: the paths over the first picture."""
    start: float = 0.0
    """first second of a video to use."""
    end: float | None = None
    """last second of a video to use."""
    seed: int = 0
    """of the draws behind the predicted frames."""
    as_json: Json = False
    """print one JSON line instead of a sentence."""

    def model_for(self, path: Path) -> str:
        """The model to ask about a file; a stranger's video is for a search, not for networks."""
        if self.model is not None:
            return self.model
        return "cannonballs-48" if _holds_clips(path) else "cannonballs-structured"


Shared = Annotated[Options, arg(name="")]  # each an option of the verb itself


@dataclass(frozen=True, eq=False)
class Question:
    """Clips to ask about."""

    frames: Tensor  # [B, T, height, width]
    observed: Tensor | None  # [B, T], which of them were seen; all, if None
    num_objects: Any  # as asked for, else as the file says, else None
    where: VideoMap | None  # in which video the clips are
    pictures: Pictures | None  # the video's own

    def of(self, clips: slice, frames: slice = slice(None)) -> "Question":
        """The question about some of the clips, or of their frames."""
        observed = None if self.observed is None else self.observed[clips, frames]
        return replace(self, frames=self.frames[clips, frames], observed=observed)

    @property
    def fps(self) -> float:
        """Frames a second."""
        return CLIP_FPS if self.where is None else self.where.fps


def read_question(path: Path, model: Model, options: Options) -> Question:
    """Clips of an npz or npy file as they are, or a video as the model is used to see it."""
    if _holds_clips(path):
        if (options.start, options.end) != (0.0, None):
            raise InputError("start and end are for videos; clips are asked about as they are")
        clips = load_clips(path)
        known = load_video_map(path)
        counts = clips.num_objects if options.num_objects is None else options.num_objects
        return Question(clips.frames, clips.observed, counts, known and known[0], None)
    span = seconds(options.start, options.end)
    video, (height, width) = open_video(path), model.image_size
    if not model.black_and_white and (video.height, video.width) != (height, width):
        raise InputError(
            f"{path} has {video.height}x{video.width} pixels; this model has learned from pictures "
            f"of {height}x{width} as they are: scale the video to that size"
        )
    with bar("reading", video.num_frames) as progress:
        preparation = find_preparation(options.model_for(path))
        whole = whole_clip(
            path, height, width, preparation, span, progress, in_colour=model.in_colour
        )
    return Question(whole.frames, None, options.num_objects, whole.where, whole.pictures)


def _holds_clips(path: Path) -> bool:
    return path.suffix.lower() in (".npz", ".npy")


def keep_preparation(folder: Path) -> None:
    """Stores in a run folder how its clips were made of a video, so that others are made alike."""
    data = read_config(folder).data.path
    known = load_video_map(Path(data)) if data is not None and Path(data).is_file() else None
    if known is not None:
        write_text(folder / PREPARATION, preparation_to_json(known[1]))


@dataclass(frozen=True)
class Files:
    """What to write; None is not written, but the table always is."""

    table: Path
    gif: Path | None
    overlay: Path | None
    plot: Path | None

    @staticmethod
    def of(
        verb: str, source: Path, out: Path | None, gif: Path | None, options: Options
    ) -> "Files":
        """The files that were asked for; the table beside the source where no name was given."""
        named = source.resolve() if source.name in ("", "..") else source  # of a folder
        overlay, plot = options.overlay, options.plot
        if overlay is not None:
            check_overlay(overlay)
        table = out or named.with_name(f"{named.stem}-{verb}.csv")
        check_places(table, gif, overlay, plot)
        return Files(table, gif, overlay, plot)


def answer_question(
    verb: str, ask: Callable[[Question], Answer], question: Question, files: Files, as_json: bool
) -> None:
    """Asks, writes the files, and says so; where one of them fails, none is left."""
    if files.overlay is not None:
        check_overlay(files.overlay, question.frames.shape[1])
    answer = ask(question)
    with all_or_none():
        if files.gif is not None:
            first = replace(question.of(slice(1)), num_objects=answer.num_objects[:1])
            # Asked once more: all clips would take long to draw.
            write_gif(files.gif, ask(first).frames[0], min(question.fps, 50.0))
        if files.overlay is not None or files.plot is not None:
            _draw(answer, question, files)
        write_table(files.table, answer, question.where)
    counts = answer.num_objects.tolist()
    record = {
        "verb": verb,
        "clips": len(counts),
        "frames": answer.observed.shape[1],
        "num_objects": counts,
        "out": str(files.table),
        "gif": files.gif and str(files.gif),
        "overlay": files.overlay and str(files.overlay),
        "plot": files.plot and str(files.plot),
    }
    tell(
        record,
        as_json,
        f"{verb}: {len(counts)} clips, {sum(counts)} tracks of {answer.observed.shape[1]} frames: "
        + listed(files.table, files.gif, files.overlay, files.plot),
    )


def _draw(answer: Answer, question: Question, files: Files) -> None:
    """The first clip on the video's own pictures, or on its frames where there are none."""
    num_frames = answer.observed.shape[1]
    if files.plot is not None:
        where, pictures = _canvas(question, 1)  # axes in the pixels of the table
        trails = Trails.of(in_video(answer, where), 0)
        title = f"{len(trails.path)} objects in {num_frames} frames"
        if question.where is not None:
            title += f", {num_frames / question.fps:.1f} s"
        write_paths(files.plot, trails, next(pictures()), title)
    if files.overlay is not None:
        longer_side = max(question.frames.shape[2:4])
        where, pictures = _canvas(question, max(1, round(CLIP_SIDE / longer_side)))
        trails = Trails.of(in_video(answer, where), 0)
        with bar("drawing", num_frames) as progress:
            drawn = _counted(draw_trails(pictures(), trails), progress)
            write_overlay(files.overlay, drawn, question.fps)


def _counted(
    pictures: Iterator[UInt8[np.ndarray, "height width 3"]], progress: Callable[[int], None]
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    for count, picture in enumerate(pictures):
        yield picture
        progress(count + 1)


def _canvas(question: Question, factor: int) -> tuple[VideoMap, Pictures]:
    """Pictures to draw on, and the map to them: the video's, or enlarged frames of the clip."""
    if question.pictures is not None and question.where is not None:
        return question.where, question.pictures
    clip = question.frames[0]
    times = np.arange(len(clip))[None]
    where = VideoMap(
        np.full(2, float(factor)), np.full(2, (factor - 1) / 2), times / CLIP_FPS, times
    )

    def pictures() -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        for frame in clip:
            levels = (255 * frame.float()).round().to(torch.uint8).numpy()
            large = levels.repeat(factor, axis=0).repeat(factor, axis=1)
            yield large if large.ndim == 3 else np.repeat(large[..., None], 3, axis=2)

    return where, pictures
