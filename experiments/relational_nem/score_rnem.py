"""Count the balls of the Relational-NEM animations, and track balls behind a curtain.

The animations have no true positions. The count is known from the file names (4 balls). Positions
behind a curtain are scored on an animation without one, whose balls are located as blobs: a black
rectangle is laid over it, the model is trained on the result, and the covered blobs are the truth.
In animations with a curtain of their own only fully visible balls can be checked.

Usage: python -m experiments.relational_nem.score_rnem NPZ OPTIONS
    --write-clips FOLDER                           write clips for `motes train`
    --learn-covered RUN --seed 0 [--cover 24 32]   train on clips with a black rectangle
    --counting MODEL ... --covered MODEL ... --curtain MODEL ...
        --out experiments/relational_nem/rnem.json
"""

import argparse
import dataclasses
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

import motes
from experiments.records import write_record
from motes.core.axes import Bool, Float, UInt8
from motes.data import Clips
from motes.models.checkpoint import load_with_config
from motes.training.inputs import fit_sprite_size
from motes.training.presets import PRESETS
from motes.training.train import train
from motes.video.foreground import blob_masses, typical_count

SMALLER = 2  # frames are averaged over squares of so many pixels a side
NUM_FRAMES, COVERED_FRAMES, COVERED_STRIDE = 20, 30, 10
BALLS, CURTAIN, COVERED = "balls", "curtain", "balls4mass_rnem2"
FOUR, CURTAIN_OBJECTS = 4, 3
SIDE = 32  # pixels of the cover; it lies where curtain_rnem2 has its curtain, if not said otherwise
CORE = np.hypot(*np.mgrid[-3:4, -3:4]) <= 3.2  # smaller than any ball: parts those that touch
REACH = 7.0  # pixels from a ball's centre to beyond its border
WHOLE = 0.95  # of the largest blob that is no pair: such a ball is not cut by the curtain
NEAR = 4.0  # pixels; balls have radii of 5 to 8
FAR = 10.0  # pixels beyond which an object is not the ball, however far
LEAST_SEEN = 3  # frames that a ball must show in, to be found behind the cover
LITTLE = 0.1  # of a ball: the line ignores balls of which less is visible
REGION_90 = -2 * np.log(0.1)  # squared Mahalanobis radius
BATCH = 8

Video = UInt8[torch.Tensor, "T height width"]
Cut = UInt8[torch.Tensor, "B T height width"]
Cover = tuple[slice, slice]  # rows and columns


def main() -> None:
    """Cuts clips, or scores models on them and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("npz", type=Path)
    parser.add_argument("--write-clips", type=Path)
    parser.add_argument("--learn-covered", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cover", nargs=2, type=int, default=(8, 0), help="its first row, column")
    for name in ("counting", "covered", "curtain"):
        parser.add_argument(f"--{name}", nargs="+", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cover = (
        slice(given.cover[0], given.cover[0] + SIDE),
        slice(given.cover[1], given.cover[1] + SIDE),
    )
    with np.load(given.npz) as archive:
        videos = {name: torch.from_numpy(archive[name].astype(np.uint8)) for name in archive.files}
    if given.write_clips is not None:
        given.write_clips.mkdir(parents=True, exist_ok=True)
        write_clips(videos, given.write_clips, cover)
        return
    if given.learn_covered is not None:
        learn_covered(videos, given.learn_covered, given.seed, cover)
        return
    four = of_kind(videos, f"{BALLS}{FOUR}")
    seems = np.array([seeming_count(clip) for clip in four.numpy()])
    behind = of_kind(videos, CURTAIN)
    record: dict[str, Any] = {
        "recording": given.npz.name,
        "four_ball_clips": len(four),
        "count_right_by_motes_prepare": float((seems == FOUR).mean()),
        "counting": [count(name, four) for name in given.counting],
        "covered": [find_covered(name, videos[COVERED], cover) for name in given.covered],
        "curtain": [follow(name, behind) for name in given.curtain],
    }
    write_record(record, given.out)


def cut(video: Video, num_frames: int, stride: int) -> Cut:
    """Clips of so many frames, each a stride after the one before."""
    clips: Cut = video.unfold(0, num_frames, stride).movedim(-1, 1).contiguous()
    return clips


def of_kind(videos: dict[str, Video], kind: str) -> Cut:
    """Clips of NUM_FRAMES frames of all videos of a kind, one after the other."""
    chosen = [video for name, video in videos.items() if name.startswith(kind)]
    return torch.cat([cut(video, NUM_FRAMES, NUM_FRAMES) for video in chosen])


def smaller(clips: Cut) -> Float[torch.Tensor, "B T height width"]:
    """The clips as a model sees them: averaged over small squares."""
    return torch.nn.functional.avg_pool2d(clips.float(), SMALLER)


def in_full(pixels: np.ndarray) -> np.ndarray:
    """Positions in small frames as positions in the animation."""
    return np.asarray(SMALLER * pixels + (SMALLER - 1) / 2)


def covered_clips(video: Video, cover: Cover) -> Cut:
    """The clips of a video with a black rectangle over it."""
    clips = cut(video, COVERED_FRAMES, COVERED_STRIDE).clone()
    clips[:, :, *cover] = 0
    return clips


def seeming_count(clip: UInt8[np.ndarray, "T height width"]) -> int:
    """How many objects `motes prepare` counts in a clip."""
    return typical_count([blob_masses(frame * np.uint8(255)) for frame in clip])


def write_clips(videos: dict[str, Video], folder: Path, cover: Cover) -> None:
    """Clips to learn from: free balls with their seeming counts, covered ones, and curtains."""
    balls, behind = of_kind(videos, BALLS), of_kind(videos, CURTAIN)
    covered = covered_clips(videos[COVERED], cover)
    counts = [seeming_count(clip) for clip in balls.numpy()]
    for name, clips, objects in (
        ("balls", balls, torch.tensor(counts)),
        ("covered", covered, torch.full((len(covered),), FOUR)),
        ("curtain", behind, torch.full((len(behind),), CURTAIN_OBJECTS)),
    ):
        order = torch.randperm(len(clips), generator=torch.Generator().manual_seed(0))
        motes.save_clips(folder / f"{name}.npz", Clips(smaller(clips[order]), objects[order]))


def learn_covered(videos: dict[str, Video], out: Path, seed: int, cover: Cover) -> None:
    """Learns from the covered clips that balls fly straight and that something hides them."""
    (out / "clips").mkdir(parents=True)
    write_clips(videos, out / "clips", cover)
    usual = PRESETS["sprites-occluded"]
    data = dataclasses.replace(usual.data, path=str(out / "clips" / "covered.npz"))
    config = fit_sprite_size(dataclasses.replace(usual, data=data, seed=seed))
    print(
        train(config, out / "run", report=lambda line: print(line.get("step"), line.get("bound")))
    )


def count(name: str, four: Cut) -> dict[str, Any]:
    """How often a model counts four balls."""
    model, config = load_with_config(name)
    counts = [motes.infer(model, smaller(some)).num_objects for some in four.split(BATCH)]
    return {
        "seed": config.seed,
        "steps": config.schedule.iterations,
        "largest_count_of_the_model": model.max_objects,
        "count_right": float((torch.cat(counts) == FOUR).double().mean()),
    }


def find_covered(name: str, video: Video, cover: Cover) -> dict[str, Any]:
    """Where a model believes balls to be while they are wholly below the cover."""
    model, config = load_with_config(name)
    truth, showing = true_paths(video, cover)
    starts = range(0, len(video) - COVERED_FRAMES + 1, COVERED_STRIDE)
    errors, nearest, held, shown, never = [], [], [], [], 0
    lines: dict[float, list[float]] = {0.0: [], LITTLE: []}
    clips = covered_clips(video, cover)
    for some, their_starts in zip(
        clips.split(BATCH), np.array_split(starts, range(BATCH, len(clips), BATCH)), strict=True
    ):
        answer = motes.infer(model, smaller(some), FOUR)
        spread = SMALLER**2 * answer.pixel_covariances.numpy()
        for found, its_spread, start in zip(
            in_full(answer.pixels.numpy()), spread, their_starts, strict=True
        ):
            span = slice(start, start + COVERED_FRAMES)
            order = same_balls(found, truth[:, span])
            anyone = any_object(found, truth[:, span])
            for n, path, shows, other in zip(
                order, truth[:, span], showing[:, span], anyone, strict=True
            ):
                off, below = found[n] - path, shows == 0
                shown += np.linalg.norm(off[~below], axis=-1).tolist()
                if (~below).sum() < LEAST_SEEN:
                    never += int(below.sum())
                    continue
                errors += np.linalg.norm(off[below], axis=-1).tolist()
                nearest += other[below].tolist()
                solved = np.linalg.solve(its_spread[n, below], off[below][..., None])[..., 0]
                held += ((off[below] * solved).sum(-1) < REGION_90).tolist()
                for least, those in lines.items():
                    line = straight(path, shows > least)
                    those += np.linalg.norm(line - path, axis=-1)[below].tolist()
    return {
        "seed": config.seed,
        "steps": config.schedule.iterations,
        "clips": len(clips),
        "positions_shown": len(shown),
        "share_of_them_within_4_px": float((np.array(shown) < NEAR).mean()),
        "positions_hidden": len(errors),
        "positions_of_balls_that_hardly_show": never,
        "median_error_px": float(np.median(errors)),
        "median_error_of_a_straight_line_px": float(np.median(lines[0.0])),
        "share_within_a_ball": within(errors),
        "share_within_a_ball_whoever_it_is": within(nearest),
        "share_of_a_straight_line_within_a_ball": within(lines[0.0]),
        "the_same_told_where_a_tenth_of_the_ball_shows": within(lines[LITTLE]),
        "share_in_90_percent_regions": float(np.mean(held)),
    }


def within(errors: list[float]) -> float:
    """The share of errors that are less than a ball's radius."""
    return float((np.array(errors) < REACH).mean())


def true_paths(
    video: Video, cover: Cover
) -> tuple[Float[np.ndarray, "N T 2"], Float[np.ndarray, "N T"]]:
    """Where the balls of an uncovered video are, and which share of each shows beside the cover."""
    pictures = video.numpy() > 0
    paths = np.full((FOUR, len(pictures), 2), np.nan)
    showing = np.zeros((FOUR, len(pictures)))
    y, x = np.mgrid[: pictures.shape[1], : pictures.shape[2]]
    speed = np.zeros((FOUR, 2))
    for t, picture in enumerate(pictures):
        labels, number = ndimage.label(ndimage.binary_erosion(picture, CORE))
        assert number == FOUR, f"frame {t} shows {number} balls"
        centres = np.array(ndimage.center_of_mass(picture, labels, range(1, FOUR + 1)))[:, ::-1]
        if t > 0:
            guess = paths[:, t - 1] + speed
            apart = np.linalg.norm(guess[:, None] - centres, axis=-1)
            centres = centres[linear_sum_assignment(apart)[1]]
            speed = centres - paths[:, t - 1]
        paths[:, t] = centres
        beside = picture.copy()
        beside[cover] = False
        for n, (column, row) in enumerate(centres):
            ball = np.hypot(x - column, y - row) < REACH
            showing[n, t] = beside[ball].sum() / picture[ball].sum()
    return paths, showing


def same_balls(
    found: Float[np.ndarray, "N T 2"], truth: Float[np.ndarray, "N T 2"]
) -> tuple[int, ...]:
    """For each ball the object that it is through the whole clip."""
    apart = np.linalg.norm(found[:, None] - truth, axis=-1).clip(max=FAR).sum(-1)
    return min(
        permutations(range(len(truth))),
        key=lambda order: float(sum(apart[n, m] for m, n in enumerate(order))),
    )


def any_object(
    found: Float[np.ndarray, "N T 2"], truth: Float[np.ndarray, "N T 2"]
) -> Float[np.ndarray, "N T"]:
    """How far an object of its own is from each ball, whichever it is, frame by frame."""
    apart = np.linalg.norm(truth[:, None] - found, axis=-1)
    errors = np.empty(truth.shape[:2])
    for t in range(truth.shape[1]):
        balls, objects = linear_sum_assignment(apart[:, :, t].clip(max=FAR))
        errors[balls, t] = apart[balls, objects, t]
    return errors


def straight(
    path: Float[np.ndarray, "T 2"], known: Bool[np.ndarray, " T"]
) -> Float[np.ndarray, "T 2"]:
    """Return positions interpolated linearly between known ones of a ball; NaN without any."""
    if not known.any():
        return np.full_like(path, np.nan)
    time, shown = np.arange(len(path)), np.flatnonzero(known)
    return np.stack([np.interp(time, shown, axis[shown]) for axis in path.T], 1)


def follow(name: str, clips: Cut) -> dict[str, Any]:
    """How many whole balls have an object of their own beside them, and how many are hidden."""
    model, config = load_with_config(name)
    whole_area = WHOLE * single_area(clips.numpy())
    near, shown, hidden = 0, 0, 0
    for some in clips.split(BATCH):
        answer = motes.infer(model, smaller(some), CURTAIN_OBJECTS)
        for clip, positions in zip(some.numpy(), in_full(answer.pixels.numpy()), strict=True):
            for t, frame in enumerate(clip):
                balls = whole_balls(frame, whole_area)
                hidden += CURTAIN_OBJECTS - len(balls)
                shown += len(balls)
                apart = np.linalg.norm(balls[:, None] - positions[None, :, t], axis=-1)
                near += int((apart[linear_sum_assignment(apart)] < NEAR).sum())
    return {
        "seed": config.seed,
        "steps": config.schedule.iterations,
        "clips": len(clips),
        "balls_that_show_whole": shown,
        "share_of_them_within_4_px_of_their_object": near / shown,
        "balls_cut_or_hidden": hidden,
    }


def single_area(frames: UInt8[np.ndarray, "B T height width"]) -> float:
    """Pixels of one whole ball: the commonest size of large blobs."""
    sizes = [
        round(mass) for clip in frames for frame in clip[::5] for mass in blob_masses(frame * 255)
    ]
    large = [size for size in sizes if size > np.median(sizes) * 0.8]
    return float(np.median(large))


def whole_balls(frame: UInt8[np.ndarray, "height width"], area: float) -> Float[np.ndarray, "M 2"]:
    """Centres (x, y) of blobs of the size of one whole ball."""
    labels, number = ndimage.label(frame)
    names = range(1, number + 1)
    sizes = np.asarray(ndimage.sum(frame, labels, names)).reshape(-1)
    centres = np.array(ndimage.center_of_mass(frame, labels, names)).reshape(-1, 2)[:, ::-1]
    return centres[(sizes >= area) & (sizes <= area / WHOLE * 1.1)]


if __name__ == "__main__":
    main()
