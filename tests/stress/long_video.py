"""Compare the memory that `motes prepare` needs for an hour of video with that for five minutes.

Videos of two balls are generated while they are written, then prepared in a separate process whose
peak resident memory the system reports.

Usage: python -m tests.stress.long_video --out experiments/reliability/long_video.json
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np

from experiments.records import write_record
from motes.core.axes import UInt8

HEIGHT, WIDTH, FPS = 120, 160, 30
RADIUS = 5
MINUTES = (5, 60)


def main() -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=MINUTES)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = {
        "video": {"height": HEIGHT, "width": WIDTH, "frames_a_second": FPS},
        # From short to long: the system keeps the largest memory of all processes so far.
        "runs": [measure(minutes) for minutes in sorted(given.minutes)],
    }
    write_record(record, given.out)


def measure(minutes: float) -> dict[str, Any]:
    """Seconds and peak memory of preparing a video of so many minutes."""
    with tempfile.TemporaryDirectory() as folder:
        video, clips = Path(folder) / "long.mp4", Path(folder) / "clips.npz"
        write_video(video, round(minutes * 60 * FPS))
        began = time.monotonic()
        command = [sys.executable, "-m", "motes", "prepare", str(video), "--out", str(clips)]
        subprocess.run([*command, "--size", "64", "--json"], check=True, stdout=subprocess.PIPE)
        took = time.monotonic() - began
        with np.load(clips) as archive:
            counts = archive["num_objects"]
        return {
            "minutes": minutes,
            "video_mib": video.stat().st_size / 2**20,
            "clips": len(counts),
            "clips_counted_right": float((counts == 2).mean()),
            "seconds": took,
            "peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10,
        }


def write_video(path: Path, num_frames: int) -> None:
    """Two balls that are reflected by the borders, encoded picture by picture."""
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for picture in pictures(num_frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="gray")))
        container.mux(stream.encode(None))


def pictures(num_frames: int) -> Iterator[UInt8[np.ndarray, "height width"]]:
    """White balls on grey, as they move."""
    place = np.array([[40.0, 30.0], [110.0, 80.0]])
    speed = np.array([[1.7, 0.9], [-0.8, 1.3]])
    low, high = np.full(2, RADIUS), np.array([WIDTH, HEIGHT]) - 1 - RADIUS
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for _ in range(num_frames):
        picture = np.full((HEIGHT, WIDTH), 60, dtype=np.uint8)
        for column, row in place:
            picture[np.square(x - column) + np.square(y - row) <= RADIUS**2] = 230
        yield picture
        speed = np.where((place + speed < low) | (place + speed > high), -speed, speed)
        place = place + speed


if __name__ == "__main__":
    main()
