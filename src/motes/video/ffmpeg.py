"""Video containers (mp4, mov, avi, mkv, webm), read and written with PyAV."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from motes.core.axes import UInt8
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.video.source import Frame, Video, require_size

# The demuxer is fixed by the suffix, never guessed: a playlist that names other files is rejected.
DEMUXERS = {".mp4": "mov", ".m4v": "mov", ".mov": "mov", ".avi": "avi"} | {
    ".mkv": "matroska",
    ".webm": "matroska",
}


def open_container(path: Path) -> Video:
    """Return the first video stream of an mp4, mov, avi, mkv or webm file."""
    with _opened(path) as (container, stream):
        fps = float(stream.average_rate) if stream.average_rate else None
        declared = int(stream.frames) or None
        length = float(stream.duration * stream.time_base) if stream.duration else 0.0
        first = next(iter(_decoded(container)), None)
        if first is None:
            raise InputError(f"got {path}, which holds no frames; expected at least one")
        height, width = first.picture.shape[:2]

    def frames() -> Iterator[Frame]:
        count, start, time = 0, 0.0, 0.0
        with _opened(path) as (container, _):
            for frame in _decoded(container):
                if frame.picture.shape[:2] != (height, width):
                    raise InputError(
                        f"got {path} where frame {count} has another size than the first; "
                        "expected one size; convert the video"
                    )
                start = frame.time if count == 0 else start
                time = frame.time - start
                yield Frame(time, frame.picture)
                count += 1
        # The duration is compared as well: players skip frames that an edit list removes.
        if count < (declared or 0) and time + 3 / (fps or 1) < length:
            raise InputError(
                f"got {path}, which is cut short: {count} of {declared} frames can be read; "
                "expected a whole file; copy or record it again"
            )

    return Video(path.name, height, width, declared, fps, frames)


def write_mp4(
    path: Path, pictures: Iterator[UInt8[np.ndarray, "height width 3"]], fps: float
) -> None:
    """Write images as an H.264 mp4 that browsers play, atomically, one image at a time.

    Sides are cut to even numbers, as the format requires.
    """
    av = _pyav(path)
    with atomic_path(path) as temporary, av.open(str(temporary), "w", format="mp4") as out:
        stream = None
        for picture in pictures:
            height, width = (side - side % 2 for side in picture.shape[:2])
            if stream is None:
                rate = Fraction(fps).limit_denominator(1001)
                stream = out.add_stream("libx264", rate=rate, options={"crf": "20"})
                stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            image = np.ascontiguousarray(picture[:height, :width])
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        if stream is not None:
            out.mux(stream.encode())


def _pyav(path: Path) -> Any:
    try:
        import av
    except ImportError:
        raise InputError(f"{path.suffix} files need PyAV; pip install 'motes[video]'") from None
    av.logging.set_level(None)  # our one-line errors replace the decoder's log
    return av


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the container and its first video stream; raise `InputError` if undecodable."""
    av = _pyav(path)
    with open(path, "rb") as file:
        try:
            with av.open(file, format=DEMUXERS[path.suffix.lower()]) as container:
                if not container.streams.video:
                    raise InputError(f"got {path}, which holds no video stream; expected a video")
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    raise InputError(f"got {path} in a format without a decoder; convert it")
                require_size(path, stream.codec_context.width, stream.codec_context.height)
                stream.thread_type = "AUTO"
                yield container, stream
        except (av.error.FFmpegError, EOFError, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"got {path}; expected a whole {path.suffix} video, and this one is damaged or of "
                "another kind; play it to see, or convert it"
            ) from error


def _decoded(container: Any) -> Iterator[Frame]:
    """Yield the frames of the first stream, rotated upright, with the time stamps of the file."""
    for image in container.decode(video=0):
        picture = image.to_ndarray(format="rgb24")
        turns = round(image.rotation / 90) % 4  # phones store their orientation
        yield Frame(float(image.time or 0.0), np.rot90(picture, turns) if turns else picture)
