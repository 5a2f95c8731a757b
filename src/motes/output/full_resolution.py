"""Answers about a recording, with detected positions fitted to its own pixels."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from motes.core.axes import UInt8
from motes.output.tracks import QueryClips
from motes.queries.answer import Answer
from motes.video import VideoMap
from motes.video.refine import refine_positions

REACH = 2.0  # prepared pixels by which a fit may move a position
MIN_SHRUNK = 1.2  # recording pixels a prepared one, for a fit to be worth its time


def can_refine(clips: QueryClips) -> bool:
    """Return whether clips are a shrunk recording of a camera at rest, without corrections."""
    where = clips.video_map
    if where is None or clips.images is None or clips.corrections:
        return False
    return where.shifts is None and where.scale.ndim == 1 and where.scale.max() >= MIN_SHRUNK


def refine_answer(
    answer: Answer,
    where: VideoMap,
    pictures: Callable[[], Iterator[UInt8[np.ndarray, "height width 3"]]],
    diameter: float,
) -> Answer:
    """Return the answer with positions of seen objects fitted at the recording's resolution.

    Positions that cannot be fitted, unseen ones and paths stay as they are. Only the first clip,
    which is all of a recording, is fitted.

    Law: unseen rows are unchanged, and fitted ones are those of the fit, in pixels of the frames
    (test_seen_positions_are_fitted_to_the_pixels_of_the_recording).

    Args:
        answer: In pixels of prepared frames.
        where: To the pixels of the recording.
        pictures: Yields the frames of the recording.
        diameter: Of an object, in pixels of the recording.
    """
    seen = answer.seen[0].cpu().numpy()
    if not seen.any():
        return answer
    points = where.points(answer.pixels)[0].cpu().numpy()
    spreads = where.covariances(answer.pixel_covariances)[0].cpu().numpy()
    reach = REACH * float(where.scale.max())
    found = refine_positions(pictures, points, spreads, seen, diameter / 2, reach)
    scale = torch.from_numpy(np.asarray(where.scale)).to(answer.pixels)
    moved = torch.from_numpy(found.positions - points).to(answer.pixels) / scale
    spread = torch.from_numpy(found.covariances).to(answer.pixel_covariances)
    fitted = torch.from_numpy(found.fitted).to(answer.pixels.device)[None]
    pixels = torch.where(fitted[..., None], answer.pixels + moved, answer.pixels)
    covariances = torch.where(
        fitted[..., None, None],
        spread / (scale[:, None] * scale),
        answer.pixel_covariances,
    )
    return replace(answer, pixels=pixels, pixel_covariances=covariances)
