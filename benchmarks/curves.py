"""Plot of `python -m benchmarks scale`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "frames": "frames of a clip",
    "frames, interpolate": "frames, a fifth hidden",
    "frames, forecast": "frames, half forecast",
    "objects": "objects",
    "clips": "clips at a time",
    "size": "side of a frame, px",
    "streamed": "clips, streamed",
}
COLOURS = {"paper": "#1f5fa8", "structured": "#c2571a", "pictures": "#3a7d44"}


def draw_curves(record: dict[str, Any]) -> "Figure":
    """Plot seconds (top) and peak memory (bottom), one column per axis, on log scales."""
    from matplotlib.figure import Figure

    curves = {**record["curves"], "streamed": record["streamed"]}
    figure = Figure(figsize=(3.0 * len(curves), 5.4), layout="constrained")
    rows = figure.subplots(2, len(curves), squeeze=False)
    for row, (field, label) in zip(
        rows, (("seconds", "seconds"), ("peak_mib", "peak memory, MiB")), strict=True
    ):
        for axis, (name, curve) in zip(row, curves.items(), strict=True):
            _draw(axis, curve, field)
            axis.set_xlabel(TITLES[name])
        row[0].set_ylabel(label)
    rows[0][0].legend(frameon=False)
    return figure


def _draw(axis: Any, curve: dict[str, Any], field: str) -> None:
    """Plot one curve per family, and linear growth through the end of the first."""
    at = curve["at"]
    for family, colour in COLOURS.items():
        if family in curve:
            values = [max(point[field], 1e-3) for point in curve[family]]
            axis.loglog(at, values, "o-", color=colour, label=family, ms=4)
    top = max(point[field] for point in curve["paper"][-1:])
    axis.loglog(at, [max(top, 1e-3) * x / at[-1] for x in at], ":", color="#999999", label="linear")
    axis.set_xticks(at, [f"{x:,}" if x < 10_000 else f"{x:.0e}" for x in at])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
