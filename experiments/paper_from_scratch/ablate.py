"""Train the preset `paper-scratch` with one part removed at a time, and score every run.

All variants train side by side, two seeds each, at the full length of the preset. Parts:
    order         pseudo-labels from left to right instead of in initial-state component order
    fit           no fits of the dynamics to inferred tracks
    straight      inferred positions are not straightened
    distillation  no distillation: the bound on all clips after the stage on single objects
    bound         no training on the bound after distillation
    blur          the stage on single objects sees sharp frames from the start

Usage: python -m experiments.paper_from_scratch.ablate OPTIONS
    --device cuda --run /tmp/ablate --out OUT --seconds 590
    --smoke --run /tmp/smoke --out OUT      (tiny sizes, to see that everything runs)

Writes OUT/record.json. With too little time left, training stops; the same command continues it.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from experiments.paper_from_scratch import train_and_score as scratch
from experiments.paper_training.score_replicas import row, score_seed
from motes.config import RunConfig, to_json
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.models.checkpoint import read_config
from motes.training import distillation, self_distillation
from motes.training import train as training

PARTS = ("order", "fit", "straight", "distillation", "bound", "blur")
SEEDS = 2


def variant(config: RunConfig, part: str) -> RunConfig:
    """Return the configuration without one part; parts of the labels are removed elsewhere."""
    schedule, first = config.schedule, config.single_object_schedule
    assert first is not None
    end = schedule.distillation_steps
    if part == "distillation":  # one step: the first stage is then run, and its weights are used
        weights = ((0, 4.0),)
        schedule = dataclasses.replace(schedule, distillation_steps=1, kl_weight=weights)
    if part == "bound":  # rates fall to their end during distillation; then nothing changes
        highest = schedule.learning_rate[0][1]
        rates = ((0, highest), (end * 3 // 5, highest), (end, 1e-5), (end, 0.0))
        schedule = dataclasses.replace(schedule, learning_rate=rates)
    if part == "blur":
        first = dataclasses.replace(first, blur=((0, 0.0),))
    return dataclasses.replace(config, schedule=schedule, single_object_schedule=first)


def left_to_right(
    dynamics: Any, first: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Int[Tensor, "B N"]:
    """Return the order of objects by the first coordinate; absent ones come last."""
    order: Tensor = torch.where(present, first[..., 0], torch.inf).argsort(dim=1, stable=True)
    return order


@contextlib.contextmanager
def without(part: str) -> Iterator[None]:
    """Remove a part of the labels for the runs that are labelled inside."""
    with contextlib.ExitStack() as stack:
        if part == "order":
            stack.enter_context(mock.patch.object(distillation, "starting_order", left_to_right))
        if part == "fit":
            keep = mock.patch.object(self_distillation, "fit_to_tracks", return_value=True)
            stack.enter_context(keep)
        if part == "straight":
            same = mock.patch.object(self_distillation, "straighten", lambda _, points: points)
            stack.enter_context(same)
        yield


class Parts:
    """Labels and fits of runs that lack parts: seeds 0 and 1 the first part, and so on."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.parts = parts
        self.label = self_distillation.label_combined_clips
        self.fit = self_distillation.fit_final_dynamics

    def of(self, seed: int) -> str:
        """Return the part that the run of a seed lacks."""
        return self.parts[seed // SEEDS]

    def label_each(self, models: Any, configs: Any, dataset: Any) -> list[Any]:
        """Replace `label_combined_clips`."""
        found = []
        for k in range(0, len(models), SEEDS):
            own = slice(k, k + SEEDS)
            with without(self.of(configs[k].seed)):
                found += self.label(models[own], configs[own], dataset)
        return found

    def fit_each(self, models: Any, configs: Any, clips: Any) -> list[bool]:
        """Replace `fit_final_dynamics`; the dynamics of the variant `fit` stay as they are."""
        fitted = [True] * len(models)
        kept = [k for k, config in enumerate(configs) if self.of(config.seed) != "fit"]
        if kept:
            done = self.fit([models[k] for k in kept], [configs[k] for k in kept], clips)
            for k, succeeded in zip(kept, done, strict=True):
                fitted[k] = succeeded
        return fitted


def begin(folder: Path, configs: Sequence[RunConfig]) -> None:
    """Write what runs of these configurations need to be continued, unless it exists."""
    if (folder / "config.json").is_file():
        return
    for config in configs:
        own = folder / f"seed-{config.seed}"
        own.mkdir(parents=True, exist_ok=True)
        (own / "config.json").write_text(to_json(config), "utf-8")
    training.begin_run(folder, configs[0], len(configs))


def score(given: argparse.Namespace, parts: Sequence[str], record: dict[str, Any]) -> None:
    """Add the scores of all runs, by part and seed."""
    bounds = json.loads((given.run / "selection.json").read_text("utf-8"))["bounds"]
    config = scratch.configuration(given)
    clips = scratch.test_clips(config, given.clips, scratch.TEST_SEED)
    record |= {"test_seed": scratch.TEST_SEED, "runs": {}}
    for k in range(SEEDS * len(parts)):
        name, folder = f"{parts[k // SEEDS]} {k}", given.run / f"seed-{k}"
        bound = {"held_out_bound": bounds[folder.name]}
        record["runs"][name] = bound | score_seed(folder, clips, given.device)
        write_json(given.out / "record.json", record)
        scratch.say(row(name, record["runs"][name]))


def main() -> int:
    """Train all variants, score them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=590.0, help="time for everything")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    given.preset, given.seed, given.hidden = "paper-scratch", 0, 0.0
    given.side = given.frames = given.maps = None
    if given.smoke:
        given.clips = min(given.clips, 12)
    torch.set_num_threads(2)
    config, parts = scratch.configuration(given), Parts(given.parts)
    begin(given.run, [
        dataclasses.replace(variant(config, parts.of(seed)), seed=seed)
        for seed in range(SEEDS * len(given.parts))
    ])  # fmt: skip
    with (
        mock.patch.object(training, "label_combined_clips", parts.label_each),
        mock.patch.object(training, "fit_final_dynamics", parts.fit_each),
    ):
        outcome = scratch.learn(
            config, given.run, 0, given.device, scratch.left(given) - scratch.STOP_BEFORE
        )
    record: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "environment": environment(torch.device(given.device)),
        "parts": list(given.parts),
        "base": dataclasses.asdict(read_config(given.run)),
        "finished": outcome.finished,
        "training_seconds": time.monotonic() - scratch.BEGUN,
    }
    write_json(given.out / "record.json", record)
    scratch.say(f"step {outcome.step}, finished: {outcome.finished}")
    if not outcome.finished:
        scratch.say("give the same command again to continue")
        return 3
    score(given, given.parts, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
