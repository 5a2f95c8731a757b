"""Tables that compare records: clip by clip, and with reference figures."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from motes.evaluation.labels import PREDICTORS, SCORES, ordered_records

Record = dict[str, Any]
Rows = Mapping[str, Record]


class Reference(NamedTuple):
    """What separate code found on other clips of the same kind, for N = 1, 2, 3, and its error."""

    contender: str
    score: str
    form: str
    values: tuple[float | None, float | None, float | None]
    errors: tuple[float, float, float]


SHARE, SWAPS = (0.0, 0.015, 0.028), (0.01, 0.2, 0.2)  # errors: of shares; where swaps dominate
REFERENCES = (
    Reference("limit", "tracked", ".3f", (1.0, 0.995, 1.0), (0.0, 0.005, 0.005)),
    Reference("limit", "within2", ".3f", (None, 0.999, 0.998), (0.0, 0.001, 0.001)),
    Reference("limit", "noisy_rmse", ".2f", (0.384, None, None), (0.01, 0.01, 0.01)),
    Reference("limit", "path_rmse", ".2f", (0.30, None, None), (0.01, 0.01, 0.01)),
    Reference("limit", "forecast_rmse", ".2f", (2.19, 2.20, 2.28), (0.06, 0.05, 0.05)),
    Reference("limit", "interpolation_rmse", ".2f", (0.41, 0.42, 0.51), (0.01, 0.05, 0.05)),
    Reference("limit", "forecast_loss", ".4f", (0.0136, 0.0260, 0.0375), (2e-4, 3e-4, 4e-4)),
    Reference("kalman", "tracked", ".3f", (1.0, 0.995, 0.934), (0.0, 0.005, 0.018)),
    Reference("kalman", "within2", ".3f", (None, 0.999, 0.994), (0.0, 0.001, 0.001)),
    Reference("kalman", "noisy_rmse", ".2f", (0.41, 0.43, 0.62), (0.01, 0.01, 0.05)),
    Reference("kalman", "forecast_rmse", ".2f", (2.19, 2.20, 2.28), (0.06, 0.05, 0.05)),
    Reference("kalman", "interpolation_rmse", ".2f", (0.41, 0.42, 0.51), (0.01, 0.05, 0.05)),
    Reference("disks-trackpy", "tracked", ".3f", (1.0, 0.962, 0.818), SHARE),
    Reference("disks-trackpy", "within2", ".3f", (None, 0.989, 0.960), (0.0, 0.005, 0.007)),
    Reference("disks-trackpy", "noisy_rmse", ".2f", (0.41, 0.83, 1.66), SWAPS),
    Reference("known-gravity", "tracked", ".3f", (1.0, 0.924, 0.793), SHARE),
    Reference("known-gravity", "within2", ".3f", (None, 0.977, 0.959), (0.0, 0.006, 0.007)),
    Reference("known-gravity", "noisy_rmse", ".2f", (0.41, 1.41, 1.73), SWAPS),
    Reference("known-gravity", "forecast_rmse", ".2f", (6.4, 6.1, 6.3), (0.2, 0.15, 0.3)),
    Reference("constant-velocity", "forecast_rmse", ".2f", (11.6, 11.1, 11.2), (0.3, 0.2, 0.2)),
)


def reference_table(records: Rows) -> str:
    """Return every reference beside what was measured here, and how many errors they are apart."""
    lines = [
        "| N = 1 / 2 / 3 | score | reference | here | apart, in standard errors |",
        "|---|---|---|---|---|",
    ]
    for contender, score, form, values, errors in REFERENCES:
        if score not in records.get(contender, {}).get("standard_errors", {}).get("1", {}):
            continue
        cells_by_count: list[tuple[str, str, str]] = []
        for count, value, error in zip("123", values, errors, strict=True):
            if value is None:
                continue
            here = records[contender]["by_count"][count][score]
            own = records[contender]["standard_errors"][count][score]
            both = math.hypot(error, own)
            apart = abs(here - value) / both if both else 0.0
            mark = f"**{apart:.1f}**" if apart > 2 else f"{apart:.1f}"
            cells_by_count.append((format(value, form), format(here, form), mark))
        cells = " | ".join(" / ".join(column) for column in zip(*cells_by_count, strict=True))
        title = SCORES[score].heading
        lines.append(f"| {PREDICTORS[contender].label} | {title} | {cells} |")
    return "\n".join(lines)


def paired_table(records: Rows) -> str:
    """Return by how much the forecast pictures of each record are worse than our best, by pairs.

    The same 600 clips make the difference of two losses far more certain than the losses are.
    """
    having = {n: r for n, r in ordered_records(records).items() if "forecast_loss_of_clips" in r}
    ours = "cannonballs-structured"
    seed = having.get(ours, {}).get("test_seed")
    having = {n: r for n, r in having.items() if r["test_seed"] == seed}
    if ours not in having or len(having) < 2:
        return "No records with the losses of single clips are stored yet."
    own = having.pop(ours)["forecast_loss_of_clips"]
    lines = [
        f"| nats a pixel | loss | less that of {PREDICTORS[ours].label} | in standard errors |",
        "|---|---|---|---|",
        f"| **{PREDICTORS[ours].label}** | {sum(own) / len(own):.5f} |  |  |",
    ]
    for name, record in having.items():
        theirs = record["forecast_loss_of_clips"]
        gaps = [a - b for a, b in zip(theirs, own, strict=True)]
        mean = sum(gaps) / len(gaps)
        error = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1) / len(gaps))
        loss = sum(theirs) / len(theirs)
        cells = f"{loss:.5f} | {mean:+.5f} ± {error:.5f} | {mean / error:+.1f}"
        lines.append(f"| {PREDICTORS[name].label} | {cells} |")
    return "\n".join(lines)
