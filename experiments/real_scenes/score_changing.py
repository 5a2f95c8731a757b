"""Score 90 % regions on balls that grow, blur or deform, by models trained on such clips.

Usage: python -m experiments.real_scenes.score_changing RUNS --out FILE
    RUNS    folder of the runs; those that are missing are trained on 120 clips, as by
            motes train --data CLIPS --seed SEED

The control are clips of balls that keep their looks, asked of the shipped sprite model.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import motes
from experiments.records import write_record
from motes.data import Clips, save_clips
from motes.data.worlds.changing import CHANGES, changing_cannonballs
from motes.evaluation.tracking_metrics import REGION
from motes.queries.fit import FitReference
from motes.training.inputs import fit_sprite_size
from motes.training.presets import PRESETS
from motes.training.train import train

NUM_CLIPS, FIRST_SEED, SEEDS = 30, 5_000_000, (1, 2)
TRAINED = 120  # clips that a run learns from


def train_run(folder: Path, change: Any, seed: int) -> Path:
    """Return the run of a change and a seed, trained if it is missing."""
    run = folder / f"{change}-{seed}"
    if not run.is_dir():
        path = folder / f"{change}-{seed}.npz"
        save_clips(path, changing_cannonballs(change, TRAINED, seed=seed))
        config = replace(PRESETS["sprites-video"], seed=seed)
        config = replace(config, data=replace(config.data, path=str(path)))
        train(fit_sprite_size(config), run)
    return run


def score(model: Any, clips: Clips) -> dict[str, Any]:
    """Return errors, stated errors and coverage by third of the clip."""
    answer = motes.infer(model, clips.frames, 1)
    assert clips.positions is not None
    error = (answer.pixels - clips.positions)[:, 0].double()
    spread = answer.pixel_covariances[:, 0].double()
    seen = answer.seen[:, 0]
    distance = (error * torch.linalg.solve(spread, error)).sum(-1)
    inside, squares = (distance <= REGION), error.square().sum(-1)
    stated = spread.diagonal(dim1=-2, dim2=-1).sum(-1)

    def mean(values: torch.Tensor, frames: slice) -> float:
        return float(values[:, frames][seen[:, frames]].double().mean())

    thirds = [slice(0, 10), slice(10, 20), slice(20, 30)]
    whole = slice(None)
    fit = answer.fit
    reference = FitReference.load(model.folder)
    scatter = None if reference is None else reference.scatter
    return {
        "overdispersion": None if scatter is None else scatter.overdispersion,
        "seen": float(seen.double().mean()),
        "rmse": mean(squares, whole) ** 0.5,
        "stated": mean(stated, whole) ** 0.5,
        "coverage": mean(inside, whole),
        "coverage_by_third": [mean(inside, third) for third in thirds],
        "rmse_by_third": [mean(squares, third) ** 0.5 for third in thirds],
        "stated_by_third": [mean(stated, third) ** 0.5 for third in thirds],
        "clips_that_fit": float(fit.fits.double().mean()) if fit is not None else None,
    }


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = {}
    change: Any
    for change in CHANGES:
        changes[change] = [
            {
                "training_seed": seed,
                **score(
                    motes.load(train_run(given.runs, change, seed)),
                    changing_cannonballs(change, NUM_CLIPS, seed=FIRST_SEED + seed),
                ),
            }
            for seed in SEEDS
        ]
    shipped, same = motes.load("cannonballs-structured"), motes.cannonballs(NUM_CLIPS, 1, seed=5)
    record = {
        "question": "90 % regions of balls that grow, blur or deform",
        "changes": changes,
        "control": score(shipped, same),
    }
    write_record(record, given.out)


if __name__ == "__main__":
    main()
