"""Reference identities in a recording of juggled balls, by hand-set rules, for scoring.

Blobs are found in the whole picture, at full size, and linked through all frames with what is known
of juggling: in the air a ball obeys gravity, in a hand it may stop or go on. Nothing of this is
known to a model that is scored.
"""

from collections.abc import Sequence

import numpy as np
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from motes.core.axes import Float
from motes.video import Plan

GRAVITY = np.array([0.0, 2.9])  # video pixels a frame squared, fitted to free flights by eye
SMALLEST = 20  # pixels of a blob
FLIGHT, HAND = 10.0, 14.0  # deviations of a ball from what each rule expects, in pixels
LOST = 16.0  # squared deviations beyond which a blob is another thing: four deviations


def find_blobs(plan: Plan) -> list[Float[np.ndarray, "M 2"]]:
    """Centres of the blobs of every picture, in video pixels."""
    box, found = plan.geometry.box, []
    for frame in plan.video.frames():
        mask = plan.foreground.mask(frame.picture[box.top : box.bottom, box.left : box.right])
        labels, count = ndimage.label(mask, np.ones((3, 3)))
        names = range(1, count + 1)
        sizes = np.asarray(ndimage.sum(mask, labels, names))
        centres = np.array(ndimage.center_of_mass(mask, labels, names)).reshape(-1, 2)[:, ::-1]
        found.append((centres + np.array([box.left, box.top]))[sizes >= SMALLEST])
    return found


def link(blobs: Sequence[Float[np.ndarray, "M 2"]], num_objects: int) -> Float[np.ndarray, "N T 2"]:
    """The tracks of the objects, NaN where one was not found, from the first frame that has all."""
    tracks = np.full((num_objects, len(blobs), 2), np.nan)
    start = next(t for t, found in enumerate(blobs) if len(found) == num_objects)
    place, speed = blobs[start].copy(), np.zeros((num_objects, 2))
    last = np.full(num_objects, start)
    tracks[:, start] = place
    for t in range(start + 1, len(blobs)):
        found = blobs[t]
        gaps = t - last
        costs = np.full((num_objects, len(found) + num_objects), LOST + 5)
        for n in range(num_objects):
            costs[n, : len(found)] = _misfit(found, place[n], speed[n], int(gaps[n]))
        for n, m in zip(*linear_sum_assignment(costs), strict=True):
            if m < len(found) and costs[n, m] < LOST:
                speed[n] = (found[m] - place[n]) / gaps[n] + GRAVITY * max(gaps[n], 1) / 2
                place[n], last[n] = found[m], t
                tracks[n, t] = found[m]
    return tracks


def _misfit(
    found: Float[np.ndarray, "M 2"],
    place: Float[np.ndarray, "2"],
    speed: Float[np.ndarray, "2"],
    gap: int,
) -> Float[np.ndarray, " M"]:
    """Squared deviations of blobs from the best of three rules: flight, hand, straight on."""

    def squares(expected: Float[np.ndarray, "2"], deviation: float) -> Float[np.ndarray, " M"]:
        total: Float[np.ndarray, " M"] = np.square((found - expected) / deviation).sum(1)
        return total

    flight = squares(place + speed * gap + GRAVITY * gap**2 / 2, FLIGHT * gap**0.5)
    hand = squares(place, HAND * min(gap, 4) ** 0.5) + 4
    straight = squares(place + speed * min(gap, 2), FLIGHT * gap**0.5) + 1
    best: Float[np.ndarray, " M"] = np.stack([flight, hand, straight]).min(0).clip(max=LOST)
    return best
