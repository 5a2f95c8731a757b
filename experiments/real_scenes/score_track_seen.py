"""Score the table of `motes track` on a recording of throws with motion capture beside it.

The ball is present where the capture has it. A projective camera is fitted to the rows seen in free
flights, by `experiments.throws.score_projective`; it then says where the ball is in every frame. A
row is right if it is within FAR pixels of that.

Usage: python -m experiments.real_scenes.score_track_seen VIDEO TSV --out FILE
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import motes
from experiments.records import write_record
from experiments.throws.score_projective import fit_camera, project
from experiments.throws.score_throws import Capture, free_flights, read_capture
from motes.tracking import Tracks
from motes.video import open_video

FAR = 15.0  # pixels from where the capture has the ball
LIMITS = (200.0, 50.0, 20.0, 10.0, 10.0)  # pixels of rows from which the camera is fitted


def score(tracks: Tracks, capture: Capture, fps: float) -> dict[str, Any]:
    """Return how many rows are seen in frames with and without the ball, and how many are right."""
    seen = tracks.row_seen
    frame, points = tracks.frame[seen], tracks.row_raw[seen]
    moments = np.arange(tracks.num_frames) / fps
    nearest = np.searchsorted(capture.times, moments).clip(0, len(capture.times) - 1)
    space = capture.points[nearest]
    present = ~np.isnan(space[:, 0])
    flying = np.zeros(tracks.num_frames, bool)
    for span in free_flights(capture):
        flying |= (moments > capture.times[span.start]) & (moments < capture.times[span.stop - 1])
    usable = (flying & present)[frame]
    good = usable
    for limit in LIMITS:
        camera = fit_camera(space[frame[good]], points[good])
        good = usable & (np.linalg.norm(project(camera, space[frame]) - points, axis=1) < limit)
    apart = np.linalg.norm(project(camera, space[frame]) - points, axis=1)
    right = present[frame] & (apart < FAR)
    found = np.zeros(tracks.num_frames, bool)
    found[frame[right]] = True
    return {
        "frames": tracks.num_frames,
        "present": int(present.sum()),
        "absent": int((~present).sum()),
        "tracks": tracks.num_tracks,
        "seen_rows": len(frame),
        "seen_while_absent": int((~present[frame]).sum()),
        "share_of_absent_frames": float((~present[frame]).sum() / max(1, (~present).sum())),
        "seen_elsewhere": int((present[frame] & ~right).sum()),
        "present_and_seen": float(found.sum() / max(1, present.sum())),
        "median_camera_residual_px": float(np.median(apart[right])),
        "warnings": list(tracks.fit.warnings),
    }


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("tsv", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    video = open_video(given.video)
    started = time.process_time()
    tracks = motes.track(video)
    seconds = time.process_time() - started
    write_record(
        {
            "question": "rows of `motes track` marked seen while the ball is absent",
            "recording": given.video.name,
            **score(tracks, read_capture(given.tsv), video.fps or 30.0),
            "cpu_s_per_frame": seconds / max(1, tracks.num_frames),
        },
        given.out,
    )


if __name__ == "__main__":
    main()
