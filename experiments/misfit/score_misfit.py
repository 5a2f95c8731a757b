"""Score the warnings of queries: on clips of the learned kind, and on other kinds of video.

Usage: python -m experiments.misfit.score_misfit --model NAME OPTIONS
    --reference        measure and store the reference statistics of a shipped model
    --out FILE         score the warnings and write the record
    --recordings DIR   also score prepared recordings: npz files of boolean videos
"""

import argparse
import collections
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

import motes
from motes.core.axes import Float, Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, World, worlds
from motes.data.worlds.registry import draw_clips
from motes.models.model import Model
from motes.queries.answer import Answer
from motes.queries.fit import MAX_Z, FitReference, FitStatistics

REFERENCE_SEED, OWN_SEED, OTHER_SEED = 3_000_000, 3_000_001, 3_000_002
REFERENCE_CLIPS, OWN_CLIPS, OTHER_CLIPS, BATCH = 240, 600, 20, 40
COUNTS = (1, 2, 3)
Videos = Float[Tensor, "B T height width"]


def infer_all(model: Model, frames: Videos, counts: Any) -> list[Answer]:
    """Return the answers about batches of clips."""
    parts = range(0, len(frames), BATCH)
    some = [None if counts is None else counts[start : start + BATCH] for start in parts]
    batches = [frames[start : start + BATCH] for start in parts]
    return [motes.infer(model, *pair) for pair in zip(batches, some, strict=True)]


def write_reference(model: Model) -> None:
    """Store the statistics of clips like those that a shipped model learned from."""
    clips = motes.cannonballs(REFERENCE_CLIPS, COUNTS, seed=REFERENCE_SEED)
    assert model.folder is not None
    assert clips.num_objects is not None
    found = [answer.measure() for answer in infer_all(model, clips.frames, clips.num_objects)]
    assert all(part is not None for part in found)
    statistics = FitStatistics(*(torch.cat(part) for part in zip(*found, strict=True)))
    FitReference.of(statistics, clips.num_objects, clips.frames.shape[1]).save(model.folder)


def in_grey(clips: Clips) -> Videos:
    """Return frames of any world as one channel in [0, 1]."""
    frames = torch.as_tensor(clips.frames).float()
    frames = frames.mean(-1) if frames.ndim == 5 else frames
    return frames / 255 if float(frames.max()) > 1 else frames


def other_kinds(num_clips: int) -> dict[str, tuple[Videos, Any]]:
    """Return videos of other kinds, and their number of objects (None: inferred)."""
    seed, generator = OTHER_SEED, torch.Generator().manual_seed(OTHER_SEED)
    own = in_grey(motes.cannonballs(num_clips, 2, seed=seed))
    two = torch.full((num_clips,), 2)
    kinds: dict[str, tuple[Videos, Any]] = {
        f"world {name}": (in_grey(clips), clips.num_objects)
        for name in ("pictures", "bar", "weightless", "wind", "bounce", "drag")
        for clips in [worlds.make(name, num_clips, seed=seed)]
    }
    kinds["world long, 30 frames"] = in_grey(worlds.make("long", num_clips, 2, 30, seed=seed)), two
    ten = in_grey(motes.cannonballs(num_clips, 10, seed=seed))
    kinds["ten balls, three asked for"] = ten, torch.full((num_clips,), 3)
    for radius in (1, 3, 4, 6):
        clips = draw_clips(World(radius=radius), num_clips, 2, seed)
        kinds[f"balls of radius {radius}, learned: 2"] = in_grey(clips), two
    speckle = torch.rand(own.shape, generator=generator)
    kinds["one pixel in 100 is noise"] = own.maximum((speckle < 0.01).float()), two
    kinds["noise alone"] = (speckle < 0.05).float(), two
    kinds["inverted frames"] = 1 - own, two
    kinds["blank frames"] = torch.zeros_like(own), two
    kinds["frames in random order"] = own[:, torch.randperm(30, generator=generator)], two
    kinds["moving camera"] = (
        torch.stack(
            [
                own[:, t].roll((round(5 * math.sin(t / 2)), round(5 * math.cos(t / 2))), (1, 2))
                for t in range(own.shape[1])
            ],
            1,
        ),
        two,
    )
    return kinds


def recordings(folder: Path, num_frames: int = 30) -> dict[str, tuple[Videos, Any]]:
    """Return prepared recordings, cut into clips and scaled to the size of the shipped models."""
    kinds = {}
    for path in sorted(folder.rglob("*.npz")):
        for name, video in np.load(path).items():
            whole = torch.as_tensor(video).float()[: 6 * num_frames]
            frames = interpolate(whole.unflatten(0, (-1, num_frames)), (48, 48), mode="area")
            kinds[f"recording {name}"] = (frames > 0.5).float(), torch.full((len(frames),), 3)
    return kinds


def score(model: Model, frames: Videos, counts: Any) -> dict[str, Any]:
    """Return how many clips are warned about, their z-scores, and the most frequent cause."""
    fits = [answer.fit for answer in infer_all(model, frames, counts)]
    assert all(fit is not None for fit in fits)
    causes = collections.Counter(c for fit in fits if fit is not None for c in fit.causes if c)
    z = torch.cat([fit.z_score for fit in fits if fit is not None])
    explained = torch.cat([fit.explained for fit in fits if fit is not None])
    return {
        "clips": len(frames),
        "warned": causes.total(),
        "z_score": {"lowest": float(z.min()), "median": float(z.median()), "max": float(z.max())},
        "explained": float(explained.mean()),
        "cause": causes.most_common(1)[0][0] if causes else None,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="cannonballs-structured")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--recordings", type=Path)
    given = parser.parse_args()
    model = motes.load(given.model)
    if given.reference:
        write_reference(model)
    if given.out is None:
        return
    own = motes.cannonballs(OWN_CLIPS, COUNTS, seed=OWN_SEED)
    kinds = other_kinds(OTHER_CLIPS)
    if given.recordings is not None:
        kinds |= recordings(given.recordings)
    record = {
        "model": given.model,
        "largest_z_score": MAX_Z,
        "seeds": [REFERENCE_SEED, OWN_SEED, OTHER_SEED],
        "own_kind": score(model, own.frames, own.num_objects),
        "other_kinds": {name: score(model, *kind) for name, kind in kinds.items()},
        "environment": environment(torch.device("cpu")),
    }
    write_json(given.out, record)
    for name, row in {"own kind": record["own_kind"], **record["other_kinds"]}.items():
        print(f"{name:32} warned {row['warned']:3} of {row['clips']:3}  {row['cause'] or ''}")


if __name__ == "__main__":
    main()
