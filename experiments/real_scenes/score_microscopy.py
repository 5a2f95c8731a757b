"""Compare `motes.track` with trackpy on a microscopy recording without truth.

trackpy runs with the settings of its tutorial for this recording (diameter 11, dark spots, least
mass 20, search range 5, memory 3); spots of tracks with at least 25 frames are its objects, as
there. Two spots of a frame within 3 pixels are the same. A link is a pair of consecutive spots of a
trackpy track that both have a partner; it agrees if the partners are in one track. Diffusion is a
quarter of the slope of the mean square displacement over lags 1 to 4, mean drift taken out,
from unsmoothed positions.

Usage: python -m experiments.real_scenes.score_microscopy VIDEO --out FILE [--times N]
"""

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

import motes
from experiments.records import write_record
from motes.tracking.assignment import best_pairs
from motes.video.source import grey, open_video

GATE = 3.0  # pixels
LONG = 25  # frames of a track that counts
LAGS = np.arange(1, 5)
DIAMETER, LEAST_MASS, RANGE, MEMORY = 11, 20, 5, 3
Table = np.ndarray  # columns frame, particle, x, y, in any order of rows


def with_trackpy(frames: np.ndarray, separation: int | None = None) -> Table:
    """Return the spots and tracks of trackpy with its tutorial's settings."""
    import trackpy

    trackpy.quiet()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trackpy.batch(
            frames, DIAMETER, minmass=LEAST_MASS, invert=True, separation=separation, processes=1
        )
        linked = trackpy.link(found, RANGE, memory=MEMORY)
    table: Table = linked[["frame", "particle", "x", "y"]].to_numpy(float)
    return table


def with_motes(frames: np.ndarray) -> tuple[Table, float]:
    """Return the seen, unsmoothed spots of `motes.track`, and the mean expected count."""
    tracks = motes.track(frames)
    rows = np.column_stack((tracks.frame, tracks.particle, tracks.row_raw))
    return rows[tracks.row_seen], float(tracks.expected_count.mean())


def long_tracks(table: Table) -> Table:
    """Return the rows of tracks with at least LONG rows."""
    names, inverse, counts = np.unique(table[:, 1], return_inverse=True, return_counts=True)
    del names
    return table[counts[inverse] >= LONG]


def partners(first: Table, second: Table) -> np.ndarray:
    """Return for each row of the first table the row of the second that is the same spot, or -1."""
    found = np.full(len(first), -1)
    for frame in np.unique(first[:, 0]):
        mine, theirs = (np.flatnonzero(table[:, 0] == frame) for table in (first, second))
        if len(theirs) == 0:
            continue
        trees = cKDTree(first[mine, 2:]), cKDTree(second[theirs, 2:])
        near = trees[0].sparse_distance_matrix(trees[1], GATE).tocoo()
        chosen = best_pairs(near.row, near.col, GATE + 0.01 - near.data, (len(mine), len(theirs)))
        found[mine[near.row[chosen]]] = theirs[near.col[chosen]]
    return found


def links_that_agree(first: Table, second: Table, partner: np.ndarray) -> tuple[float, int]:
    """Return the share of the first table's links that the second has too, and their number."""
    order = np.lexsort((first[:, 0], first[:, 1]))
    before, after = order[:-1], order[1:]
    linked = (first[before, 1] == first[after, 1]) & (first[after, 0] == first[before, 0] + 1)
    linked &= (partner[before] >= 0) & (partner[after] >= 0)
    before, after = partner[before[linked]], partner[after[linked]]
    return float((second[before, 1] == second[after, 1]).mean()), int(linked.sum())


def diffusion(table: Table) -> dict[str, Any]:
    """Return mean square displacements over LAGS and the diffusion constant, px^2 per frame."""
    size = int(table[:, 0].max()) + 10
    keys = table[:, 1] * size + table[:, 0]
    order = np.argsort(keys)
    squares = []
    for lag in LAGS:
        place = np.searchsorted(keys[order], keys + lag).clip(0, len(keys) - 1)
        hit = keys[order][place] == keys + lag
        moves = table[order[place[hit]], 2:] - table[hit, 2:]
        squares.append(float(np.square(moves - moves.mean(0)).sum(1).mean()))
    slope = np.polyfit(LAGS, squares, 1)[0]
    return {"mean_square_displacement": squares, "diffusion": float(slope / 4)}


def compare(ours: Table, theirs: Table, num_frames: int) -> dict[str, Any]:
    """Return all shares: spots of trackpy's long tracks, all of its spots, objects, links."""
    wanted = long_tracks(theirs)
    partner = partners(wanted, ours)
    agree, links = links_that_agree(wanted, ours, partner)
    return {
        "share_of_trackpy_spots": float((partner >= 0).mean()),
        "share_of_all_trackpy_features": float((partners(theirs, ours) >= 0).mean()),
        "spots_per_frame": {
            "motes": len(ours) / num_frames,
            "trackpy": len(theirs) / num_frames,
            "trackpy_in_long_tracks": len(wanted) / num_frames,
            "motes_in_long_tracks": len(long_tracks(ours)) / num_frames,
        },
        "objects_ratio": len(ours) / len(theirs),
        "long_tracks": {
            "motes": len(np.unique(long_tracks(ours)[:, 1])),
            "trackpy": len(np.unique(wanted[:, 1])),
        },
        "links_that_agree": agree,
        "links": links,
    }


def main() -> None:
    """Compare and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("--times", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    pictures = [grey(frame.picture) for frame in open_video(given.video).frames()]
    frames = np.rint(255 * np.stack(pictures[: given.times])).astype(np.uint8)
    started = time.process_time()
    ours, count = with_motes(frames)
    between = time.process_time()
    theirs = with_trackpy(frames)
    seconds = between - started, time.process_time() - between
    close = with_trackpy(frames[: len(frames) // 10], separation=DIAMETER // 2 + 1)
    motes_moves, trackpy_moves = diffusion(long_tracks(ours)), diffusion(long_tracks(theirs))
    write_record(
        {
            "question": "microscopy: spots, links and diffusion against trackpy",
            "recording": given.video.name,
            "frames": len(frames),
            "trackpy": {
                "diameter": DIAMETER,
                "minmass": LEAST_MASS,
                "search_range": RANGE,
                "memory": MEMORY,
                "separation": DIAMETER + 1,
            },
            "gate_px": GATE,
            **compare(ours, theirs, len(frames)),
            "trackpy_spots_per_frame_at_half_the_separation": len(close) / (len(frames) // 10),
            "mean_expected_count": count,
            "motes": motes_moves,
            "trackpy_moves": trackpy_moves,
            "diffusion_ratio": motes_moves["diffusion"] / trackpy_moves["diffusion"],
            "cpu_s_per_frame": {
                "motes": seconds[0] / len(frames),
                "trackpy": seconds[1] / len(frames),
            },
            "cpu_ratio": seconds[0] / seconds[1],
            "load_average": os.getloadavg()[0],
        },
        given.out,
    )


if __name__ == "__main__":
    main()
