"""Score forecasts on thousands of the paper's clips, beside the Bayes limit on the same clips.

Forecast errors vary between clips much more than between models: 200 clips determine the mean error
to two hundredths of a pixel. The models of `score_seeds` are therefore scored on thousands of clips
and compared with the limit clip by clip. These clips were not used to choose anything.

Usage: python -m experiments.sprites_seeds.score_large OPTIONS
    --model runs/seeds/48x30-as-it-is-0
    --limit --size 48 --frames 30
    --merge --out experiments/sprites_seeds/structured_large.json
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from motes.core.axes import Bool, Float64, Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, World, cannonballs
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.evaluate import NUM_CONTEXT, Masks, score_clips
from motes.evaluation.metrics import concatenate
from motes.evaluation.predictor import ModelPredictor, Prediction, Predictor, Truth, ask_predictor
from motes.evaluation.scores import StatisticsByScore, query_scores
from motes.models.checkpoint import load_with_config

FIRST_SEED = 5_000_000
PART = 600  # clips of a seed
COUNTS = (1, 2, 3)
DRAWS = 3200  # of the limit, whose own 400 leave it a little worse than it could be
SCORES = ("forecast_rmse", "forecast_coverage90")
Record = dict[str, Any]


def forecast_statistics(predictor: Predictor, clips: Clips) -> dict[int, StatisticsByScore]:
    """Return the statistics of forecast scores for each number of objects, clip by clip."""

    def masks(start: int, num_frames: int) -> Masks:
        return {"forecast": torch.arange(num_frames) < NUM_CONTEXT}

    def scores(
        name: str, prediction: Prediction, truth: Truth, shown: Bool[Tensor, " T"]
    ) -> StatisticsByScore:
        tracks = dataclasses.replace(prediction, draw_frames=None, draw_mean_frames=None)
        return query_scores(name, tracks, truth, shown)

    return score_clips(ask_predictor(predictor), clips, masks, scores)


def ask(contender: Predictor, size: int, frames: int, num_clips: int) -> Record:
    """Return sums and numbers of what was scored, for each clip of each number of objects."""
    parts = []
    for seed in range(FIRST_SEED, FIRST_SEED + num_clips // PART):
        clips = cannonballs(PART, COUNTS, frames, (size, size), seed=seed)
        found_here = forecast_statistics(contender, clips)
        parts.append([found_here[count] for count in COUNTS])
    found: Record = {}
    for count, its in zip(COUNTS, zip(*parts, strict=True), strict=True):
        whole = {name: concatenate([part[name] for part in its]) for name in SCORES}
        found[str(count)] = {
            name: {
                "totals": [round(total, 6) for total in one.totals.tolist()],
                "counts": one.counts.int().tolist(),
                "root": one.root,
            }
            for name, one in whole.items()
        }
    return found


def score_and_shares(tallied: Record) -> tuple[float, Float64[Tensor, " B"]]:
    """Return a score, and how much each clip moves it: their root sum of squares is its error."""
    totals, counts = (torch.tensor(tallied[part]).double() for part in ("totals", "counts"))
    ratio = totals.sum() / counts.sum()
    shares = (totals - ratio * counts) / counts.sum()
    if tallied["root"]:
        ratio = ratio.sqrt()
        shares = shares / (2 * ratio)
    return float(ratio), shares


def compared(found: Record, limit: Record) -> Record:
    """Return the scores for each number of objects, with what they are above the limit's."""
    record: Record = {}
    for count, its in found.items():
        record[count] = {"clips": len(its[SCORES[0]]["totals"])}
        for name in SCORES:
            value, shares = score_and_shares(its[name])
            best, its_shares = score_and_shares(limit[count][name])
            record[count][name] = {
                "value": value,
                "error": float(shares.norm()),
                "above_limit": value - best,
                "error_above_limit": float((shares - its_shares).norm()),
            }
    return record


def merge(folder: Path) -> Record:
    """Return all records of a folder as one, each beside the limit of its kind of clips."""
    records = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]

    def kind(record: Record) -> tuple[int, int]:
        return record["size"], record["num_frames"]

    limits = {kind(record): record["found"] for record in records if record["seed"] is None}
    runs = [
        {
            **{name: part for name, part in record.items() if name != "found"},
            "by_count": compared(record["found"], limits[kind(record)]),
        }
        for record in records
    ]
    runs.sort(key=lambda run: (*kind(run), -1 if run["seed"] is None else run["seed"]))
    return {"first_test_seed": FIRST_SEED, "clips_of_a_seed": PART, "runs": runs}


def main() -> None:
    """Score a model or the limit, or merge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="a run folder of experiments/sprites_seeds/score_seeds.py"
    )
    for step in ("limit", "merge"):
        parser.add_argument(f"--{step}", action="store_true")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--clips", type=int, default=12_000)
    parser.add_argument("--runs", type=Path, default=Path("runs/large"))
    parser.add_argument(
        "--out", type=Path, default=Path("experiments/sprites_seeds/structured_large.json")
    )
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    place = environment(torch.device("cpu"))
    if given.model:
        model, config = load_with_config(given.model)
        learned = json.loads((given.model / "learned.json").read_text("utf-8"))
        size, frames = config.data.height, config.data.num_frames
        found = ask(ModelPredictor(model), size, frames, given.clips)
        settings: Record = {"size": size, "num_frames": frames, "seed": config.seed}
        settings |= {"learned": learned["environment"]}
        path = given.runs / f"{given.model.name}.json"
        write_json(path, {**settings, "environment": place, "found": found})
    if given.limit:
        limit = BayesLimit.of(World(given.frames, (given.size, given.size)))
        with mock.patch("motes.evaluation.baselines.bayes_limit.NUM_DRAWS", DRAWS):
            found = ask(limit, given.size, given.frames, given.clips)
        settings = {"size": given.size, "num_frames": given.frames, "seed": None, "draws": DRAWS}
        path = given.runs / f"{given.size}x{given.frames}-limit.json"
        write_json(path, {**settings, "environment": place, "found": found})
    if given.merge:
        write_json(given.out, merge(given.runs))


if __name__ == "__main__":
    main()
