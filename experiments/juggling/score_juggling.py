"""Score models on a recording of juggled balls: identities after crossings, and forecasts.

The recording has no ground truth; experiments/juggling/reference.py supplies reference identities.
The clips are those that `motes prepare` cut; models are trained on them without labels.

Usage: python -m experiments.juggling.score_juggling VIDEO CLIPS MODEL [MODEL ...]
           --out experiments/juggling/juggling.json
"""

import argparse
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import motes
from experiments.juggling.reference import GRAVITY, find_blobs, link
from experiments.records import write_record
from motes.core.axes import Float, Int
from motes.models.checkpoint import load_with_config
from motes.video import VideoMap, load_video_map, open_video, plan

NUM_OBJECTS = 3
GATE = 20.0  # video pixels, about two balls: nearer is the same ball
BESIDE = 4  # frames before and after a crossing that determine identities
SEEN, HORIZON = 15, 15  # frames before and in a forecast of half a second
BATCH = 16

Tracks = Float[np.ndarray, "N T 2"]


def main() -> None:
    """Scores and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path)
    parser.add_argument("clips", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tracks", type=Path, help="npz file of what the first model found")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    known = load_video_map(given.clips)
    assert known is not None, "the clips were not cut by motes prepare"
    where, preparation = known
    video = open_video(given.video)
    truth = link(find_blobs(plan(video, preparation)), NUM_OBJECTS)
    frames = motes.load_clips(given.clips).frames.float()
    reference = [truth[:, numbers] for numbers in where.numbers]
    answers = [score(model, frames, where, reference) for model in given.models]
    if given.tracks is not None:
        np.savez_compressed(given.tracks, tracks=np.stack(answers[0][0]), numbers=where.numbers)
    record = {
        "recording": given.video.name,
        "frame_size": list(frames.shape[2:]),
        "clips": len(frames),
        "frames_without_a_ball": float(np.isnan(truth[..., 0]).any(0).mean()),
        "models": [scores for _, scores in answers],
    }
    write_record(record, given.out)


def score(
    name_or_folder: str, frames: torch.Tensor, where: VideoMap, reference: list[Tracks]
) -> tuple[list[Tracks], dict[str, Any]]:
    """What a model finds in the clips, and its scores."""
    model, config = load_with_config(name_or_folder)
    began = time.monotonic()
    found = ask(lambda some: motes.infer(model, some, NUM_OBJECTS), frames, where)
    ahead = ask(
        lambda some: motes.forecast(model, some[:, :SEEN], NUM_OBJECTS, HORIZON), frames, where
    )
    scores = {
        "seed": config.seed,
        "steps": config.schedule.iterations,
        **identity(found, reference),
        "forecast_of_half_a_second": forecasts(ahead, reference),
        "seconds": time.monotonic() - began,
    }
    return found, scores


def ask(question: Any, frames: torch.Tensor, where: VideoMap) -> list[Tracks]:
    """The positions that a question answers with, in video pixels, clip by clip."""
    tracks = []
    for some in frames.split(BATCH):
        tracks += list(where.points(question(some).pixels).numpy())
    return tracks


def matches(found: Tracks, truth: Tracks) -> Int[np.ndarray, "N T"]:
    """Which found object each true one is in each frame; -1 where none is near, or it is lost."""
    same = np.full(truth.shape[:2], -1)
    for t in range(truth.shape[1]):
        visible = np.flatnonzero(~np.isnan(truth[:, t, 0]))
        apart = np.linalg.norm(truth[visible, None, t] - found[None, :, t], axis=-1)
        apart = np.nan_to_num(apart, nan=1e6)
        for row, n in zip(*linear_sum_assignment(apart), strict=True):
            if apart[row, n] < GATE:
                same[visible[row], t] = n
    return same


def identity(found: list[Tracks], truth: list[Tracks]) -> dict[str, Any]:
    """Return how often objects are found and keep their identities."""
    near, kept, whole, crossed = [], [], [], []
    for ours, theirs in zip(found, truth, strict=True):
        same = matches(ours, theirs)
        near.append(float((same >= 0).sum() / (~np.isnan(theirs[..., 0])).sum()))
        constant = all(len(set(row[row >= 0])) <= 1 for row in same)
        kept.append(constant and near[-1] > 0.9)
        outcomes = crossings(theirs, same)
        crossed += outcomes
        whole.append(all(outcomes))
    return {
        "share_of_balls_found_within_20_px": float(np.mean(near)),
        "share_of_clips_with_identity_kept_throughout": float(np.mean(kept)),
        "share_of_clips_with_identity_kept_through_each_crossing": float(np.mean(whole)),
        "crossings": len(crossed),
        "share_of_crossings_with_identity_kept": float(np.mean(crossed)),
        "kept_clip_by_clip": "".join("01"[kept_one] for kept_one in kept),
    }


def crossings(truth: Tracks, same: Int[np.ndarray, "N T"]) -> list[bool]:
    """For each time that two balls pass in height: are both the same before and after?"""
    outcomes = []
    for i, j in combinations(range(len(truth)), 2):
        above = np.sign(truth[i, :, 1] - truth[j, :, 1])
        for t in np.flatnonzero(above[1:] * above[:-1] < 0) + 1:
            sides = slice(max(t - BESIDE, 0), t), slice(t, t + BESIDE)
            outcomes.append(
                all(_who(same[n, sides[0]]) == _who(same[n, sides[1]]) != -1 for n in (i, j))
            )
    return outcomes


def _who(row: Int[np.ndarray, " T"]) -> int:
    """The object that is meant most often; -1 if none is."""
    names = row[row >= 0]
    return int(np.bincount(names).argmax()) if len(names) else -1


def forecasts(found: list[Tracks], truth: list[Tracks]) -> dict[str, Any]:
    """Return forecast errors, and those of constant velocity given the true identities."""
    errors: dict[str, list[float]] = {"model": [], "constant_velocity": [], "with_gravity": []}
    for ours, theirs in zip(found, truth, strict=True):
        same = matches(ours[:, :SEEN], theirs[:, :SEEN])
        for n, track in enumerate(theirs):
            late = np.flatnonzero(~np.isnan(track[SEEN - 4 : SEEN, 0])) + SEEN - 4
            if len(late) < 2 or (name := _who(same[n, SEEN - BESIDE :])) == -1:
                continue
            speed = (track[late[-1]] - track[late[0]]) / (late[-1] - late[0])
            for t in range(SEEN, SEEN + HORIZON):
                if np.isnan(track[t, 0]):
                    continue
                steps = t - late[-1]
                straight = track[late[-1]] + speed * steps
                # The mean speed of the last frames is that of their middle.
                fall = GRAVITY * (steps**2 + steps * (late[-1] - late[0])) / 2
                for method, guess in (
                    ("model", ours[name, t]),
                    ("constant_velocity", straight),
                    ("with_gravity", straight + fall),
                ):
                    errors[method].append(float(np.linalg.norm(guess - track[t])))
    return {
        "points": len(errors["model"]),
        **{
            f"{method}_{score}_px": float(value(errors[method]))
            for method in errors
            for score, value in (("median", np.median), ("rmse", _rms))
        },
    }


def _rms(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


if __name__ == "__main__":
    main()
