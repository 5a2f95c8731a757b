"""Train the sprite family on the paper's clips from several seeds, and score every run.

Training and scoring are separate steps: runs train in parallel on one core each and are scored on
any device. The seed of the test clips was not used to choose anything.

Usage: python -m experiments.sprites_seeds.score_seeds OPTIONS
    --learn --size 48 --frames 30 --seed 0 --runs runs/seeds
    --score --device cuda --runs runs/seeds
    --limit --size 48 --frames 30 --runs runs/seeds
    --merge --runs runs/seeds --out experiments/sprites_seeds/structured_seeds.json
"""

import argparse
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import torch

from experiments.sprites_seeds.tables import SPREAD
from motes.config import DataConfig, RunConfig
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, World, cannonballs
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.evaluate import BATCH, compare_physics, evaluate
from motes.evaluation.learned import true_force
from motes.evaluation.predictor import ModelPredictor
from motes.kalman.dynamics import require_linear
from motes.kalman.model import POSITION_DIM
from motes.models import model as models
from motes.models.checkpoint import load_with_config
from motes.models.model import Model
from motes.models.sprites.renderer import SpriteRenderer
from motes.training.presets import PRESETS
from motes.training.train import resume, train

TEST_SEED = 2_000_000
GPU_BATCH = 300  # clips; a GPU waits for every launch, whatever it holds
Record = dict[str, Any]


class Start(NamedTuple):
    """How a run begins, against the preset."""

    factors: Mapping[str, float] = MappingProxyType({})  # of fields of its configuration
    nudge: Callable[[Model], None] = lambda model: None  # of weights that no field sets


def _mass(factor: float) -> Callable[[Model], None]:
    """Return a function that scales the mass of the initial sprite."""

    def nudge(model: Model) -> None:
        assert isinstance(model.renderer, SpriteRenderer)
        model.renderer.root_depth.data *= factor**0.5

    return nudge


def _gravity(factor: float) -> Callable[[Model], None]:
    """Return a function that sets a multiple of the true gravity; the preset starts with none."""

    def nudge(model: Model) -> None:
        clips = cannonballs(60, (1,), 30, model.image_size, seed=0)
        assert isinstance(model.renderer, SpriteRenderer)
        law = require_linear(model.dynamics)
        a_frame = law.log_delta.exp() * model.renderer.pixels_per_unit
        law.force.data[POSITION_DIM:] = factor * true_force(clips) / a_frame.detach()

    return nudge


# Noises are variances.
STARTS = {
    "as it is": Start(),
    "glyph x 4": Start({"sprite_width": 4.0}),
    "glyph / 4": Start({"sprite_width": 0.25}),
    "ink x 4": Start(nudge=_mass(4.0)),
    "ink / 4": Start(nudge=_mass(0.25)),
    "noise x 4": Start({"position_noise": 16.0}),
    "noise / 4": Start({"position_noise": 1 / 16}),
    "drift x 4": Start({"state_noise": 16.0}),
    "drift / 4": Start({"state_noise": 1 / 16}),
    "spread x 4": Start({"initial_spread": 4.0}),
    "spread / 4": Start({"initial_spread": 0.25}),
    "speed x 4": Start({"sampling_period": 4.0}),
    "speed / 4": Start({"sampling_period": 0.25}),
    "gravity x 4": Start(nudge=_gravity(4.0)),
    "gravity / 4": Start(nudge=_gravity(0.25)),
}


@contextlib.contextmanager
def nudged(nudge: Callable[[Model], None]) -> Iterator[None]:
    """Changes the first weights of all models that training builds."""

    def build(config: RunConfig) -> Model:
        model = models.build(config)
        nudge(model)
        return model

    with mock.patch("motes.training.step.build", build):
        yield


def configuration(size: int, frames: int, seed: int, start: Start) -> RunConfig:
    """Return the preset for these clips, drawn from a seed of their own, with another start."""
    config = PRESETS["sprites"]
    data = dataclasses.replace(
        config.data, height=size, width=size, num_frames=frames, seed=seed + 1
    )
    model, dynamics = (_scaled(part, start.factors) for part in (config.model, config.dynamics))
    return dataclasses.replace(config, data=data, model=model, dynamics=dynamics, seed=seed)


def _scaled(settings: Any, factors: Mapping[str, float]) -> Any:
    """Return settings with those of their fields multiplied that have a factor."""
    own = {name: by for name, by in factors.items() if hasattr(settings, name)}
    return dataclasses.replace(settings, **{n: by * getattr(settings, n) for n, by in own.items()})


def learn(config: RunConfig, folder: Path, settings: Record, device: str) -> None:
    """Train into a folder, and note there what was run and what it took.

    A run that was stopped goes on where it was; what it took before is added.
    """
    spent = folder / "spent.json"
    taken = json.loads(spent.read_text("utf-8")) if spent.is_file() else [0.0, 0.0]
    wall, cpu = taken[0] - time.monotonic(), taken[1] - time.process_time()
    begun = (folder / "config.json").is_file()
    outcome = resume(folder, device=device) if begun else train(config, folder, device=device)
    wall, cpu = wall + time.monotonic(), cpu + time.process_time()
    if not outcome.finished:
        return write_json(spent, [wall, cpu])
    bound = outcome.held_out_bound
    note = {
        **settings,
        "size": config.data.height,
        "num_frames": config.data.num_frames,
        "seed": config.seed,
        "training": {"held_out_bound": bound, "wall_seconds": wall, "cpu_seconds": cpu},
        "environment": environment(torch.device(device)),
    }
    write_json(folder / "learned.json", note)


def score(folder: Path, num_clips: int, device: str) -> Record:
    """Return what was noted of a run, and its scores on unseen clips."""
    model, config = load_with_config(folder, device=device)
    clips = unseen(config.data, num_clips)
    begun = time.monotonic()
    scores = evaluate(
        ModelPredictor(model), clips, batch_size=BATCH if device == "cpu" else GPU_BATCH
    )
    return {
        **json.loads((folder / "learned.json").read_text("utf-8")),
        "test_seed": TEST_SEED,
        "scored_on": environment(model.device)["processor"],
        "scoring_seconds": time.monotonic() - begun,
        "physics": {**compare_physics(model.cpu(), clips), **learned_scales(model)},
        **scores,
    }


def unseen(data: DataConfig, num_clips: int) -> Clips:
    """Return test clips like those that were learned from."""
    size = (data.height, data.width)
    return cannonballs(num_clips, data.num_objects, data.num_frames, size, seed=TEST_SEED)


@torch.no_grad()
def learned_scales(model: Model) -> dict[str, float]:
    """Return the pixels that an object lights, and how far it strays from its path, in pixels."""
    renderer, noise = model.renderer, require_linear(model.dynamics).components().position_noise
    assert isinstance(renderer, SpriteRenderer)
    lit = -torch.expm1(-renderer.kernels().mean((0, 1)))
    strays = noise.diagonal().mean().sqrt() * renderer.pixels_per_unit
    return {"lit_pixels": float(lit.sum()), "noise_px": float(strays)}


def score_limit(size: int, frames: int, num_clips: int) -> Record:
    """Return the scores of the true physics on the same clips."""
    clips = unseen(DataConfig(height=size, width=size, num_frames=frames), num_clips)
    return {
        "size": size,
        "num_frames": frames,
        "seed": 0,
        "start": "limit",
        "test_seed": TEST_SEED,
        "environment": environment(torch.device("cpu")),
        **evaluate(BayesLimit.of(World(frames, (size, size))), clips),
    }


def kept(record: Record) -> Record:
    """Return a record with the scores of the tables alone."""
    names = ("clips", *SPREAD)
    rest = {name: part for name, part in record.items() if name not in ("curves", "worst_clips")}
    rest.pop("forecast_loss_of_clips", None)
    for part in ("by_count", "standard_errors"):
        columns = record[part].items()
        rest[part] = {n: {s: c[s] for s in names if s in c} for n, c in columns}
    return rest


def merge(folder: Path, note: str) -> Record:
    """Return all records of a folder as one, in order."""
    records = [kept(json.loads(path.read_text("utf-8"))) for path in folder.glob("*.json")]
    starts = [*STARTS, "limit"]
    records.sort(key=lambda r: (r["size"], r["num_frames"], starts.index(r["start"]), r["seed"]))
    return {"note": note, "runs": records}


def score_new(runs: Path, scores: Callable[[Path], Record]) -> None:
    """Scores what was learned and has no scores yet, a record each."""
    for note in sorted(runs.glob("*/learned.json")):
        path = runs / f"{note.parent.name}.json"
        if not path.is_file():
            write_json(path, scores(note.parent))


def main() -> None:
    """Learn, score, or merge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for step in ("learn", "score", "limit", "merge"):
        parser.add_argument(f"--{step}", action="store_true")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", choices=STARTS, default="as it is")
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--note", default="one after the other", help="how they were run")
    parser.add_argument(
        "--out", type=Path, default=Path("experiments/sprites_seeds/structured_seeds.json")
    )
    given = parser.parse_args()
    kind = f"{given.size}x{given.frames}"
    if given.learn:
        start = STARTS[given.start]
        config = configuration(given.size, given.frames, given.seed, start)
        words = given.start.replace("/", "over").replace(" ", "-")
        with nudged(start.nudge):
            folder = given.runs / f"{kind}-{words}-{given.seed}"
            learn(config, folder, {"start": given.start}, given.device)
    if given.score:
        score_new(given.runs, lambda folder: score(folder, given.clips, given.device))
    if given.limit:
        record = score_limit(given.size, given.frames, given.clips)
        write_json(given.runs / f"{kind}-limit.json", record)
    if given.merge:
        write_json(given.out, merge(given.runs, given.note))


if __name__ == "__main__":
    main()
