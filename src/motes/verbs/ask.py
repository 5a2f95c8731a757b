"""`motes infer | forecast | interpolate | sample`: clips in, tables and pictures out."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from tyro.conf import Positional, arg

from motes import queries
from motes.answer import COLUMNS, Answer
from motes.atomic import atomic_path
from motes.checkpoint import load
from motes.data import Clips, load_clips, pack, save_clips, write_gif
from motes.errors import InputError
from motes.verbs import tell
from motes.video import read_frames

Json = Annotated[bool, arg(name="json", help="print one JSON line instead of a sentence")]


def infer(
    clips: Positional[Path],
    model: str = "cannonballs-48",
    num_objects: int | None = None,
    out: Path | None = None,
    gif: Path | None = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """Where is each object? Writes a table of positions, one row a clip, frame and object.

    Example: motes infer clips.npz --out tracks.csv

    Args:
        clips: npz or npy file, GIF, or folder of PNG/JPEG frames.
        model: a shipped model's name or a run folder.
        num_objects: objects in every clip; default: what the file says, else inferred.
        out: CSV file to write; default: the input's name with -infer.csv.
        gif: also write what the model sees of the first clip as an animation.
        seed: of the draws behind the predicted frames.
        as_json: print one JSON line instead of a sentence.
    """
    frames, counts = _read(clips, num_objects)
    ask = partial(queries.infer, load(model), seed=seed)
    _write("infer", ask, frames, counts, clips, out, gif, as_json)


def forecast(
    clips: Positional[Path],
    model: str = "cannonballs-48",
    num_objects: int | None = None,
    seen: int | None = None,
    horizon: int = 25,
    out: Path | None = None,
    gif: Path | None = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """Where will each object be? Writes a table of all frames, the seen ones first.

    Example: motes forecast clips.npz --seen 5 --horizon 25 --gif forecast.gif

    Args:
        clips: npz or npy file, GIF, or folder of PNG/JPEG frames.
        model: a shipped model's name or a run folder.
        num_objects: objects in every clip; default: what the file says, else inferred.
        seen: use only so many frames of each clip; default: all.
        horizon: how many frames to look ahead.
        out: CSV file to write; default: the input's name with -forecast.csv.
        gif: also write the predicted frames of the first clip as an animation.
        seed: of the draws behind the predicted frames.
        as_json: print one JSON line instead of a sentence.
    """
    frames, counts = _read(clips, num_objects)
    if seen is not None:
        if not 2 <= seen <= frames.shape[1]:
            raise InputError(f"seen is {seen}; the clips have {frames.shape[1]} frames, give 2..")
        frames = frames[:, :seen]
    ask = partial(queries.forecast, load(model), horizon=horizon, seed=seed)
    _write("forecast", ask, frames, counts, clips, out, gif, as_json)


def interpolate(
    clips: Positional[Path],
    hide: tuple[str, ...],
    model: str = "cannonballs-48",
    num_objects: int | None = None,
    out: Path | None = None,
    gif: Path | None = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """What happened while nobody looked? Hides frames and fills them in.

    Example: motes interpolate clips.npz --hide 5:25 --out filled.csv

    Args:
        clips: npz or npy file, GIF, or folder of PNG/JPEG frames.
        hide: frames to hide, counted from 0: a number, or start:end without the end; several.
        model: a shipped model's name or a run folder.
        num_objects: objects in every clip; default: what the file says, else inferred.
        out: CSV file to write; default: the input's name with -interpolate.csv.
        gif: also write the filled-in frames of the first clip as an animation.
        seed: of the draws behind the predicted frames.
        as_json: print one JSON line instead of a sentence.
    """
    frames, counts = _read(clips, num_objects)
    observed = torch.ones(frames.shape[1], dtype=torch.bool)
    for part in hide:
        observed[_span(part, frames.shape[1])] = False
    ask = partial(queries.interpolate, load(model), observed=observed, seed=seed)
    _write("interpolate", ask, frames, counts, clips, out, gif, as_json)


def sample(
    out: Path = Path("samples.npz"),
    model: str = "cannonballs-48",
    num_clips: int = 8,
    num_objects: int = 2,
    num_frames: int = 30,
    gif: Path | None = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """What else could happen? Writes clips that the model imagines.

    Example: motes sample --num-clips 8 --num-objects 3 --gif imagined.gif

    Args:
        out: npz file to write: black-and-white frames and the positions drawn.
        model: a shipped model's name or a run folder.
        num_clips: how many clips.
        num_objects: objects in each.
        num_frames: frames in each.
        gif: also write the first clip as an animation.
        seed: another seed, other clips.
        as_json: print one JSON line instead of a sentence.
    """
    answer = queries.sample(load(model), num_clips, num_objects, num_frames, seed=seed)
    white = answer.frames > 0.5
    save_clips(out, Clips(pack(white), answer.num_objects, answer.pixels, answer.path_pixels))
    if gif is not None:
        write_gif(gif, answer.frames[0])
    record = {"verb": "sample", "clips": num_clips, "out": str(out), "gif": gif and str(gif)}
    tell(record, as_json, f"imagined {num_clips} clips of {num_objects} objects: {out}")


def _read(path: Path, num_objects: int | None) -> tuple[torch.Tensor, Any]:
    """Frames, and the number of objects: as asked for, else as the file says, else None."""
    if path.suffix == ".npz":
        clips = load_clips(path)
        return clips.frames, clips.num_objects if num_objects is None else num_objects
    return read_frames(path), num_objects


def _span(text: str, num_frames: int) -> slice:
    """The frames that `5` or `5:25` names."""
    start, colon, end = text.partition(":")
    try:
        first = int(start)
        last = int(end) if colon else first + 1
    except ValueError:
        raise InputError(f"hide is {text!r}; give a frame like 5 or a span like 5:25") from None
    if not 0 <= first < last <= num_frames:
        raise InputError(
            f"hide is {text!r}; the clips have frames 0 to {num_frames - 1}, and a span ends "
            "after it starts"
        )
    return slice(first, last)


def _write(
    verb: str,
    ask: Callable[..., Answer],
    frames: torch.Tensor,
    num_objects: Any,
    source: Path,
    out: Path | None,
    gif: Path | None,
    as_json: bool,
) -> None:
    """Asks, writes the table and the animation, and says so."""
    answer = ask(frames, num_objects=num_objects)
    source = source.resolve()  # so that a folder given as `.` has a name
    table = out or source.with_name(f"{source.stem}-{verb}.csv")
    with atomic_path(table) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(answer.rows())
        if gif is not None:  # inside, so that no table is left where the animation fails
            first = ask(frames[:1], num_objects=answer.num_objects[:1])  # pictures take long
            write_gif(gif, first.frames[0])
    counts = answer.num_objects.tolist()
    record = {
        "verb": verb,
        "clips": len(counts),
        "frames": answer.observed.shape[1],
        "num_objects": counts,
        "out": str(table),
        "gif": gif and str(gif),
    }
    tell(
        record,
        as_json,
        f"{verb}: {len(counts)} clips, {sum(counts)} tracks of {answer.observed.shape[1]} frames: "
        f"{table}" + (f", {gif}" if gif else ""),
    )
