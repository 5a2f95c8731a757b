"""`motes data | prepare | demo`: clips of a simulation or a video; train and show a model."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from motes.cli.options import Json, ModelName, NumObjects, Out, time_span
from motes.cli.terminal import bar, join_paths, print_result, print_warnings
from motes.core.errors import InputError
from motes.core.files import all_or_none


def data(
    out: Out[Path] = Path("clips.npz"),
    world: str = "cannonballs",
    num_clips: int = 100,
    num_objects: NumObjects[tuple[int, ...] | None] = None,
    num_frames: int | None = None,
    size: int = 48,
    seed: int = 0,
    gif: Path | None = None,
    as_json: Json = False,
) -> None:
    """Make synthetic clips with true positions.

    Example: motes data --world bar --num-clips 100 --out clips.npz --gif first.gif

    Args:
        out: output file: npz, bit-packed if the frames are binary.
        world: simulated world: cannonballs, many, bar, drops, pictures, colour, weightless, wind,
            drag, bounce or long.
        num_clips: number of clips.
        num_objects: number of objects in a clip, drawn from the given numbers; default: 1 2 3.
        num_frames: number of frames in a clip; default: 30, for the world long 3000.
        size: frame size: pixels of a side.
        seed: random seed of the clips.
        gif: GIF to write: the first clip.
        as_json: print one JSON line instead of text.
    """
    from motes.data import save_clips, worlds, write_gif

    clips = worlds.make(world, num_clips, num_objects, num_frames, size, seed)
    with all_or_none():
        save_clips(out, clips)
        if gif is not None:
            first = clips.frames[0].float()
            write_gif(gif, first.mean(-1) if first.ndim == 4 else first)
    record = {"verb": "data", "world": world, "clips": num_clips, "seed": seed, "out": str(out)}
    print_result(
        record,
        as_json,
        f"made {num_clips} clips of {clips.video.shape[1]} frames: {join_paths(out, gif)}",
    )


def prepare(
    video: Positional[Path],
    out: Out[Path] = Path("clips.npz"),
    size: tuple[int, ...] = (96,),
    crop: tuple[int, int, int, int] | None = None,
    start: float = 0.0,
    end: float | None = None,
    fps: float | None = None,
    source_fps: float | None = None,
    num_frames: Annotated[int, arg(aliases=("--frames",))] = 30,
    stride: int | None = None,
    background: Literal["median", "black", "white"] = "median",
    threshold: float | None = None,
    colour: str | None = None,
    grow: int | None = None,
    camera: Literal["auto", "still"] = "auto",
    keep: tuple[str, ...] = (),
    mask: tuple[str, ...] = (),
    num_objects: NumObjects[int | None] = None,
    sheet: Path | None = None,
    as_json: Json = False,
) -> None:
    """Turn a video into clips of its moving objects.

    Example: motes prepare juggling.mp4 -o clips.npz --crop 530 0 850 690 --size 160 --colour grey

    Args:
        video: mp4, mov, avi, mkv, webm, GIF, TIFF, npy, npz, or a folder of PNG or JPEG images.
        out: output file: npz of clips.
        size: frame size: pixels of the longer side, in the shape of the crop; or height and width.
        crop: left, top, right and bottom of the part to use, in pixels of the video.
        start: first second of the video to use.
        end: last second of the video to use; default: all.
        fps: frames per second to keep; default: all.
        source_fps: frames per second of a video without time stamps (folder, TIFF, array).
        num_frames: number of frames in a clip.
        stride: frames between the starts of consecutive clips; default: half a clip.
        background: median of the video, or black or white if objects rest for long.
        threshold: smallest difference from the background, 0 to 1; default: chosen from the video.
        colour: keep only pixels that are grey, or of a hue like '#ff8800'.
        grow: pixels by which moving regions are dilated, so that small objects do not fade;
            default: chosen from the video.
        camera: auto takes out a small motion of the camera; still leaves it in.
        keep: polygons outside which nothing counts, as '10,20 200,20 100,150' in video pixels.
        mask: polygons in which nothing counts.
        num_objects: number of objects in a clip; default: estimated for each clip.
        sheet: PNG to write: a contact sheet of the clips; default: name of out with .png.
        as_json: print one JSON line instead of text.
    """
    from motes.video import Preparation, open_video, plan
    from motes.video.clips import cut_clips, write_sheet
    from motes.video.geometry import Box, fit_box, frame_size, parse_polygon

    _check_prepare(num_frames, stride, num_objects, size)
    span, source = time_span(start, end), open_video(video)
    box = fit_box(crop and Box(*crop), source.width, source.height)
    height, width = size if len(size) == 2 else frame_size(box, size[0])
    requested = Preparation(
        *(height, width, crop and box, fps, source_fps, background, threshold, colour, grow),
        *(camera, tuple(map(parse_polygon, keep)), tuple(map(parse_polygon, mask))),
    )
    total = None if source.num_frames is None else 2 * source.num_frames
    if sheet is None and (out.is_file() or not out.exists()):  # none beside a device or FIFO
        sheet = out.with_suffix(".png")
    with all_or_none(), bar("reading", total) as progress:
        found = plan(source, requested, span, progress)
        cut = (out, num_frames, stride or max(num_frames // 2, 1), num_objects)
        summary = cut_clips(found, *cut, lambda done: progress((source.num_frames or 0) + done))
        if sheet is not None:
            write_sheet(sheet, summary.sheet)
    record = {
        "verb": "prepare",
        "clips": len(summary.counts),
        "empty": summary.num_empty,
        "frames": num_frames,
        "height": height,
        "width": width,
        "threshold": found.preparation.threshold,
        "grow": found.preparation.grow,
        "num_objects": summary.counts,
        "warnings": summary.warnings,
        "out": str(out),
        "sheet": None if sheet is None else str(sheet),
    }
    print_warnings(summary.warnings)
    print_result(record, as_json, _prepared_text(record))


def _prepared_text(record: dict[str, Any]) -> str:
    """Return what was written, the numbers of objects, and the next steps."""
    counts = sorted(Counter(record["num_objects"]).items())
    held = ", ".join(f"{count} in {clips} clips" for count, clips in counts)
    dropped = f", {record['empty']} empty ones skipped" if record["empty"] else ""
    look = f"check the clips: {record['sheet']}\n" if record["sheet"] else ""
    return (
        f"wrote {record['clips']} clips of {record['frames']} frames of {record['height']}x"
        f"{record['width']} pixels{dropped}: {record['out']}\nobjects: {held} (threshold "
        f"{record['threshold']:.3f}, dilated by {record['grow']} px)\n{look}"
        f"next: motes train --data {record['out']} --out run"
    )


def _check_prepare(
    num_frames: int, stride: int | None, num_objects: int | None, size: tuple[int, ...]
) -> None:
    if not 2 <= num_frames <= 10_000:
        raise InputError(f"num_frames is {num_frames}; give 2 to 10000 frames per clip")
    if stride is not None and not 1 <= stride <= num_frames:
        raise InputError(f"stride is {stride}; give 1 to {num_frames}, the frames of a clip")
    if num_objects is not None and not 1 <= num_objects <= 16:
        raise InputError(f"num_objects is {num_objects}; give 1 to 16")
    if len(size) not in (1, 2):
        raise InputError(f"size is {' '.join(map(str, size))}; give one number, or two")


def demo(
    out: Out[Path] = Path("demo"),
    model: ModelName[str | None] = None,
    num_clips: int = 90,
    seed: int = 2_000_000,
    as_json: Json = False,
) -> None:
    """Train a small model, query it about new clips, write a report.

    Example: motes demo

    Example: motes demo --model runs/small --out demo-small

    Args:
        out: output folder: report.html and the trained model; created if missing.
        model: shipped model or run folder to use instead of training one.
        num_clips: number of clips to score.
        seed: random seed of the clips to score; training uses other seeds.
        as_json: print one JSON line instead of text.
    """
    from motes.cli.live_view import training_panel
    from motes.output import demo as demonstration

    demo_model = None if model is None else demonstration.existing_model(model)
    config = demonstration.short_run() if demo_model is None else demo_model.config
    clips = demonstration.unseen_clips(config, num_clips, seed)
    demonstration.make_folder(out)
    if demo_model is None:
        title = f"training on {config.data.num_clips:,} clips, from scratch"
        with training_panel(title) as show:
            demo_model = demonstration.learn(config, show)
    with bar("querying new clips", demonstration.total_work(num_clips)) as progress:
        record = demonstration.run(demo_model, clips, out, seed=seed, progress=progress)
    duration = f"queries and figures took {record['seconds']:.0f} s"
    if demo_model.training is not None:
        duration = f"training took {demo_model.training.seconds:.0f} s, {duration}"
    print_result(
        {"verb": "demo", **record},
        as_json,
        f"{duration}; open in a browser: {record['report']}\n"
        "next: motes data --out clips.npz\n"
        f"      motes forecast clips.npz --model {model or record['model']} "
        "--num-observed 5 --overlay forecast.gif",
    )
