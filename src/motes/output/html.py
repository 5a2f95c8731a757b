"""The report of a demo: findings in, one self-contained HTML page out.

No scripts, no fonts and no pictures from elsewhere; every word that is not ours is escaped.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from motes.output.report_words import (
    ANSWERS,
    CAPTIONS,
    IDEAL_COVERAGE,
    LAW,
    LIMITS,
    LIMITS_HOLD_FOR,
    SCORES,
    STYLE,
)


@dataclass(frozen=True)
class Start:
    """One kind of start, in pixels: how often, where, and the step to the second frame."""

    name: str
    share: float
    place: tuple[float, float]
    step: tuple[float, float]


@dataclass(frozen=True)
class Learned:
    """How a model came to be, where that was part of the demo; bounds in nats a clip."""

    num_clips: int
    num_steps: int
    seconds: float
    first_bound: float  # of the first rough start
    held_out_bound: float  # in the end, of clips that it was not learned from


@dataclass(frozen=True)
class Findings:
    """Everything that a report tells."""

    model: str
    seed: int
    frame_size: tuple[int, int]
    num_frames: int
    num_context: int
    scores: Mapping[str, Any]  # of motes.evaluation.evaluate
    true_force: tuple[float, float]
    starts: Sequence[Start]
    pixel_map_residual: float
    pictures: Mapping[str, bytes]  # PNG or GIF files under the names of `CAPTIONS`
    environment: Mapping[str, Any]
    seconds: float
    learned: Learned | None = None  # None: the model was there before


def page(findings: Findings) -> str:
    """The report as HTML.

    Law: it refers to nothing outside of itself, and no finding can end its element
    (test_a_report_refers_to_nothing_outside, test_hostile_names_stay_text).
    """
    title = f"motes: what {findings.model} has learned"
    if findings.learned is not None:
        title = f"motes: learned from scratch in {findings.learned.seconds:.0f} seconds"
    body = [
        f"<h1>{escape(title)}</h1>",
        _what_was_asked(findings),
        _headline(findings),
        *_learning_section(findings),
        *section("See it", [_captioned(name, findings.pictures[name]) for name in ANSWERS]),
        *section("Figures of merit", [_score_section(findings)]),
        *section("The law it found", [_law_section(findings)]),
        *section("What next", [_next_section()]),
        *section("How this was made", [_origin_section(findings)]),
    ]
    return document(title, body)


def document(title: str, body: Iterable[str]) -> str:
    """A whole HTML page of parts that are HTML already; the title is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def limit(findings: Findings, name: str, count: str) -> float | None:
    """The best that can be hoped for, where that is known."""
    if name.endswith("coverage90"):
        return IDEAL_COVERAGE
    same_clips = (tuple(findings.frame_size), findings.num_frames) == LIMITS_HOLD_FOR
    if name in LIMITS and same_clips and count in ("1", "2", "3"):
        return LIMITS[name][int(count) - 1]
    return None


def _what_was_asked(findings: Findings) -> str:
    height, width = findings.frame_size
    context, total = findings.num_context, findings.num_frames
    clips = sum(column["clips"] for column in findings.scores["by_count"].values())
    watched = came = ""
    if (learned := findings.learned) is not None:
        watched = f"{learned.num_clips:,} "
        came = (
            f"<b>It was learned on this machine a moment ago, from nothing, in "
            f"{learned.num_steps} steps and {learned.seconds:.0f} seconds.</b> "
        )
    return (
        f"<p>The model has watched {watched}clips of flying balls, {width}x{height} black-and-"
        "white pixels each, and was told how many balls each clip has, but no positions and no "
        f"labels. {came}Here it meets {clips} clips it has never seen (seed {findings.seed}) and "
        "is asked these questions, without any retraining:</p><ul>"
        f"<li><b>Infer</b>: all {total} frames are shown. Where is each ball?</li>"
        f"<li><b>Forecast</b>: frames 1 to {context} are shown. What comes next?</li>"
        f"<li><b>Interpolate</b>: the first {context} and the last {context} frames are shown. "
        f"What happened in the {total - 2 * context} frames between?</li>"
        "<li><b>Sample</b>: nothing is shown. What else could happen?</li>"
        "<li><b>Count</b>: all frames are shown, and nobody says how many balls there are. How "
        "many?</li></ul>"
        '<p class="soft">The clips in the pictures are the first ones with each number of balls, '
        "not the most beautiful. The truth is used for scoring and drawing only.</p>"
    )


def _headline(findings: Findings) -> str:
    """Four numbers, each for the most balls that were scored."""
    count, scores = list(findings.scores["by_count"].items())[-1]
    cards = []
    for name in ("tracked", "noisy_rmse", "forecast_rmse", "interpolation_rmse"):
        label, unit, _, form = SCORES[name]
        best = limit(findings, name, count)
        beside = f"; limit {best:{form}}" if best is not None else ""
        cards.append(
            f'<div class="card">{escape(label)}<b>{scores[name]:{form}}</b>'
            f'<span class="soft">{escape(unit)}{beside}</span></div>'
        )
    balls = "ball" if count == "1" else "balls"
    return f'<h2>With {count} {balls} in a clip</h2><div class="cards">{"".join(cards)}</div>'


def _learning_section(findings: Findings) -> list[str]:
    """How the model came to be, where that was just now."""
    learned = findings.learned
    if learned is None:
        return []
    words = (
        "<p>Some rough guesses at how large things are were tried first, and the best was taken. "
        f"The bound, in nats a clip, was {learned.first_bound:.0f} after the first few steps; "
        f"in the end it is {learned.held_out_bound:.0f} on clips that were kept from learning.</p>"
    )
    picture = _captioned("learning", findings.pictures["learning"])
    return section("It learned just now", [words, picture])


def _score_section(findings: Findings) -> str:
    columns = findings.scores["by_count"]
    head = ["", *(f"{count} ball{'s' * (count != '1')}" for count in columns)]
    rows = [["Clips scored", *(str(column["clips"]) for column in columns.values())]]
    for name, (label, unit, meaning, form) in SCORES.items():
        cells, word = [], "ideal" if name.endswith("coverage90") else "limit"
        for count, column in columns.items():
            best = limit(findings, name, count)
            beside = f"<small>{word} {best:{form}}</small>" if best is not None else ""
            cells.append(f"{column[name]:{form}}{beside}")
        what = f"<b>{escape(label)}</b> ({escape(unit)})<small>{escape(meaning)}</small>"
        rows.append([what, *cells])
    known = (tuple(findings.frame_size), findings.num_frames) == LIMITS_HOLD_FOR
    note = (
        "The limit is what a tracker reaches that is told the true physics and the shape of the "
        "balls."
        if known
        else "Limits are known for 48x48 clips of 30 frames only, so none stand here."
    )
    return (
        f"<p>{note} Error bars are right when 0.90 of the truth lies inside them. A few dozen "
        "clips a column: expect shares to move by a few hundredths with another seed; "
        "<code>motes evaluate</code> scores 600.</p>" + table(head, rows)
    )


def _law_section(findings: Findings) -> str:
    found, true = findings.scores["force_px_per_frame2"], findings.true_force
    force = table(
        ["Force on a ball, pixels per frame²", "to the right", "down"],
        [["found", *_numbers(found, "+.4f")], ["true", *_numbers(true, "+.4f")]],
    )
    starts = table(
        ["Kind of start", "share", "x", "y", "step right", "step down"],
        [
            [escape(s.name), f"{s.share:.2f}", *_numbers(s.place, ".1f"), *_numbers(s.step, "+.2f")]
            for s in findings.starts
        ],
    )
    return (
        "<p>The model takes for granted that things move by Newton's law under some constant "
        "force. Which force, and how shots begin, it found out by watching.</p>"
        f"{force}{starts}"
        f'<p class="soft">Places in pixels, steps in pixels from the first frame to the second. '
        "The model's coordinates are its own; they were turned into pixels without labels, by "
        "looking where it draws. Typical distance from that straight map: "
        f"{findings.pixel_map_residual:.2f} pixels.</p>"
        + "".join(_captioned(name, findings.pictures[name]) for name in LAW)
    )


def _next_section() -> str:
    commands = [
        ("make clips", "motes data --out clips.npz --gif first.gif"),
        ("tracks as a table", "motes infer clips.npz --out tracks.csv"),
        ("look ahead", "motes forecast clips.npz --seen 5 --overlay forecast.gif"),
        ("fill a gap", "motes interpolate clips.npz --hide 5:25 --overlay filled.gif"),
        ("train your own, in minutes", "motes train --preset small --out runs/small"),
        ("this report about it", "motes demo --model runs/small --out demo-small"),
    ]
    lines = "\n".join(f"{command:56s} # {why}" for why, command in commands)
    return f"<pre>{escape(lines)}</pre>"


def _origin_section(findings: Findings) -> str:
    rows = [
        ["model", escape(findings.model)],
        ["seed of the clips", str(findings.seed)],
        ["seconds of questions and pictures", f"{findings.seconds:.0f}"],
        *_learned_rows(findings.learned),
        *([escape(name), escape(str(value))] for name, value in findings.environment.items()),
    ]
    return table(["", ""], rows)


def _learned_rows(learned: Learned | None) -> list[list[str]]:
    if learned is None:
        return []
    return [
        ["seconds of learning", f"{learned.seconds:.0f}"],
        ["clips learned from", f"{learned.num_clips:,}"],
        ["steps", str(learned.num_steps)],
    ]


def section(title: str, parts: Iterable[str]) -> list[str]:
    """A heading and what stands under it."""
    return [f"<h2>{escape(title)}</h2>", *parts]


def _captioned(name: str, data: bytes) -> str:
    """A picture of the demo with its title and what to look for."""
    return figure(name, data, *CAPTIONS[name])


def figure(name: str, data: bytes, title: str, caption: str) -> str:
    """A picture inside the page, with its title and caption."""
    kind = "gif" if data.startswith(b"GIF8") else "png"
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure id="{escape(name)}"><h3>{escape(title)}</h3>'
        f'<img alt="{escape(title)}" src="{source}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers; cells are HTML already."""

    def line(cells: Sequence[str], tag: str) -> str:
        first, *others = cells
        right = "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in others)
        return f"<tr><{tag}>{first}</{tag}>{right}</tr>"

    body = "".join(line(row, "td") for row in rows)
    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _numbers(values: Iterable[float], form: str) -> list[str]:
    return [f"{value:{form}}" for value in values]
