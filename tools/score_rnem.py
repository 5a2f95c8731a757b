"""Count the balls of the Relational-NEM animations, and follow those that go behind a curtain.

The animations have no true positions. The count is known from their names (4 balls); behind the
curtain a position is scored where it can be checked: at balls that show whole in the frame.

Usage: python tools/score_rnem.py NPZ --write-clips FOLDER      (then motes train on them)
       python tools/score_rnem.py NPZ --counting MODEL --curtain MODEL --out results/rnem.json
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

import motes
from motes.checkpoint import write_json
from motes.data import Clips, pack
from motes.run_folder import environment
from motes.shapes import Float, UInt8
from motes.video.blobs import blob_inks, usual_count

NUM_FRAMES = 20
BALLS, CURTAIN = "balls", "curtain"
FOUR = "balls4"
CURTAIN_OBJECTS = 3
WHOLE = 0.95  # of the largest blob that is no pair: such a ball is not cut by the curtain
NEAR = 4.0  # pixels
BATCH = 8


def main() -> None:
    """Cuts clips, or scores models on them and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("npz", type=Path)
    parser.add_argument("--write-clips", type=Path)
    parser.add_argument("--counting")
    parser.add_argument("--curtain")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with np.load(given.npz) as archive:
        clips = {name: cut(archive[name]) for name in archive.files}
    if given.write_clips is not None:
        write_clips(clips, given.write_clips)
        return
    four = torch.cat([frames for name, frames in clips.items() if name.startswith(FOUR)])
    seems = np.array([seeming_count(clip) for clip in four.numpy()])
    record: dict[str, Any] = {
        "recording": given.npz.name,
        "four_ball_clips": len(four),
        "count_right_by_motes_prepare": float((seems == 4).mean()),
    }
    if given.counting is not None:
        model = motes.load(given.counting)
        told = [motes.infer(model, some.float()).num_objects for some in four.split(BATCH)]
        record["count_right_by_the_model"] = float((torch.cat(told) == 4).double().mean())
        record["largest_count_of_the_model"] = model.max_objects
    if given.curtain is not None:
        model = motes.load(given.curtain)
        behind = torch.cat([frames for name, frames in clips.items() if name.startswith(CURTAIN)])
        record["curtain"] = follow(model, behind)
    record["environment"] = {
        name: value for name, value in environment(torch.device("cpu")).items() if name != "command"
    }
    if given.out is not None:
        write_json(given.out, record)
    print(record)


def cut(video: np.ndarray) -> UInt8[torch.Tensor, "B T height width"]:
    """Clips of NUM_FRAMES frames, one after the other."""
    whole = len(video) // NUM_FRAMES * NUM_FRAMES
    frames = torch.from_numpy(video[:whole].astype(np.uint8))
    clips: UInt8[torch.Tensor, "B T height width"] = frames.unflatten(0, (-1, NUM_FRAMES))
    return clips


def seeming_count(clip: UInt8[np.ndarray, "T height width"]) -> int:
    """How many objects `motes prepare` counts in a clip."""
    return usual_count([blob_inks(frame * np.uint8(255)) for frame in clip])


def write_clips(clips: dict[str, torch.Tensor], folder: Path) -> None:
    """Clips to learn from: all free balls with their seeming counts, and those of the curtain."""
    for kind in (BALLS, CURTAIN):
        frames = torch.cat([part for name, part in clips.items() if name.startswith(kind)])
        counts = [seeming_count(clip) for clip in frames.numpy()]
        objects = torch.tensor(counts if kind == BALLS else [CURTAIN_OBJECTS] * len(frames))
        order = torch.randperm(len(frames), generator=torch.Generator().manual_seed(0))
        motes.save_clips(folder / f"{kind}.npz", Clips(pack(frames[order]), objects[order]))


def follow(model: motes.Model, frames: torch.Tensor) -> dict[str, Any]:
    """How many whole balls have an object of their own beside them, and how many are hidden."""
    whole_area = WHOLE * single_area(frames.numpy())
    near, seen, hidden = 0, 0, 0
    for some in frames.split(BATCH):
        answer = motes.infer(model, some.float(), CURTAIN_OBJECTS)
        for clip, positions in zip(some.numpy(), answer.pixels.numpy(), strict=True):
            for t, frame in enumerate(clip):
                balls = whole_balls(frame, whole_area)
                hidden += CURTAIN_OBJECTS - len(balls)
                seen += len(balls)
                apart = np.linalg.norm(balls[:, None] - positions[None, :, t], axis=-1)
                near += int((apart[linear_sum_assignment(apart)] < NEAR).sum())
    return {
        "clips": len(frames),
        "balls_that_show_whole": seen,
        "share_of_them_within_4_px_of_their_object": near / seen,
        "balls_cut_or_hidden": hidden,
    }


def single_area(frames: UInt8[np.ndarray, "B T height width"]) -> float:
    """Pixels of one whole ball: the commonest size of large blobs."""
    sizes = [round(ink) for clip in frames for frame in clip[::5] for ink in blob_inks(frame * 255)]
    large = [size for size in sizes if size > np.median(sizes) * 0.8]
    return float(np.median(large))


def whole_balls(frame: UInt8[np.ndarray, "height width"], area: float) -> Float[np.ndarray, "M 2"]:
    """Centres (x, y) of blobs of the size of one whole ball."""
    labels, count = ndimage.label(frame)
    names = range(1, count + 1)
    sizes = np.asarray(ndimage.sum(frame, labels, names)).reshape(-1)
    centres = np.array(ndimage.center_of_mass(frame, labels, names)).reshape(-1, 2)[:, ::-1]
    return centres[(sizes >= area) & (sizes <= area / WHOLE * 1.1)]


if __name__ == "__main__":
    main()
