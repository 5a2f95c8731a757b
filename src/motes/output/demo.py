"""The demo: a model meets unseen clips; all questions, scores and pictures, one report."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
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
    compare_physics,
    evaluate,
    gap_mask,
)
from motes.evaluation.latent_grid import latent_grid
from motes.evaluation.physics import Starts, first_points_and_steps, learned_starts, true_starts
from motes.figures.stored import true_view
from motes.models.checkpoint import load_with_config, save_model, write_text
from motes.models.model import Model
from motes.models.pixel_map import find_pixel_map
from motes.output import html as report
from motes.output import plots as pictures
from motes.output.learning import TrainedRun, way_taken
from motes.output.plots import Style, View
from motes.output.report_words import ANSWERS, LAW
from motes.queries import forecast, infer, interpolate, sample
from motes.queries.answer import Answer
from motes.training.run_folder import environment

REPORT = "report.html"
MODEL = "model"  # the folder of a model that was learned just now
NUM_PICTURES = len(ANSWERS) + len(LAW)
MAX_COUNTS = 3  # rows of examples, and columns of scores
NUM_TIMES = 8  # columns of the strip
NUM_SAMPLES = 4

Examples = list[list[View]]  # for each example clip: truth, inferred, forecast, interpolated


class DemoModel(NamedTuple):
    """Whom the questions go to."""

    name: str
    model: Model
    config: RunConfig
    lesson: TrainedRun | None = None  # where it was learned just now


def known(name_or_folder: str) -> DemoModel:
    """A model that is there already."""
    model, config = load_with_config(name_or_folder)
    if not model.black_and_white:
        raise InputError(
            f"{name_or_folder} is a model of pictures; the demo is of black and white: "
            "score it with motes evaluate"
        )
    # A path says where its owner keeps things; the report may travel.
    return DemoModel(Path(name_or_folder).name, model, config)


def learned(lesson: TrainedRun) -> DemoModel:
    """The model of a lesson."""
    return DemoModel("learned just now", lesson.model, lesson.config, lesson)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Computes with one thread, and as before afterwards.

    The structured family's operations are small: on a busy machine two threads wait for one
    another far longer than they compute.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def unseen_clips(config: RunConfig, num_clips: int, seed: int) -> Clips:
    """Clips like those that a run learns from, and none of them.

    Raises:
        InputError: the seed is the run's own.
    """
    if seed == config.data.seed:
        raise InputError(f"seed {seed} made the training clips of this model; give another")
    counts = sorted(set(config.data.num_objects))[:MAX_COUNTS]
    return draw_clips(demo_world(config), num_clips, counts, seed)


def work(num_clips: int) -> int:
    """How much `run` has done at its end: clips scored, clips counted, pictures drawn."""
    return 2 * num_clips + NUM_PICTURES


def run(
    subject: DemoModel,
    clips: Clips,
    out: Path,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Writes the report into a folder; returns its path, the scores and the seconds it took.

    Args:
        subject: The model; one that was learned just now is left in the folder too.
        clips: With truth, unseen by the model.
        out: Folder of the report; must be there.
        seed: Of the clips, and of those that the model imagines.
        progress: Prediction what is done, out of `work(len(clips))`.
    """
    began, model, lesson = time.monotonic(), subject.model, subject.lesson
    world = demo_world(subject.config)
    scores = evaluate(ModelPredictor(model), clips, progress=progress) | compare_physics(
        model, clips
    )
    done = len(clips)
    for count, right in count_objects(model, clips):
        column = scores["by_count"][count]
        column["count_right"] = right
        done += column["clips"]
        progress(done)
    drawn = {} if lesson is None else {"learning": _draw_learning(lesson)}
    for name, picture in draw_pictures(model, clips, seed):
        drawn[name] = picture
        done += 1
        progress(done)
    found, true = learned_starts(model), true_starts(clips)
    findings = report.Findings(
        model=subject.name,
        seed=seed,
        frame_size=model.image_size,
        num_frames=world.num_frames,
        num_context=NUM_CONTEXT,
        scores=scores,
        true_force=tuple(world.pixel_force.tolist()),
        starts=[
            *rows_of_starts([f"found {k + 1}" for k in range(len(found.shares))], found),
            *rows_of_starts(
                ["true, from the left", "true, from the right"][: len(true.shares)], true
            ),
        ],
        pixel_map_residual=find_pixel_map(model, world.num_frames).residual,
        pictures=drawn,
        environment=portable_environment(),
        seconds=time.monotonic() - began,
        learned=None if lesson is None else told_of(lesson),
    )
    write_text(out / REPORT, report.page(findings))
    record = {"report": str(out / REPORT), "seconds": findings.seconds, **scores}
    if lesson is not None:
        make_folder(out / MODEL)
        save_model(out / MODEL, model, subject.config)
        record |= {"model": str(out / MODEL), "learned_in_seconds": lesson.seconds}
    return record


def told_of(lesson: TrainedRun) -> report.Learned:
    """What the report tells of a lesson."""
    data = lesson.config.data
    return report.Learned(
        num_clips=data.num_clips,
        num_steps=lesson.config.schedule.iterations,
        seconds=lesson.seconds,
        first_bound=lesson.snapshots[0].bound,
        held_out_bound=lesson.held_out_bound,
    )


def count_objects(model: Model, clips: Clips) -> Iterator[tuple[str, float]]:
    """For each number of objects the share of clips in which a model that is not told finds it."""
    counts = clips.num_objects
    assert counts is not None
    for count in sorted(set(counts.tolist())):
        own = clips[(counts == count).nonzero()[:, 0]]
        found = infer(model, own.frames.float()).num_objects
        yield str(count), float((found == count).double().mean())


def demo_world(config: RunConfig) -> World:
    """The paper's world in the model's frames, long enough to have a gap in the middle."""
    num_frames = max(config.data.num_frames, 3 * NUM_CONTEXT)
    return World(num_frames, (config.data.height, config.data.width))


def make_folder(folder: Path) -> None:
    """Makes the folder unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"got {folder}; expected a folder that can be made ({error.strerror}); choose another"
        ) from None


def portable_environment() -> dict[str, Any]:
    """Versions and machine; not the command, which may name paths."""
    return {k: v for k, v in environment(torch.device("cpu")).items() if k != "command"}


def draw_pictures(model: Model, clips: Clips, seed: int) -> Iterator[tuple[str, bytes]]:
    """Every picture of the report with its name, one after the other."""
    examples = ask_examples(model, first_of_each_count(clips))
    middle, (truth, _, ahead, between) = examples[len(examples) // 2], examples[-1]
    yield "animation", pictures.animation([truth, ahead, between])
    num_frames = len(truth.frames)
    times = np.linspace(0, num_frames - 1, NUM_TIMES).round().astype(int).tolist()
    yield "strip", pictures.png(pictures.strip(middle, times))
    yield "trajectories", pictures.png(pictures.trajectories(examples))
    rows = [[(view.style.label, view.mean_frames) for view in views] for views in examples]
    yield "overlays", pictures.png(pictures.overlays(rows))
    imagined = sample(model, NUM_SAMPLES, len(truth.pixels), num_frames, seed=seed).frames
    row = [(f"imagined {i + 1}", clip) for i, clip in enumerate(_array(imagined))]
    yield "samples", pictures.png(pictures.overlays([row]))
    yield "starts", pictures.png(_draw_starts(model, clips))
    yield "latent_grid", pictures.png(_draw_latent_grid(model, clips))


def first_of_each_count(clips: Clips) -> Clips:
    """The first clip with each number of objects: examples that nobody picked."""
    counts = clips.num_objects
    assert counts is not None
    firsts = [int((counts == count).nonzero()[0]) for count in sorted(set(counts.tolist()))]
    return clips[torch.tensor(firsts)]


def ask_examples(model: Model, clips: Clips) -> Examples:
    """The truth of each clip and the three answers about it, as views."""
    frames, counts = clips.frames.float(), clips.num_objects
    assert counts is not None
    num_frames = frames.shape[1]
    observed = gap_mask(num_frames)
    horizon = num_frames - NUM_CONTEXT
    answers = [
        (pictures.INFERRED, infer(model, frames, counts)),
        (pictures.FORECAST, forecast(model, frames[:, :NUM_CONTEXT], counts, horizon)),
        (pictures.INTERPOLATED, interpolate(model, frames, observed, counts)),
    ]
    return [
        [true_view(clips, i), *(view(style, answer, i) for style, answer in answers)]
        for i in range(len(frames))
    ]


def view(style: Style, answer: Answer, clip: int) -> View:
    """One clip as an answer tells it."""
    present = slice(int(answer.num_objects[clip]))
    return View(
        style=style,
        frames=_array(answer.frames[clip]),
        mean_frames=_array(answer.mean_frames[clip]),
        pixels=_array(answer.pixels[clip, present]),
        covariances=_array(answer.pixel_covariances[clip, present]),
        path=_array(answer.path_pixels[clip, present]),
        path_covariances=_array(answer.path_pixel_covariances[clip, present]),
        observed=_array(answer.observed[clip]),
    )


def rows_of_starts(names: Sequence[str], found: Starts) -> list[report.Start]:
    """The rows of the table of starts."""
    rows = (found.shares.tolist(), found.places.tolist(), found.steps.tolist())
    return [
        report.Start(name, share, tuple(place), tuple(step))
        for name, share, place, step in zip(names, *rows, strict=True)
    ]


def _draw_learning(lesson: TrainedRun) -> bytes:
    way = way_taken(lesson.snapshots)
    return pictures.png(
        pictures.learning(
            np.array([snapshot.step for snapshot in way]),
            np.array([snapshot.bound for snapshot in way]),
            np.stack([snapshot.glyph for snapshot in way]),
        )
    )


def _draw_starts(model: Model, clips: Clips) -> Any:
    found = learned_starts(model)
    return pictures.starts(
        model.image_size,
        *(_array(field) for field in first_points_and_steps(clips)),
        *(_array(field) for field in (found.places, found.spreads, found.steps)),
    )


def _draw_latent_grid(model: Model, clips: Clips) -> Any:
    return pictures.latent_grid(*latent_grid(model, clips))


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
