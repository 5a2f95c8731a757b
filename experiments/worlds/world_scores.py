"""Scores in the worlds of docs/worlds.md, where objects may be hidden and frames lost.

The same questions are put to a model and to the world's oracle.
"""

import copy
import json
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from experiments.worlds.oracle import Law, predict_with_oracle
from motes.core.axes import Bool, Float, Int, Tensor
from motes.data import Clips, worlds
from motes.evaluation import metrics
from motes.evaluation.evaluate import Masks, score_clips
from motes.evaluation.metrics import clip_statistics
from motes.evaluation.predictor import Ask, ModelPredictor, Prediction, Truth, ask_predictor
from motes.evaluation.scores import StatisticsByScore
from motes.models.model import Model
from motes.queries import interpolate

TEST_SEED = 1_000_000
CONTEXT = 5  # observed frames before a forecast
FORECAST_FRAMES = 30  # of a clip, context included
# Between probabilities of a count that are taken together: near to none and to one they tell most.
COUNT_EDGES = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)

Scores = dict[str, Any]


class Task(NamedTuple):
    """The worlds of the training and of the test clips."""

    learns: str  # world of the training clips
    asks: str  # world of the test clips
    counts: tuple[int, ...]  # of objects in test clips
    num_clips: int = 200  # for each count
    num_frames: int | None = None  # of test clips; None: the world's own
    context: int = CONTEXT
    law: Literal["newton", "linear"] = "newton"  # of motion, that is learned
    preset: str = "sprites"


TASKS: dict[str, Task] = {
    "cannonballs": Task("cannonballs", "cannonballs", (1, 2, 3)),
    "many": Task("cannonballs", "many", (5, 8), num_clips=100),
    "bar": Task("bar", "bar", (1, 2, 3)),
    # Of ten frames about five are observed.
    "drops": Task("drops", "drops", (1, 2, 3), context=10),
    "pictures": Task("pictures", "pictures", (1, 2, 3), preset="layers"),
    "colour": Task("colour", "colour", (1, 2, 3), preset="layers"),
    "weightless": Task("weightless", "weightless", (1, 2, 3)),
    "wind": Task("wind", "wind", (1, 2, 3)),
    "drag": Task("drag", "drag", (1, 2, 3), law="linear"),
    # Without a law of its own a floor is best taken for a spring.
    "bounce": Task("bounce", "bounce", (1, 2, 3), law="linear"),
    "long": Task("long", "long", (1, 2, 3), num_clips=4, num_frames=3000, law="linear"),
}
# Numbers of objects in clips whose number is to be inferred; all are equally frequent, as the
# probabilities take them to be; of 1 to 5 too many can be claimed as well as too few.
COUNTED = (1, 2, 3, 4, 5, 6)


def observed_of(clips: Clips) -> Bool[Tensor, "B T"]:
    """Return which frames of clips were recorded."""
    if clips.observed is not None:
        return clips.observed
    return torch.ones(len(clips), clips.video.shape[1], dtype=torch.bool)


def ask_model(model: Model) -> Ask:
    """Return the function that asks a model."""
    return ask_predictor(ModelPredictor(model))


def ask_oracle(law: Law) -> Ask:
    """Return the function that asks a world's oracle, which is given positions instead of frames.

    Positions are rounded to pixels unless frames have grey levels, which determine fractions.
    """

    def ask(truth: Truth, observed: Bool[Tensor, "*B T"]) -> Prediction:
        exact = bool(((truth.frames != 0) & (truth.frames != 1)).any())
        points = truth.noisy if exact else truth.noisy.round()
        there = truth.visible & observed.expand(truth.visible[:, 0].shape)[:, None]
        return predict_with_oracle(torch.where(there[..., None], points, torch.nan), law)

    return ask


def in_order(prediction: Prediction, truth: Truth) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return pixels, path and their covariances, objects matched to the truth by their paths."""
    pixels, covariances = prediction.pixels, prediction.pixel_covariances
    path, path_covariances = prediction.path_pixels, prediction.path_pixel_covariances
    assert pixels is not None
    assert covariances is not None
    assert path is not None
    assert path_covariances is not None
    order = metrics.best_order(path, truth.clean)
    return (
        metrics.reorder(pixels, order),
        metrics.reorder(covariances, order),
        metrics.reorder(path, order),
        metrics.reorder(path_covariances, order),
    )


def world_query_scores(
    name: str, prediction: Prediction, truth: Truth, shown: Bool[Tensor, " T"]
) -> StatisticsByScore:
    """Return the scores of one query; objects are matched by their paths.

    Hidden objects and lost frames are scored apart from visible ones.
    """
    pixels, covariances, path, path_covariances = in_order(prediction, truth)
    path_squares = squares(path, truth.clean)
    covered = inside(pixels, covariances, truth.noisy)
    if name == "forecast":
        return {
            "forecast_rmse": clip_statistics(path_squares[..., ~shown], root=True),
            "forecast_coverage90": clip_statistics(covered[..., ~shown]),
        }
    observed = truth.visible
    path_covered = inside(path, path_covariances, truth.clean)
    pixel_squares = squares(pixels, truth.noisy)
    return {
        "tracked": clip_statistics(metrics.tracked(pixels, truth.noisy).double()),
        "noisy_rmse": clip_statistics(pixel_squares.where(observed, torch.nan), root=True),
        "path_rmse": clip_statistics(path_squares, root=True),
        "hidden_rmse": clip_statistics(path_squares.where(~observed, torch.nan), root=True),
        "coverage90": clip_statistics(covered.where(observed, torch.nan)),
        "hidden_coverage90": clip_statistics(covered.where(~observed, torch.nan)),
        "path_coverage90": clip_statistics(path_covered),
    }


def first_frames(clips: Clips, num_frames: int) -> Clips:
    """Return the beginning of clips."""
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
    """Return squared distances."""
    return (estimate - truth).double().square().sum(-1)


def inside(
    estimate: Float[Tensor, "B N T 2"],
    covariances: Float[Tensor, "B N T 2 2"],
    truth: Float[Tensor, "B N T 2"],
) -> Float[Tensor, "B N T"]:
    """Return 1 where the truth lies in the 90 % ellipse of an estimate, else 0."""
    return metrics.inside(metrics.squared_distance(estimate, covariances, truth), 0.9)


def score(ask: Ask, clips: Clips, count: int, task: Task) -> Scores:
    """Return the scores of clips with the same number of objects."""
    short = first_frames(clips, min(clips.video.shape[1], FORECAST_FRAMES))

    def everything(start: int, num_frames: int) -> Masks:
        return {"infer": torch.ones(num_frames, dtype=torch.bool)}

    def beginning(start: int, num_frames: int) -> Masks:
        return {"forecast": torch.arange(num_frames) < task.context}

    found = score_clips(ask, clips, everything, world_query_scores)[count]
    lost = (found["tracked"].totals == 0).nonzero()[:, 0].tolist()
    found |= score_clips(ask, short, beginning, world_query_scores)[count]
    scores = {
        name: round(float(metrics.score(statistics)), 4)
        for name, statistics in found.items()
        if bool(statistics.counts.any())
    }
    return {**scores, "lost_clips": lost}


def score_world(
    name: str, ask: Ask, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """The scores of a contender in a world, for each number of objects."""
    task, by_count = TASKS[name], {}
    for count in task.counts:
        clips = unseen_clips(task, count)
        started = time.monotonic()
        scores = score(ask, clips, count, task)
        seconds = round((time.monotonic() - started) / len(clips), 3)
        by_count[str(count)] = {"clips": len(clips), "seconds_a_clip": seconds, **scores}
        report(f"{name} N = {count} {json.dumps(by_count[str(count)])}")
    return by_count


def unseen_clips(task: Task, count: int) -> Clips:
    """The clips that a task asks about."""
    return worlds.make(task.asks, task.num_clips, count, task.num_frames, seed=TEST_SEED)


def believed_counts(
    model: Model, frames: Float[Tensor, "B T height width"], num_seen: int
) -> Float[Tensor, "B counts"]:
    """How probable every number of objects is held after the first frames."""
    wider = copy.copy(model)  # the same weights, for more objects
    wider.max_objects = max(COUNTED)
    observed = torch.arange(frames.shape[1]) < num_seen
    probabilities = interpolate(wider, frames, observed).count_probabilities
    assert probabilities is not None
    return probabilities


def count_scores(believed: Float[Tensor, "B counts"], truth: Int[Tensor, " B"]) -> dict[str, Any]:
    """How often the number of objects is found, and how far its probabilities can be believed."""
    right = believed.argmax(1) + 1 == truth
    nats = -believed.gather(1, truth[:, None] - 1).clamp(min=1e-300).log()
    return {
        "clips": len(truth),
        "accuracy": float(right.double().mean()),
        "mean_said": float(believed.amax(1).mean()),
        "by_count": {str(n): float(right[truth == n].double().mean()) for n in COUNTED},
        "nats": float(nats.mean()),
        "reliability": reliability(believed, truth),
        "wrong_clips": (~right).nonzero()[:, 0].tolist(),
    }


def reliability(believed: Float[Tensor, "B counts"], truth: Tensor) -> list[dict[str, float]]:
    """For every count of every clip: how probable it was said to be, and how often it was so."""
    happened = torch.arange(1, believed.shape[1] + 1) == truth[:, None]
    place = torch.bucketize(believed, torch.tensor(COUNT_EDGES, dtype=believed.dtype))
    table = []
    for k in range(len(COUNT_EDGES) + 1):
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
