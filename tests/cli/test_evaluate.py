"""How scores are shown."""

from typing import Any

from motes.cli.evaluate import score_table


def test_errors_that_are_rounding_are_shown_as_zero() -> None:
    record: dict[str, Any] = {"by_count": {"2": {"coverage": 0.94}}}
    for error, shown in ((4.4e-16, "0"), (0.0123, "0.012")):
        record["standard_errors"] = {"2": {"coverage": error}}
        assert score_table(record).splitlines()[1].split() == ["coverage", "0.94", "±", shown]
