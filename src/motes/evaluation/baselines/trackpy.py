"""trackpy as a baseline: features located in every frame and linked, without error bars.

It is given the number of objects, and its three settings are chosen by the truth of training clips:
the best a careful user could reach. It can also link disks detected by their known shape, which
separates objects that trackpy's features merge.
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
from motes.data.clips import median_background
from motes.evaluation import metrics
from motes.evaluation.baselines.disk_trackers import explain_frames
from motes.evaluation.evaluate import Prediction

if TYPE_CHECKING:
    import pandas

NUM_TUNED = 120  # clips with each number of objects
DIAMETERS, RANGES, MEMORIES = (5, 7, 9), (3.0, 5.0, 8.0), (0, 3, 10)


class Settings(NamedTuple):
    """Settings that a user of trackpy has to choose."""

    diameter: int  # of a feature, odd, pixels
    search_range: float  # from frame to frame, pixels
    memory: int  # frames that a feature may be missing


# From a clip, its observed frames, the number of objects and their diameter to features.
Locate = Callable[[Tensor, Tensor, int, int], "pandas.DataFrame"]


def locate_features(
    clip: Float[Tensor, "T height width"],
    observed: Bool[Tensor, " T"],
    num_objects: int,
    diameter: int,
) -> "pandas.DataFrame":
    """Return the brightest features of every observed frame, at most as many as objects."""
    trackpy = _trackpy()
    images = (255 * clip).byte().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about frames without features
        found = [
            trackpy.locate(images[t], diameter, topn=num_objects, separation=2).assign(frame=t)
            for t in observed.nonzero()[:, 0].tolist()
        ]
    import pandas

    return pandas.concat([features for features in found if len(features)] or found[:1])


def locate_disks(
    clip: Float[Tensor, "T height width"],
    observed: Bool[Tensor, " T"],
    num_objects: int,
    diameter: int,
) -> "pandas.DataFrame":
    """Return the disks that make up every observed frame."""
    import pandas

    times = observed.nonzero()[:, 0].tolist()
    rows = [
        (x, y, t)
        for t, options in zip(
            times, explain_frames(clip[observed], num_objects, diameter // 2), strict=True
        )
        for x, y in options[0].tolist()
    ]
    return pandas.DataFrame(rows, columns=["x", "y", "frame"])


def track_features(
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, "B T"],
    num_objects: int,
    settings: Settings,
    locate: Locate = locate_features,
) -> Float[Tensor, "B N T 2"]:
    """Return the longest tracks of every clip; gaps are interpolated, ends are held."""
    diameter, search_range, memory = settings
    clips = zip(_without_background(frames), observed, strict=True)
    return torch.stack(
        [
            _link(
                locate(clip, shown, num_objects, diameter),
                num_objects,
                len(shown),
                search_range,
                memory,
            )
            for clip, shown in clips
        ]
    )


def tune_trackpy(
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, "B T"],
    positions: Float[Tensor, "B N T 2"],
    locate: Locate = locate_features,
    diameters: tuple[int, ...] | None = None,
) -> Settings:
    """Return the settings that track most clips, and among those have the smallest error.

    Law: no other setting tracks more (test_the_best_settings_are_chosen).
    """
    num_objects, num_frames = positions.shape[1:3]
    clips = list(zip(_without_background(frames), observed, strict=True))
    tried = DIAMETERS if diameters is None else diameters
    best, chosen = (-1.0, 0.0), Settings(tried[0], RANGES[0], MEMORIES[0])
    for diameter in tried:
        found = [locate(clip, shown, num_objects, diameter) for clip, shown in clips]
        for search_range, memory in product(RANGES, MEMORIES):
            tracks = torch.stack(
                [
                    _link(features, num_objects, num_frames, search_range, memory)
                    for features in found
                ]
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
    """Return the distance of pixels from their median over all clips."""
    return (frames - median_background(frames.flatten(0, 1))).abs()


def _link(
    features: "pandas.DataFrame",
    num_objects: int,
    num_frames: int,
    search_range: float,
    memory: int,
) -> Float[Tensor, "N T 2"]:
    tracks = np.zeros((num_objects, num_frames, 2))
    if len(features):
        trackpy = _trackpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about trackpy's use of pandas
            linked = trackpy.link(features, search_range, memory=memory)
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
        raise InputError("this baseline needs trackpy; pip install 'motes[rivals]'") from None
    trackpy.quiet()
    return trackpy


@dataclass(frozen=True, eq=False)
class TrackpyTracker:
    """trackpy with settings chosen for each number of objects on training clips."""

    settings: dict[int, Settings]
    locate: Locate = locate_features
    interpolates: bool = True

    @classmethod
    def of(cls, training: Clips, radius: int | None = None) -> "TrackpyTracker":
        """Choose settings on the first training clips with each number of objects.

        With a radius, disks of that radius are linked, else trackpy's own features.
        """
        diameters = None if radius is None else (2 * radius + 1,)
        locate = locate_features if radius is None else locate_disks
        assert training.num_objects is not None
        assert training.positions is not None
        chosen = {}
        for count in sorted(set(training.num_objects.tolist())):
            own = training[(training.num_objects == count).nonzero()[:NUM_TUNED, 0]]
            assert own.positions is not None
            frames = own.frames.float()
            everything = torch.ones(frames.shape[:2], dtype=torch.bool)
            positions = own.positions[:, :count]
            chosen[count] = tune_trackpy(frames, everything, positions, locate, diameters)
        return cls(chosen, locate)

    def predict(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Return tracks with straight lines over gaps, constant after the last observed frame."""
        masks = observed.expand(len(frames), -1)
        shown = frames * observed[:, None, None]  # the background is the median of all frames
        settings = self.settings[num_objects]
        tracks = track_features(shown, masks, num_objects, settings, self.locate)
        return Prediction(pixels=tracks, path_pixels=tracks)
