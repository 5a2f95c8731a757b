"""`motes demo`: the model it trains, and its answers, scores and figures in one report."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.axes import Float
from motes.core.environment import environment
from motes.core.errors import InputError
from motes.core.files import write_text
from motes.data import Clips, World, draw_clips
from motes.evaluation.evaluate import (
    NUM_CONTEXT,
    Progress,
    by_count,
    compare_physics,
    evaluate,
    no_progress,
)
from motes.evaluation.learned import InitialStates, learned_initial_states, true_initial_states
from motes.evaluation.predictor import ModelPredictor
from motes.models.checkpoint import load_with_config, save_model
from motes.models.model import Model
from motes.models.pixel_map import find_pixel_map
from motes.models.sprites.renderer import SpriteRenderer
from motes.output import plots
from motes.output.demo_report import (
    ANSWERS,
    PHYSICS,
    Findings,
    InitialState,
    TrainingSummary,
    demo_page,
)
from motes.output.figures import FIGURES, Material
from motes.queries import infer, sample
from motes.training.presets import PRESETS
from motes.training.step import RESTART_STEPS
from motes.training.train import train

REPORT = "report.html"
MODEL = "model"  # folder of a model that the demo trained
NUM_FIGURES = len(ANSWERS) + len(PHYSICS)
MAX_COUNTS = 3  # rows of examples, and columns of scores
NUM_SAMPLES = 4


class Snapshot(NamedTuple):
    """The state of a run at one report."""

    restart: int  # number of the restart; 0: the run continued from the best one
    step: int
    of: int
    rate: float  # steps per second; 0 before the first step
    bound: float  # nats per clip, of the batches since the last snapshot
    sprite: Float[np.ndarray, "cells cells"]  # white probability of an object's pixels


class DemoModel(NamedTuple):
    """The model of a demo, and how it was trained, if the demo trained it."""

    name: str
    model: Model
    config: RunConfig
    snapshots: Sequence[Snapshot] = ()
    training: TrainingSummary | None = None


def short_run() -> RunConfig:
    """Return the sprite model's preset with fewer steps and clips."""
    full = PRESETS["sprites"]
    return dataclasses.replace(
        full,
        # As many clips as the batches of all searches hold.
        data=dataclasses.replace(full.data, num_clips=288, num_held_out=48),
        schedule=full.schedule.stretched(144),
        batch_size=24,
        log_every=6,
        checkpoint_every=144,
    )


def learn(config: RunConfig, show: Callable[[Snapshot], None] = lambda snapshot: None) -> DemoModel:
    """Train a sprite model from scratch; `show` is called with every snapshot.

    Raises:
        KeyboardInterrupt: Training was interrupted.
    """
    began, snapshots = time.monotonic(), []

    def report(line: dict[str, Any]) -> None:
        if "start" in line or "bound" in line:
            snapshots.append(snapshot_of(line))
            show(snapshots[-1])

    with tempfile.TemporaryDirectory() as folder:
        outcome = train(config, Path(folder), report=report)
        if not outcome.finished:
            raise KeyboardInterrupt
        model, _ = load_with_config(folder)
    summary = TrainingSummary(
        num_clips=config.data.num_clips,
        num_steps=config.schedule.iterations,
        seconds=time.monotonic() - began,
        first_bound=snapshots[0].bound,
        held_out_bound=outcome.held_out_bound,
    )
    return DemoModel("trained just now", model, config, snapshots, summary)


def snapshot_of(line: dict[str, Any]) -> Snapshot:
    """Return the snapshot of one report of training."""
    sprite = sprite_image(line["model"])
    if "start" in line:
        return Snapshot(
            line["start"], line["start_step"], RESTART_STEPS, 0.0, line["start_bound"], sprite
        )
    rate = line["iterations_per_second"]
    return Snapshot(0, line["step"], line["of"], rate, line["bound"], sprite)


def best_restart(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots of the best restart and of the run after it, steps numbered on."""
    trials = [snapshot for snapshot in snapshots if snapshot.restart > 0]
    best = max((s for s in trials if s.step == RESTART_STEPS), key=lambda snapshot: snapshot.bound)
    before = [snapshot for snapshot in trials if snapshot.restart == best.restart]
    after = [s._replace(step=RESTART_STEPS + s.step) for s in snapshots if s.restart == 0]
    return [*before, *after]


@torch.no_grad()
def sprite_image(model: Model) -> Float[np.ndarray, "cells cells"]:
    """Return the probability that an object lights a pixel, by the pixel's offset from it."""
    assert isinstance(model.renderer, SpriteRenderer)
    image: Float[np.ndarray, "cells cells"] = (
        -torch.expm1(-model.renderer.root_depth.square()).cpu().numpy()
    )
    return image


def existing_model(name_or_folder: str) -> DemoModel:
    """Load a shipped model or the model of a run folder."""
    model, config = load_with_config(name_or_folder)
    if not model.black_and_white:
        raise InputError(
            f"{name_or_folder} is a model of grey or colour videos; the demo needs one of "
            "black-and-white clips: score this one with motes evaluate"
        )
    # The name alone: a report may be shared, and paths are private.
    return DemoModel(Path(name_or_folder).name, model, config)


def unseen_clips(config: RunConfig, num_clips: int, seed: int) -> Clips:
    """Return clips like the training clips of a run, from another seed.

    Raises:
        InputError: The seed is that of the training clips.
    """
    if seed == config.data.seed:
        raise InputError(f"seed {seed} made the training clips of this model; give another")
    counts = sorted(set(config.data.num_objects))[:MAX_COUNTS]
    return draw_clips(demo_world(config), num_clips, counts, seed)


def total_work(num_clips: int) -> int:
    """Return the final progress of `run`: clips scored, clips counted, figures drawn."""
    return 2 * num_clips + NUM_FIGURES


def run(
    subject: DemoModel,
    clips: Clips,
    out: Path,
    *,
    seed: int,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the report into a folder; return its path, the scores and the seconds taken.

    Args:
        subject: The model; one that the demo trained is saved in the folder too.
        clips: With truth, not seen in training.
        out: Folder of the report; must exist.
        seed: Of the clips and of the samples.
        progress: Called with the work done, out of `total_work(len(clips))`.
    """
    began, model, training = time.monotonic(), subject.model, subject.training
    world = demo_world(subject.config)
    scores = evaluate(ModelPredictor(model), clips, progress=progress)
    scores |= compare_physics(model, clips)
    done = len(clips)
    for count, accuracy in count_accuracy(model, clips):
        column = scores["by_count"][count]
        column["count_right"] = accuracy
        done += column["clips"]
        progress(done)
    figures = {} if training is None else {"training": _draw_training(subject.snapshots)}
    for name, figure in draw_figures(model, clips, seed):
        figures[name] = figure
        done += 1
        progress(done)
    learned, true = learned_initial_states(model), true_initial_states(clips)
    names = [f"learned {k + 1}" for k in range(len(learned.shares))]
    sides = ["true, from the left", "true, from the right"][: len(true.shares)]
    findings = Findings(
        model=subject.name,
        seed=seed,
        frame_size=model.image_size,
        num_frames=world.num_frames,
        scores=scores,
        true_force=tuple(world.pixel_force.tolist()),
        initial_states=[*_initial_states(names, learned), *_initial_states(sides, true)],
        pixel_map_residual=find_pixel_map(model, world.num_frames).residual,
        figures=figures,
        # Versions and machine without the command, which may contain paths.
        environment={k: v for k, v in environment(model.device).items() if k != "command"},
        seconds=time.monotonic() - began,
        training=training,
    )
    write_text(out / REPORT, demo_page(findings))
    record = {"report": str(out / REPORT), "seconds": findings.seconds, **scores}
    if training is not None:
        make_folder(out / MODEL)
        save_model(out / MODEL, model, subject.config)
        record |= {"model": str(out / MODEL), "learned_in_seconds": training.seconds}
    return record


def count_accuracy(model: Model, clips: Clips) -> Iterator[tuple[str, float]]:
    """Yield each number of objects and the share of clips for which the model infers it."""
    for count, own in by_count(clips).items():
        found = infer(model, clips[own].frames.float()).num_objects
        yield str(count), float((found == count).double().mean())


def demo_world(config: RunConfig) -> World:
    """Return the paper's world in the model's frame size, long enough for a gap in the middle."""
    num_frames = max(config.data.num_frames, 3 * NUM_CONTEXT)
    return World(num_frames, (config.data.height, config.data.width))


def make_folder(folder: Path) -> None:
    """Make the folder unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"got {folder}; expected a folder that can be made ({error.strerror}); choose another"
        ) from None


def draw_figures(model: Model, clips: Clips, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield every figure of the report with its name."""
    material = Material(model, clips, "model")
    truth, _, ahead, between = material.examples[-1]
    yield "animation", plots.animation([truth, ahead, between])
    for name in ("strip", "trajectories", "overlays"):
        yield name, plots.png(FIGURES[name](material))
    samples = sample(model, NUM_SAMPLES, len(truth.pixels), len(truth.frames), seed=seed).frames
    row = [(f"sample {i + 1}", clip) for i, clip in enumerate(samples.cpu().numpy())]
    yield "samples", plots.png(plots.overlays([row]))
    for name in PHYSICS:
        yield name, plots.png(FIGURES[name](material))


def _initial_states(names: Sequence[str], found: InitialStates) -> list[InitialState]:
    rows = (found.shares.tolist(), found.places.tolist(), found.steps.tolist())
    return [
        InitialState(name, share, tuple(place), tuple(step))
        for name, share, place, step in zip(names, *rows, strict=True)
    ]


def _draw_training(snapshots: Sequence[Snapshot]) -> bytes:
    steps, bounds, sprites = zip(
        *((shown.step, shown.bound, shown.sprite) for shown in best_restart(snapshots)),
        strict=True,
    )
    figure = plots.training_curve(np.array(steps), np.array(bounds), np.stack(sprites))
    return plots.png(figure)
