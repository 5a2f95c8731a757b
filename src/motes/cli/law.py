"""`motes law`: print the law of motion that a model learned."""

from pathlib import Path

from tyro.conf import Positional

from motes.cli.options import Json, Out
from motes.cli.terminal import print_result
from motes.core.errors import InputError


def law(
    model: Positional[str],
    out: Out[Path | None] = None,
    metres_per_pixel: float | None = None,
    fps: float | None = None,
    as_json: Json = False,
) -> None:
    """Print the law of motion that a model learned: forces, walls, error bars.

    Example: motes law runs/mine

    Example: motes law runs/mine --out law.png --metres-per-pixel 0.004 --fps 30

    Args:
        model: shipped model or run folder.
        out: output file: PNG of the frame with the walls.
        metres_per_pixel: length of a pixel of the clips; then lengths are metres.
        fps: frames per second of the clips; then times are seconds.
        as_json: print one JSON line instead of text.
    """
    from motes.models.law import describe_law
    from motes.models.model import load

    for name, value in (("metres-per-pixel", metres_per_pixel), ("fps", fps)):
        if value is not None and not 0 < value < 1e9:
            raise InputError(f"{name} is {value:g}; give a positive number")
    loaded = load(model)
    parts = (loaded.dynamics, loaded.pixel_matrix, loaded.pixel_offset)
    found = describe_law(*parts, metres_per_pixel, fps)
    if out is not None:
        from motes.output.law import draw_walls

        draw_walls(found.walls, loaded.image_size, out)
    record = {"verb": "law", "model": model, **found.record()}
    print_result(record if out is None else {**record, "out": str(out)}, as_json, str(found))
