"""The record of tracks that `track` returns: sparse rows, dense arrays on demand, a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from motes.core.axes import Bool, Float, Int
from motes.core.errors import InputError
from motes.tracking.existence import Rates
from motes.tracking.motion import Laws
from motes.tracking.scene import Fit

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    *("frame", "particle", "x", "y", "sd_x", "sd_y", "cov_xy", "vx", "vy"),
    *("seen", "probability", "raw_x", "raw_y"),
)
MIN_PROBABILITY = 0.05  # of existence; rows below it are not in the table


@dataclass(frozen=True, eq=False, repr=False)
class Tracks:
    """Objects that come and go: positions, velocities and probabilities in every frame.

    The fields hold one entry per track and frame in which it may exist, ordered by frame, then by
    track; the properties `positions`, `covariances`, `velocities`, `exists`, `shows` and `seen` are
    dense arrays [N, T, ...] with NaN, 0 or False elsewhere.

    Attributes:
        num_tracks: N.
        num_frames: T.
        frame: of each row.
        particle: track of each row, numbered by first appearance.
        row_positions: pixels (x, y) given all frames.
        row_covariances: of the positions.
        row_velocities: pixels per frame.
        row_exists: probability that the object exists.
        row_shows: probability that it exists and shows.
        row_seen: whether it was detected in this frame.
        row_raw: the detected position, not smoothed; NaN where not seen. Use it for mean square
            displacements.
        laws: learned laws of motion; None without tracks.
        rates: learned rates of births, deaths and blinks; None without tracks.
        diameter: of an object in pixels; NaN without tracks.
        probability_of_laws: of each track, [N, K].
        fit: how well the recording fits the tracker, with warnings.
    """

    num_tracks: int
    num_frames: int
    frame: Int[np.ndarray, " rows"]
    particle: Int[np.ndarray, " rows"]
    row_positions: Float[np.ndarray, "rows 2"]
    row_covariances: Float[np.ndarray, "rows 2 2"]
    row_velocities: Float[np.ndarray, "rows 2"]
    row_exists: Float[np.ndarray, " rows"]
    row_shows: Float[np.ndarray, " rows"]
    row_seen: Bool[np.ndarray, " rows"]
    row_raw: Float[np.ndarray, "rows 2"]
    laws: Laws | None
    rates: Rates | None
    diameter: float
    probability_of_laws: Float[np.ndarray, "N K"]
    fit: Fit

    def __repr__(self) -> str:
        """Return the size of the result in a line."""
        seen = int(self.row_seen.sum())
        return f"Tracks(tracks={self.num_tracks}, frames={self.num_frames}, detections={seen})"

    def __len__(self) -> int:
        return self.num_tracks

    def _dense(self, values: Any, empty: Any) -> Any:
        whole = np.full((self.num_tracks, self.num_frames, *values.shape[1:]), empty, values.dtype)
        whole[self.particle, self.frame] = values
        return whole

    @cached_property
    def positions(self) -> Float[np.ndarray, "N T 2"]:
        """Pixels (x, y) given all frames; NaN where the track does not reach."""
        return self._dense(self.row_positions, np.nan)

    @cached_property
    def covariances(self) -> Float[np.ndarray, "N T 2 2"]:
        """Covariances of the positions."""
        return self._dense(self.row_covariances, np.nan)

    @cached_property
    def velocities(self) -> Float[np.ndarray, "N T 2"]:
        """Pixels per frame; 0 for random walks."""
        return self._dense(self.row_velocities, np.nan)

    @cached_property
    def exists(self) -> Float[np.ndarray, "N T"]:
        """Probability that the object exists."""
        return self._dense(self.row_exists, 0.0)

    @cached_property
    def shows(self) -> Float[np.ndarray, "N T"]:
        """Probability that the object exists and shows."""
        return self._dense(self.row_shows, 0.0)

    @cached_property
    def seen(self) -> Bool[np.ndarray, "N T"]:
        """Whether the object was detected in the frame."""
        return self._dense(self.row_seen, False)

    @cached_property
    def expected_count(self) -> Float[np.ndarray, " T"]:
        """Expected number of objects that exist in each frame."""
        return np.bincount(self.frame, self.row_exists, self.num_frames).astype(float)

    def rows(self, least: float = MIN_PROBABILITY) -> Iterator[tuple[Any, ...]]:
        """Yield rows of `COLUMNS` for every track and frame with at least this probability."""
        chosen = self.row_exists >= least
        sds = np.sqrt(self.row_covariances[chosen][:, (0, 1), (0, 1)])
        columns = (
            self.frame[chosen], self.particle[chosen], *self.row_positions[chosen].T, *sds.T,
            self.row_covariances[chosen, 0, 1], *self.row_velocities[chosen].T,
            self.row_seen[chosen], self.row_exists[chosen], *self.row_raw[chosen].T,
        )  # fmt: skip
        yield from zip(*(column.tolist() for column in columns), strict=True)

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return the rows as a pandas DataFrame with trackpy's column names."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_dataframe needs pandas; pip install 'motes[table]'") from None
        return pandas.DataFrame(list(self.rows()), columns=list(COLUMNS))


def no_tracks(num_frames: int, fit: Fit | None = None) -> Tracks:
    """Return the record of a recording without objects."""
    none, pairs = np.zeros(0), np.zeros((0, 2))
    whole = np.zeros(0, np.int64)
    return Tracks(
        0, num_frames, whole, whole, pairs, np.zeros((0, 2, 2)), pairs, none, none,
        np.zeros(0, bool), pairs, None, None, float("nan"), np.zeros((0, 2)),
        fit or Fit(),
    )  # fmt: skip
