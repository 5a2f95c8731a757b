"""Learn forces between objects from pixels with `motes train` and score forecasts.

Each (world, seed) trains preset `sprites-video` on fresh clips, without options, and is scored on
unseen ones. Distances are of point forecasts (means of draws) in pixels, or in units of half the
frame for `gravity`, whose table sums them over frames 9 to 18; regions are those that hold 90 % of
the draws by their distance from the mean in standard deviations. Objects are matched to the truth
by the first frames.

The oracle is the simulator itself, with the moments of its first states as prior: the most likely
first state given the true positions of the seen frames, and draws of its Gaussian posterior, run
exactly. Noise is added to these positions, as large as the errors of the model's own after one
affine map of all clips, so that a common scale or shift, which forecasts hardly feel, does not make
it worse than what the model saw. Errors of inferred positions last for some frames; independent
ones of the same size tell more about velocities.

Usage: python -m experiments.public_tables.score_forces gravity 0 --runs runs/forces --out FILE
"""

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import motes
from motes.core.axes import Bool, Float, Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, save_clips
from motes.data.worlds.pairs import PairWorld, paig_spring, spring_pair, stove_gravity
from motes.evaluation import metrics
from motes.training.presets import find
from motes.training.train import train

MIN_NOISE = 0.005  # of the oracle, in pixels
PRESET = "sprites-video"
TEST_SEED = 1_000_000
BATCH = 50
ORACLE_DRAWS = 100
PRIOR_CLIPS = 2000  # whose first states give the oracle's prior


class Case(NamedTuple):
    """A world and the protocol of its table."""

    world: PairWorld
    clips: int  # to learn from
    frames: int  # of a clip
    seen: int
    last: int  # frame of the forecast
    tests: int
    truth: dict[str, float]  # of `motes law`, in pixels and frames


GRAVITY = 2.0 * (50 / 30) ** 3  # G times mass, in pixels
CASES = {
    "spring-pair": Case(
        spring_pair(), 200, 30, 8, 30, 120,
        {"spring between objects": 0.02, "rest length of the spring": 12.0},
    ),
    "gravity": Case(
        stove_gravity(), 200, 30, 8, 18, 120, {"attraction between objects": GRAVITY}
    ),
    "paig-spring": Case(
        paig_spring(), 400, 12, 4, 30, 120,
        {"spring between objects": 0.36, "rest length of the spring": 12.0},
    ),
}  # fmt: skip


def in_region(
    draws: Float[Tensor, "S B N T 2"], truth: Float[Tensor, "B N T 2"]
) -> Bool[Tensor, "B N T"]:
    """Return which positions are inside the regions that hold 90 % of the draws."""
    mean = draws.mean(0)
    away, off = draws - mean, truth - mean
    spread = torch.einsum("sbnti,sbntj->bntij", away, away) / len(draws)
    precision = (spread + 1e-9 * torch.eye(2, dtype=torch.float64)).inverse()
    distances = torch.einsum("sbnti,bntij,sbntj->sbnt", away, precision, away)
    own = torch.einsum("bnti,bntij,bntj->bnt", off, precision, off)
    return own < distances.quantile(0.9, dim=0)


def scores(draws: Float[Tensor, "S B N T 2"], truth: Float[Tensor, "B N T 2"]) -> dict[str, Any]:
    """Return errors of the mean by frame, in pixels, and the coverage by draws."""
    inside = in_region(draws, truth).double()
    error = (truth - draws.mean(0)).norm(dim=-1)
    return {
        "mean_error_pixels": float(error.mean()),
        "standard_error": float(error.mean((1, 2)).std() / math.sqrt(len(error))),
        "median_error_pixels": float(error.mean((1, 2)).median()),
        "coverage90": float(inside.mean()),
        "error_by_frame": [round(value, 4) for value in error.mean((0, 1)).tolist()],
        "coverage_by_frame": [round(value, 3) for value in inside.mean((0, 1)).tolist()],
    }


def aligned_errors(
    found: Float[Tensor, "B N T 2"], truth: Float[Tensor, "B N T 2"]
) -> tuple[float, float, float]:
    """Return errors (root mean square), those left by one affine map, and that map's scale."""
    x, y = found.reshape(-1, 2), truth.reshape(-1, 2)
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    fit = torch.linalg.lstsq(design, y).solution
    left = float((design @ fit - y).square().mean().sqrt())
    return float((x - y).square().mean().sqrt()), left, float(fit[:2].det().abs().sqrt())


def ask_model(model: Any, clips: Clips, case: Case) -> tuple[Tensor, Tensor]:
    """Return draws of forecasts and inferred positions, matched to the truth, in pixels."""
    drawn, seen = [], []
    assert clips.positions is not None
    for some in torch.arange(len(clips.positions)).split(BATCH):
        part = clips[int(some[0]) : int(some[-1]) + 1]
        assert part.positions is not None
        number, first = part.positions.shape[1], min(case.seen, 5)
        answer = motes.forecast(model, part.frames[:, : case.seen], number, case.last - case.seen)
        order = metrics.best_order(answer.pixels[:, :, :first], part.positions[:, :, :first])
        drawn.append(torch.stack([metrics.reorder(one.float(), order) for one in answer.draws]))
        seen.append(metrics.reorder(answer.pixels[:, :, : case.seen], order))
    return torch.cat(drawn, 1).double(), torch.cat(seen).double()


def ask_oracle(case: Case, states: np.ndarray, noise: float, num_clips: int) -> Tensor:
    """Return draws of the simulator from first states fitted to noisy seen positions, in pixels.

    Gauss-Newton from the true first state, then draws of its Gaussian posterior, run exactly.
    """
    world, rng = case.world, np.random.default_rng(0)
    scale = world.size / world.side
    sd = noise / scale
    first = states[:num_clips, :, 0]
    B, N = first.shape[:2]
    seen = states[:num_clips, :, : case.seen, :2]
    seen = seen + sd * rng.normal(size=seen.shape)
    others = world.simulate(PRIOR_CLIPS, 1, seed=2 * TEST_SEED).reshape(PRIOR_CLIPS, -1)
    mean, spread = others.mean(0), np.cov(others.T)
    # Singular where the world keeps the centre of mass in the middle.
    precision = np.linalg.inv(spread + 1e-6 * np.diag(np.diag(spread)))

    def paths(start: np.ndarray, frames: int) -> np.ndarray:
        flat = start.reshape(-1, N, 4)
        return np.concatenate([flat[:, :, None], world.forecast(flat, frames - 1)], 2)

    estimate = first.copy()
    for _ in range(4):
        here = paths(estimate, case.seen)[..., :2].reshape(B, -1)
        J = np.empty((B, here.shape[1], 4 * N))
        for d in range(4 * N):
            moved = estimate.reshape(B, -1).copy()
            moved[:, d] += 1e-5
            there = paths(moved.reshape(B, N, 4), case.seen)[..., :2].reshape(B, -1)
            J[:, :, d] = (there - here) / 1e-5
        inverse = np.linalg.inv(np.einsum("bki,bkj->bij", J, J) / sd**2 + precision)
        slope = np.einsum("bkj,bk->bj", J, seen.reshape(B, -1) - here) / sd**2
        slope = slope + (mean - estimate.reshape(B, -1)) @ precision
        estimate = estimate + np.einsum("bij,bj->bi", inverse, slope).reshape(B, N, 4)
    roots = np.linalg.cholesky(inverse)
    noises = np.einsum("bij,sbj->sbi", roots, rng.normal(size=(ORACLE_DRAWS, B, 4 * N)))
    drawn = (estimate.reshape(B, -1) + noises).reshape(-1, N, 4)
    future = paths(drawn, case.last)[:, :, case.seen :, :2]
    return torch.from_numpy(world.pixels(future).reshape(ORACLE_DRAWS, B, N, -1, 2))


def law_errors(law: Any, truth: dict[str, float]) -> dict[str, Any]:
    """Return learned numbers of the law beside the true ones."""
    found = {term.name: (term.value, term.error) for term in law.terms}
    return {
        name: {"true": value, "learned": found.get(name, (None, None))[0],
               "error_bar": found.get(name, (None, None))[1]}
        for name, value in truth.items()
    }  # fmt: skip


def run_one(
    case: Case, name: str, seed: int, runs: Path, steps: int, device: str
) -> dict[str, Any]:
    """Train on fresh clips, then score forecasts of others."""
    world, folder, path = case.world, runs / f"{name}-{seed}", runs / f"{name}-{seed}.npz"
    if not folder.exists():
        save_clips(path, world.make(case.clips, case.frames, seed=seed))
    config = find(PRESET)
    data = dataclasses.replace(config.data, path=str(path))
    schedule = dataclasses.replace(config.schedule, iterations=steps or config.schedule.iterations)
    config = dataclasses.replace(config, data=data, schedule=schedule, seed=seed)
    cpu = time.process_time()
    learning: dict[str, Any] = {"clips": case.clips, "frames": case.frames}
    learning |= {"steps": config.schedule.iterations, "test_clips": case.tests}
    if not folder.exists():
        outcome = train(config, folder, device=device)
        learning["held_out_bound"] = outcome.held_out_bound
        learning["cpu_seconds"] = round(time.process_time() - cpu, 1)
    model = motes.load(folder)
    tests = world.make(case.tests, case.last, seed=TEST_SEED + seed)
    assert tests.positions is not None
    truth = tests.positions.double()
    draws, seen = ask_model(model, tests, case)
    rmse, aligned, scale = aligned_errors(seen, truth[:, :, : case.seen])
    states = world.simulate(case.tests, case.last, TEST_SEED + seed)
    oracle = ask_oracle(case, states, max(aligned, MIN_NOISE), case.tests)
    record: dict[str, Any] = {
        "learning": learning,
        "law": law_errors(model.law, case.truth),
        "words": str(model.law).splitlines(),
        "seen_rmse_pixels": rmse,
        "aligned_rmse_pixels": aligned,
        "scale": scale,
        "forecast": scores(draws[..., case.seen :, :], truth[:, :, case.seen :]),
        "oracle": scores(oracle, truth[:, :, case.seen :]),
        "environment": environment(torch.device(device)),
    }
    if name == "gravity":
        for part in ("forecast", "oracle"):
            summed = sum(record[part]["error_by_frame"]) * 2 / world.size
            record[part]["summed_error"] = round(summed, 5)
    return record


def main() -> None:
    """Run one world and seed, and add its record to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("world", choices=list(CASES))
    parser.add_argument("seed", type=int)
    parser.add_argument("--runs", type=Path, default=Path("runs/forces"))
    parser.add_argument("--steps", type=int, default=0, help="0: those of the preset")
    parser.add_argument("--clips", type=int, default=0, help="0: those of the world's case")
    parser.add_argument("--test-clips", type=int, default=0, help="likewise")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("experiments/public_tables/forces.json"))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    case = CASES[given.world]
    case = case._replace(clips=given.clips or case.clips, tests=given.test_clips or case.tests)
    record = run_one(case, given.world, given.seed, given.runs, given.steps, given.device)
    found = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    found.setdefault(given.world, {})[str(given.seed)] = record
    write_json(given.out, found)


if __name__ == "__main__":
    main()
