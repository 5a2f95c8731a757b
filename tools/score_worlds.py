"""Learn every world of docs/worlds.md from scratch and score it beside the world's oracle.

Needs torch, numpy, safetensors and scipy alone. Records are added to one JSON file world by world,
so that worlds can be run one at a time and on several machines.

Usage: python tools/score_worlds.py --worlds bar drops --out results/worlds.json --runs runs/worlds
       python tools/score_worlds.py --worlds bar --model runs/worlds/bar-0   (no training)
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import motes
from motes import metrics
from motes.answer import Answer
from motes.baselines.blobs import choose_settings, follow_blobs
from motes.baselines.oracle import Law, Tracks, ask_oracle
from motes.checkpoint import write_json
from motes.data import Clips, save_clips, worlds
from motes.model import Model
from motes.presets import preset
from motes.run_folder import environment
from motes.shapes import Bool, Float, Tensor
from motes.train import train

TRAINING_SEED, TEST_SEED = 1, 1_000_000
BATCH = 50
CONTEXT = 5  # frames seen before a forecast
COUNT_BINS = 10

Scores = dict[str, Any]
Ask = Callable[[Clips, int, int | None], Answer | Tracks]  # clips, objects, frames seen


class Task(NamedTuple):
    """What is learned and what is asked."""

    learns: str  # world of the training clips
    asks: str  # world of the test clips
    counts: tuple[int, ...]  # of objects in test clips
    num_clips: int = 200  # for each count
    num_frames: int | None = None  # of test clips; None: the world's own
    context: int = CONTEXT


TASKS: dict[str, Task] = {
    "cannonballs": Task("cannonballs", "cannonballs", (1, 2, 3)),
    "many": Task("cannonballs", "many", (5, 8), num_clips=100),
    "bar": Task("bar", "bar", (1, 2, 3)),
    # Of ten frames about five were seen.
    "drops": Task("drops", "drops", (1, 2, 3), context=10),
    "pictures": Task("pictures", "pictures", (1, 2, 3)),
    "colour": Task("colour", "colour", (1, 2, 3)),
    "weightless": Task("weightless", "weightless", (1, 2, 3)),
    "wind": Task("wind", "wind", (1, 2, 3)),
    "drag": Task("drag", "drag", (1, 2, 3)),
    "bounce": Task("bounce", "bounce", (1, 2, 3)),
    "long": Task("long", "long", (1, 2, 3), num_clips=4, num_frames=3000),
}
COUNTED = (1, 2, 3, 4, 5)  # objects in the clips whose number is not told


def learn(task: Task, seed: int, folder: Path, num_clips: int) -> None:
    """Train on fresh clips of a world into a new folder, with a record of how that went."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{task.learns}.npz"
    if not path.exists():
        save_clips(path, worlds.make(task.learns, num_clips, (1, 2, 3), 30, seed=TRAINING_SEED))
    config = preset("structured", "robust")
    data = dataclasses.replace(config.data, path=str(path))
    config = dataclasses.replace(config, data=data, seed=seed)
    wall, cpu = time.monotonic(), time.process_time()

    def report(line: dict[str, Any]) -> None:
        if "bound" in line:
            taken = time.monotonic() - wall
            left = taken * (line["of"] / line["step"] - 1)
            told = f"step {line['step']}/{line['of']}, bound {line['bound']:.1f}, {left:.0f} s left"
            print(f"  {folder.name}: {told}", file=sys.stderr, flush=True)

    outcome = train(config, folder, report=report)
    record = {
        "clips": num_clips,
        "steps": outcome.step,
        "held_out_bound": outcome.held_out_bound,
        "wall_seconds": round(time.monotonic() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    write_json(folder / "training.json", record)


def shown(clips: Clips) -> Bool[Tensor, "B N T"]:
    """Where an object of the truth shows in a frame that was seen."""
    assert clips.positions is not None
    there = ~clips.positions.isnan().any(-1)
    if clips.visible is not None:
        there = there & clips.visible
    return there if clips.observed is None else there & clips.observed[:, None]


def averaged(clips: Clips) -> Float[Tensor, "B T height width"]:
    """Frames in grey, as the average of their colours."""
    return clips.frames.mean(-1) if clips.in_colour else clips.frames.float()


def observed_of(clips: Clips) -> Bool[Tensor, "B T"]:
    """Which frames of clips were seen."""
    if clips.observed is not None:
        return clips.observed
    return torch.ones(len(clips), clips.video.shape[1], dtype=torch.bool)


def ask_model(model: Model, clips: Clips, count: int, seen_until: int | None) -> Answer:
    """The model's answer to what is seen of some clips, or of their first frames."""
    frames, observed = clips.frames.float(), observed_of(clips)
    if seen_until is not None:
        observed = observed & (torch.arange(frames.shape[1]) < seen_until)
    if bool(observed.all()):
        return motes.infer(model, frames, count)
    return motes.interpolate(model, frames, observed, count)


def ask_law(law: Law, clips: Clips, count: int, seen_until: int | None) -> Tracks:
    """The oracle's answer to the same question."""
    assert clips.positions is not None
    exact = isinstance(clips.video, Tensor)  # pictures tell more than a pixel
    points = clips.positions if exact else clips.positions.round()
    there = shown(clips)
    if seen_until is not None:
        there = there & (torch.arange(points.shape[2]) < seen_until)
    return ask_oracle(torch.where(there[..., None], points, torch.nan)[:, :count], law)


def in_order(answer: Answer | Tracks, clips: Clips) -> Tracks:
    """An answer with its objects in the order of the truth."""
    assert clips.clean is not None
    order = metrics.best_order(answer.path_pixels, clips.clean)
    return Tracks(*(metrics.reorder(getattr(answer, name), order) for name in Tracks._fields))


def score_batch(ask: Ask, clips: Clips, count: int, context: int) -> dict[str, Tensor]:
    """What is scored of each clip, or of each object and frame, NaN where it does not apply."""
    noisy, clean = clips.positions, clips.clean
    assert noisy is not None
    assert clean is not None
    seen = shown(clips)
    told = in_order(ask(clips, count, None), clips)
    parts = {
        "tracked": metrics.tracked(told.pixels, noisy).double(),
        "noisy_rmse": squares(told.pixels, noisy).where(seen, torch.nan),
        "path_rmse": squares(told.path_pixels, clean),
        "hidden_rmse": squares(told.path_pixels, clean).where(~seen, torch.nan),
        "coverage90": inside(told.pixels, told.pixel_covariances, noisy).where(seen, torch.nan),
        "hidden_coverage90": inside(told.pixels, told.pixel_covariances, noisy).where(
            ~seen, torch.nan
        ),
        "path_coverage90": inside(told.path_pixels, told.path_pixel_covariances, clean),
    }
    horizon = min(clips.video.shape[1], 30)
    short = first_frames(clips, horizon)
    assert short.clean is not None
    assert short.positions is not None
    ahead = in_order(ask(short, count, context), short)
    future = torch.arange(horizon) >= context
    parts["forecast_rmse"] = squares(ahead.path_pixels, short.clean)[..., future]
    parts["forecast_coverage90"] = inside(ahead.pixels, ahead.pixel_covariances, short.positions)[
        ..., future
    ]
    return parts


def first_frames(clips: Clips, num_frames: int) -> Clips:
    """The beginning of clips."""
    parts = {
        name: None if part is None else part[:, :, :num_frames]
        for name in ("positions", "clean", "visible")
        for part in [getattr(clips, name)]
    }
    observed = None if clips.observed is None else clips.observed[:, :num_frames]
    whole = clips.video.shape[1] == num_frames
    video = clips.video if whole else clips.frames[:, :num_frames].float()
    return Clips(video, clips.num_objects, observed=observed, **parts)


def squares(
    estimate: Float[Tensor, "B N T 2"], truth: Float[Tensor, "B N T 2"]
) -> Float[Tensor, "B N T"]:
    """Squared distances."""
    return (estimate - truth).double().square().sum(-1)


def inside(
    estimate: Float[Tensor, "B N T 2"],
    covariances: Float[Tensor, "B N T 2 2"],
    truth: Float[Tensor, "B N T 2"],
) -> Float[Tensor, "B N T"]:
    """1 where the truth lies in the 90 % ellipse of an estimate, else 0."""
    gap = (truth - estimate).double()
    solved, singular = torch.linalg.solve_ex(covariances.double(), gap)
    near: Tensor = ((gap * solved).sum(-1) <= -2 * math.log(1 - 0.9)) & (singular == 0)
    return near.double()


def score(ask: Ask, clips: Clips, count: int, task: Task) -> Scores:
    """Scores of clips with the same number of objects."""
    batches = [
        score_batch(ask, clips[start : start + BATCH], count, task.context)
        for start in range(0, len(clips), BATCH)
    ]
    scores: Scores = {}
    for name in batches[0]:
        values = torch.cat([batch[name].flatten() for batch in batches])
        values = values[~values.isnan()]
        if len(values):
            mean = float(values.mean())
            scores[name] = round(mean**0.5 if name.endswith("rmse") else mean, 4)
    lost = torch.cat([batch["tracked"] for batch in batches]) == 0
    return {**scores, "lost_clips": lost.nonzero()[:, 0].tolist()}


def score_world(name: str, ask: Ask) -> dict[str, Any]:
    """The scores of a contender in a world, for each number of objects."""
    task, by_count = TASKS[name], {}
    for count in task.counts:
        clips = test_clips(task, count)
        started = time.monotonic()
        scores = score(ask, clips, count, task)
        seconds = round((time.monotonic() - started) / len(clips), 3)
        by_count[str(count)] = {"clips": len(clips), "seconds_a_clip": seconds, **scores}
        print(name, "N =", count, json.dumps(by_count[str(count)]), file=sys.stderr, flush=True)
    return by_count


def test_clips(task: Task, count: int) -> Clips:
    """The clips that a task asks about."""
    return worlds.make(task.asks, task.num_clips, count, task.num_frames, seed=TEST_SEED)


def score_counts(model: Model, seed: int, num_clips: int = 300) -> dict[str, Any]:
    """How often the number of objects is found, and how far its probabilities can be believed."""
    clips = worlds.make("cannonballs", num_clips, COUNTED, seed=seed)
    assert clips.num_objects is not None
    probabilities = []
    for start in range(0, num_clips, BATCH):
        answer = motes.infer(model, clips.frames[start : start + BATCH].float())
        assert answer.count_probabilities is not None
        probabilities.append(answer.count_probabilities)
    believed = torch.cat(probabilities).double()
    chosen = believed.argmax(1) + 1
    right = chosen == clips.num_objects
    known = (clips.num_objects - 1).clamp(max=believed.shape[1] - 1)[:, None]
    return {
        "clips": num_clips,
        "accuracy": float(right.double().mean()),
        "by_count": {str(n): float(right[clips.num_objects == n].double().mean()) for n in COUNTED},
        "nats": float(-believed.gather(1, known).clamp(min=1e-300).log().mean()),
        "reliability": reliability(believed, clips.num_objects),
        "wrong_clips": (~right).nonzero()[:, 0].tolist(),
    }


def reliability(
    believed: Float[Tensor, "B counts"], truth: Tensor, bins: int = COUNT_BINS
) -> list[dict[str, float]]:
    """For every count of every clip: how probable it was said to be, and how often it was so."""
    happened = torch.arange(1, believed.shape[1] + 1) == truth[:, None]
    place = (believed * bins).long().clamp(max=bins - 1)
    table = []
    for k in range(bins):
        here = place == k
        if bool(here.any()):
            table.append(
                {
                    "cases": int(here.sum()),
                    "said": float(believed[here].mean()),
                    "happened": float(happened[here].double().mean()),
                }
            )
    return table


def run_oracle(name: str) -> dict[str, Any]:
    """The record of a world's oracle."""
    task = TASKS[name]
    law = Law.of(worlds.physics_of(task.asks, task.num_frames))
    by_count = score_world(name, partial(ask_law, law))
    return {"by_count": by_count, "environment": environment(torch.device("cpu"))}


def run_model(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of a model of a world, trained first if there is none."""
    record: dict[str, Any] = {}
    folder = arguments.model or arguments.runs / f"{TASKS[name].learns}-{arguments.seed}"
    if arguments.model is None:
        if not (folder / "training.json").exists():
            learn(TASKS[name], arguments.seed, folder, arguments.clips)
        record["training"] = json.loads((folder / "training.json").read_text("utf-8"))
    model = motes.load(folder)
    record["by_count"] = score_world(name, partial(ask_model, model))
    if name == "cannonballs":
        record["counting"] = score_counts(model, TEST_SEED + 1)
        print("counting", record["counting"]["accuracy"], file=sys.stderr, flush=True)
    return {**record, "environment": environment(torch.device("cpu"))}


def run_rival(name: str, num_tuning: int = 15, num_clips: int = 60) -> dict[str, Any]:
    """The record of trackpy, its settings chosen by the truth of some training clips."""
    task, by_count = TASKS[name], {}
    tuning = worlds.make(task.learns, num_tuning, 3, 30, seed=TRAINING_SEED)
    assert tuning.positions is not None
    settings = choose_settings(averaged(tuning), observed_of(tuning), tuning.positions)
    for count in task.counts:
        clips = test_clips(task, count)[:num_clips]
        assert clips.positions is not None
        found = follow_blobs(averaged(clips), observed_of(clips), count, settings)
        found = metrics.reorder(found, metrics.best_order(found, clips.positions))
        scores = {
            "clips": len(clips),
            "tracked": float(metrics.tracked(found, clips.positions).double().mean()),
            "noisy_rmse": metrics.rmse(found, clips.positions),
        }
        by_count[str(count)] = scores
        print("trackpy", name, "N =", count, json.dumps(scores), file=sys.stderr, flush=True)
    return {
        "settings": settings._asdict(),
        "by_count": by_count,
        "environment": environment(torch.device("cpu")),
    }


def store(path: Path, *place: str, record: dict[str, Any]) -> None:
    """Add a record to a file, which is read anew: another process may have written to it."""
    stored: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    inner = stored
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = record
    write_json(path, stored)


def main() -> None:
    """Score the worlds that were asked for, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seed", type=int, default=0, help="of the training run")
    parser.add_argument("--clips", type=int, default=2000, help="to learn from")
    parser.add_argument("--runs", type=Path, default=Path("runs/worlds"))
    parser.add_argument("--model", default=None, help="a trained model for all worlds asked for")
    parser.add_argument("--oracle", action="store_true", help="score the oracles instead")
    parser.add_argument("--trackpy", action="store_true", help="score trackpy instead")
    parser.add_argument("--out", type=Path, default=Path("results/worlds.json"))
    arguments = parser.parse_args()
    for name in arguments.worlds:
        if arguments.oracle:
            store(arguments.out, "oracles", name, record=run_oracle(name))
        elif arguments.trackpy:
            store(arguments.out, "trackpy", name, record=run_rival(name))
        else:
            seed = str(arguments.seed)
            store(arguments.out, "worlds", name, seed, record=run_model(name, arguments))


if __name__ == "__main__":
    main()
