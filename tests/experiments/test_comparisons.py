"""Records beside one another and beside reference figures."""

import math
from typing import Any

from experiments.results_table.comparisons import REFERENCES, paired_table, reference_table


def record(**scores: float) -> dict[str, Any]:
    columns = {count: dict(scores) for count in "123"}
    errors = {count: dict.fromkeys(scores, 0.03) for count in "123"}
    return {
        "test_seed": 1, "frame_size": [48, 48], "num_frames": 30,
        "by_count": columns, "standard_errors": errors,
    }  # fmt: skip


def test_a_difference_is_told_in_errors_of_both():
    names = {r.score: 0.0 for r in REFERENCES if r.contender == "constant-velocity"}
    reference = next(r for r in REFERENCES if r.contender == "constant-velocity")
    first, error = reference.values[0], reference.errors[0]
    assert first is not None
    near = first + 1.5 * math.hypot(error, 0.03)
    row = reference_table({"constant-velocity": record(**dict.fromkeys(names, near))})
    assert row.splitlines()[2].split("|")[5].split("/")[0].strip() == "1.5"
    far = first + 2.5 * math.hypot(error, 0.03)
    row = reference_table({"constant-velocity": record(**dict.fromkeys(names, far))})
    assert row.splitlines()[2].split("|")[5].split("/")[0].strip() == "**2.5**"


def test_what_was_not_measured_has_no_row():
    assert len(reference_table({}).splitlines()) == 2


def test_losses_are_compared_clip_by_clip():
    own = [0.01, 0.02, 0.03, 0.04]
    theirs = [0.012, 0.021, 0.032, 0.041]  # 0.0015 worse, give or take 0.00058 a clip
    records = {
        "limit": record(),
        "cannonballs-structured": {**record(), "forecast_loss_of_clips": own},
        "cannonballs-48": {**record(), "forecast_loss_of_clips": theirs},
    }
    table = paired_table(records)
    assert "| 0.02500 |" in table
    # The standard error of a mean of four: sqrt(4 * 0.0005^2 / 3 / 4).
    assert "+0.00150 ± 0.00029 | +5.2 |" in table
    assert "stored yet" in paired_table({"limit": record()})
