"""Read uploaded files in a separate process with limits of time and memory.

Hostile archives and videos can exhaust memory, hang or crash their decoder. In a short-lived
process this cannot harm the server; the result is sent back as JSON, never as a pickle.
"""

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from motes.core.errors import InputError
from motes.core.memory import limit_memory
from motes.data import Clips, load_clips
from motes.data.clips import ColourAxis, clips_to_grey
from motes.server import schemas
from motes.server.playground import Playground, to_schema
from motes.video import Preparation, Video, open_video, whole_clip
from motes.video.source import ARRAYS, READERS

MAX_BYTES = 16 * 2**20
MAX_CLIPS = 12
SECONDS = 40.0
MEMORY = 2**30  # bytes that the process may allocate
FORMATS = list(READERS)
_FAILED = "reading failed; the file is damaged or of another format"

_FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
_context: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
if _FORKS:
    _context.set_forkserver_preload([__name__])  # a fork takes milliseconds, not seconds


def read_upload(content: bytes, name: str, playground: Playground) -> schemas.Clips:
    """Return the clips of an uploaded file.

    Args:
        content: Bytes of the file.
        name: Name of the file; the suffix determines the format.
        playground: Determines the frame size and the preparation of videos.

    Raises:
        InputError: The file cannot be read, is too large, or takes too long.
    """
    title, suffix = Path(name).stem, Path(name).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{name[:80]!r} has no supported format; give {', '.join(FORMATS)}")
    with tempfile.TemporaryDirectory() as folder:  # Windows opens no named temporary file twice
        file = Path(folder) / f"upload{suffix}"
        file.write_bytes(content)
        try:
            size, preparation = playground.model.image_size, playground.preparation
            axis = playground.config.data.colour_axis
            found = run_limited(_read, str(file), title, size, preparation, axis)
            return schemas.Clips.model_validate_json(found)
        except InputError as error:
            raise InputError(str(error).replace(str(file), name[:80])) from None


def run_limited(job: Callable[..., schemas.Record], *arguments: object) -> bytes:
    """Run a job in a process with limits of time and memory; return its result as JSON.

    Law: hangs, memory blow-ups and crashes become one line
    (test_a_reader_that_hangs_grows_or_dies_is_one_line).
    """
    ours: Connection
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_report, args=(theirs, job, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            raise InputError(f"reading took more than {SECONDS:.0f} s; send a shorter file")
        mark, content = ours.recv_bytes(1), ours.recv_bytes()
    except (EOFError, OSError):
        raise InputError(_FAILED) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if mark != b"+":
        raise InputError(content.decode())
    return content


def _report(pipe: Connection, job: Callable[..., schemas.Record], arguments: tuple[object]) -> None:
    """Run the job with limited memory and send its result or error."""
    limit_memory(MEMORY)
    try:
        content = schemas.to_json(job(*arguments))
    except InputError as error:
        mark, content = b"-", str(error).encode()
    except MemoryError:
        mark, content = b"-", f"reading needs more than {MEMORY >> 20} MiB of memory".encode()
    except Exception as error:  # decoders raise anything on hostile bytes
        mark, content = b"-", f"{_FAILED} ({type(error).__name__})".encode()
    else:
        mark = b"+"
    pipe.send_bytes(mark)
    pipe.send_bytes(content)


def _read(
    path: str,
    title: str,
    size: tuple[int, int],
    preparation: Preparation | None,
    axis: ColourAxis | None,
) -> schemas.Clips:
    """Return the first clips of a file, cut to the frames that a query may have."""
    if path.endswith(ARRAYS):
        clips = load_clips(path)
        height, width = clips.video.shape[2:4]
        if (height, width) != size:
            raise InputError(
                f"the frames are {height}x{width} pixels; this model needs {size[0]}x{size[1]}: "
                "resize them, or send a video, which is prepared for the model"
            )
        num_frames = clips.video.shape[1]
    else:
        video = open_video(path)
        first = _first_seconds(video)
        whole = whole_clip(path, *size, preparation, first, in_colour=axis is not None)
        clips = Clips(whole.frames)
        num_frames = video.num_frames or clips.video.shape[1]
    if clips.video.shape[1] < 2:
        raise InputError("the clip has 1 frame; give at least 2")
    longest = min(schemas.MAX_FRAMES, schemas.MAX_PIXELS // (size[0] * size[1]))
    notes = []
    if len(clips) > MAX_CLIPS:
        notes.append(f"the first {MAX_CLIPS} of {len(clips)} clips")
    if num_frames > longest:
        notes.append(f"the first {longest} of {num_frames} frames")
    records = to_schema(_cut(clips_to_grey(clips[:MAX_CLIPS], axis), longest), title)
    return schemas.Clips(clips=records, note=" and ".join(notes) or None)


def _first_seconds(video: Video) -> tuple[float, float]:
    """Return the time span of the first MAX_FRAMES frames."""
    return 0.0, (schemas.MAX_FRAMES - 0.5) / (video.fps or 1.0)


def _cut(clips: Clips, num_frames: int) -> Clips:
    """Return the clips up to a number of frames, with colours averaged."""
    frames = clips.frames[:, :num_frames].float()
    return Clips(
        video=frames.mean(-1) if frames.ndim == 5 else frames,
        num_objects=clips.num_objects,
        clean=None if clips.clean is None else clips.clean[:, :, :num_frames],
        observed=None if clips.observed is None else clips.observed[:, :num_frames],
    )
