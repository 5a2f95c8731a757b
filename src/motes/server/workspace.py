"""The recording that a person works on in the page: pictures, settings, training, tracks.

One recording is open at a time. Decoding and training run in processes of their own; this module
reads only what they wrote: JPEG, npz, JSON and safetensors.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from motes import queries
from motes.core.axes import UInt8
from motes.core.errors import InputError, require
from motes.models.checkpoint import load
from motes.models.model import Model
from motes.output.corrections import in_clip, write_corrections
from motes.output.formats import FORMATS, object_diameter, suffix_of, write_tracks
from motes.output.tracks import answer_in_video, table
from motes.queries.answer import Answer
from motes.queries.corrections import as_corrections
from motes.server import uploads, video_job
from motes.server import video_schemas as schemas
from motes.video import VideoMap
from motes.video.foreground import (
    Foreground,
    automatic_threshold,
    blob_masses,
    dilate,
    find_background,
    object_counts,
    typical_count,
)
from motes.video.geometry import Box, Geometry, fit_box, polygon_region
from motes.video.prepare import required_growth

MAX_BYTES = 96 * 2**20  # of an uploaded recording
SAMPLE = 31  # pictures that the background is the median of
CACHED = 8  # preparations
PINNED_SD = 1.0  # pixels of the video, of a pin without one
Pictures = UInt8[np.ndarray, "sample height width 3"]


@dataclass(eq=False)
class Opened:
    """A recording that is open, its pictures in a folder."""

    path: Path
    folder: Path
    recording: schemas.Recording

    def picture(self, number: int) -> UInt8[np.ndarray, "height width 3"]:
        """Return a picture in RGB."""
        from PIL import Image

        with Image.open(self.picture_path(number)) as image:
            return np.asarray(image.convert("RGB"))

    def picture_path(self, number: int) -> Path:
        """Return the file of a picture; raise `InputError` if there is none."""
        last = self.recording.num_frames - 1
        require(0 <= number <= last, f"frame is {number}; the recording has frames 0 to {last}")
        return self.folder / video_job.picture_name(number)

    @cached_property
    def sample(self) -> Pictures:
        """Pictures from all parts of the recording."""
        count = min(self.recording.num_frames, SAMPLE)
        chosen = np.linspace(0, self.recording.num_frames - 1, count).round().astype(int)
        return np.stack([self.picture(int(number)) for number in chosen])

    @cached_property
    def background(self) -> UInt8[np.ndarray, "height width 3"]:
        """The median of the sample."""
        found: UInt8[np.ndarray, "height width 3"] = find_background(self.sample, "median")
        return found


@dataclass(frozen=True, eq=False)
class Rule:
    """A preparation of the open recording with its estimated settings."""

    geometry: Geometry
    foreground: Foreground
    grow: int
    typical: int


@dataclass(eq=False)
class Followed:
    """A model of the recording with the frames to follow objects in, and the last answer."""

    model: Model
    frames: torch.Tensor  # [1, T, height, width]
    where: VideoMap
    answer: Answer | None = None


class Workspace:
    """Everything that the page for own videos asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: Opened | None = None
        self.training: subprocess.Popen[bytes] | None = None
        self.followed: Followed | None = None
        self.corrections: list[schemas.Correction] = []
        self.rule: Callable[[str], Rule] = lru_cache(CACHED)(self._find_rule)

    def open_upload(self, content: bytes, name: str) -> schemas.Recording:
        """Open an uploaded recording in place of the one before."""
        suffix = Path(name).suffix.lower()
        videos = [known for known in uploads.FORMATS if known not in (".npz", ".npy")]
        require(
            suffix in videos, f"{name[:80]!r} has no supported format; give {', '.join(videos)}"
        )
        self._fresh()
        path = self.folder / f"recording{suffix}"
        path.write_bytes(content)
        return self.open_file(path, Path(name).name[:80], fresh=False)

    def open_file(self, path: Path, title: str, *, fresh: bool = True) -> schemas.Recording:
        """Open a recording of this machine in place of the one before."""
        if fresh:
            self._fresh()
        pictures = self.folder / "pictures"
        pictures.mkdir()
        try:
            found = uploads.run_limited(video_job.decode, str(path), str(pictures), title)
        except InputError as error:
            raise InputError(str(error).replace(str(path), title)) from None
        recording = schemas.Recording.model_validate_json(found)
        self.opened = Opened(path, pictures, recording)
        return recording

    def _fresh(self) -> None:
        """Close the recording and empty the folder."""
        self.stop()
        self.opened = self.followed = None
        self.corrections = []
        self.rule = lru_cache(CACHED)(self._find_rule)
        for name in ("pictures", video_job.RUN):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self.folder.iterdir():
            if path.is_file():
                path.unlink()

    def require_open(self) -> Opened:
        """Return the open recording; raise `InputError` if there is none."""
        if self.opened is None:
            raise InputError("no recording is open; open one first")
        return self.opened

    def preview(self, request: schemas.PreviewRequest) -> schemas.Preview:
        """Return what `motes prepare` sees in a frame.

        Pictures are stored with the small losses of JPEG; training reads the recording itself.
        """
        opened = self.require_open()
        rule = self.rule(request.settings.model_dump_json())
        box = rule.geometry.box
        part = opened.picture(request.frame)[box.top : box.bottom, box.left : box.right]
        mask = rule.foreground.mask(part)
        prepared = rule.geometry.shrink(dilate(mask, rule.grow))
        return schemas.Preview(
            box=list(box),
            mask=video_job.png(mask.astype(np.uint8) * np.uint8(255)),
            prepared=video_job.png(prepared),
            threshold=round(rule.foreground.threshold, 4),
            objects_here=object_counts([blob_masses(prepared)])[0],
            typical_objects=rule.typical,
        )

    def _find_rule(self, settings: str) -> Rule:
        """Return the rule of the settings, as `motes.video.prepare.plan` finds it."""
        opened = self.require_open()
        given, size = schemas.Settings.model_validate_json(settings), opened.recording
        wanted = video_job.preparation_of(given, size.width, size.height)
        box = fit_box(wanted.crop and Box(*wanted.crop), size.width, size.height)
        rows, columns = slice(box.top, box.bottom), slice(box.left, box.right)
        sample, background = opened.sample[:, rows, columns], opened.background[rows, columns]
        region = polygon_region(box, wanted.keep, wanted.leave_out)
        threshold = wanted.threshold
        if threshold is None and region is None:
            threshold = automatic_threshold(sample, background)
        elif threshold is None:
            threshold = automatic_threshold(
                sample[:, region][:, :, None], background[region][:, None]
            )
        geometry = Geometry(box, wanted.height, wanted.width)
        foreground = Foreground(background, threshold, None, region)
        masks = [foreground.mask(part) for part in sample]
        grow = required_growth(masks, geometry)
        masses = [blob_masses(geometry.shrink(dilate(mask, grow))) for mask in masks]
        return Rule(geometry, foreground, grow, typical_count(masses))

    def train(self, request: schemas.TrainRequest) -> schemas.Status:
        """Start to train a model of the recording; an earlier one is replaced."""
        opened = self.require_open()
        self.stop()
        self.followed = None
        shutil.rmtree(self.folder / video_job.RUN, ignore_errors=True)
        (self.folder / video_job.WHOLE).unlink(missing_ok=True)
        job = schemas.VideoJob(
            path=str(opened.path),
            num_frames=opened.recording.num_frames,
            settings=request.settings,
            num_objects=request.num_objects,
            iterations=request.iterations,
        )
        (self.folder / video_job.JOB).write_bytes(job.model_dump_json().encode())
        first = schemas.Progress(phase="preparing")
        (self.folder / video_job.PROGRESS).write_bytes(first.model_dump_json().encode())
        command = [sys.executable, "-m", video_job.__name__, str(self.folder)]
        self.training = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return self.status()

    def stop(self) -> None:
        """End training, if it runs."""
        if self.training is not None:
            self.training.kill()
            self.training.wait()
            self.training = None

    def status(self) -> schemas.Status:
        """Return what is open and how far training is."""
        recording = None if self.opened is None else self.opened.recording
        corrections = [entry.model_dump(exclude_none=True) for entry in self.corrections]
        return schemas.Status(
            recording=recording, progress=self._progress(), corrections=corrections
        )

    def _progress(self) -> schemas.Progress | None:
        try:
            content = (self.folder / video_job.PROGRESS).read_bytes()
        except FileNotFoundError:
            return None
        progress = schemas.Progress.model_validate_json(content)
        ended = self.training is None or self.training.poll() is not None
        if ended and progress.phase not in ("done", "failed"):
            return schemas.Progress(phase="failed", message="training was stopped")
        return progress

    def tracks(self, request: schemas.TracksRequest) -> schemas.Tracks:
        """Return where the objects are in every frame, given all corrections."""
        begun, followed = time.monotonic(), self._require_followed()
        listed = as_corrections(
            [entry.model_dump(exclude_none=True) for entry in request.corrections]
        )
        answer = queries.infer(
            followed.model,
            followed.frames,
            request.num_objects,
            corrections=in_clip(listed, followed.where),
        )
        self.corrections, followed.answer = list(request.corrections), answer
        write_corrections(self.folder / video_job.RUN / "corrections.json", listed)
        shown = answer_in_video(answer, followed.where)
        count = int(answer.num_objects[0])
        covariances = shown.pixel_covariances[0, :count]
        entries = torch.stack(
            [covariances[..., 0, 0], covariances[..., 0, 1], covariances[..., 1, 1]], -1
        )
        tracks = [
            schemas.Track(places=_rounded(places), covariances=_rounded(spread), found=found)
            for places, spread, found in zip(
                shown.pixels[0, :count], entries, answer.found[0, :count].tolist(), strict=True
            )
        ]
        return schemas.Tracks(
            numbers=followed.where.numbers[0].tolist(),
            tracks=tracks,
            warning=answer.fit.warning if answer.fit is not None else None,
            milliseconds=round(1000 * (time.monotonic() - begun)),
        )

    def _require_followed(self) -> Followed:
        """Return the model of the recording; raise `InputError` before it is trained."""
        if self.followed is None:
            self.require_open()
            progress = self._progress()
            require(
                progress is not None and progress.phase == "done",
                "the model of this recording is not trained yet; train it first",
            )
            frames, where = video_job.load_whole(self.folder)
            model = load(self.folder / video_job.RUN)
            self.followed = Followed(model, torch.from_numpy(frames), where)
        return self.followed

    def table(self, format: str) -> tuple[str, bytes]:
        """Return the name and the content of the table of the last tracks."""
        require(format in FORMATS, f"format is {format!r:.40}; give {', '.join(FORMATS)}")
        followed = self._require_followed()
        if followed.answer is None:
            raise InputError("no tracks were asked for yet; follow the objects first")
        path = self.folder / f"table{suffix_of(format)}"
        diameter = object_diameter(followed.model, followed.where)
        write_tracks(path, *table(followed.answer, followed.where), format, diameter)
        title = Path(self.require_open().recording.title).stem
        name = "".join(letter if letter.isalnum() else "_" for letter in title) or "recording"
        return f"{name}-tracks{suffix_of(format)}", path.read_bytes()


def _rounded(values: torch.Tensor) -> list[list[float]]:
    """Return numbers with three decimals, which is more than a screen shows."""
    rounded: list[list[float]] = (values.double() * 1000).round().div(1000).tolist()
    return rounded
