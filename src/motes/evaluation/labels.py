"""Who stands in the tables, under which name and in which order, and which scores they show."""

from collections.abc import Mapping
from typing import Any

TABLE = (
    *("tracked", "idf1", "noisy_rmse", "path_rmse", "forecast_rmse", "forecast_loss"),
    *("interpolation_rmse", "infer_coverage90", "forecast_coverage90", "interpolation_coverage90"),
)
HEADS = {
    "tracked": "tracked", "idf1": "IDF1", "noisy_rmse": "position", "path_rmse": "path",
    "forecast_rmse": "forecast", "forecast_loss": "forecast loss", "interpolation_rmse": "gap",
    "infer_coverage90": "90 %: inferred", "forecast_coverage90": "90 %: forecast",
    "interpolation_coverage90": "90 %: gap",
}  # fmt: skip
FORMS = {  # by the end of a score's name, how its numbers are written
    "tracked": ".3f", "idf1": ".3f", "rmse": ".2f", "loss": ".4f", "coverage90": ".2f",
}  # fmt: skip
# In the order of the tables: the name of a record, and what it is called.
CONTENDERS = {
    "limit": "limit: true physics and prior, exact posterior",
    "cannonballs-structured": "ours, structured family",
    "cannonballs-48": "ours, the paper's networks, taught",
    "ed-lstm": "ED-LSTM as the paper trains it, best variant",
    "ed-lstm-own": "ED-LSTM trained on its own frames (not in the paper)",
    "kalman": "disks + Kalman, true physics and prior",
    "disks-trackpy": "disks + trackpy's links, settings chosen on training clips",
    "trackpy": "trackpy, settings chosen on training clips",
    "known-gravity": "disks, nearest, straight line + true gravity",
    "constant-velocity": "disks, nearest, constant velocity",
    "constant-image": "best constant picture",
}
Record = dict[str, Any]


def with_variants(records: Mapping[str, Record]) -> dict[str, Record]:
    """The records with that of the ED-LSTM as two: the best variant of each training."""
    found = dict(records)
    whole = found.pop("ed-lstm", None)
    if whole is not None:
        for name, own in (("ed-lstm", False), ("ed-lstm-own", True)):
            kind = [v for n, v in whole["variants"].items() if ("own frames" in n) == own]
            if kind:
                best = min(kind, key=lambda v: min(loss for _, loss in v["held_out"]))
                found[name] = {**whole, **best}
    return found


def contenders(records: Mapping[str, Record]) -> dict[str, Record]:
    """The records that were measured on the 600 clips of the limit, in order."""
    everything = with_variants(records)
    found = {name: everything[name] for name in CONTENDERS if name in everything}
    if "limit" not in found:
        return {}
    same = ("test_seed", "frame_size", "num_frames")
    return {n: r for n, r in found.items() if all(r[key] == found["limit"][key] for key in same)}


def form_of(score: str) -> str:
    """How numbers of a score are written."""
    return next(form for end, form in FORMS.items() if score.endswith(end))
