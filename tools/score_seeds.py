"""Learn the paper's clips with the structured family from one seed after another, and score all.

Each run is a record of its own, so that runs can go side by side and on several machines; `--merge`
puts the records of a folder into one file. Test clips come from a seed that nothing was chosen by.

Usage: python tools/score_seeds.py --size 48 --frames 30 --seed 0 --runs runs/seeds
       python tools/score_seeds.py --size 48 --frames 30 --start limit --runs runs/seeds
       python tools/score_seeds.py --merge runs/seeds --out results/structured_seeds.json
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from motes.baselines.limit import Limit
from motes.checkpoint import load, write_json
from motes.config import RunConfig
from motes.data import World, cannonballs
from motes.evaluate import Asked, compare_physics, evaluate
from motes.presets import preset
from motes.run_folder import environment
from motes.train import train

TEST_SEED = 2_000_000
FACTORS = {"as it is": {}, "glyph x 4": {"glyph_width": 4.0}, "glyph / 4": {"glyph_width": 0.25},
           "noise x 4": {"position_noise": 16.0}, "noise / 4": {"position_noise": 1 / 16},
           "spread x 4": {"initial_spread": 4.0}, "spread / 4": {"initial_spread": 0.25},
           "drift x 4": {"state_noise": 16.0}, "drift / 4": {"state_noise": 1 / 16}}  # fmt: skip


def configuration(size: int, frames: int, seed: int, start: str) -> RunConfig:
    """Return the preset for these clips, drawn from a seed of their own, with another start."""
    config = preset("structured", "robust")
    data = dataclasses.replace(
        config.data, height=size, width=size, num_frames=frames, seed=seed + 1
    )
    factors = FACTORS[start]
    model = dataclasses.replace(
        config.model, **{name: by * getattr(config.model, name) for name, by in factors.items()}
    )
    return dataclasses.replace(config, data=data, model=model, seed=seed)


def score(config: RunConfig, folder: Path, num_clips: int, start: str) -> dict[str, Any]:
    """Return what training gave, and the scores on unseen clips."""
    wall, cpu = time.monotonic(), time.process_time()
    outcome = train(config, folder)
    taken = {"wall_seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
    data, model = config.data, load(str(folder))
    size = (data.height, data.width)
    clips = cannonballs(num_clips, data.num_objects, data.num_frames, size, seed=TEST_SEED)
    return {
        "size": data.height,
        "num_frames": data.num_frames,
        "seed": config.seed,
        "start": start,
        "test_seed": TEST_SEED,
        "training": {"held_out_bound": outcome.held_out_bound, **taken},
        "environment": environment(model.device),
        "physics": compare_physics(model, clips),
        **evaluate(Asked(model), clips),
    }


def score_limit(size: int, frames: int, num_clips: int) -> dict[str, Any]:
    """Return the scores of the true physics on the same clips."""
    clips = cannonballs(num_clips, (1, 2, 3), frames, (size, size), seed=TEST_SEED)
    return {
        "size": size,
        "num_frames": frames,
        "seed": 0,
        "start": "limit",
        "test_seed": TEST_SEED,
        "environment": environment(torch.device("cpu")),
        **evaluate(Limit.of(World(frames, (size, size))), clips),
    }


LONG = ("curves", "forecast_loss_of_clips", "worst_clips")  # left out where many are merged
SPREAD = {
    "tracked": ("clips tracked throughout", "{:.3f}"),
    "noisy_rmse": ("inferred position, RMSE in px", "{:.2f}"),
    "path_rmse": ("smoothed path, RMSE in px", "{:.2f}"),
    "forecast_rmse": ("forecast, RMSE in px", "{:.2f}"),
    "interpolation_rmse": ("gap, RMSE in px", "{:.2f}"),
    "forecast_loss": ("forecast pictures, nats a pixel", "{:.4f}"),
    "infer_coverage90": ("truth inside 90 % region: inferred", "{:.2f}"),
    "path_coverage90": ("truth inside 90 % region: path", "{:.2f}"),
    "forecast_coverage90": ("truth inside 90 % region: forecast", "{:.2f}"),
    "interpolation_coverage90": ("truth inside 90 % region: gap", "{:.2f}"),
}


def spread_table(record: dict[str, Any]) -> str:
    """Return, for each kind of clips, the least and the largest score of all seeds."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    limits: dict[str, dict[str, Any]] = {}
    for run in record["runs"]:
        name = f"{run['size']}x{run['size']}, T = {run['num_frames']}"
        if run["start"] == "as it is":
            kinds.setdefault(name, []).append(run)
        elif run["start"] == "limit":
            limits[name] = run["by_count"]
    heads = [f"{name} ({len(runs)} seed{'s' * (len(runs) > 1)})" for name, runs in kinds.items()]
    lines = [f"| N = 1 / 2 / 3, least to largest | {' | '.join(heads)} |"]
    lines.append("|---" * (1 + len(kinds)) + "|")
    for score_name, (title, form) in SPREAD.items():
        cells = []
        for name, runs in kinds.items():
            values = [[run["by_count"][n][score_name] for run in runs] for n in ("1", "2", "3")]
            ranges = ((form.format(min(column)), form.format(max(column))) for column in values)
            cell = " / ".join(low if low == high else f"{low}-{high}" for low, high in ranges)
            if name in limits:
                best = (form.format(limits[name][n][score_name]) for n in ("1", "2", "3"))
                cell += f" ({' / '.join(best)})"
            cells.append(cell)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    places = [run["environment"] for runs in kinds.values() for run in runs]
    commits = sorted({place["motes_commit"][:10] for place in places})
    told = "In parentheses the limit on the same clips: the true physics and the exact posterior. "
    told += f"All seeds that were run: {record['note']}. Commits {', '.join(commits)}"
    return "\n".join([*lines, "", f"{told}, {places[0]['processor']}."])


def main() -> None:
    """Score one run, or merge the records of many."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", choices=[*FACTORS, "limit"], default="as it is")
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--runs", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--merge", type=Path)
    parser.add_argument("--note", default="one after the other", help="how they were run")
    parser.add_argument("--out", type=Path, default=Path("results/structured_seeds.json"))
    given = parser.parse_args()
    if given.merge is not None:
        records = [json.loads(path.read_text("utf-8")) for path in given.merge.glob("*.json")]
        for record in records:
            for long in LONG:
                record.pop(long, None)
        keys = ("size", "num_frames", "start", "seed")
        runs = sorted(records, key=lambda record: [record[key] for key in keys])
        write_json(given.out, {"note": given.note, "runs": runs})
        return
    name = f"{given.size}x{given.frames}-{given.start.replace(' ', '_').replace('/', 'over')}"
    name = f"{name}-{given.seed}"
    if given.start == "limit":
        record = score_limit(given.size, given.frames, given.clips)
    else:
        config = configuration(given.size, given.frames, given.seed, given.start)
        record = score(config, given.runs / name, given.clips, given.start)
    write_json(given.runs / f"{name}.json", record)


if __name__ == "__main__":
    main()
