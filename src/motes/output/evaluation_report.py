"""The report of an evaluation: one self-contained HTML page for a person.

What was asked, the table against baselines and limits, figures, the clips that went wrong, and how
to get the same page again.
"""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import torch

from motes.data import Clips
from motes.evaluation import metrics
from motes.evaluation.labels import CONTENDERS, HEADS, TABLE, form_of
from motes.evaluation.latent_grid import latent_grid
from motes.models.model import Model
from motes.output import evaluation_plots as own
from motes.output import plots as pictures
from motes.output.demo import ask_examples
from motes.output.html import document, figure, section, table

Record = dict[str, Any]
MEANINGS = {
    "tracked": "share of clips in which every ball stays within 4 pixels of the truth throughout",
    "IDF1": "share of positions within 2 pixels under one identity for the whole clip",
    "position, path": "pixels from the ball as drawn, and from the path before noise shook it",
    "forecast": "pixels from the true path in frames 6 to 30, after 5 frames",
    "forecast loss": "nats a pixel: surprise at the true frames to come",
    "gap": "pixels from the true path in the hidden frames between the first and last 5",
    "90 %": "share of the truth inside the 90 % ellipses: 0.90 is right, less is over-confident",
}


def page(
    model: Model, clips: Clips, record: Record, stored: Mapping[str, Record], command: str
) -> str:
    """The report as HTML.

    Args:
        model: That was scored.
        clips: That it was scored on.
        record: Of `motes evaluate`.
        stored: Records of contenders; those of the same clips stand beside it.
        command: That makes this page.

    Law: it refers to nothing outside of itself (test_a_scorecard_refers_to_nothing_outside).
    """
    name = Path(record["model"]).name
    same = _comparable(record, stored)
    body = [
        f"<h1>{escape(f'motes: how {name} scores')}</h1>",
        _asked(record),
        *section("Against baselines and limits", _standing(name, record, same)),
        *section("Figures", _figures(model, clips, name, record, same)),
        *section("The law it found", [_law(record)]),
        *section("Clips that went wrong", _worst(model, clips, record)),
        *section("How to get this page again", [_origin(record, command)]),
    ]
    return document(f"motes: how {name} scores", body)


def _comparable(record: Record, stored: Mapping[str, Record]) -> dict[str, Record]:
    """Records of other contenders on the very clips of this one."""
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


def _asked(record: Record) -> str:
    clips = sum(column["clips"] for column in record["by_count"].values())
    height, width = record["frame_size"]
    origin = f"seed {record['test_seed']}" if record["test_seed"] is not None else "from a file"
    return (
        f"<p>{clips} clips of {record['num_frames']} frames, {width}x{height} pixels ({origin}), "
        "none of which training saw. Three questions, without retraining: where is each ball, all "
        "frames seen; where will it be, 5 frames seen; where was it, the middle hidden. The model "
        "is told how many balls a clip has and nothing else. Truth is used for scoring alone. "
        "± is one standard error, from clips drawn anew with replacement.</p>"
    )


def _standing(name: str, record: Record, others: Mapping[str, Record]) -> Iterator[str]:
    """A table for each number of objects: this model first."""
    rows = {f"<b>{escape(name)}</b>": record}
    rows |= {escape(CONTENDERS[other]): found for other, found in others.items()}
    if not others:
        yield (
            "<p>No baseline is stored for these clips. Get them with <code>motes evaluate limit "
            "--out results/limit.json</code> and the like, on the same clips.</p>"
        )
    for count in record["by_count"]:
        balls = f"{count} ball{'s' * (count != '1')}"
        lines = []
        for title, found in rows.items():
            values, errors = found["by_count"][count], found["standard_errors"][count]
            lines.append([title, *(_cell(values, errors, score) for score in TABLE)])
        yield table([balls, *(HEADS[score] for score in TABLE)], lines)
    meanings = "".join(f"<li><b>{n}</b>: {escape(m)}</li>" for n, m in MEANINGS.items())
    yield f"<ul class='soft'>{meanings}</ul>"


def _cell(values: Record, errors: Record, score: str) -> str:
    if score not in values:
        return ""
    form = form_of(score)
    return f"{values[score]:{form}}<small>± {errors[score]:{form}}</small>"


def _figures(
    model: Model, clips: Clips, name: str, record: Record, others: Mapping[str, Record]
) -> Iterator[str]:
    drawn = own.horizon({name: record, **others})
    caption = (
        "Error of the path above, surprise of the picture below; bands are two standard errors."
    )
    yield figure("horizon", pictures.png(drawn), "The further ahead, the harder", caption)
    caption = (
        "How often the truth lies in a region against the probability that the model gives it. On "
        "the diagonal error bars are honest, below it they are too narrow."
    )
    drawn = own.reliability(record)
    yield figure("reliability", pictures.png(drawn), "Are the error bars honest?", caption)
    caption = (
        "One ball drawn over a grid of the model's own coordinates, and where it landed. A sound "
        "map is a straight mesh wherever real balls flew (grey)."
    )
    drawn = pictures.latent_grid(*latent_grid(model, clips))
    yield figure("latent_grid", pictures.png(drawn), "Is the inner map of space sound?", caption)


def _law(record: Record) -> str:
    found, true = record["force_px_per_frame2"], record["true_force_px_per_frame2"]
    force = table(
        ["Force, pixels per frame²", "to the right", "down"],
        [
            ["found", *(f"{value:+.4f}" for value in found)],
            ["true", *(f"{value:+.4f}" for value in true)],
        ],
    )
    rows = []
    for kind, word in (("starts", "found"), ("true_starts", "true")):
        part = record[kind]
        for share, place, step in zip(part["shares"], part["places"], part["steps"], strict=True):
            numbers = (*(f"{value:.1f}" for value in place), *(f"{value:+.2f}" for value in step))
            rows.append([word, f"{share:.2f}", *numbers])
    starts = table(["Kinds of start", "share", "x", "y", "step right", "step down"], rows)
    beliefs = [
        [
            f"{count} ball{'s' * (count != '1')}, {part['clips']} clips",
            *(f"{part[n]['value']:.1f}" for n in ("bound", "weighted_bound")),
            f"{part['count_right']['value']:.3f}",
        ]
        for count, part in record.get("beliefs", {}).items()
    ]
    head = ["Beliefs", "bound, nats a clip", "importance-weighted", "count inferred rightly"]
    return force + starts + (table(head, beliefs) if beliefs else "")


def _worst(model: Model, clips: Clips, record: Record) -> Iterator[str]:
    """The clips with the largest error of a position, animated."""
    indices = record["worst_clips"]
    yield (
        "<p>The clips in which some inferred position is furthest from the truth, the worst first. "
        "Left the truth, then what the model inferred from all frames, and what it forecast from "
        "five.</p>"
    )
    for index, views in zip(
        indices, ask_examples(model, clips[torch.tensor(indices)]), strict=True
    ):
        moving = pictures.animation(views[:3], scale=4)
        title = f"Clip {index}, {len(views[0].pixels)} ball{'s' * (len(views[0].pixels) > 1)}"
        yield figure(f"clip-{index}", moving, title, _trouble(views[0], views[1]))


def _trouble(truth: pictures.View, told: pictures.View) -> str:
    """In words, where the largest error is, and whether another estimate is where it should be."""
    estimate, true = (torch.from_numpy(view.pixels)[None].float() for view in (told, truth))
    own = metrics.reorder(estimate, metrics.best_order(estimate, true))
    errors = (own - true).norm(dim=-1)[0]
    ball, frame = divmod(int(errors.argmax()), errors.shape[1])
    words = f"Largest error: {errors[ball, frame]:.1f} pixels, in frame {frame + 1}."
    others = (estimate[0, :, frame] - true[0, ball, frame]).norm(dim=-1)
    if errors[ball, frame] > metrics.GATE and others.min() <= metrics.GATE:
        words += " Another estimate is there: two balls were taken for one another."
    return words


def _origin(record: Record, command: str) -> str:
    place = record["environment"]
    rows = [
        [escape(name), escape(str(place[name]))]
        for name in ("motes_commit", "python", "torch", "system", "processor", "threads")
    ]
    return f"<pre>{escape(command)}</pre>" + table(["", ""], rows)
