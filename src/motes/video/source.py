"""Video sources: timed frames of one size, read from files and folders one by one.

A source is a function that returns a `Video`. `READERS` is the place to register a file format:
containers (mp4, mov, avi, mkv, webm) through PyAV, GIF and TIFF pages and folders of images through
Pillow, arrays through `load_clips`.
"""

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import dropwhile, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from motes.core.axes import Bool, Float, Tensor, UInt, UInt8
from motes.core.errors import InputError, require
from motes.core.files import atomic_path
from motes.data import load_clips

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 8192  # pixels; larger frames are rejected before they are decoded
MAX_PIXELS = 2**31  # of all frames of a clip that is held in memory
LUMA = (19595, 38470, 7471)  # of red, green and blue in 2^16 (ITU-R 601)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
ARRAYS = (".npz", ".npy")
# The demuxer is fixed by the suffix, never guessed: a playlist that names other files is rejected.
DEMUXERS = {
    **dict.fromkeys((".mp4", ".m4v", ".mov"), "mov"),
    **{".avi": "avi", ".mkv": "matroska", ".webm": "matroska"},
}


Picture = UInt[np.ndarray, "height width channels"]  # 1 (grey) or 3 channels of 8 or 16 bits


class Frame(NamedTuple):
    """One frame of a video, grey or in red, green and blue."""

    time: float  # seconds from the first frame, never decreasing
    picture: Picture


@dataclass(frozen=True)
class Video:
    """A video that is decoded frame by frame and never held in memory.

    A source checks the size of its frames (`require_size`) and raises `InputError` for input that
    it cannot decode.

    Attributes:
        name: name of the file or folder, without its parent folders; used in messages.
        height: of a frame in pixels; every frame has the same size.
        width: of a frame in pixels.
        num_frames: expected number of frames; None where only reading determines it.
        fps: frames per second; None without a clock, in which case a frame counts as one second.
        frames: starts a pass over the frames, from the first one.
        rereadable: whether `frames` may be called again. A live source (a camera, a pipe) sets
            False: it is read once, so it cannot be prepared with an estimated background and its
            frames cannot be drawn on afterwards.
        start_at: starts a pass at a frame, given its number and time, without decoding those
            before it; None: see `frames_from`.
        sample: yields about so many frames spread evenly over the video, each with its successor,
            without decoding the others; None where that takes a pass over the video.
    """

    name: str
    height: int
    width: int
    num_frames: int | None
    fps: float | None
    frames: Callable[[], Iterator[Frame]]
    rereadable: bool = True
    start_at: Callable[[int, float], Iterator[Frame]] | None = None
    sample: Callable[[int], Iterator[tuple[Frame, Frame]]] | None = None


def frames_from(video: Video, number: int, time: float) -> Iterator[Frame]:
    """Yield the frames of a video from one on, given its number and its time.

    Law: equals a pass that skips the frames before
    (test_a_pass_from_a_frame_on_equals_the_end_of_a_whole_pass).
    """
    found = iter(()) if video.start_at is None else video.start_at(number, time)
    first = next(found, None)
    if first is None or abs(first.time - time) > 1e-6:  # a file whose time stamps mislead
        yield from islice(video.frames(), number, None)
        return
    yield first
    yield from found


def require_size(path: object, width: int, height: int) -> None:
    """Raise `InputError` unless both sides of a frame are between 1 and MAX_SIDE."""
    require(
        1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE,
        f"got {path} with frames of {width}x{height} pixels; expected sides of 1 to {MAX_SIDE}; "
        "make it smaller",
    )


def grey(
    picture: UInt[np.ndarray, "*batch height width channels"]
    | Float[np.ndarray, "*batch height width channels"]
    | Bool[np.ndarray, "*batch height width channels"],
) -> Float[np.ndarray, "*batch height width"]:
    """Return the luma (ITU-R 601) of frames of one or three channels as float32 in [0, 1].

    Frames of floats are taken to be in [0, 1] already.

    Law: frames of whole levels and of floats agree within half a level
    (test_the_luma_of_floats_is_that_of_levels).
    """
    if picture.shape[-1] == 1:
        levels = picture[..., 0]
    elif picture.dtype.kind != "u":
        levels = picture.astype(np.float32) @ (np.array(LUMA, np.float32) / 2**16)
    else:  # in whole levels, exact where the three channels agree
        weights = np.array(LUMA, dtype=np.uint32)
        levels = ((picture @ weights + 2**15) >> 16).astype(picture.dtype)
    top = np.iinfo(picture.dtype).max if picture.dtype.kind == "u" else 1
    return levels.astype(np.float32) / np.float32(top)


def to_rgb(picture: Picture) -> UInt8[np.ndarray, "h w 3"]:
    """Return a grey or colour frame of 8 or 16 bits as an 8-bit RGB image."""
    levels = (picture >> 8).astype(np.uint8) if picture.dtype == np.uint16 else picture
    return np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else levels


def open_container(path: Path) -> Video:
    """Return the first video stream of an mp4, mov, avi, mkv or webm file."""
    with _opened_container(path) as (container, stream):
        fps = float(stream.average_rate) if stream.average_rate else None
        declared = int(stream.frames) or None
        length = float(stream.duration * stream.time_base) if stream.duration else 0.0
        first = next(iter(_decoded(container)), None)
        if first is None:
            raise InputError(f"got {path}, which holds no frames; expected at least one")
        size, start = first.picture.shape[1::-1], first.time

    def frames() -> Iterator[Frame]:
        with _opened_container(path) as (container, _):
            yield from checked(_decoded(container), 0)

    def checked(decoded: Iterator[Frame], count: int) -> Iterator[Frame]:
        time = 0.0
        for frame in decoded:
            _require_same_size(path, f"frame {count}", frame.picture.shape[1::-1], size)
            time = frame.time - start
            yield Frame(time, frame.picture)
            count += 1
        # The duration is compared as well: players skip frames that an edit list removes.
        require(
            count >= (declared or 0) or time + 3 / (fps or 1) >= length,
            f"got {path}, which is cut short: {count} of {declared} frames can be read; expected a "
            "whole file; copy or record it again",
        )

    def start_at(number: int, time: float) -> Iterator[Frame]:
        with _opened_container(path) as (container, stream):
            seek(container, stream, time)
            before = partial(_is_before, start + time)
            yield from checked(dropwhile(before, _decoded(container)), number)

    def sample(count: int) -> Iterator[tuple[Frame, Frame]]:
        last = -1.0
        with _opened_container(path) as (container, stream):
            for place in range(count):
                seek(container, stream, length * (place + 0.5) / count)
                pair = list(islice(_decoded(container), 2))
                if len(pair) == 2 and pair[0].time > last:
                    last = pair[0].time
                    one, two = (Frame(frame.time - start, frame.picture) for frame in pair)
                    yield one, two

    def seek(container: Any, stream: Any, time: float) -> None:
        container.seek(round((start + time) / stream.time_base), stream=stream)

    video = Video(path.name, size[1], size[0], declared, fps, frames)
    if path.suffix.lower() == ".avi" or not length:  # no reliable time stamps
        return video
    return replace(video, start_at=start_at, sample=sample)


def _is_before(time: float, frame: Frame) -> bool:
    return frame.time < time - 1e-6


@contextmanager
def _opened_container(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the container and its first video stream; raise `InputError` if undecodable."""
    av = _pyav(path)
    with open(path, "rb") as file:
        try:
            with av.open(file, format=DEMUXERS[path.suffix.lower()]) as container:
                streams = container.streams.video
                require(streams, f"got {path}, which holds no video stream; expected a video")
                stream, codec = streams[0], streams[0].codec_context
                require(codec, f"got {path} in a format without a decoder; convert it")
                require_size(path, codec.width, codec.height)
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


def _pyav(path: Path) -> Any:
    try:
        import av
    except ImportError:
        raise InputError(f"{path.suffix} files need PyAV; pip install 'motes[video]'") from None
    av.logging.set_level(None)  # our one-line errors replace the decoder's log
    return av


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


def open_pages(path: Path) -> Video:
    """Return the video of a GIF or of a multi-page TIFF.

    In a GIF the shortest delay is one frame; an image that lasts a multiple of it is repeated,
    because GIF writers join equal frames in that way.
    """
    with _opened_image(path) as book:
        require_size(path, *book.size)
        count, size = getattr(book, "n_frames", 1), book.size
        delays = []
        for index in range(count if path.suffix.lower() == ".gif" else 0):
            book.seek(index)
            require_size(path, *book.size)  # a damaged file may grow from frame to frame
            delays.append(int(book.info.get("duration", 0)))
    delay = min(delays, default=0)  # milliseconds
    even = delay > 0 and not any(other % delay for other in delays)
    repeats = [other // delay for other in delays] if even else [1] * count

    def frames() -> Iterator[Frame]:
        t = 0
        with _opened_image(path) as book:
            for index, repeat in enumerate(repeats):
                book.seek(index)
                _require_same_size(path, f"page {index}", book.size, size)
                picture = _pixels(book, path)
                for _ in range(repeat):
                    yield Frame(t * (delay or 1000) / 1000, picture)
                    t += 1

    fps = 1000 / delay if delay else None
    return Video(path.name, size[1], size[0], sum(repeats), fps, frames)


def open_folder(folder: Path) -> Video:
    """Return the video of the PNG or JPEG images in a folder, in the order of their numbers."""
    paths = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    shown = (path for path in paths if not path.name.startswith("."))
    paths = sorted(shown, key=lambda path: natural_order(path.name))
    require(paths, f"got {folder}; expected PNG or JPEG images in it; choose another folder")
    with _opened_image(paths[0]) as first:
        size = first.size
    require_size(folder, *size)

    def start_at(number: int, time: float) -> Iterator[Frame]:
        return (read(t) for t in range(number, len(paths)))

    def sample(count: int) -> Iterator[tuple[Frame, Frame]]:
        places = np.linspace(0, len(paths) - 2, min(count, len(paths) - 1)).round().astype(int)
        return ((read(t), read(t + 1)) for t in places.tolist())

    def read(t: int) -> Frame:
        with _opened_image(paths[t]) as picture:
            _require_same_size(folder, paths[t].name, picture.size, size)
            return Frame(float(t), _pixels(picture, paths[t]))

    name, frames = folder.resolve().name, partial(start_at, 0, 0.0)
    video = Video(name, size[1], size[0], len(paths), None, frames, start_at=start_at)
    return replace(video, sample=sample)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which frame 9 comes before frame 10."""
    words = re.split("([0-9]+)", name.lower())
    return [(int(word) if odd % 2 else 0, word) for odd, word in enumerate(words)]


def _require_same_size(
    path: Path, which: str, size: tuple[int, int], first: tuple[int, int]
) -> None:
    require(
        size == first,
        f"got {path} where {which} has {size[0]}x{size[1]} pixels; expected "
        f"{first[0]}x{first[1]} as the first image has; make all images of one size",
    )


@contextmanager
def _opened_image(path: Path) -> Iterator["Image"]:
    """Yield an image that is not decoded yet; raise `InputError` if it cannot be decoded."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            yield picture
    except InputError:
        raise
    except (
        *(OSError, SyntaxError, ValueError, EOFError, LookupError, struct.error, TypeError),
        *(Image.DecompressionBombError, Image.DecompressionBombWarning),
    ) as error:
        raise InputError(
            f"got {path}; expected a whole image, and this one is damaged, too large or of "
            "another kind; write it again"
        ) from error


def _pixels(picture: "Image", path: Path) -> Picture:
    """Return the pixels of an image with one or three channels of 8 or 16 bits."""
    if picture.mode.startswith("I"):  # 16-bit grey, which a conversion to "L" would truncate
        return np.asarray(picture).clip(0, 65535).astype(np.uint16)[..., None]
    if picture.mode == "F":
        levels = np.asarray(picture, dtype=np.float32)
        require(
            levels.min() >= 0 and levels.max() <= 1,
            f"got {path} with values from {levels.min():g} to {levels.max():g}; expected floats in "
            "[0, 1]; rescale them",
        )
        return (levels * 65535).round().astype(np.uint16)[..., None]
    if picture.mode in ("1", "L", "LA"):
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))


def open_array(path: Path) -> Video:
    """Return the video in an array file: one clip, grey or in colour, see `load_clips`."""
    clips = load_clips(path)
    require(
        len(clips) == 1,
        f"got {path} with {len(clips)} clips; expected one video [frames, height, width]; use the "
        "clips as they are, they need no preparation",
    )
    video = clips.frames[0].numpy()
    num_frames, height, width = video.shape[:3]
    require_size(path, width, height)

    def frames() -> Iterator[Frame]:
        for t, picture in enumerate(video if clips.in_colour else video[..., None]):
            if picture.dtype == np.uint8:  # zeros and ones
                yield Frame(float(t), picture * np.uint8(255))
            else:
                yield Frame(float(t), (picture * 65535).round().astype(np.uint16))

    return Video(path.name, height, width, num_frames, None, frames)


READERS: dict[str, Callable[[Path], Video]] = {
    **dict.fromkeys(DEMUXERS, open_container),
    **dict.fromkeys((".gif", ".tif", ".tiff"), open_pages),
    **dict.fromkeys(ARRAYS, open_array),
}
FORMATS = f"{', '.join(READERS)}, or a folder of PNG or JPEG images"


def open_video(path: str | Path) -> Video:
    """Return the video of a file or folder (see `FORMATS`); only its first frame is decoded."""
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():  # a named pipe could block for ever
        state = "is no plain file" if path.exists() else "does not exist"
        raise InputError(f"got {path}, which {state}; expected {FORMATS}; check the path")
    if path.suffix.lower() not in READERS:
        raise InputError(f"got {path}; expected {FORMATS}; convert the video to one of them")
    return READERS[path.suffix.lower()](path)


def read_frames(
    path: str | Path,
) -> UInt8[Tensor, "B T height width"] | Float[Tensor, "B T height width *channels"]:
    """Return all frames in memory: of a video grey in [0, 1], of a clip file as `Clips.frames`."""
    path = Path(path)
    if path.suffix.lower() in ARRAYS and path.is_file():
        return load_clips(path).frames
    video = open_video(path)
    pictures: list[Float[np.ndarray, "height width"]] = []
    for frame in video.frames():
        require(
            (len(pictures) + 1) * video.height * video.width <= MAX_PIXELS,
            f"got {path} with more than {MAX_PIXELS} pixels in all; expected a short clip; make "
            "it smaller or shorter, or use motes prepare",
        )
        pictures.append(grey(frame.picture))
    return torch.from_numpy(np.stack(pictures))[None]
