"""Inference of a recording whose objects are all absent for a while.

One path by the law of motion cannot follow a ball that leaves and is thrown again. Where the answer
in one piece does not fit and some frames show nothing, every part between such frames is inferred
by itself, and the answer of the parts is kept if more is found.
"""

from dataclasses import replace
from typing import Any

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.models.model import Model
from motes.queries import forecast, infer
from motes.queries.answer import Answer
from motes.queries.fit import MIN_CONTRAST, FitStatistics, judge_fit
from motes.queries.validation import check_frames

MIN_ABSENT = 5  # frames without anything, which end a part
MIN_AREA = 0.25  # of an object's pixels: less is nothing
MIN_GAIN = 1.1  # ratio of detections for which parts are kept
TIMED = (
    "positions", "covariances", "velocities", "pixels", "pixel_covariances", "pixel_velocities",
    "path_pixels", "path_pixel_covariances", "found",
)  # fmt: skip


def infer_recording(
    model: Model, frames: Any, num_objects: Any = None, *, seed: int = 0, corrections: Any = None
) -> Answer:
    """Return where every object is in every frame of one recording, also if they come and go.

    Equals `motes.infer`, except where that does not fit and all objects are absent for a while.
    Frames in which nothing shows have predictions; before the first part the objects may be
    anywhere in the picture. Objects of two parts with the same number need not be the same.

    Law: a ball that is thrown twice is found in both throws, and not between
    (test_a_ball_that_is_thrown_twice_is_found_twice).
    """
    whole = infer(model, frames, num_objects, seed=seed, corrections=corrections)
    if len(whole.observed) != 1 or corrections or whole.fit is None or bool(whole.fit.fits.all()):
        return whole
    given = check_frames(model, frames)
    spans = parts_of(shows_something(model, given)[0])
    if len(spans) < 2:
        return whole
    answers = [
        _infer_part(model, given[:, span], whole.num_objects, gap, seed) for span, gap in spans
    ]
    joined = _joined(model, answers, [span for span, _ in spans], given.shape[1])
    better = int(joined.found.sum()) > MIN_GAIN * int(whole.found.sum())
    return joined if better else whole


def _infer_part(model: Model, frames: Tensor, num_objects: Any, gap: int, seed: int) -> Answer:
    if gap:
        return forecast(model, frames, num_objects, gap, seed=seed)
    return infer(model, frames, num_objects, seed=seed)


@torch.no_grad()
def shows_something(
    model: Model, frames: Float[Tensor, "B T height width *channels"]
) -> Bool[Tensor, "B T"]:
    """Return in which frames enough pixels differ from the background for a part of an object."""
    place = torch.zeros(1, model.max_objects, 1, 2).to(model.pixel_matrix)
    present = torch.zeros(1, model.max_objects, dtype=torch.bool, device=model.device)
    empty = model.render(place, present)[0, 0]
    present[0, 0] = True
    contrast = MIN_CONTRAST if model.renderer.grey_levels else 0.5

    def lit(images: Tensor) -> Tensor:
        away = (images - empty).abs()
        away = away if model.channels == 1 else away.amax(-1)
        return (away > contrast).sum((2, 3))

    area = lit(model.render(place, present)).max()
    return lit(frames) > MIN_AREA * area


def parts_of(shows: Bool[Tensor, " T"]) -> list[tuple[slice, int]]:
    """Return the parts between absences of MIN_ABSENT frames or more, and the absence after each.

    Law: parts and absences cover everything after the first absence
    (test_parts_and_absences_cover_the_recording).
    """
    present = shows.nonzero()[:, 0].tolist()
    if not present:
        return []
    parts, start = [], present[0]
    for before, after in zip(present, [*present[1:], None], strict=True):
        if after is None or after - before > MIN_ABSENT:
            parts.append((start, before + 1))
            start = after
    parts = [(first, end) for first, end in parts if end - first >= 2]
    ends = [first for first, _ in parts[1:]] + [len(shows)]
    return [
        (slice(first, end), after - end) for (first, end), after in zip(parts, ends, strict=True)
    ]


def _joined(model: Model, parts: list[Answer], spans: list[slice], num_frames: int) -> Answer:
    """Return the answers of parts as one; before the first the objects may be anywhere."""
    first, lead = parts[0], spans[0].start
    fields: dict[str, Any] = {}
    height, width = model.image_size
    wide = torch.diag(torch.tensor([width / 2, height / 2]).square()).to(first.pixels)
    M = torch.linalg.inv(model.pixel_matrix).to(wide)
    anywhere = {
        "pixel_covariances": wide, "path_pixel_covariances": wide, "covariances": M @ wide @ M.mT,
    }  # fmt: skip
    for name in TIMED:
        values = [getattr(part, name) for part in parts]
        before = values[0][:, :, :1].expand(-1, -1, lead, *values[0].shape[3:])
        if name == "found":
            before = torch.zeros_like(before)
        elif name in anywhere:
            before = anywhere[name].expand(before.shape)
        fields[name] = torch.cat([before, *values], 2)

    def drawn(name: str, axis: int) -> Tensor:
        images = [getattr(part, name)() for part in parts]
        return torch.cat(
            [images[0].narrow(axis, 0, 1).repeat_interleave(lead, axis), *images], axis
        )

    def measure() -> FitStatistics:
        lengths = torch.tensor([span.stop - span.start for span in spans]).double()
        rows = [part.measure() for part in parts]
        means = [
            (torch.cat([row[i].double().cpu() for row in rows]) * lengths).sum() / lengths.sum()
            for i in range(len(FitStatistics._fields))
        ]
        return FitStatistics(*(mean[None] for mean in means))

    used = torch.tensor([sum(span.stop - span.start for span in spans)])
    return replace(
        first,
        **fields,
        observed=torch.ones(1, num_frames, dtype=torch.bool, device=first.observed.device),
        draw_frames=lambda: drawn("draw_frames", 1),
        draw_mean_frames=lambda: drawn("draw_mean_frames", 1),
        draw_paths=lambda: drawn("draw_paths", 3),
        measure=measure,
        judge=lambda: judge_fit(model, measure(), first.num_objects, used),
    )
