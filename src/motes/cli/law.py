"""`motes law`: print the law of motion that a model learned."""

from pathlib import Path

from tyro.conf import Positional

from motes.cli.options import NO_LENGTHS, Json, LengthOptions, Out
from motes.cli.terminal import print_result
from motes.core.errors import InputError


def law(
    model: Positional[str],
    out: Out[Path | None] = None,
    lengths: LengthOptions = NO_LENGTHS,
    metres_per_pixel: float | None = None,
    fps: float | None = None,
    as_json: Json = False,
) -> None:
    """Print the law of motion that a model learned: forces, walls, error bars.

    Example: motes law runs/mine

    Example: motes law runs/mine --scale 0.5mm/px --out law.png

    Args:
        model: shipped model or run folder.
        out: output file: PNG of the frame with the walls.
        lengths: the size of things; default: what motes prepare was told.
        metres_per_pixel: length of a pixel of the clips, not of the video, in metres.
        fps: frames per second of the clips; default: those of the video, if it is known.
        as_json: print one JSON line instead of text.
    """
    from motes.models.checkpoint import find_model, load
    from motes.models.law import describe_law
    from motes.video.clips import find_video_map
    from motes.video.units import Units

    for name, value in (("metres-per-pixel", metres_per_pixel), ("fps", fps)):
        if value is not None and not 0 < value < 1e9:
            raise InputError(f"{name} is {value:g}; give a positive number")
    loaded, where = load(model), find_video_map(find_model(model))
    units = lengths.units() or (None if where is None else where.units)
    if units is not None and where is not None:
        units = units.of_clips(where.scale, where.offset)
    elif units is not None:
        raise InputError(
            f"{model} does not say where its clips are in a video; give --metres-per-pixel of the "
            "clips, or train on clips by motes prepare"
        )
    if metres_per_pixel is not None:
        units = Units.by_scale(metres_per_pixel, "m")
    if fps is None and units is not None and where is not None:
        fps = where.fps
    parts = (loaded.dynamics, loaded.pixel_matrix, loaded.pixel_offset)
    found = describe_law(*parts, units, fps)
    if out is not None:
        from motes.output.law import draw_walls

        draw_walls(found.walls, loaded.image_size, out)
    record = {"verb": "law", "model": model, **found.record()}
    print_result(record if out is None else {**record, "out": str(out)}, as_json, str(found))
