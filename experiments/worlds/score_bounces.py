"""Measure what bounces cost a law without a floor: errors before and after the first bounce.

Uses the world `bounce`. Forecasts are split by whether a ball bounced since its last observed
frame; the oracle is scored with and without the floor, which separates the effect of the missing
floor from that of noise covariances learned from clips with bounces.

Usage: python -m experiments.worlds.score_bounces --runs runs/worlds --seeds 0 1 2
           --out experiments/worlds/bounces.json
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import motes
from experiments.worlds.oracle import Law
from experiments.worlds.score_worlds import log, store
from experiments.worlds.world_scores import (
    TASKS,
    ask_model,
    ask_oracle,
    in_order,
    inside,
    squares,
    unseen_clips,
)
from motes.core.axes import Bool, Float, Tensor
from motes.core.environment import environment
from motes.data import Clips, worlds
from motes.evaluation.metrics import squared_radius
from motes.evaluation.predictor import Ask, Truth

TASK = TASKS["bounce"]
LEARNED = {"linear law": "bounce", "Newton's law": "bounce, newton"}  # folders of score_worlds.py
BESIDE = 1  # frames before and after a bounce that are beside it


def bounces(clips: Clips) -> Bool[Tensor, "B N T"]:
    """The lowest frame of each bounce: in the air a path has a highest point and no lowest."""
    assert clips.clean is not None
    row = clips.clean[..., 1]  # from above
    found = torch.zeros(row.shape, dtype=torch.bool)
    found[..., 1:-1] = (row[..., 1:-1] >= row[..., :-2]) & (row[..., 1:-1] > row[..., 2:])
    return found


def scores(
    where: Bool[Tensor, "B N T"],
    error: Float[Tensor, "B N T"],
    within: Float[Tensor, "B N T"],
    radius: Float[Tensor, "B N T"],
) -> dict[str, float]:
    """Of some positions: how many, how far off, how often in their regions, and how wide those."""
    return {
        "share": round(float(where.double().mean()), 4),
        "rmse": round(float(error[where].mean().sqrt()), 4),
        "coverage90": round(float(within[where].mean()), 4),
        "radius90": round(float(radius[where].mean()), 4),
    }


def breakdown(ask: Ask, clips: Clips, count: int) -> dict[str, dict[str, float]]:
    """The scores of a contender, parted by bounces."""
    assert clips.clean is not None
    assert clips.positions is not None
    struck, truth = bounces(clips), Truth.of(clips, count)
    later = torch.arange(struck.shape[2]) >= TASK.context
    _, _, path, path_covariances = in_order(ask(truth, torch.ones_like(later)), truth)
    ahead, ahead_covariances, ahead_path, _ = in_order(ask(truth, ~later), truth)
    since = (struck & later).int().cumsum(2) > 0
    beside = torch.zeros_like(struck)
    for shift in range(-BESIDE, BESIDE + 1):
        beside |= struck.roll(shift, 2)

    def of(covariances: Float[Tensor, "B N T 2 2"]) -> Float[Tensor, "B N T"]:
        # Of the circle that is as large as the 90 % ellipse.
        area: Tensor = torch.linalg.det(covariances.double()).clamp(min=0).sqrt()
        return (squared_radius(0.9) * area).sqrt()

    forecast = (
        squares(ahead_path, truth.clean),
        inside(ahead, ahead_covariances, truth.noisy),
        of(ahead_covariances),
    )
    smoothed = (
        squares(path, truth.clean),
        inside(path, path_covariances, truth.clean),
        of(path_covariances),
    )
    return {
        "forecast, no bounce yet": scores(later & ~since, *forecast),
        "forecast, bounced since": scores(later & since, *forecast),
        "path beside a bounce": scores(beside, *smoothed),
        "path elsewhere": scores(~beside, *smoothed),
    }


def main() -> None:
    """Part the scores of the oracle, of it without the floor, and of models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, default=Path("runs/worlds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("experiments/worlds/bounces.json"))
    given = parser.parse_args()
    law = Law.of(worlds.physics_of("bounce", 30))
    contenders: dict[str, Ask] = {
        "oracle": ask_oracle(law),
        "oracle without the floor": ask_oracle(law._replace(floor=None)),
    }
    for law_learned, learned in LEARNED.items():
        for seed in given.seeds:
            model = motes.load(given.runs / f"{learned}-{seed}")
            contenders[f"{law_learned}, seed {seed}"] = ask_model(model)
    for name, ask in contenders.items():
        record: dict[str, Any] = {}
        for count in TASK.counts:
            clips = unseen_clips(TASK, count)[: given.clips]
            record[str(count)] = {"clips": len(clips), **breakdown(ask, clips, count)}
            log(f"{name} N = {count} {record[str(count)]}")
        store(given.out, name, record=record)
    store(given.out, "environment", record=environment(torch.device("cpu")))


if __name__ == "__main__":
    main()
