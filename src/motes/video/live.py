"""Live sources: cameras, streams and paced files, read once; a ring buffer of pictures on disk."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from motes.core.errors import InputError, require
from motes.core.files import atomic_path
from motes.video.source import Frame, Picture, Video, open_video, to_rgb

BACKLOG = 8  # frames that wait for a slow reader; older ones are dropped
CAMERAS = ("v4l2", "avfoundation", "dshow")  # of Linux, macOS and Windows
QUALITY = 90  # of JPEG


def open_live(address: str) -> Video:
    """Return a camera (a number or /dev/video0) or a stream (rtsp://, http://, udp://, -).

    The video can be read once. Times are those of the source.
    """
    try:
        import av
    except ImportError:
        raise InputError("cameras and streams need PyAV; pip install 'motes[video]'") from None
    av.logging.set_level(None)
    camera = address.isdecimal() or address.startswith("/dev/video")
    name = f"/dev/video{address}" if address.isdecimal() else address
    kinds = [kind for kind in CAMERAS if kind in av.formats_available] if camera else [None]
    container = None
    for kind in kinds:
        try:
            container = av.open("pipe:0" if name == "-" else name, format=kind)
            break
        except (av.error.FFmpegError, OSError):
            continue
    if container is None or not container.streams.video:
        raise InputError(
            f"got {address}; expected a camera (0, /dev/video0) or a stream (rtsp://...) that can "
            "be opened; check that no other program uses it"
        )
    stream = container.streams.video[0]
    fps = float(stream.average_rate) if stream.average_rate else None
    size = stream.codec_context

    def frames() -> Iterator[Frame]:
        start = None
        for count, image in enumerate(container.decode(video=0)):
            own = count / (fps or 25.0) if image.time is None else float(image.time)
            start = own if start is None else start
            yield Frame(own - start, image.to_ndarray(format="rgb24"))

    return Video(address, size.height, size.width, None, fps, frames, rereadable=False)


def paced(
    video: Video,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Video:
    """Return a recorded video as a live source: a frame comes when its time has come.

    A reader that is late by more than a frame misses frames, as with a camera.

    Law: a slow reader gets the newest frame (test_a_slow_reader_misses_frames).
    """
    step = 1 / (video.fps or 1.0)

    def frames() -> Iterator[Frame]:
        began = clock()
        for frame in video.frames():
            late = clock() - began - frame.time
            if late < 0:
                sleep(-late)
            elif late > step:
                continue
            yield frame

    return replace(video, frames=frames, rereadable=False, num_frames=None)


def newest(video: Video, backlog: int = BACKLOG) -> Video:
    """Return a live source that reads ahead in a thread and drops what a slow reader misses.

    Law: at most `backlog` frames wait (test_frames_that_wait_are_bounded).
    """

    def frames() -> Iterator[Frame]:
        waiting: deque[Frame | BaseException | None] = deque(maxlen=backlog)
        came = threading.Condition()

        def put(item: Frame | BaseException | None) -> None:
            with came:
                waiting.append(item)
                came.notify()

        def read() -> None:
            try:
                for frame in video.frames():
                    put(frame)
                put(None)
            except BaseException as error:  # told to the reader
                put(error)

        threading.Thread(target=read, daemon=True).start()
        while True:
            with came:
                came.wait_for(lambda: len(waiting) > 0)
                item = waiting.popleft()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise InputError(f"{video.name} ended: {str(item)[:100]}") from item
            yield item

    return replace(video, frames=frames)


class Ring:
    """The last pictures of a source as JPEG files in a folder, which opens as a video.

    Law: holds the newest pictures, never more than its capacity
    (test_a_ring_holds_the_newest_pictures).
    """

    def __init__(self, folder: Path, capacity: int) -> None:
        require(capacity >= 1, f"a ring holds {capacity} pictures; give at least 1")
        require(
            not folder.exists() or not any(folder.iterdir()),
            f"ring is {folder}, which is not empty; give a new folder",
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.capacity, self.held = folder, capacity, deque[Path]()

    def add(self, index: int, picture: Picture) -> None:
        """Store a picture and delete the oldest if there are too many."""
        from PIL import Image

        path = self.folder / f"{index:09d}.jpg"
        with atomic_path(path) as temporary:
            Image.fromarray(to_rgb(picture)).save(temporary, "JPEG", quality=QUALITY)
        self.held.append(path)
        while len(self.held) > self.capacity:
            self.held.popleft().unlink(missing_ok=True)


def open_source(address: str) -> Video:
    """Return a live source: a camera, a stream, or a file that is played at its own speed."""
    path = Path(address)
    if path.is_file() or (path.is_dir() and not address.isdecimal()):
        return paced(open_video(path))
    return newest(open_live(address))
