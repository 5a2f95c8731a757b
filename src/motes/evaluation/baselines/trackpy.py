"""trackpy as a baseline: features located in every frame and linked, without error bars.

It is given the number of objects, and its settings are chosen for each task (which frames are
hidden) by the truth of training clips: the best a careful user could reach. It can also link disks
detected by their known shape, which separates objects that trackpy's features merge.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips
from motes.data.clips import median_background
from motes.evaluation import metrics
from motes.evaluation.baselines.disk_trackers import explain_frames
from motes.evaluation.evaluate import by_count
from motes.evaluation.metrics import Tracks
from motes.evaluation.predictor import Frames, Mask, Prediction

NUM_TUNED = 40  # clips with each number of objects
DIAMETERS = (5, 7, 9)
RANGES, MEMORIES = (3.0, 5.0, 8.0, 12.0, 20.0, 32.0), (0, 3, 10, 25)
JITTER = 1e-4  # pixels


class Settings(NamedTuple):
    """Settings that a user of trackpy has to choose."""

    diameter: int  # of a feature, odd, pixels
    search_range: float  # from frame to frame, pixels
    memory: int  # frames that a feature may be missing


Features = Sequence[Float[np.ndarray, "features 2"]]  # (x, y) in each frame of a clip
# From a clip, its observed frames, the number of objects and their diameter to features.
Locate = Callable[[Tensor, Tensor, int, int], Features]


def locate_features(
    clip: Float[Tensor, "T height width"], observed: Mask, num_objects: int, diameter: int
) -> Features:
    """Return the brightest features of every observed frame, at most as many as objects."""
    trackpy, images, found = import_trackpy(), (255 * clip).byte().numpy(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about frames without features
        for image, shown in zip(images, observed.tolist(), strict=True):
            table = trackpy.locate(image, diameter, topn=num_objects, separation=2) if shown else {}
            found.append(table[["x", "y"]].to_numpy() if len(table) else np.zeros((0, 2)))
    return found


def locate_disks(
    clip: Float[Tensor, "T height width"], observed: Mask, num_objects: int, diameter: int
) -> Features:
    """Return the disks that make up every observed frame."""
    found = iter(explain_frames(clip[observed], num_objects, diameter // 2))
    return [next(found)[0] if shown else np.zeros((0, 2)) for shown in observed.tolist()]


def track_features(
    frames: Frames,
    observed: Bool[Tensor, "B T"],
    num_objects: int,
    settings: Settings,
    locate: Locate = locate_features,
) -> Tracks:
    """Return the longest tracks of every clip; gaps are interpolated, ends are held.

    Law: every run gives the same tracks, ties or not (test_ties_are_broken_alike_in_every_run).
    """
    clips = zip(_without_background(frames), observed, strict=True)
    found = (locate(clip, shown, num_objects, settings.diameter) for clip, shown in clips)
    return torch.stack([_link(features, num_objects, settings) for features in found])


def tune_trackpy(
    frames: Frames,
    observed: Bool[Tensor, "B T"],
    positions: Tracks,
    locate: Locate = locate_features,
    diameters: Sequence[int] = DIAMETERS,
    *,
    hidden_only: bool = False,
) -> Settings:
    """Return the settings that track most clips, and among those have the smallest error.

    With `hidden_only`, those with the smallest error in the frames that are not observed.

    Law: no other setting is better (test_the_best_settings_are_chosen,
    test_settings_are_chosen_for_each_task).
    """
    num_objects = positions.shape[1]
    clips = list(zip(_without_background(frames), observed, strict=True))
    scored = positions
    if hidden_only:
        scored = positions.masked_fill(observed[:, None, :, None], torch.nan)

    def value(settings: Settings, found: Sequence[Features]) -> tuple[float, float]:
        tracks = torch.stack([_link(features, num_objects, settings) for features in found])
        tracks = metrics.reorder(tracks, metrics.best_order(tracks, positions))
        share = 0.0 if hidden_only else float(metrics.tracked(tracks, scored).float().mean())
        return share, -metrics.rmse(tracks, scored)

    values = {}
    for diameter in diameters:
        found = [locate(clip, shown, num_objects, diameter) for clip, shown in clips]
        for search_range, memory in product(RANGES, MEMORIES):
            settings = Settings(diameter, search_range, memory)
            values[settings] = value(settings, found)
    return max(values, key=lambda settings: values[settings])


def _without_background(frames: Frames) -> Frames:
    """Return the distance of pixels from their median over all clips."""
    return (frames - median_background(frames.flatten(0, 1))).abs()


def _link(features: Features, num_objects: int, settings: Settings) -> Float[Tensor, "N T 2"]:
    """Return the longest tracks of one clip.

    trackpy iterates over sets of objects, whose order differs from run to run, so equal distances
    are made unequal by a fixed jitter, and equally long tracks are ordered by where they start.
    """
    noise = np.random.default_rng(0)
    coordinates = [p + JITTER * noise.standard_normal(p.shape) for p in features]
    linker = import_trackpy().link_iter(
        coordinates, settings.search_range, memory=settings.memory, adaptive_stop=0.5
    )
    points: dict[int, list[list[float]]] = defaultdict(list)
    if any(map(len, features)):
        for (time, labels), shown, placed in zip(linker, features, coordinates, strict=True):
            for label, (x, y), (jittered, _) in zip(labels, shown, placed, strict=True):
                points[label].append([time, x, y, jittered])
    longest = sorted(points.values(), key=lambda p: (-len(p), p[0][0], p[0][3]))[:num_objects]
    tracks = np.zeros((num_objects, len(features), 2))
    for track, own in zip(tracks, longest, strict=False):
        time, x, y, _ = np.array(own).T
        track[:, 0] = np.interp(np.arange(len(features)), time, x)
        track[:, 1] = np.interp(np.arange(len(features)), time, y)
    return torch.from_numpy(tracks).float()


def import_trackpy() -> Any:
    """Return the module trackpy, silenced; raise `InputError` if it is not installed."""
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
    """trackpy with settings chosen for each task and number of objects on training clips.

    Attributes:
        training: Clips with truth.
        radius: Of disks to link; None: trackpy's own features.
        chosen: Settings by task and number of objects; filled when first needed.
    """

    training: Clips
    radius: int | None = None
    chosen: dict[tuple[Any, ...], Settings] = field(default_factory=dict)
    interpolates: bool = True

    def predict(self, frames: Frames, observed: Mask, num_objects: int) -> Prediction:
        """Return tracks with straight lines over gaps, constant after the last observed frame."""
        masks, settings = observed.expand(len(frames), -1), self.settings(observed, num_objects)
        # The background is the median of all frames, hidden ones among them.
        shown = frames * observed[:, None, None]
        tracks = track_features(shown, masks, num_objects, settings, self._locate)
        return Prediction(pixels=tracks, path_pixels=tracks)

    def settings(self, observed: Mask, num_objects: int) -> Settings:
        """Return the best settings for these hidden frames, or for as many dropped ones.

        Dropped frames of the training clips are others than those of the clips to be tracked.
        """
        times = (~observed).nonzero()[:, 0]
        block = len(times) == 0 or int(times[-1] - times[0]) + 1 == len(times)
        key = (num_objects, *(observed.tolist() if block else [len(times)]))
        if key not in self.chosen:
            some = self.training[by_count(self.training)[num_objects][:NUM_TUNED]]
            masks = observed.expand(len(some), -1)
            if not block:
                generator = torch.Generator().manual_seed(10_000 + len(times))
                ranks = torch.rand(len(some), len(observed) - 2, generator=generator).argsort(1)
                masks = torch.nn.functional.pad(ranks >= len(times), (2, 0), value=True)
            truth = some.positions if observed.all() else some.clean
            assert truth is not None
            diameters: Sequence[int] = DIAMETERS
            if self.radius is not None:
                diameters = (2 * self.radius + 1,)
            elif len(times):  # how large a feature is does not depend on what is hidden
                diameters = (self.settings(torch.ones_like(observed), num_objects).diameter,)
            self.chosen[key] = tune_trackpy(
                some.frames.float() * masks[..., None, None],
                masks,
                truth[:, :num_objects],
                self._locate,
                diameters,
                hidden_only=len(times) > 0,
            )
        return self.chosen[key]

    @property
    def _locate(self) -> Locate:
        return locate_features if self.radius is None else locate_disks
