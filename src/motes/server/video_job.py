"""Work on a recording in a process of its own: decode it, or prepare, train and follow objects.

Usage: python -m motes.server.video_job FOLDER

Reads FOLDER/job.json, a `VideoJob`; trains a model on the recording into FOLDER/run and writes its
frames as the model sees them to FOLDER/whole.npz. FOLDER/progress.json holds a `Progress` at all
times. A hostile file can only harm this process.
"""

import base64
import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from motes.core.axes import Float, UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.server import video_schemas as schemas
from motes.video import Preparation, VideoMap, open_video, plan, whole_clip
from motes.video.clips import cut_clips
from motes.video.geometry import Box, fit_box, frame_size
from motes.video.prepare import PREPARATION, preparation_to_json
from motes.video.source import to_rgb

MAX_FRAMES = 1200
MAX_SIDE = 1920
QUALITY = 95  # of JPEG
PREPARED_SIDE = 96  # pixels of the longer side, as `motes prepare` takes by default
CLIP_FRAMES = 30
JOB, PROGRESS, RUN, WHOLE = "job.json", "progress.json", "run", "whole.npz"


def decode(path: str, folder: str, title: str) -> schemas.Recording:
    """Write the pictures of a recording as JPEG files; return its properties."""
    from PIL import Image

    video, count = open_video(path), 0
    if max(video.width, video.height) > MAX_SIDE:
        raise InputError(
            f"{title} has {video.width}x{video.height} pixels; this page takes up to {MAX_SIDE} "
            "a side: use motes prepare"
        )
    for frame in video.frames():
        if count == MAX_FRAMES:
            break
        picture = Image.fromarray(to_rgb(frame.picture))
        picture.save(Path(folder) / picture_name(count), quality=QUALITY, subsampling=0)
        count += 1
    if count < 2:
        raise InputError(f"{title} has {count} frames; expected at least two")
    note = None
    if video.num_frames is not None and video.num_frames > count:
        note = f"the first {count} of {video.num_frames} frames"
    return schemas.Recording(
        title=title,
        width=video.width,
        height=video.height,
        num_frames=count,
        fps=video.fps,
        note=note,
    )


def picture_name(number: int) -> str:
    """Return the name of the file of a picture."""
    return f"{number:05d}.jpg"


def preparation_of(settings: schemas.Settings, width: int, height: int) -> Preparation:
    """Return the preparation that the settings of the page ask for."""
    crop = None if settings.crop is None else Box(*settings.crop)
    box = fit_box(crop, width, height)
    keep, leave_out = (
        tuple(tuple((x, y) for x, y in region) for region in regions)
        for regions in (settings.keep, settings.leave_out)
    )
    rows, columns = frame_size(box, PREPARED_SIDE)
    return Preparation(
        rows, columns, crop, threshold=settings.threshold, keep=keep, leave_out=leave_out
    )


def png(levels: UInt8[np.ndarray, "rows columns"]) -> str:
    """Return a grey picture as base64 of a PNG file."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(levels).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode("ascii")


def run_job(folder: Path) -> None:
    """Prepare the recording, train a model on it and store the frames to follow objects in."""
    job = TypeAdapter(schemas.VideoJob).validate_json((folder / JOB).read_bytes())
    report = Reporter(folder)
    try:
        _run(folder, job, report)
    except InputError as error:
        report(schemas.Progress(phase="failed", message=str(error)))
    except Exception as error:  # decoders raise anything on hostile bytes
        line = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        report(schemas.Progress(phase="failed", message=line))


class Reporter:
    """Writes progress to a file that is whole at all times."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / PROGRESS

    def __call__(self, progress: schemas.Progress) -> None:
        """Replace the file."""
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(progress.model_dump_json().encode())


def _run(folder: Path, job: schemas.VideoJob, report: Reporter) -> None:
    from motes.core.files import write_text
    from motes.output.demo import sprite_image
    from motes.queries.quality import Quality
    from motes.training.inputs import fit_sprite_size
    from motes.training.presets import PRESETS
    from motes.training.train import train

    report(schemas.Progress(phase="preparing"))
    video, clips = open_video(job.path), folder / "clips.npz"
    span = (0.0, (MAX_FRAMES - 0.5) / (video.fps or 1.0))
    wanted = preparation_of(job.settings, video.width, video.height)
    found = plan(video, wanted, span)
    num_frames = max(min(CLIP_FRAMES, job.num_frames // 2), 2)
    summary = cut_clips(found, clips, num_frames, max(num_frames // 4, 1), job.num_objects)
    config = PRESETS["sprites-video"]
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(clips)))
    config = fit_sprite_size(config).stretched(job.iterations)
    warnings = list(dict.fromkeys(summary.warnings))

    def show(line: dict[str, Any]) -> None:
        if "start" not in line and "bound" not in line:
            return  # of a fit or a checkpoint
        image: Float[np.ndarray, "cells cells"] = sprite_image(line["model"])
        sprite = png((255 * image.clip(0, 1)).round().astype(np.uint8))
        starting = "start" in line
        report(
            schemas.Progress(
                phase="starting" if starting else "training",
                step=int(line["start_step" if starting else "step"]),
                of=0 if starting else int(line["of"]),
                bound=float(line["start_bound" if starting else "bound"]),
                steps_per_second=0.0 if starting else float(line["iterations_per_second"]),
                sprite=sprite,
                warnings=warnings,
            )
        )

    train(config, folder / RUN, report=show)
    quality = Quality.load(folder / RUN)
    if quality is not None and quality.advice:
        warnings.append(f"quality {quality}")
    write_text(folder / RUN / PREPARATION, preparation_to_json(found.preparation))
    report(schemas.Progress(phase="following", warnings=warnings))
    save_whole(folder, job.path, found.preparation, span)
    report(schemas.Progress(phase="done", warnings=warnings))


def save_whole(
    folder: Path, path: str, preparation: Preparation, span: tuple[float, float]
) -> None:
    """Store the frames of the recording as the model sees them, and their map."""
    whole = whole_clip(path, preparation.height, preparation.width, preparation, span)
    where = whole.where
    shifts = np.zeros((*where.times.shape, 2)) if where.shifts is None else where.shifts
    with atomic_path(folder / WHOLE) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            frames=(255 * whole.frames[0]).round().byte().numpy(),
            scale=where.scale,
            offset=where.offset,
            times=where.times,
            numbers=where.numbers,
            shifts=shifts,
        )


def load_whole(folder: Path) -> tuple[Float[np.ndarray, "1 T height width"], VideoMap]:
    """Return the frames and the map that `save_whole` stored."""
    with np.load(folder / WHOLE, allow_pickle=False) as stored:
        frames = stored["frames"][None] / np.float32(255)
        shifts = stored["shifts"] if stored["shifts"].any() else None
        where = VideoMap(
            stored["scale"], stored["offset"], stored["times"], stored["numbers"], shifts
        )
    return frames, where


if __name__ == "__main__":
    run_job(Path(sys.argv[1]))
