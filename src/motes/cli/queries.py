"""`motes infer | forecast | interpolate | sample`: clips or a video in, tables and pictures out."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import pad
from tyro.conf import Positional

from motes import queries
from motes.cli.io import Files, Question, Shared, answer_question, read_question
from motes.cli.options import Json, listed, tell
from motes.core.errors import InputError
from motes.core.files import all_or_none
from motes.data import Clips, pack, save_clips, write_gif
from motes.models.checkpoint import load
from motes.models.model import Model
from motes.queries.answer import Answer
from motes.queries.validation import check_whole


def infer(
    clips: Positional[Path],
    shared: Shared,
    *,
    out: Path | None = None,
    gif: Path | None = None,
) -> None:
    """Where is each object? Writes a table of positions, one row a clip, frame and object.

    Example: motes infer clips.npz --out tracks.csv

    Example: motes infer juggling.mp4 --model runs/juggling --overlay tracks.mp4

    Args:
        clips: npz or npy file of clips, or a video: mp4, mov, avi, GIF, TIFF, folder of pictures.
        shared: what every question can be told.
        out: CSV or Parquet file to write; default: the input's name with -infer.csv.
        gif: also write what the model sees of the first clip as an animation.
    """
    files = Files.of("infer", clips, out, gif, shared)
    model = load(shared.model_for(clips))
    question = read_question(clips, model, shared)
    answer_question("infer", partial(_filled, model, shared.seed), question, files, shared.as_json)


def forecast(
    clips: Positional[Path],
    shared: Shared,
    *,
    seen: int | None = None,
    horizon: int = 25,
    out: Path | None = None,
    gif: Path | None = None,
) -> None:
    """Where will each object be? Writes a table of all frames, the seen ones first.

    Example: motes forecast clips.npz --seen 5 --horizon 25 --overlay forecast.gif

    Args:
        clips: npz or npy file of clips, or a video: mp4, mov, avi, GIF, TIFF, folder of pictures.
        shared: what every question can be told.
        seen: use only so many frames of each clip; default: all.
        horizon: how many frames to look ahead.
        out: CSV or Parquet file to write; default: the input's name with -forecast.csv.
        gif: also write the predicted frames of the first clip as an animation.
    """
    files = Files.of("forecast", clips, out, gif, shared)
    model = load(shared.model_for(clips))
    question, seed = read_question(clips, model, shared), shared.seed
    if seen is not None:
        num_frames = question.frames.shape[1]
        if not 2 <= seen <= num_frames:
            raise InputError(f"seen is {seen}; give 2 to {num_frames}, the frames of the clips")
        question = question.of(slice(None), slice(seen))

    def ask(asked: Question) -> Answer:
        if asked.observed is None:
            return queries.forecast(model, asked.frames, asked.num_objects, horizon, seed=seed)
        ahead = check_whole("horizon", horizon, 1, queries.MAX_FRAMES)
        none = torch.zeros_like(asked.frames[:, :1]).expand(-1, ahead, *asked.frames.shape[2:])
        frames = torch.cat([asked.frames, none], 1)
        observed = pad(asked.observed, (0, ahead))
        return queries.interpolate(model, frames, observed, asked.num_objects, seed=seed)

    answer_question("forecast", ask, question, files, shared.as_json)


def interpolate(
    clips: Positional[Path],
    hide: tuple[str, ...],
    shared: Shared,
    *,
    out: Path | None = None,
    gif: Path | None = None,
) -> None:
    """What happened while nobody looked? Hides frames and fills them in.

    Example: motes interpolate clips.npz --hide 5:25 --out filled.csv

    Args:
        clips: npz or npy file of clips, or a video: mp4, mov, avi, GIF, TIFF, folder of pictures.
        hide: frames to hide, counted from 0: a number, or start:end without the end; several.
        shared: what every question can be told.
        out: CSV or Parquet file to write; default: the input's name with -interpolate.csv.
        gif: also write the filled-in frames of the first clip as an animation.
    """
    files = Files.of("interpolate", clips, out, gif, shared)
    model = load(shared.model_for(clips))
    question = read_question(clips, model, shared)
    num_frames = question.frames.shape[1]
    observed = torch.ones(question.frames.shape[:2], dtype=torch.bool)
    if question.observed is not None:
        observed &= question.observed
    for part in hide:
        observed[:, _span(part, num_frames)] = False
    question, ask = replace(question, observed=observed), partial(_filled, model, shared.seed)
    answer_question("interpolate", ask, question, files, shared.as_json)


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
        out: npz file to write: frames (black and white, but of pictures) and the positions drawn.
        model: a shipped model's name or a run folder.
        num_clips: how many clips.
        num_objects: objects in each.
        num_frames: frames in each.
        gif: also write the first clip as an animation.
        seed: another seed, other clips.
        as_json: print one JSON line instead of a sentence.
    """
    imagining = load(model)
    answer = queries.sample(imagining, num_clips, num_objects, num_frames, seed=seed)
    video = pack(answer.frames > 0.5) if imagining.painter is None else answer.frames
    with all_or_none():
        save_clips(out, Clips(video, answer.num_objects, answer.pixels, answer.path_pixels))
        if gif is not None:
            write_gif(gif, answer.frames[0])
    record = {"verb": "sample", "clips": num_clips, "out": str(out), "gif": gif and str(gif)}
    tell(
        record, as_json, f"imagined {num_clips} clips of {num_objects} objects: {listed(out, gif)}"
    )


def _filled(model: Model, seed: int, asked: Question) -> Answer:
    """Where every object is in every frame, seen or not."""
    if asked.observed is None:
        return queries.infer(model, asked.frames, asked.num_objects, seed=seed)
    return queries.interpolate(model, asked.frames, asked.observed, asked.num_objects, seed=seed)


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
