"""Scores in the worlds of docs/worlds.md, where objects may be hidden and frames lost.

The same questions are put to a model and to the world's oracle.
"""

import copy
import json
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from oracle import Law, Tracks, predict_with_oracle

from motes.core.axes import Bool, Float, Int, Tensor
from motes.data import Clips, worlds
from motes.evaluation import metrics
from motes.models.model import Model
from motes.queries import infer, interpolate
from motes.queries.answer import Answer

TEST_SEED = 1_000_000
BATCH = 50
CONTEXT = 5  # frames seen before a forecast
# Between probabilities of a count that are taken together: near to none and to one they tell most.
COUNT_EDGES = (0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)

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
    law: Literal["newton", "linear"] = "newton"  # of motion, that is learned
    preset: str = "robust"  # of the structured family


TASKS: dict[str, Task] = {
    "cannonballs": Task("cannonballs", "cannonballs", (1, 2, 3)),
    "many": Task("cannonballs", "many", (5, 8), num_clips=100),
    "bar": Task("bar", "bar", (1, 2, 3)),
    # Of ten frames about five were seen.
    "drops": Task("drops", "drops", (1, 2, 3), context=10),
    "pictures": Task("pictures", "pictures", (1, 2, 3), preset="pictures"),
    "colour": Task("colour", "colour", (1, 2, 3), preset="pictures"),
    "weightless": Task("weightless", "weightless", (1, 2, 3)),
    "wind": Task("wind", "wind", (1, 2, 3)),
    "drag": Task("drag", "drag", (1, 2, 3), law="linear"),
    # Without a law of its own a floor is best taken for a spring.
    "bounce": Task("bounce", "bounce", (1, 2, 3), law="linear"),
    "long": Task("long", "long", (1, 2, 3), num_clips=4, num_frames=3000, law="linear"),
}
# Objects in the clips whose number is not told. All are asked about and equally frequent, as the
# probabilities take them to be; of 1 to 5 too many can be claimed as well as too few.
COUNTED = (1, 2, 3, 4, 5, 6)


def shown(clips: Clips) -> Bool[Tensor, "B N T"]:
    """Where an object of the truth shows in a frame that was seen."""
    assert clips.positions is not None
    there = ~clips.positions.isnan().any(-1)
    if clips.visible is not None:
        there = there & clips.visible
    return there if clips.observed is None else there & clips.observed[:, None]


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
        return infer(model, frames, count)
    return interpolate(model, frames, observed, count)


def ask_law(law: Law, clips: Clips, count: int, seen_until: int | None) -> Tracks:
    """The oracle's answer to the same question."""
    assert clips.positions is not None
    exact = isinstance(clips.video, Tensor)  # pictures tell more than a pixel
    points = clips.positions if exact else clips.positions.round()
    there = shown(clips)
    if seen_until is not None:
        there = there & (torch.arange(points.shape[2]) < seen_until)
    return predict_with_oracle(torch.where(there[..., None], points, torch.nan)[:, :count], law)


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
    return metrics.inside(metrics.squared_distance(estimate, covariances, truth), 0.9)


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
    asked = copy.copy(model)  # the same weights, asked about more objects
    asked.max_objects = max(COUNTED)
    seen = torch.arange(frames.shape[1]) < num_seen
    told = interpolate(asked, frames, seen).count_probabilities
    assert told is not None
    return told


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
