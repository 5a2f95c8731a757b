"""`motes demo`: answers, scores and figures of one model on new clips, in one report."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.axes import Tensor
from motes.core.errors import InputError
from motes.data import Clips, World, draw_clips
from motes.evaluation.evaluate import (
    NUM_CONTEXT,
    ModelPredictor,
    Progress,
    by_count,
    compare_physics,
    evaluate,
    no_progress,
)
from motes.evaluation.learned import (
    InitialStates,
    first_points_and_steps,
    latent_grid,
    learned_initial_states,
    true_initial_states,
)
from motes.models.model import Model, load_with_config, save_model, write_text
from motes.models.pixel_map import find_pixel_map
from motes.output import evaluation_plots, plots
from motes.output.demo_report import (
    ANSWERS,
    PHYSICS,
    Findings,
    InitialState,
    TrainingSummary,
    page,
)
from motes.output.learning import TrainedRun, best_restart
from motes.output.views import example_views, first_of_each_count
from motes.queries import infer, sample
from motes.training.run_folder import environment

REPORT = "report.html"
MODEL = "model"  # folder of a model that the demo trained
NUM_FIGURES = len(ANSWERS) + len(PHYSICS)
MAX_COUNTS = 3  # rows of examples, and columns of scores
NUM_TIMES = 8  # columns of the strip
NUM_SAMPLES = 4


class DemoModel(NamedTuple):
    """The model of a demo."""

    name: str
    model: Model
    config: RunConfig
    training: TrainedRun | None = None  # if the demo trained it


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


def demo_model(training: TrainedRun) -> DemoModel:
    """Return the model of a run that has just ended."""
    return DemoModel("trained just now", training.model, training.config, training)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block.

    The operations of the sprite model are small: on a busy machine two threads spend more time
    waiting for one another than computing.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    figures = {} if training is None else {"training": _draw_training(training)}
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
        environment=portable_environment(),
        seconds=time.monotonic() - began,
        training=None if training is None else summary_of(training),
    )
    write_text(out / REPORT, page(findings))
    record = {"report": str(out / REPORT), "seconds": findings.seconds, **scores}
    if training is not None:
        make_folder(out / MODEL)
        save_model(out / MODEL, model, subject.config)
        record |= {"model": str(out / MODEL), "learned_in_seconds": training.seconds}
    return record


def summary_of(training: TrainedRun) -> TrainingSummary:
    """Return the numbers of a run that the report shows."""
    return TrainingSummary(
        num_clips=training.config.data.num_clips,
        num_steps=training.config.schedule.iterations,
        seconds=training.seconds,
        first_bound=training.snapshots[0].bound,
        held_out_bound=training.held_out_bound,
    )


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


def portable_environment() -> dict[str, Any]:
    """Return versions and machine without the command, which may contain paths."""
    return {k: v for k, v in environment(torch.device("cpu")).items() if k != "command"}


def draw_figures(model: Model, clips: Clips, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield every figure of the report with its name."""
    examples = example_views(model, first_of_each_count(clips))
    middle, (truth, _, ahead, between) = examples[len(examples) // 2], examples[-1]
    yield "animation", plots.animation([truth, ahead, between])
    num_frames = len(truth.frames)
    times = np.linspace(0, num_frames - 1, NUM_TIMES).round().astype(int).tolist()
    yield "strip", plots.png(plots.strip(middle, times))
    yield "trajectories", plots.png(plots.trajectories(examples))
    rows = [[(view.style.label, view.mean_frames) for view in views] for views in examples]
    yield "overlays", plots.png(plots.overlays(rows))
    samples = sample(model, NUM_SAMPLES, len(truth.pixels), num_frames, seed=seed).frames
    row = [(f"sample {i + 1}", clip) for i, clip in enumerate(_array(samples))]
    yield "samples", plots.png(plots.overlays([row]))
    yield "initial_states", plots.png(_draw_initial_states(model, clips))
    yield "latent_grid", plots.png(evaluation_plots.latent_grid(*latent_grid(model, clips)))


def _initial_states(names: Sequence[str], found: InitialStates) -> list[InitialState]:
    rows = (found.shares.tolist(), found.places.tolist(), found.steps.tolist())
    return [
        InitialState(name, share, tuple(place), tuple(step))
        for name, share, place, step in zip(names, *rows, strict=True)
    ]


def _draw_training(training: TrainedRun) -> bytes:
    snapshots = best_restart(training.snapshots)
    return plots.png(
        evaluation_plots.training_curve(
            np.array([snapshot.step for snapshot in snapshots]),
            np.array([snapshot.bound for snapshot in snapshots]),
            np.stack([snapshot.sprite for snapshot in snapshots]),
        )
    )


def _draw_initial_states(model: Model, clips: Clips) -> Any:
    found = learned_initial_states(model)
    return evaluation_plots.initial_states(
        model.image_size,
        *(_array(field) for field in first_points_and_steps(clips)),
        *(_array(field) for field in (found.places, found.spreads, found.steps)),
    )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
