"""Baselines for objects that come and go: trackpy, and detections linked by Kalman filters.

Both take trackpy's features. The second predicts every track with constant velocity, assigns
features to predictions at the least total distance inside a gate, and keeps unassigned tracks for
some frames (SORT, Bewley 2016). Settings are chosen by the truth of other recordings.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from motes.core.axes import Bool, Float
from motes.evaluation.baselines.trackpy import import_trackpy
from motes.evaluation.tracking_metrics import GATE, TrackSet, idf1, similarity

Video = Float[np.ndarray, "T height width"]
DIAMETERS, MASS_SHARES = (5, 7, 9, 11), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
RANGES, MEMORIES = (2.0, 3.0, 5.0, 8.0), (0, 2, 4, 8)
GATES, JITTERS = (3.0, 6.0, 10.0), (0.03, 0.1, 0.3, 1.0)
MIN_LENGTHS, PERSISTENCES = (1, 3), (1.0, 0.0)
PERCENTILE = 90  # of a frame's pixels that the peak of a feature exceeds; 64 takes 3 times as long
FIRST_SPEED = 2.0  # pixels per frame, standard deviation of a new track
LOST = 1e6  # cost of an assignment outside the gate


class Features(NamedTuple):
    """Features of one frame."""

    points: Float[np.ndarray, "n 2"]  # (x, y)
    errors: Float[np.ndarray, " n"]  # stated standard deviation
    masses: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of trackpy's features; weaker ones than `min_mass` are left out."""

    diameter: int
    min_mass: float


@dataclass(frozen=True)
class TrackpySettings:
    """Settings of trackpy's links; tracks with fewer rows than `min_length` are left out."""

    search_range: float
    memory: int
    min_length: int


@dataclass(frozen=True)
class KalmanSettings:
    """Settings of the Kalman tracker.

    Attributes:
        gate: largest distance of a feature from the prediction, pixels.
        jitter: standard deviation of the velocity's change in a frame.
        memory: frames for which a track without features is kept.
        min_length: rows of the shortest track that is reported.
        persistence: share of its velocity that a track keeps; 0 for random walks.
        noise: standard deviation of a feature's position.
    """

    gate: float
    jitter: float
    memory: int
    min_length: int
    persistence: float = 1.0
    noise: float = 0.3


def locate(video: Video, diameter: int) -> list[Features]:
    """Return all features of every frame with trackpy's stated errors and masses.

    trackpy omits features near the border, so frames are padded by their median.
    """
    trackpy, found = import_trackpy(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about frames without features
        for image in (255 * video).astype(np.uint8):
            padded = np.pad(image, diameter, constant_values=int(np.median(image)))
            table = trackpy.locate(padded, diameter, percentile=PERCENTILE)
            errors = np.nan_to_num(table["ep"].to_numpy(), nan=0.3).clip(0.01)
            points = table[["x", "y"]].to_numpy() - diameter
            found.append(Features(points, errors, table["mass"].to_numpy()))
    return found


def strong(features: Sequence[Features], min_mass: float) -> list[Features]:
    """Return the features with at least some mass."""
    return [Features(*(part[one.masses >= min_mass] for part in one)) for one in features]


def link_trackpy(features: Sequence[Features], settings: TrackpySettings) -> TrackSet:
    """Return tracks linked by trackpy; rows exist where features were found."""
    linker = import_trackpy().link_iter(
        [one.points for one in features],
        settings.search_range,
        memory=settings.memory,
        adaptive_stop=0.5,
        adaptive_step=0.9,
    )
    labels = [np.array(own, dtype=int) for _, own in linker]
    return _collect(features, labels, settings.min_length)


def link_kalman(features: Sequence[Features], settings: KalmanSettings) -> TrackSet:
    """Return tracks of constant-velocity Kalman filters with gated assignment in each frame.

    Law: a lone object on a line is one track whose filter equals the dense posterior
    (test_the_filter_of_a_lone_track_equals_the_dense_posterior).
    """
    keep = settings.persistence
    step = np.diag((1.0, 1.0, keep, keep)) + np.diag((1.0, 1.0), 2)
    jitter = np.diag((0.25, 0.25, 1.0, 1.0)) + 0.5 * (np.diag((1.0, 1.0), 2) + np.diag((1, 1), -2))
    noise, state_noise = settings.noise**2 * np.eye(2), settings.jitter**2 * jitter
    means, spreads = np.zeros((0, 4)), np.zeros((0, 4, 4))
    names, missed = np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    labels, found, num_tracks = [], [], 0
    for one in features:
        means, spreads = means @ step.T, step @ spreads @ step.T + state_noise
        own = np.full(len(one.points), -1)
        distance = np.linalg.norm(means[:, None, :2] - one.points[None], axis=-1)
        rows, columns = linear_sum_assignment(np.where(distance < settings.gate, distance, LOST))
        good = distance[rows, columns] < settings.gate
        rows, columns = rows[good], columns[good]
        own[columns], missed[rows] = names[rows], -1
        gain = spreads[rows][:, :, :2] @ np.linalg.inv(spreads[rows][:, :2, :2] + noise)
        error = one.points[columns] - means[rows, :2]
        means[rows] += (gain @ error[..., None])[..., 0]
        spreads[rows] -= gain @ spreads[rows][:, :2]
        new = np.nonzero(own < 0)[0]
        own[new] = num_tracks + np.arange(len(new))
        num_tracks += len(new)
        first = np.concatenate((one.points[new], np.zeros((len(new), 2))), 1)
        wide = np.broadcast_to(
            np.diag((settings.noise**2,) * 2 + (FIRST_SPEED**2,) * 2), (len(new), 4, 4)
        )
        means, spreads = np.concatenate((means, first)), np.concatenate((spreads, wide))
        names = np.concatenate((names, own[new]))
        missed = np.concatenate((missed + 1, np.zeros(len(new), dtype=int)))
        order = np.argsort(names)
        place = order[np.searchsorted(names[order], own)]
        sds = np.sqrt(np.trace(spreads[place][:, :2, :2], axis1=1, axis2=2) / 2)
        found.append(Features(means[place, :2], sds, one.masses))
        labels.append(own)
        kept = missed <= settings.memory
        means, spreads, names, missed = means[kept], spreads[kept], names[kept], missed[kept]
    return _collect(found, labels, settings.min_length)


def _collect(
    features: Sequence[Features], labels: Sequence[np.ndarray], min_length: int
) -> TrackSet:
    """Return tracks as arrays; probabilities are one where a feature is linked, else zero."""
    everyone = np.concatenate([*labels, np.zeros(0, dtype=int)])
    names, lengths = np.unique(everyone, return_counts=True)
    names = names[lengths >= min_length]
    positions = np.full((len(names), len(features), 2), np.nan)
    covariances = np.full((len(names), len(features), 2, 2), np.nan)
    for t, (one, own) in enumerate(zip(features, labels, strict=True)):
        kept = np.isin(own, names)
        rows = np.searchsorted(names, own[kept])
        positions[rows, t] = one.points[kept]
        covariances[rows, t] = one.errors[kept, None, None] ** 2 * np.eye(2)
    shows: Bool[np.ndarray, "M T"] = ~np.isnan(positions[..., 0])
    return TrackSet(positions, shows.astype(float), shows.astype(float), covariances)


@dataclass(frozen=True)
class PointTracker:
    """A detector and a linker with fixed settings; called with a video, it returns tracks."""

    detector: DetectorSettings
    links: TrackpySettings | KalmanSettings

    def __call__(self, video: Video) -> TrackSet:
        """Return the tracks of a video [T, height, width] in [0, 1]."""
        features = strong(locate(video, self.detector.diameter), self.detector.min_mass)
        if isinstance(self.links, KalmanSettings):
            return link_kalman(features, self.links)
        return link_trackpy(features, self.links)


def tune(
    video: Video,
    positions: Float[np.ndarray, "N T 2"],
    visible: Bool[np.ndarray, "N T"],
    *,
    kalman: bool,
) -> PointTracker:
    """Return the tracker with the largest IDF1 on a recording with truth.

    The detector is chosen first, by how many objects it finds and how closely, then the links.
    """
    located = {diameter: locate(video, diameter) for diameter in DIAMETERS}

    def detections(diameter: int, min_mass: float) -> float:
        """Return the similarity of matched features, per object or feature, matched or not."""
        shared, total = 0.0, 0
        for t, one in enumerate(strong(located[diameter], min_mass)):
            alike = similarity(positions[visible[:, t], t], one.points, GATE)
            alike[alike < 0.5] = 0
            rows, columns = linear_sum_assignment(-alike)
            shared += float(alike[rows, columns].sum())
            total += sum(alike.shape) - int((alike[rows, columns] > 0).sum())
        return shared / max(1, total)

    masses = {d: _typical_mass(found, positions, visible) for d, found in located.items()}
    options_of_features = [(d, share * masses[d]) for d, share in product(DIAMETERS, MASS_SHARES)]
    diameter, min_mass = max(options_of_features, key=lambda pair: detections(*pair))
    features = strong(located[diameter], min_mass)

    def links(settings: TrackpySettings | KalmanSettings) -> float:
        if isinstance(settings, KalmanSettings):
            tracks = link_kalman(features, settings)
        else:
            tracks = link_trackpy(features, settings)
        return idf1(positions, visible, tracks.positions, tracks.shows > 0)

    options: list[TrackpySettings | KalmanSettings]
    if kalman:
        grid = product(GATES, JITTERS, MEMORIES, MIN_LENGTHS, PERSISTENCES)
        options = [KalmanSettings(*values) for values in grid]
    else:
        options = [TrackpySettings(*v) for v in product(RANGES, MEMORIES, MIN_LENGTHS)]
    return PointTracker(DetectorSettings(diameter, min_mass), max(options, key=links))


def _typical_mass(
    features: Sequence[Features],
    positions: Float[np.ndarray, "N T 2"],
    visible: Bool[np.ndarray, "N T"],
) -> float:
    """Return the median mass of the features nearest to visible objects."""
    masses = [
        one.masses[np.linalg.norm(one.points - positions[n, t], axis=-1).argmin()]
        for t, one in enumerate(features)
        for n in np.nonzero(visible[:, t])[0]
        if len(one.points)
    ]
    return float(np.median(masses)) if masses else 0.0
