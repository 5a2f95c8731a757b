"""Score a tracker on simulated recordings whose objects come and go.

Usage: python -m experiments.real_scenes.score_worlds TRACKER --out FILE
    TRACKER    trackpy, kalman, or module:function, a function of a video [T, height, width] in
               [0, 1] that returns tracks with positions, covariances, exists and shows
    --scenes   names of `motes.data.worlds.arrivals.SCENES`; those of the target table by default
    --seeds    of the scored recordings
    --times N  frames of each recording; the scene's by default

trackpy and kalman are tuned by the truth of a recording of the same scene and another seed. CPU
time is that of all threads; a tracker that learns from the recording itself is timed with that.
"""

import argparse
import importlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from experiments.records import write_record
from motes.data.worlds.arrivals import SCENES, Arrivals, draw_scene
from motes.evaluation.baselines.point_trackers import PointTracker, tune
from motes.evaluation.tracking_metrics import GATE, NUM_BINS, TrackerOutput, score_tracks

SEEDS, TUNING_SEED = (4_000_000, 4_000_001, 4_000_002), 4_100_000
TUNING_FRAMES = 30
TABLE = (
    "5 flights", "5 walks", "50 flights", "50 dense walks", "50 mixed", "50 faint walks",
    "300 walks", "300 flights",
)  # fmt: skip
Tracker = Callable[[np.ndarray], TrackerOutput]
MEANS = (
    "mota",
    "idf1",
    "hota",
    "hota_50",
    "rmse",
    "coverage",
    "hidden_coverage",
    "cpu_s_per_frame",
)


def tracker_for(name: str, scene: str) -> Tracker:
    """Return a tracker by name, tuned on another recording if it has to be."""
    if name in ("trackpy", "kalman"):
        other = draw_scene(scene, TUNING_SEED, TUNING_FRAMES)
        return tune(other.frames, other.positions, other.visible, kalman=name == "kalman")
    module, _, function = name.partition(":")
    found: Tracker = getattr(importlib.import_module(module), function)
    return found


def score(tracker: Tracker, recording: Arrivals) -> dict[str, Any]:
    """Return the scores of one recording, with the CPU time of a frame."""
    start = time.process_time()
    tracks = tracker(recording.frames)
    seconds = time.process_time() - start
    scores = score_tracks(recording.positions, recording.exists, recording.visible, tracks)
    count = float(scores["expected_count"]) / float(scores["true_count"])  # type: ignore[arg-type]
    per_frame = seconds / len(recording.frames)
    return {**scores, "count_ratio": count, "cpu_s_per_frame": per_frame}


def score_scenes(
    name: str, scenes: Sequence[str], seeds: Sequence[int], num_frames: int | None
) -> dict[str, Any]:
    """Return the scores of all scenes and seeds, and their means."""
    found: dict[str, Any] = {}
    for scene in scenes:
        tracker = tracker_for(name, scene)
        runs = []
        for seed in seeds:
            runs.append({"seed": seed, **score(tracker, draw_scene(scene, seed, num_frames))})
            shown = "  ".join(f"{key} {runs[-1][key]:.3f}" for key in MEANS)
            print(f"{scene:16s} {seed}  {shown}", flush=True)
        means = {key: float(np.mean([run[key] for run in runs])) for key in (*MEANS, "count_ratio")}
        found[scene] = {"mean": means, "existence": pooled(runs), "runs": runs}
        if isinstance(tracker, PointTracker):
            found[scene]["settings"] = asdict(tracker)
    return found


def pooled(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calibration of existence of all runs together, by bins of a tenth."""
    bins: dict[int, np.ndarray] = {}
    for entry in (entry for run in runs for entry in run["existence"]):
        key = min(int(NUM_BINS * entry["stated"]), NUM_BINS - 1)
        sums = entry["rows"] * np.array((entry["stated"], entry["true"], 1.0))
        bins[key] = bins.get(key, np.zeros(3)) + sums
    return [
        {"stated": float(stated / rows), "true": float(true / rows), "rows": int(rows)}
        for _, (stated, true, rows) in sorted(bins.items())
    ]


def without_nan(value: Any) -> Any:
    """Return a record with None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def main() -> None:
    """Score a tracker and write a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tracker")
    parser.add_argument("--scenes", nargs="+", default=list(TABLE), choices=list(SCENES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--times", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    scenes = score_scenes(given.tracker, given.scenes, given.seeds, given.times)
    record = {
        "question": "objects that come and go in simulated recordings",
        "tracker": given.tracker,
        "command": f"python -m experiments.real_scenes.score_worlds {given.tracker}",
        "gate_px": GATE,
        "load_average": os.getloadavg()[0],
        "scenes": without_nan(scenes),
    }
    write_record(record, given.out)


if __name__ == "__main__":
    main()
