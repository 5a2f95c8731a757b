"""HTML reports: a builder of self-contained pages, and the pages of `motes evaluate` and `demo`.

Pages have no scripts and load no fonts or images from elsewhere. Titles, captions and names are
text and are escaped; table cells and parts are HTML.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch

from motes.data import Clips
from motes.evaluation import metrics
from motes.evaluation.evaluate import NUM_CONTEXT
from motes.evaluation.labels import PREDICTORS, SCORES, TABLE, Record
from motes.evaluation.learned import latent_grid
from motes.models.model import Model
from motes.output import plots
from motes.output.figures import example_views

STYLE = """
:root { color-scheme: light dark; --text: #1d1d1f; --soft: #5d5d66; --page: #fbfbfd; --card: #fff;
  --line: #d9d9e0; --accent: #0069a3 }
@media (prefers-color-scheme: dark) { :root { --text: #ececf1; --soft: #a5a5b0; --page: #141416;
  --card: #1f1f23; --line: #38383f; --accent: #6db3ff } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--text); font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.9rem; margin: 0 } h2 { margin: 2.8rem 0 .6rem; font-size: 1.35rem }
h3 { margin: 0 0 .5rem; font-size: 1.05rem } p { max-width: 46rem } a { color: var(--accent) }
.soft, figcaption, small { color: var(--soft) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: .7rem;
  padding: .9rem 1rem; margin: 0 }
.card b { display: block; font-size: 1.7rem; line-height: 1.2 }
figure { margin: 1rem 0 } figcaption { font-size: .93rem; margin-top: .6rem }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff;
  border-radius: .4rem }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; width: 100%; font-size: .93rem }
th, td { text-align: left; padding: .45rem .42rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
td small { display: block } .number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap } th.number { white-space: normal }
td:first-child { min-width: 9rem }
@media (max-width: 40rem) { figure { overflow-x: auto } figcaption { position: sticky; left: 0 }
  img { max-width: none; width: 44rem } :is(#animation, #initial-states) img { max-width: 100% } }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: .7rem; padding: .8rem 1rem; font-size: .9rem }
"""


def document(title: str, body: Iterable[str]) -> str:
    """Return a whole page with a heading and parts that are HTML already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def section(title: str, parts: Iterable[str]) -> list[str]:
    """Return a heading and the parts under it."""
    return [f"<h2>{escape(title)}</h2>", *parts]


def figure(name: str, data: bytes, title: str, caption: str) -> str:
    """Return a PNG or GIF inside the page, with its title and caption."""
    kind = "gif" if data.startswith(b"GIF8") else "png"
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure id="{escape(name)}"><h3>{escape(title)}</h3>'
        f'<img alt="{escape(title)}" src="{source}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers; cells are HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        first, *others = cells
        right = "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in others)
        return f"<tr><{tag}>{first}</{tag}>{right}</tr>"

    body = "".join(line(row, "td") for row in rows)
    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def count_name(count: str | int) -> str:
    """Return "1 object", "2 objects" and so on."""
    return f"{count} object{'s' * (str(count) != '1')}"


def force_table(learned: Iterable[float], true: Iterable[float]) -> str:
    """Return the learned and the true force, (x, y) in pixels per frame squared."""
    rows = [["learned", *numbers(learned, "+.4f")], ["true", *numbers(true, "+.4f")]]
    return table(["Force, pixels per frame²", "right", "down"], rows)


def initial_state_table(
    rows: Iterable[tuple[str, float, Sequence[float], Sequence[float]]],
) -> str:
    """Return initial states in pixels: name, share, position and step to the second frame."""
    return table(
        ["Initial states, pixels", "share", "x", "y", "step right", "step down"],
        [
            [escape(name), f"{share:.2f}", *numbers(place, ".1f"), *numbers(step, "+.2f")]
            for name, share, place, step in rows
        ],
    )


def numbers(values: Iterable[float], form: str) -> list[str]:
    """Return numbers as text."""
    return [f"{value:{form}}" for value in values]


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


# Scores of the baseline `limit`, which is given the true physics and the shape of the objects,
# for 1, 2 and 3 objects, on 600 clips of 48x48 pixels and 30 frames.
LIMITS_HOLD_FOR = ((48, 48), 30)
LIMITS: dict[str, tuple[float, float, float]] = {
    "tracked": (1.000, 1.000, 1.000),
    "noisy_rmse": (0.385, 0.391, 0.402),
    "path_rmse": (0.304, 0.291, 0.291),
    "forecast_rmse": (2.120, 2.266, 2.210),
    "interpolation_rmse": (0.391, 0.406, 0.497),
    "forecast_loss": (0.0134, 0.0267, 0.0372),
}
IDEAL_COVERAGE = 0.9
SHOWN = (
    *("tracked", "noisy_rmse", "path_rmse", "forecast_rmse", "interpolation_rmse"),
    *("forecast_loss", "forecast_loss_of_mean", "count_right", "infer_coverage90"),
    *("path_coverage90", "forecast_coverage90", "interpolation_coverage90"),
)

# Title and caption of every figure.
CAPTIONS: dict[str, tuple[str, str]] = {
    "training": (
        "Training",
        "Above: the sprite the model draws for one object, from the first steps to the last; its "
        "shape is learned from the clips. Below: the ELBO, a lower bound of the log-likelihood of "
        "the training clips. What to look for: a blur that becomes a disk, and a curve that rises "
        "and levels off.",
    ),
    "animation": (
        "One clip, three views",
        "Left: the true clip. Middle: only the first 5 frames are shown to the model, the rest is "
        "a forecast. Right: the middle is hidden. A coloured border marks frames the model does "
        "not see; the blur and the 90 % ellipses show its uncertainty. What to look for: ellipses "
        "that grow while frames are hidden, and objects that stay inside them.",
    ),
    "strip": (
        "Frame by frame",
        "Each row is the same clip; coloured borders mark hidden frames. What to look for: "
        "forecasts that are wide but in the right place, and a gap that narrows again towards "
        "the last frames.",
    ),
    "trajectories": (
        "Tracks",
        "In pixels. Black: the true path, starting at the circle. Colour: the model's path, with "
        "markers in observed frames and 90 % ellipses in hidden ones. One row for each number of "
        "objects. What to look for: black lines that stay inside the coloured ellipses.",
    ),
    "overlays": (
        "Whole clips in one image",
        "All frames of a clip in one image, later ones lighter. Left: the truth; then the frames "
        "drawn from the model's mean path, as in the paper's figures. What to look for: the same "
        "arcs.",
    ),
    "samples": (
        "Samples",
        "Clips drawn from the model without any input: initial states, motion and frames. What to "
        "look for: arcs like those of real clips, from both sides.",
    ),
    "initial-states": (
        "Initial states",
        "Grey: true initial states, with arrows for four frames of motion. Blue: the learned "
        "initial-state components with 90 % ellipses. What to look for: one component on each "
        "side, its arrow along the grey ones.",
    ),
    "latent-grid": (
        "Latent space",
        "One object drawn at each node of a regular grid of latent positions. Left: the frames. "
        "Right: where the object appears. What to look for: a straight blue mesh wherever there "
        "are true positions (grey dots). A folded cell (red, hatched) means that two positions "
        "look alike to the model. Corners that no object visits do not matter.",
    ),
}
ANSWERS = ("animation", "strip", "trajectories", "overlays", "samples")
PHYSICS = ("initial-states", "latent-grid")
COMMANDS = (
    ("make clips", "motes data --out clips.npz --gif first.gif"),
    ("write tracks to a table", "motes infer clips.npz --out tracks.csv"),
    ("forecast", "motes forecast clips.npz --seen 5 --overlay forecast.gif"),
    ("fill a gap", "motes interpolate clips.npz --hide 5:25 --overlay filled.gif"),
    ("train a model in minutes", "motes train --preset small --out runs/small"),
    ("write this report for it", "motes demo --model runs/small --out demo-small"),
)


class InitialState(NamedTuple):
    """One initial-state component in pixels: share, position, step to the second frame."""

    name: str
    share: float
    place: tuple[float, float]
    step: tuple[float, float]


@dataclass(frozen=True)
class TrainingSummary:
    """How the model was trained, if the demo trained it; bounds in nats per clip."""

    num_clips: int
    num_steps: int
    seconds: float
    first_bound: float  # after the first steps of the first restart
    held_out_bound: float  # at the end, on held-out clips


@dataclass(frozen=True)
class Findings:
    """The contents of a report."""

    model: str
    seed: int
    frame_size: tuple[int, int]
    num_frames: int
    scores: Mapping[str, Any]  # the record of motes.evaluation.evaluate
    true_force: tuple[float, float]
    initial_states: Sequence[InitialState]
    pixel_map_residual: float
    figures: Mapping[str, bytes]  # PNG or GIF files by the names of `CAPTIONS`
    environment: Mapping[str, Any]
    seconds: float
    training: TrainingSummary | None = None  # None: the model existed before


def demo_page(findings: Findings) -> str:
    """Return the report as HTML.

    Law: it refers to nothing outside of itself, and no finding can end its element
    (test_a_report_refers_to_nothing_outside, test_hostile_names_stay_text).
    """
    title = f"motes demo: {findings.model}"
    if findings.training is not None:
        title = f"motes demo: trained from scratch in {findings.training.seconds:.0f} seconds"
    body = [
        _demo_introduction(findings),
        _headline(findings),
        *_training_section(findings),
        *section("Answers", [_captioned(name, findings.figures[name]) for name in ANSWERS]),
        *section("Scores", [_score_section(findings)]),
        *section("The learned physics", [_physics_section(findings)]),
        *section("Next steps", [_commands()]),
        *section("How this report was made", [_origin_section(findings)]),
    ]
    return document(title, body)


def demo_limit(findings: Findings, name: str, count: str) -> float | None:
    """Return the best attainable score, where it is known."""
    if name.endswith("coverage90"):
        return IDEAL_COVERAGE
    if name in LIMITS and _limits_hold(findings) and count in ("1", "2", "3"):
        return LIMITS[name][int(count) - 1]
    return None


def _limits_hold(findings: Findings) -> bool:
    return (tuple(findings.frame_size), findings.num_frames) == LIMITS_HOLD_FOR


def _demo_introduction(findings: Findings) -> str:
    height, width = findings.frame_size
    total = findings.num_frames
    clips = sum(column["clips"] for column in findings.scores["by_count"].values())
    number = trained = ""
    if (training := findings.training) is not None:
        number = f"{training.num_clips:,} "
        trained = (
            f"<b>It was trained on this machine from scratch, in {training.num_steps} steps and "
            f"{training.seconds:.0f} seconds.</b> "
        )
    return (
        f"<p>The model was trained on {number}clips of flying balls, {width}x{height} black-and-"
        "white pixels each. It was given the number of balls in each clip, but no positions and "
        f"no labels. {trained}This report shows its answers for {clips} new clips (seed "
        f"{findings.seed}), without any retraining:</p><ul>"
        f"<li><b>Infer</b>: all {total} frames are shown. Where is each ball?</li>"
        f"<li><b>Forecast</b>: frames 1 to {NUM_CONTEXT} are shown. What comes next?</li>"
        f"<li><b>Interpolate</b>: the first {NUM_CONTEXT} and the last {NUM_CONTEXT} frames are "
        f"shown. What happens in the {total - 2 * NUM_CONTEXT} frames between?</li>"
        "<li><b>Sample</b>: nothing is shown. What could happen?</li>"
        "<li><b>Count</b>: all frames are shown. How many balls are there?</li></ul>"
        '<p class="soft">The figures show the first clip with each number of balls, without '
        "selection. The truth is used for scores and figures only.</p>"
    )


def _headline(findings: Findings) -> str:
    """Return four numbers, for the largest number of objects."""
    count, scores = list(findings.scores["by_count"].items())[-1]
    cards = []
    for name in ("tracked", "noisy_rmse", "forecast_rmse", "interpolation_rmse"):
        score, best = SCORES[name], demo_limit(findings, name, count)
        beside = f"; limit {best:{score.form}}" if best is not None else ""
        cards.append(
            f'<div class="card">{escape(score.label)}<b>{scores[name]:{score.form}}</b>'
            f'<span class="soft">{escape(score.unit)}{beside}</span></div>'
        )
    title = f"Clips with {count_name(count)}"
    return f'<h2>{title}</h2><div class="cards">{"".join(cards)}</div>'


def _training_section(findings: Findings) -> list[str]:
    training = findings.training
    if training is None:
        return []
    text = (
        "<p>Several restarts from different sprite sizes are tried first, and the best one is "
        f"continued. The ELBO, in nats per clip, is {training.first_bound:.0f} after the first "
        f"few steps and {training.held_out_bound:.0f} on held-out clips at the end.</p>"
    )
    return section("Training", [text, _captioned("training", findings.figures["training"])])


def _score_section(findings: Findings) -> str:
    columns = findings.scores["by_count"]
    head = ["", *(count_name(count) for count in columns)]
    rows = [["Clips scored", *(str(column["clips"]) for column in columns.values())]]
    for name in SHOWN:
        score, word = SCORES[name], "ideal" if name.endswith("coverage90") else "limit"
        cells = []
        for count, column in columns.items():
            best = demo_limit(findings, name, count)
            beside = f"<small>{word} {best:{score.form}}</small>" if best is not None else ""
            cells.append(f"{column[name]:{score.form}}{beside}")
        what = f"<b>{escape(score.label)}</b> ({escape(score.unit)})"
        rows.append([f"{what}<small>{escape(score.meaning)}</small>", *cells])
    note = (
        "The limit is the score of a tracker that is given the true physics and the shape of the "
        "balls."
        if _limits_hold(findings)
        else "Limits are known for 48x48 clips of 30 frames only, so none are shown here."
    )
    return (
        f"<p>{note} Error bars are calibrated when 0.90 of the truth lies inside the 90 % "
        "ellipses. With a few dozen clips per column, expect shares to change by a few hundredths "
        "from seed to seed; <code>motes evaluate</code> scores 600.</p>" + table(head, rows)
    )


def _physics_section(findings: Findings) -> str:
    return (
        "<p>The model assumes Newton's law with a constant force. The force and the initial "
        "states are learned from the clips.</p>"
        + force_table(findings.scores["force_px_per_frame2"], findings.true_force)
        + initial_state_table(findings.initial_states)
        + '<p class="soft">Positions in pixels, steps in pixels from the first frame to the '
        "second. Latent positions are converted to pixels without labels, by an affine map fitted "
        "to where the model draws objects; its typical residual is "
        f"{findings.pixel_map_residual:.2f} pixels.</p>"
        + "".join(_captioned(name, findings.figures[name]) for name in PHYSICS)
    )


def _commands() -> str:
    lines = "\n".join(f"{command:56s} # {purpose}" for purpose, command in COMMANDS)
    return f"<pre>{escape(lines)}</pre>"


def _origin_section(findings: Findings) -> str:
    rows = [
        ["model", escape(findings.model)],
        ["seed of the clips", str(findings.seed)],
        ["seconds for answers and figures", f"{findings.seconds:.0f}"],
    ]
    if (training := findings.training) is not None:
        rows += [
            ["seconds of training", f"{training.seconds:.0f}"],
            ["training clips", f"{training.num_clips:,}"],
            ["training steps", str(training.num_steps)],
        ]
    rows += ([escape(name), escape(str(value))] for name, value in findings.environment.items())
    return table(["", ""], rows)


def _captioned(name: str, data: bytes) -> str:
    return figure(name, data, *CAPTIONS[name])
