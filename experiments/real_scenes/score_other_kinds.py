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
from motes.video import whole_clip

NUM_FRAMES = 60


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
        rows[name] = {"outcome": outcome, "cause": fit.warning, "z_score": float(fit.z_score[0])}
        print(name, rows[name], flush=True)
    warned = sum(row["outcome"] != "answered" for row in rows.values())
    record = {
        "question": "a model asked about another kind of recording",
        "model": Path(given.model).name,
        "warned_or_refused": f"{warned} of {len(rows)}",
        "recordings": rows,
    }
    write_record(record, given.out)


if __name__ == "__main__":
    main()
