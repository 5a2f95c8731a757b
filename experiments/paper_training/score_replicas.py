"""Train several seeds of the paper's networks as replicas (`motes train --replicas`) and score all.

Works for clips of any size and length. A stopped run resumes. The seed of the test clips was not
used to choose anything.

Usage: python -m experiments.paper_training.score_replicas OPTIONS
    --learn --run runs/distilled --preset paper-distilled --device cuda
    --learn --run runs/taught-32 --size 32 --teacher runs/teacher
    --score --run runs/taught-32 --out experiments/paper_training/taught_32.json
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from experiments.sprites_seeds.score_seeds import GPU_BATCH
from experiments.sprites_seeds.tables import SPREAD, mean_loss
from motes.config import DataConfig, RunConfig
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, World, cannonballs
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.evaluate import BATCH, evaluate
from motes.evaluation.predictor import ModelPredictor
from motes.models.checkpoint import load_with_config, read_config
from motes.models.pixel_map import find_latent_map
from motes.training.distillation import with_teacher
from motes.training.presets import PRESETS
from motes.training.train import resume, train

TEST_SEED = 3_000_000
TABLE = ("tracked", "noisy_rmse", "forecast_rmse", "interpolation_rmse")
Record = dict[str, Any]


def configuration(given: argparse.Namespace) -> RunConfig:
    """Return the preset for clips of a size, with a teacher of that size."""
    config = PRESETS[given.preset]
    size = dataclasses.replace(
        config.data, height=given.size, width=given.size, num_frames=given.frames
    )
    config = dataclasses.replace(config, data=size, precision=given.precision)
    return config if given.teacher is None else with_teacher(config, given.teacher)


def learn(config: RunConfig, folder: Path, replicas: int, device: str) -> None:
    """Train into a folder or go on there, and note what it took."""
    begun = time.monotonic()
    if (folder / "config.json").is_file():
        outcome = resume(folder, device=device)
    else:
        outcome = train(config, folder, device=device, replicas=replicas)
    path = folder / "learned.json"
    before = json.loads(path.read_text("utf-8"))["stretches"] if path.is_file() else []
    stretch = {"to_step": outcome.step, "seconds": time.monotonic() - begun}
    note = {"stretches": [*before, stretch], "environment": environment(torch.device(device))}
    write_json(path, {"finished": outcome.finished, **note})
    print(f"step {outcome.step}, finished: {outcome.finished}, {stretch['seconds']:.0f} s")


def score(folder: Path, num_clips: int, device: str) -> Record:
    """Return all seeds of a folder with their scores, and the limit's on the same clips."""
    clips = unseen(read_config(folder).data, num_clips)
    learned = json.loads((folder / "learned.json").read_text("utf-8"))
    chosen = json.loads((folder / "selection.json").read_text("utf-8"))
    record = {**learned, "chosen": chosen["chosen"], "test_seed": TEST_SEED, "runs": {}}
    for own in sorted(folder.glob("seed-*")):
        record["runs"][own.name] = {
            "held_out_bound": chosen["bounds"][own.name],
            **score_seed(own, clips, device),
        }
        print(row(own.name, record["runs"][own.name]), flush=True)
    record["limit"] = score_limit(clips)
    return record


def unseen(data: DataConfig, num_clips: int) -> Clips:
    """Return test clips like those that were learned from, as many with each number of objects."""
    counts, size = tuple(sorted(set(data.num_objects))), (data.height, data.width)
    return cannonballs(num_clips, counts, data.num_frames, size, seed=TEST_SEED)


def score_limit(clips: Clips) -> Record:
    """Return the scores of the true physics and the exact posterior."""
    size = (clips.frames.shape[2], clips.frames.shape[3])
    return kept(evaluate(BayesLimit.of(World(clips.frames.shape[1], size)), clips))


def score_seed(folder: Path, clips: Clips, device: str) -> Record:
    """Return how one seed trained, and its scores."""
    model, config = load_with_config(folder, device=device)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    residuals = [line["pixel_map_residual"] for line in lines if "pixel_map_residual" in line]
    scores = evaluate(
        ModelPredictor(model), clips, batch_size=BATCH if device == "cpu" else GPU_BATCH
    )
    return {
        "config": dataclasses.asdict(config),
        "pixel_map_residual_px": residuals[-1],
        "folded": find_latent_map(model).folded,
        "scored_on": environment(model.device)["processor"],
        **kept(scores),
    }


def kept(scores: Record) -> Record:
    """Return the scores of the tables, without those of single clips and frames."""
    return {part: scores[part] for part in ("by_count", "standard_errors")}


def row(name: str, run: Record) -> str:
    """Return a seed as a row of a table."""
    columns = run["by_count"].values()
    cells = [f"{run['held_out_bound']:.0f}", f"{run['pixel_map_residual_px']:.2f}"]
    for name_of_score in TABLE:
        _, form = SPREAD[name_of_score]
        cells.append(" / ".join(form.format(column[name_of_score]) for column in columns))
    cells.append(f"{mean_loss(run):.4f}")
    return f"| {name.removeprefix('seed-')} | {' | '.join(cells)} |"


def main() -> None:
    """Learn, score, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--run", type=Path, required=True, help="folder of all seeds")
    parser.add_argument("--preset", choices=PRESETS, default="paper-distilled")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--teacher", help="a model of the structured family, of that size")
    parser.add_argument("--precision", choices=("mixed", "float32"), default="mixed")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="record of the scores")
    given = parser.parse_args()
    if given.learn:
        learn(configuration(given), given.run, given.replicas, given.device)
    if given.score:
        write_json(given.out, score(given.run, given.clips, given.device))


if __name__ == "__main__":
    main()
