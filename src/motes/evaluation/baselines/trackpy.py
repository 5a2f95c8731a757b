"""trackpy as a rival: blobs found in every frame, linked to the nearest; no law, no error bars.

It is told the number of objects, and its three settings are chosen with the truth of some clips at
hand: what a careful user could reach at best. It may also link disks that were found by their
known shape, which hold apart what its blobs run together.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.data.background import median_background
from motes.evaluation import metrics
from motes.evaluation.baselines.disks import explain_frames
from motes.evaluation.predictor import Prediction

if TYPE_CHECKING:
    import pandas

NUM_TUNED = 120  # clips with each number of objects
DIAMETERS, RANGES, MEMORIES = (5, 7, 9), (3.0, 5.0, 8.0), (0, 3, 10)


class Settings(NamedTuple):
    """What a user of trackpy has to choose."""

    diameter: int  # of a blob, odd, pixels
    search_range: float  # from frame to frame, pixels
    memory: int  # frames that a blob may be missing


# From a clip, which of its frames were seen, the number of objects and their diameter to blobs.
Find = Callable[[Tensor, Tensor, int, int], "pandas.DataFrame"]


def find_blobs(
    clip: Float[Tensor, "T height width"], seen: Bool[Tensor, " T"], num_objects: int, diameter: int
) -> "pandas.DataFrame":
    """The brightest blobs of every seen frame, at most as many as there are objects."""
    trackpy = _trackpy()
    pictures = (255 * clip).byte().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of frames without a blob
        found = [
            trackpy.locate(pictures[t], diameter, topn=num_objects, separation=2).assign(frame=t)
            for t in seen.nonzero()[:, 0].tolist()
        ]
    import pandas

    return pandas.concat([blobs for blobs in found if len(blobs)] or found[:1])


def find_disks(
    clip: Float[Tensor, "T height width"], seen: Bool[Tensor, " T"], num_objects: int, diameter: int
) -> "pandas.DataFrame":
    """The disks that make up every seen frame."""
    import pandas

    times = seen.nonzero()[:, 0].tolist()
    rows = [
        (x, y, t)
        for t, options in zip(
            times, explain_frames(clip[seen], num_objects, diameter // 2), strict=True
        )
        for x, y in options[0].tolist()
    ]
    return pandas.DataFrame(rows, columns=["x", "y", "frame"])


def follow_blobs(
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, "B T"],
    num_objects: int,
    settings: Settings,
    find: Find = find_blobs,
) -> Float[Tensor, "B N T 2"]:
    """The longest tracks of every clip; gaps are filled by straight lines, ends are held."""
    diameter, search_range, memory = settings
    clips = zip(_without_background(frames), observed, strict=True)
    return torch.stack(
        [
            _link(
                find(clip, seen, num_objects, diameter),
                num_objects,
                len(seen),
                search_range,
                memory,
            )
            for clip, seen in clips
        ]
    )


def choose_settings(
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, "B T"],
    positions: Float[Tensor, "B N T 2"],
    find: Find = find_blobs,
    diameters: tuple[int, ...] | None = None,
) -> Settings:
    """The settings under which most clips are tracked, then those with the smallest error.

    Law: no other setting tracks more (test_the_best_settings_are_chosen).
    """
    num_objects, num_frames = positions.shape[1:3]
    clips = list(zip(_without_background(frames), observed, strict=True))
    tried = DIAMETERS if diameters is None else diameters
    best, chosen = (-1.0, 0.0), Settings(tried[0], RANGES[0], MEMORIES[0])
    for diameter in tried:
        found = [find(clip, seen, num_objects, diameter) for clip, seen in clips]
        for search_range, memory in product(RANGES, MEMORIES):
            tracks = torch.stack(
                [_link(blobs, num_objects, num_frames, search_range, memory) for blobs in found]
            )
            tracks = metrics.reorder(tracks, metrics.best_order(tracks, positions))
            share = float(metrics.tracked(tracks, positions).float().mean())
            value = (share, -metrics.rmse(tracks, positions))
            if value > best:
                best, chosen = value, Settings(diameter, search_range, memory)
    return chosen


def _without_background(
    frames: Float[Tensor, "B T height width"],
) -> Float[Tensor, "B T height width"]:
    """How far pixels are from their median over all clips, which share their background."""
    return (frames - median_background(frames.flatten(0, 1))).abs()


def _link(
    blobs: "pandas.DataFrame", num_objects: int, num_frames: int, search_range: float, memory: int
) -> Float[Tensor, "N T 2"]:
    tracks = np.zeros((num_objects, num_frames, 2))
    if len(blobs):
        trackpy = _trackpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # trackpy's own, about its use of pandas
            linked = trackpy.link(blobs, search_range, memory=memory)
        longest = linked.groupby("particle").size().nlargest(num_objects).index
        for track, particle in zip(tracks, longest, strict=False):
            own = linked[linked.particle == particle].sort_values("frame")
            for axis, name in enumerate(("x", "y")):
                track[:, axis] = np.interp(np.arange(num_frames), own.frame, own[name])
    return torch.from_numpy(tracks).float()


def _trackpy() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import trackpy
    except ImportError:
        raise InputError("this rival needs trackpy; pip install 'motes[rivals]'") from None
    trackpy.quiet()
    return trackpy


@dataclass(frozen=True, eq=False)
class Blobs:
    """trackpy as a contender, its settings chosen for each number of objects on training clips."""

    settings: dict[int, Settings]
    find: Find = find_blobs
    interpolates: bool = True

    @classmethod
    def of(cls, training: Clips, radius: int | None = None) -> "Blobs":
        """Settings chosen on the first training clips with each number of objects.

        With a radius disks of it are linked, else trackpy's own blobs.
        """
        find, diameters = (find_blobs, None) if radius is None else (find_disks, (2 * radius + 1,))
        assert training.num_objects is not None
        assert training.positions is not None
        chosen = {}
        for count in sorted(set(training.num_objects.tolist())):
            own = training[(training.num_objects == count).nonzero()[:NUM_TUNED, 0]]
            assert own.positions is not None
            frames = own.frames.float()
            everything = torch.ones(frames.shape[:2], dtype=torch.bool)
            positions = own.positions[:, :count]
            chosen[count] = choose_settings(frames, everything, positions, find, diameters)
        return cls(chosen, find)

    def predict(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Tracks with straight lines over gaps; after the last seen frame objects stay."""
        everyone = observed.expand(len(frames), -1)
        shown = frames * observed[:, None, None]  # the background is the median of all frames
        settings = self.settings[num_objects]
        tracks = follow_blobs(shown, everyone, num_objects, settings, self.find)
        return Prediction(pixels=tracks, path_pixels=tracks)
