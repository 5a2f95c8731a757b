"""How scores and predictors are named, explained and drawn: in tables, reports, plots and docs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from motes.core.errors import InputError

Record = dict[str, Any]


class Score(NamedTuple):
    """The label of one score of a record."""

    heading: str  # of a column
    label: str  # of a row
    unit: str
    form: str  # of its numbers
    meaning: str


_PX, _NATS, _CLIPS, _SHARE = "pixels", "nats per pixel", "share of clips", "share"
_QUERIES = {
    "infer": ("inferred", "positions in observed frames"),
    "path": ("path", "noise-free positions in all frames"),
    "forecast": ("forecast", "positions after the first 5 frames"),
    "interpolation": ("gap", "positions in the hidden frames"),
}
SCORES: dict[str, Score] = {
    "tracked": Score("tracked", "Clips tracked throughout", _CLIPS, ".3f",
        "every object stays within 4 pixels of its true position in every frame"),
    "within2": Score("within 2 px", "Positions within 2 px", _SHARE, ".3f",
        "positions within 2 pixels of the truth, identities fixed for the clip"),
    "switches": Score("switches", "Identity switches", "per clip", ".2f",
        "how often another estimate takes over an object"),
    "idf1": Score("IDF1", "IDF1", _SHARE, ".3f",
        "positions within 2 pixels under one identity for the whole clip"),
    "noisy_rmse": Score("position", "Inferred position, RMSE", _PX, ".2f",
        "distance from the inferred position to the object as drawn"),
    "affine_noisy_rmse": Score(
        "position, aligned", "Inferred position after one affine map, RMSE", _PX, ".2f",
        "the same after the best affine map of pixels, fitted on training clips"),
    "path_rmse": Score("path", "Smoothed path, RMSE", _PX, ".2f",
        "distance to the path without observation noise"),
    "forecast_rmse": Score("forecast", "Forecast, RMSE", _PX, ".2f",
        "distance to the true path in all frames after the first 5"),
    "interpolation_rmse": Score("gap", "Hidden gap, RMSE", _PX, ".2f",
        "distance to the true path in the hidden frames between the first and last 5"),
    "forecast_loss": Score("forecast loss", "Forecast frames", _NATS, ".4f",
        "negative log-likelihood of the true frames under the predictive frames"),
    "forecast_loss_of_mean": Score(
        "loss of the mean", "Forecast frames of the mean path", _NATS, ".4f",
        "the same when only the most likely frame is drawn, as the paper does"),
    "forecast_loss_papers_unit": Score(
        "loss, paper's unit", "Forecast frames, sigmoid applied twice", _NATS, ".4f",
        "the loss in what may be the unit of the paper's figure"),
    "count_right": Score("count", "Count inferred correctly", _CLIPS, ".3f",
        "the number of objects is inferred from the frames alone"),
    **{
        f"{query}_coverage{level}": Score(
            f"{level} %: {name}", f"Truth inside {level} % region: {name}", _SHARE, ".2f",
            f"true {what} inside the {level} % ellipse; 0.{level} is right, less is over-confident")
        for level in (50, 90, 95)
        for query, (name, what) in _QUERIES.items()
    },
    **{
        f"{query}_nees": Score(f"NEES: {name}", f"NEES: {name}", "", ".2f",
            f"mean squared Mahalanobis distance of true {what}; 2 is right")
        for query, (name, what) in _QUERIES.items()
    },
    **{
        f"{query}_nll": Score(f"NLL: {name}", f"NLL: {name}", "nats", ".2f",
            f"negative log density of true {what}")
        for query, (name, what) in _QUERIES.items()
    },
}  # fmt: skip
TABLE = (
    *("tracked", "idf1", "noisy_rmse", "path_rmse", "forecast_rmse", "forecast_loss"),
    *("interpolation_rmse", "infer_coverage90", "forecast_coverage90", "interpolation_coverage90"),
)


class PredictorLabel(NamedTuple):
    """The label of a model or baseline; lines differ in grey too."""

    label: str
    short: str
    colour: str
    line: Any


# In the order of tables, by the name of a record.
PREDICTORS: dict[str, PredictorLabel] = {
    "limit": PredictorLabel(
        "limit: true physics and prior, exact posterior", "limit", "#000000", "-"),
    "cannonballs-structured": PredictorLabel(
        "ours, sprite model", "ours, sprites", "#0072b2", "--"),
    "cannonballs-48": PredictorLabel(
        "ours, the paper's networks", "ours, paper's networks", "#0e9fc4", "-."),
    "cannonballs-48-distilled": PredictorLabel(
        "ours, the paper's networks, distilled", "ours, distilled", "#0e9fc4", (0, (3, 2))),
    "ed-lstm": PredictorLabel(
        "ED-LSTM as the paper trains it, best variant", "ED-LSTM", "#d55e00", (0, (1, 1))),
    "ed-lstm-own": PredictorLabel(
        "ED-LSTM trained on its own frames (not in the paper)", "ED-LSTM, own frames", "#e69f00",
        (0, (4, 1, 1, 1))),
    "kalman": PredictorLabel(
        "disks + Kalman, true physics and prior", "disks + Kalman", "#555555", (0, (8, 2))),
    "disks-trackpy": PredictorLabel(
        "disks + trackpy's linking, best settings for each task", "disks + trackpy",
        "#cc79a7", (0, (6, 1, 1, 1))),
    "trackpy": PredictorLabel(
        "trackpy, best settings for each task", "trackpy", "#cc79a7", (0, (1, 2))),
    "known-gravity": PredictorLabel(
        "disks, nearest neighbour, straight line + true gravity", "line + gravity", "#999999",
        (0, (5, 1))),
    "constant-velocity": PredictorLabel(
        "disks, nearest neighbour, constant velocity", "constant velocity", "#999999",
        (0, (3, 1, 1, 1, 1, 1))),
    "constant-image": PredictorLabel(
        "best constant image", "constant image", "#999999", ":"),
}  # fmt: skip


def line_of(name: str) -> tuple[str, str, Any]:
    """Return short label, colour and line style of a predictor, known or not."""
    found = PREDICTORS.get(name, PredictorLabel(name, name, "#0072b2", "--"))
    return found.short, found.colour, found.line


def read_records(folder: Path) -> dict[str, Record]:
    """Return the records of known predictors that a folder holds, in the order of tables."""
    found: dict[str, Record] = {}
    for name in PREDICTORS:
        path = folder / f"{name}.json"
        if path.is_file():
            try:
                found[name] = json.loads(path.read_text("utf-8"))
            except ValueError:
                raise InputError(
                    f"{path} is not a complete record; write it again: motes evaluate {name} "
                    f"--out {path}"
                ) from None
    return ordered_records(found)


def ordered_records(records: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records of known predictors on clips like the limit's, in the order of tables."""
    everything = _with_variants(records)
    found = {name: everything[name] for name in PREDICTORS if name in everything}
    if "limit" not in found:
        return {}
    same = ("frame_size", "num_frames")
    return {n: r for n, r in found.items() if all(r[key] == found["limit"][key] for key in same)}


def _with_variants(records: Mapping[str, Record]) -> dict[str, Record]:
    """Split the record of the ED-LSTM in two: the best variant of each kind of training."""
    found = dict(records)
    whole = found.pop("ed-lstm", None)
    if whole is not None:
        for name, own in (("ed-lstm", False), ("ed-lstm-own", True)):
            kind = [v for n, v in whole["variants"].items() if ("own frames" in n) == own]
            if kind:
                best = min(kind, key=lambda v: min(loss for _, loss in v["held_out"]))
                found[name] = {**whole, **best}
    return found
