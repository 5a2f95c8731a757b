"""The HTML report of `motes demo`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from motes.evaluation.evaluate import NUM_CONTEXT
from motes.evaluation.labels import SCORES
from motes.output.html import (
    count_name,
    document,
    figure,
    force_table,
    initial_state_table,
    section,
    table,
)

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
