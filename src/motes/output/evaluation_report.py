"""The HTML report of `motes evaluate`."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import torch

from motes.data import Clips
from motes.evaluation import metrics
from motes.evaluation.labels import PREDICTORS, SCORES, TABLE, Record
from motes.evaluation.learned import latent_grid
from motes.models.model import Model
from motes.output import plots
from motes.output.figures import example_views
from motes.output.html import (
    count_name,
    document,
    figure,
    force_table,
    initial_state_table,
    section,
    table,
)


def evaluation_page(
    model: Model, clips: Clips, record: Record, stored: Mapping[str, Record], command: str
) -> str:
    """Return the report as HTML.

    Args:
        model: The model that was scored.
        clips: The clips it was scored on.
        record: The record of `motes evaluate`.
        stored: Records of other predictors; those on the same clips are shown beside it.
        command: The command that makes this page.

    Law: it refers to nothing outside of itself (test_a_scorecard_refers_to_nothing_outside).
    """
    name = Path(record["model"]).name
    same = _comparable(record, stored)
    body = [
        _evaluation_introduction(record),
        *section("Scores beside baselines", _score_tables(name, record, same)),
        *section("Figures", _figures(model, clips, name, record, same)),
        *section("The learned physics", [_physics(record)]),
        *section("Worst clips", _worst(model, clips, record)),
        *section("How this page was made", [_origin(record, command)]),
    ]
    return document(f"motes evaluate: {name}", body)


def _comparable(record: Record, stored: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records of other predictors on the same clips."""
    if record["test_seed"] is None:
        return {}
    keys = ("test_seed", "frame_size", "num_frames")
    clips = {count: column["clips"] for count, column in record["by_count"].items()}
    return {
        name: other
        for name, other in stored.items()
        if all(other[key] == record[key] for key in keys)
        and {count: column["clips"] for count, column in other["by_count"].items()} == clips
        and name != record["model"]
    }


def _evaluation_introduction(record: Record) -> str:
    clips = sum(column["clips"] for column in record["by_count"].values())
    height, width = record["frame_size"]
    origin = f"seed {record['test_seed']}" if record["test_seed"] is not None else "from a file"
    return (
        f"<p>{clips} clips of {record['num_frames']} frames, {width}x{height} pixels ({origin}), "
        "none of them used in training. Three queries, without retraining: infer where each "
        "object is from all frames; forecast from the first 5 frames; interpolate with the middle "
        "hidden. The model is given the frames and the number of objects. The truth is used for "
        "scores only. ± is one standard error, from bootstrap resamples of the clips.</p>"
    )


def _score_tables(name: str, record: Record, others: Mapping[str, Record]) -> Iterator[str]:
    """Yield a table for each number of objects, this model first."""
    rows = {f"<b>{escape(name)}</b>": record}
    rows |= {escape(PREDICTORS[other].label): found for other, found in others.items()}
    if not others:
        yield (
            "<p>No record of a baseline on these clips was found. To add one, run <code>motes "
            "evaluate limit --out FOLDER/limit.json</code> on the same clips, then give "
            "<code>--baselines FOLDER</code>.</p>"
        )
    for count in record["by_count"]:
        lines = []
        for title, found in rows.items():
            values, errors = found["by_count"][count], found["standard_errors"][count]
            lines.append([title, *(_cell(values, errors, score) for score in TABLE)])
        yield table([count_name(count), *(SCORES[score].heading for score in TABLE)], lines)
    meanings = "".join(
        f"<li><b>{escape(score.heading)}</b>{f' ({score.unit})' if score.unit else ''}: "
        f"{escape(score.meaning)}</li>"
        for score in (SCORES[name] for name in TABLE)
    )
    yield f"<ul class='soft'>{meanings}</ul>"


def _cell(values: Record, errors: Record, score: str) -> str:
    if score not in values:
        return ""
    form = SCORES[score].form
    error = f"<small>± {errors[score]:{form}}</small>" if score in errors else ""
    return f"{values[score]:{form}}{error}"


def _figures(
    model: Model, clips: Clips, name: str, record: Record, others: Mapping[str, Record]
) -> Iterator[str]:
    drawn = plots.horizon({name: record, **others})
    caption = (
        "Above: error of the path. Below: loss of the forecast frames. Bands are two standard "
        "errors."
    )
    yield figure("horizon", plots.png(drawn), "Forecasts against the horizon", caption)
    drawn = plots.reliability(record)
    caption = (
        "How often the truth lies in a region, against the probability the model assigns to it. "
        "On the diagonal error bars are calibrated; below it they are too narrow."
    )
    yield figure("reliability", plots.png(drawn), "Calibration of error bars", caption)
    caption = (
        "One object drawn at each node of a grid of latent positions, and where it appears. The "
        "mesh should be straight wherever there are true positions (grey)."
    )
    drawn = plots.latent_grid(*latent_grid(model, clips))
    yield figure("latent_grid", plots.png(drawn), "Latent space", caption)


def _physics(record: Record) -> str:
    force = force_table(record["force_px_per_frame2"], record["true_force_px_per_frame2"])
    states = initial_state_table(
        (word, share, place, step)
        for kind, word in (("starts", "learned"), ("true_starts", "true"))
        for share, place, step in zip(
            *(record[kind][name] for name in ("shares", "places", "steps")), strict=True
        )
    )
    bounds = [
        [
            f"{count_name(count)}, {part['clips']} clips",
            *(f"{part[name]['value']:.1f}" for name in ("bound", "weighted_bound")),
            f"{part['count_right']['value']:.3f}",
        ]
        for count, part in record.get("beliefs", {}).items()
    ]
    head = ["Bounds and counts", "ELBO, nats per clip", "importance-weighted", "count correct"]
    return force + states + (table(head, bounds) if bounds else "")


def _worst(model: Model, clips: Clips, record: Record) -> Iterator[str]:
    """Yield animations of the clips with the largest error of a position."""
    indices = record["worst_clips"]
    yield (
        "<p>The clips with the largest error of an inferred position, the worst first. Left: the "
        "truth; then the answers inferred from all frames and forecast from the first 5.</p>"
    )
    for index, views in zip(
        indices, example_views(model, clips[torch.tensor(indices)]), strict=True
    ):
        moving = plots.animation(views[:3], scale=4)
        title = f"Clip {index}, {count_name(len(views[0].pixels))}"
        yield figure(f"clip-{index}", moving, title, _describe_error(views[0], views[1]))


def _describe_error(truth: plots.View, inferred: plots.View) -> str:
    """Describe the largest error, and whether another estimate is at the true position."""
    estimate, true = (torch.from_numpy(view.pixels)[None].float() for view in (inferred, truth))
    matched = metrics.reorder(estimate, metrics.best_order(estimate, true))
    errors = (matched - true).norm(dim=-1)[0]
    n, frame = divmod(int(errors.argmax()), errors.shape[1])
    words = f"Largest error: {errors[n, frame]:.1f} pixels, in frame {frame + 1}."
    others = (estimate[0, :, frame] - true[0, n, frame]).norm(dim=-1)
    if errors[n, frame] > metrics.GATE and others.min() <= metrics.GATE:
        words += " Another estimate is there: two objects were confused."
    return words


def _origin(record: Record, command: str) -> str:
    place = record["environment"]
    rows = [
        [escape(name), escape(str(place[name]))]
        for name in ("motes_commit", "python", "torch", "system", "processor", "threads")
    ]
    return f"<pre>{escape(command)}</pre>" + table(["", ""], rows)
