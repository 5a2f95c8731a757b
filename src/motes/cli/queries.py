"""`motes infer | forecast | interpolate | sample`: read inputs, query the model, write outputs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from torch.nn.functional import pad
from tyro.conf import arg

from motes import queries
from motes.cli.inputs import Options, QueryClips, QueryOptions, read_inputs
from motes.cli.options import Json, ModelName, NumObjects, Out, join_paths, print_result
from motes.cli.outputs import write_outputs
from motes.core.errors import InputError
from motes.core.files import all_or_none
from motes.data import Clips, pack, save_clips, write_gif
from motes.models.model import Model, load
from motes.queries import check_whole
from motes.queries.answer import Answer


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
    model, clips = read_inputs("forecast", options, num_observed)
    horizon = check_whole("horizon", horizon, 1, queries.MAX_FRAMES)
    _answer("forecast", options, model, clips, horizon)


def interpolate(options: QueryOptions, *, hide: tuple[str, ...]) -> None:
    """Hide frames from the model and fill them in; write a table.

    Example: motes interpolate clips.npz --hide 5:25 --out filled.csv

    Args:
        options: options of every query.
        hide: frames to hide, counted from 0: numbers, or ranges start:end that exclude the end.
    """
    model, clips = read_inputs("interpolate", options)
    num_frames = clips.frames.shape[1]
    observed = torch.ones(clips.frames.shape[:2], dtype=torch.bool)
    if clips.observed is not None:
        observed &= clips.observed
    for text in hide:
        observed[:, _frame_range(text, num_frames)] = False
    _answer("interpolate", options, model, replace(clips, observed=observed))


def sample(
    out: Out[Path] = Path("samples.npz"),
    model: ModelName[str] = "cannonballs-48",
    num_clips: int = 8,
    num_objects: NumObjects[int] = 2,
    num_frames: int = 30,
    gif: Path | None = None,
    seed: int = 0,
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
        as_json: print one JSON line instead of text.
    """
    loaded = load(model)
    answer = queries.sample(loaded, num_clips, num_objects, num_frames, seed=seed)
    video = pack(answer.frames > 0.5) if not loaded.renderer.grey_levels else answer.frames
    with all_or_none():
        save_clips(out, Clips(video, answer.num_objects, answer.pixels, answer.path_pixels))
        if gif is not None:
            write_gif(gif, answer.frames[0])
    record = {"verb": "sample", "clips": num_clips, "out": str(out), "gif": gif and str(gif)}
    text = f"sampled {num_clips} clips of {num_objects} objects: {join_paths(out, gif)}"
    print_result(record, as_json, text)


def _answer(
    command: str, options: Options, model: Model, clips: QueryClips, horizon: int = 0
) -> None:
    """Query the model and write the outputs."""
    answer, first_frames = _query(model, clips, horizon, options.seed), None
    if options.gif is not None:
        # The first clip is queried alone: frames of all clips would take long to draw.
        first = replace(clips.select(slice(1)), num_objects=answer.num_objects[:1])
        first_frames = _query(model, first, horizon, options.seed).frames[0]
    write_outputs(command, options.table(command), options, clips, answer, first_frames)


def _query(model: Model, clips: QueryClips, horizon: int, seed: int) -> Answer:
    """Return the answer about all frames of the clips and `horizon` more."""
    frames, observed, num_objects = clips.frames, clips.observed, clips.num_objects
    if observed is None and horizon == 0:
        return queries.infer(model, frames, num_objects, seed=seed)
    if observed is None:
        return queries.forecast(model, frames, num_objects, horizon, seed=seed)
    if horizon > 0:
        unobserved = torch.zeros_like(frames[:, :1]).expand(-1, horizon, *frames.shape[2:])
        frames, observed = torch.cat([frames, unobserved], 1), pad(observed, (0, horizon))
    return queries.interpolate(model, frames, observed, num_objects, seed=seed)


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
