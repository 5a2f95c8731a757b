"""Score the fit at full resolution on a recording of juggled balls.

The reference is a least-squares fit of a disk (centre, radius, brightness, softness, background) to
the pixels around blobs that were found without a model, in frames where it fits well; trackpy's
features are compared with the same reference.

Usage: python -m experiments.real_scenes.score_full_resolution VIDEO RUN --out FILE
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import motes
from experiments.juggling.reference import find_blobs
from experiments.records import write_record
from motes.core.axes import Float
from motes.evaluation.baselines.point_trackers import locate
from motes.evaluation.tracking_metrics import REGION
from motes.output.formats import object_diameter
from motes.output.full_resolution import refine_answer
from motes.video import find_preparation, open_video, plan, whole_clip
from motes.video.source import grey

HALF, EVERY, GATE = 16, 4, 8.0
Points = Float[np.ndarray, "M 2"]


def fit_disk(
    image: Float[np.ndarray, "height width"], centre: Float[np.ndarray, " 2"]
) -> Float[np.ndarray, " 2"] | None:
    """Return the centre of the disk that fits the pixels around a blob best; None without one."""
    x0, y0 = np.rint(centre).astype(int)
    if not (HALF <= x0 < image.shape[1] - HALF and HALF <= y0 < image.shape[0] - HALF):
        return None
    patch = image[y0 - HALF : y0 + HALF + 1, x0 - HALF : x0 + HALF + 1]
    dy, dx = np.mgrid[-HALF : HALF + 1, -HALF : HALF + 1]

    def residual(p: Float[np.ndarray, " 6"]) -> Float[np.ndarray, " pixels"]:
        away = np.hypot(dx - p[0], dy - p[1])
        disk = 1 / (1 + np.exp(np.clip((away - p[2]) / abs(p[3]), -50, 50)))
        difference: Float[np.ndarray, " pixels"] = (p[4] + p[5] * disk - patch).ravel()
        return difference

    start = (*(centre - (x0, y0)), 9.0, 1.0, float(np.median(patch)), float(np.ptp(patch)))
    found = least_squares(residual, start)
    explained = 1 - 2 * found.cost / max(float(((patch - patch.mean()) ** 2).sum()), 1e-9)
    if explained < 0.9 or not 4 < found.x[2] < HALF or np.abs(found.x[:2]).max() > 4:
        return None
    place: Float[np.ndarray, " 2"] = np.asarray(found.x[:2]) + np.array((x0, y0))
    return place


def compare(
    points: list[Points], reference: dict[int, Points], spreads: list[np.ndarray] | None = None
) -> dict[str, Any]:
    """Return distances of the nearest points from the reference, and the share in 90 % regions."""
    errors, inside = [], []
    for t, places in reference.items():
        if not len(points[t]):
            continue
        away = np.linalg.norm(places[:, None] - points[t][None], axis=-1)
        for place, nearest in zip(places, away.argmin(1), strict=True):
            error = points[t][nearest] - place
            if np.hypot(*error) < GATE:
                errors.append(error)
                if spreads is not None:
                    inside.append(error @ np.linalg.solve(spreads[t][nearest], error) <= REGION)
    found, total = np.array(errors), sum(map(len, reference.values()))
    offset = np.median(found, 0)
    own = np.linalg.norm(found - offset, axis=1)  # a constant offset is a convention
    return {
        "found": len(found) / total,
        "offset": offset.tolist(),
        "rms": float(np.sqrt((own**2).mean())),
        "rms_per_axis": float(np.sqrt((own**2).mean() / 2)),
        "median": float(np.median(own)),
        "in_90_regions": float(np.mean(inside)) if inside else None,
    }


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--num-objects", type=int, default=3)
    parser.add_argument("--frames", type=int, default=400, help="scored from the beginning")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    model = motes.load(given.run)
    preparation = find_preparation(given.run)
    assert preparation is not None
    end = given.frames / float(open_video(given.video).fps or 1)
    whole = whole_clip(given.video, *model.image_size, preparation, (0.0, end))
    answer = motes.infer(model, whole.frames, given.num_objects)
    start = time.process_time()
    diameter = object_diameter(model, whole.where)
    refined = refine_answer(answer, whole.where, whole.pictures, diameter)
    seconds = time.process_time() - start
    seen = answer.seen[0].numpy()
    chosen = range(0, seen.shape[1], EVERY)
    pictures = {t: grey(p) for t, p in enumerate(whole.pictures()) if t in chosen}
    blobs = find_blobs(plan(open_video(given.video), preparation, (0.0, end)))
    reference = {
        t: np.array([p for b in blobs[t] if (p := fit_disk(pictures[t], b)) is not None])
        for t in chosen
    }
    reference = {t: places for t, places in reference.items() if len(places)}

    def score(one: Any) -> dict[str, Any]:
        points = whole.where.points(one.pixels)[0].numpy()
        spreads = whole.where.covariances(one.pixel_covariances)[0].double().numpy()
        rows = [points[seen[:, t], t] for t in range(seen.shape[1])]
        return compare(rows, reference, [spreads[seen[:, t], t] for t in range(seen.shape[1])])

    assert preparation.crop is not None
    left, top, right, bottom = preparation.crop
    features = []
    for t in range(seen.shape[1]):
        if t not in reference:
            features.append(np.zeros((0, 2)))
            continue
        crop = pictures[t][top:bottom, left:right]
        features.append(locate(crop[None], 21)[0].points + np.array((left, top)))
    moved = (refined.pixels != answer.pixels).any(-1)[0].numpy()
    record = {
        "question": "positions against a fit at full resolution, pixels of the recording",
        "recording": given.video.name,
        "reference_positions": sum(map(len, reference.values())),
        "before": score(answer),
        "after": score(refined),
        "trackpy": compare(features, reference),
        "fitted_share_of_seen": float(moved[seen].mean()),
        "cpu_s": seconds,
        "frames": seen.shape[1],
    }
    write_record(record, given.out)


if __name__ == "__main__":
    main()
