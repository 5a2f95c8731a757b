"""Clips and answers as arrays for drawing, one clip at a time."""

from dataclasses import replace

import numpy as np
import torch

from motes.core.axes import Tensor
from motes.data import Clips
from motes.evaluation.evaluate import NUM_CONTEXT, by_count, query_masks
from motes.models.model import Model
from motes.output.plots import FORECAST, INFERRED, INTERPOLATED, TRUTH, Style, View
from motes.queries import forecast, infer, interpolate
from motes.queries.answer import Answer


def tracks_of(answer: Answer, clip: int, style: Style = INFERRED) -> View:
    """Return the objects of one clip of an answer, without frames."""
    present = slice(int(answer.num_objects[clip]))
    return View(
        style=style,
        pixels=_array(answer.pixels[clip, present]),
        pixel_covariances=_array(answer.pixel_covariances[clip, present]),
        path_pixels=_array(answer.path_pixels[clip, present]),
        path_pixel_covariances=_array(answer.path_pixel_covariances[clip, present]),
        observed=_array(answer.observed[clip]),
        detected=_array(answer.found[clip, present]),
    )


def view_of(answer: Answer, clip: int, style: Style) -> View:
    """Return the objects and the frames of one clip of an answer."""
    return replace(
        tracks_of(answer, clip, style),
        frames=_array(answer.frames[clip]),
        mean_frames=_array(answer.mean_frames[clip]),
    )


def true_view(clips: Clips, clip: int) -> View:
    """Return the truth of one clip; its covariances are zero."""
    assert clips.num_objects is not None
    assert clips.positions is not None
    assert clips.clean is not None
    present, frames = slice(int(clips.num_objects[clip])), _array(clips.frames[clip].float())
    pixels, path = (_array(points[clip, present]) for points in (clips.positions, clips.clean))
    certain = np.zeros((*pixels.shape, 2), dtype=pixels.dtype)
    return View(
        style=TRUTH,
        pixels=pixels,
        pixel_covariances=certain,
        path_pixels=path,
        path_pixel_covariances=certain,
        observed=np.ones(len(frames), dtype=bool),
        detected=np.ones(pixels.shape[:2], dtype=bool),
        frames=frames,
        mean_frames=frames,
    )


def example_views(model: Model, clips: Clips) -> list[list[View]]:
    """Return, for each clip, the truth and the answers to infer, forecast and interpolate."""
    frames, counts = clips.frames.float(), clips.num_objects
    assert counts is not None
    num_frames = frames.shape[1]
    horizon, gap = num_frames - NUM_CONTEXT, query_masks(num_frames)["interpolation"]
    answers = [
        (INFERRED, infer(model, frames, counts)),
        (FORECAST, forecast(model, frames[:, :NUM_CONTEXT], counts, horizon)),
        (INTERPOLATED, interpolate(model, frames, gap, counts)),
    ]
    return [
        [true_view(clips, i), *(view_of(answer, i, style) for style, answer in answers)]
        for i in range(len(frames))
    ]


def first_of_each_count(clips: Clips) -> Clips:
    """Return the first clip with each number of objects: examples chosen by no one."""
    return clips[torch.stack([indices[0] for indices in by_count(clips).values()])]


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
