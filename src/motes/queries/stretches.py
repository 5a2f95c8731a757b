"""Inference of a recording of any length, one stretch of frames after another.

A stretch is inferred with some frames before and after those that are kept, and its objects get the
names of the stretch before it by the law of motion:

    frames      ......|--------- kept ---------|......
                                          ......|--------- kept ---------|......
                                     seam: both have answers

With `overlap` frames on either side of a seam the law has forgotten what is farther away, so the
kept answers are those of the whole recording.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import require
from motes.models.model import Model
from motes.queries import infer
from motes.queries.answer import Answer

LENGTH, MIN_LENGTH = 2_000, 128  # kept frames of a stretch
OVERLAP = 64  # frames on either side of a seam
MAX_PIXELS = 2**25  # of a stretch, which bounds memory
FAR = 100.0  # pixels; paths farther apart are not compared
TIE = 1e-6  # nats a squared pixel


class Seam(NamedTuple):
    """The tracks of one clip near the end of its kept frames."""

    positions: Float[Tensor, "N T 2"]  # latent units
    path: Float[Tensor, "N T 2"]  # pixels
    detected: Bool[Tensor, "N T"]
    kept: int  # frames before the end


class Stretch(NamedTuple):
    """The answer of a stretch, and what the next one depends on."""

    answer: Answer  # of the kept frames, under the names of the first stretch
    whole: Answer  # of all frames of the stretch
    seam: Seam


def stretch_length(height: int, width: int) -> int:
    """Return how many frames of a size are kept of a stretch."""
    return min(max(MAX_PIXELS // (height * width), MIN_LENGTH), LENGTH)


def infer_stretch(
    model: Model,
    frames: Any,
    num_objects: Any,
    before: Seam | None = None,
    after: int = 0,
    *,
    seed: int = 0,
) -> Stretch:
    """Return the answer of a stretch of a recording.

    Args:
        model: from `motes.load`.
        frames: [1, T, height, width]: those before the seam with the stretch before, those that
            are kept, and those after the seam with the next stretch.
        num_objects: one number, the same in all stretches; None infers it, in the first stretch.
        before: the seam of the stretch before; None: the first one.
        after: frames at the end that the next stretch repeats and that are not kept.
        seed: of the draws averaged in `answer.frames`.

    Law: joined stretches equal the answer of the whole recording
    (test_joined_stretches_equal_the_answer_in_one_piece).
    """
    whole = infer(model, frames, num_objects, seed=seed).cpu()
    count, T = int(whole.num_objects[0]), whole.observed.shape[1]
    order, first = torch.arange(count), 0
    if before is not None:
        first, shared = before.kept, before.positions.shape[1]
        require(
            count == len(before.positions) and shared <= T,
            f"a stretch has {count} objects in {T} frames; expected those of the stretch before",
        )
        order = same_objects(model.dynamics, before, _seam(whole, slice(shared), first, order))
    end = T - after
    seam = _seam(whole, slice(max(end - OVERLAP, 0), T), min(end, OVERLAP), order)
    return Stretch(part_of(whole, slice(first, end), order), whole, seam)


def _seam(answer: Answer, time: slice, kept: int, order: Int[Tensor, " N"]) -> Seam:
    fields = (answer.positions, answer.path_pixels, answer.found)
    positions, path, detected = (field[0, order, time] for field in fields)
    return Seam(positions, path, detected, kept)


@torch.no_grad()
def same_objects(dynamics: Any, before: Seam, after: Seam) -> Int[Tensor, " N"]:
    """Return which object after a seam continues each object before it.

    The assignment maximises the sum of log p(a) of the joined tracks under the law of motion:
    detections of the one before the seam, those of the other from the seam on. An object that is
    not detected on one side is continued by the nearest path.

    Law: objects that cross at the seam keep their names
    (test_objects_that_cross_at_a_seam_are_matched_by_the_law).
    """
    N, T = before.detected.shape

    def joined(one: Tensor, other: Tensor) -> Tensor:
        is_before = (torch.arange(T) < before.kept).view(T, *[1] * (one.ndim - 2))
        return torch.where(is_before, one[:, None], other[None])

    positions = joined(before.positions, after.positions).double()
    detected = joined(before.detected, after.detected)
    device = next(dynamics.parameters()).device
    log_density = dynamics.track_log_density(
        positions.flatten(0, 1).to(device), detected.flatten(0, 1).to(device)
    )
    apart = (before.path[:, None] - after.path[None]).clamp(-FAR, FAR).square().sum((-2, -1))
    gains = log_density.view(N, N).cpu().double() - TIE * apart
    return torch.from_numpy(linear_sum_assignment(gains.numpy(), maximize=True)[1])


def part_of(answer: Answer, time: slice, order: Int[Tensor, " N"]) -> Answer:
    """Return the answer of some frames of one clip, with its objects in another order."""
    over_time = (
        "positions", "covariances", "velocities", "pixels", "pixel_covariances",
        "pixel_velocities", "path_pixels", "path_pixel_covariances", "found",
    )  # fmt: skip
    fields: dict[str, Any] = {name: getattr(answer, name)[:, order, time] for name in over_time}
    return replace(
        answer,
        **fields,
        component=answer.component[:, order],
        component_probabilities=answer.component_probabilities[:, order],
        observed=answer.observed[:, time],
        draw_frames=lambda: answer.draw_frames()[:, time],
        draw_mean_frames=lambda: answer.draw_mean_frames()[:, time],
        draw_paths=lambda: answer.draw_paths()[:, :, order, time],
    )
