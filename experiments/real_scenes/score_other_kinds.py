"""Score whether a model that is asked about another kind of recording warns or refuses.

Usage: python -m experiments.real_scenes.score_other_kinds DATA --model NAME --out FILE
    DATA    folder of recordings: videos, and npz files of boolean videos
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

import motes
from experiments.records import write_record
from motes.core.errors import InputError
from motes.data.worlds.changing import changing_cannonballs
from motes.queries.answer import REFUSED_Z
from motes.video import whole_clip

NUM_FRAMES = 60
NUM_OWN, OWN_SEED, BATCH = 200, 6_000_000, 50  # clips of each number of balls that the model knows


def clips_of(folder: Path, size: tuple[int, int]) -> Iterator[tuple[str, Any]]:
    """Yield names and the first frames of recordings, prepared as for a query; or the refusal."""
    for path in sorted((*folder.rglob("*.mp4"), *folder.rglob("*.mov"))):
        try:
            yield path.name, whole_clip(path, *size, None, (0.0, 2.0)).frames[:, :NUM_FRAMES]
        except InputError as error:
            yield path.name, error
    for path in sorted(folder.rglob("*.npz")):
        for name, video in np.load(path).items():
            if video.ndim == 3:
                whole = torch.as_tensor(video[:NUM_FRAMES]).float()[None]
                yield name, (interpolate(whole, size, mode="area") > 0.5).float()
    yield "balls that grow", changing_cannonballs("growth", 1, size=size[0], seed=1).frames.float()


def score_own(model: Any) -> dict[str, int]:
    """Return how many clips of the learned kind are warned about, and how many are refused."""
    warned = refused = total = 0
    for count in (1, 2, 3):
        clips = motes.cannonballs(NUM_OWN, count, seed=OWN_SEED + count)
        for some in torch.arange(NUM_OWN).split(BATCH):
            fit = motes.infer(model, clips[some].frames, count).fit
            assert fit is not None
            warned += int((~fit.fits).sum())
            refused += int((fit.z_score > REFUSED_Z).sum())
            total += len(some)
    return {"clips": total, "warned": warned, "refused": refused}


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="cannonballs-structured")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    model = motes.load(given.model)
    rows: dict[str, dict[str, Any]] = {}
    for name, frames in clips_of(given.data, model.image_size):
        if isinstance(frames, InputError):
            rows[name] = {"outcome": "refused", "cause": str(frames)}
            continue
        fit = motes.infer(model, frames, min(3, model.max_objects)).fit
        assert fit is not None
        outcome = "warned" if fit.warning is not None else "answered"
        outcome = "refused" if fit.refusal is not None else outcome
        rows[name] = {"outcome": outcome, "cause": fit.warning, "z_score": float(fit.z_score[0])}
        print(name, rows[name], flush=True)
    warned = sum(row["outcome"] != "answered" for row in rows.values())
    refused = sum(row["outcome"] == "refused" for row in rows.values())
    record = {
        "question": "a model asked about another kind of recording",
        "model": Path(given.model).name,
        "warned_or_refused": f"{warned} of {len(rows)}",
        "refused": f"{refused} of {len(rows)}",
        "own": score_own(model),
        "recordings": rows,
    }
    write_record(record, given.out)


if __name__ == "__main__":
    main()
