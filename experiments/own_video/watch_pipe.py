"""Play a made recording into a pipe at its own speed, and measure how late `motes watch` answers.

A second process encodes two balls on Lissajous curves as MJPEG in Matroska and writes a frame every
1/25 s to a pipe, as `ffmpeg -re` or a network camera does. `motes watch -` reads the pipe. The
record has the seconds between the writing of a frame and the arrival of its rows, the bound that
the program states, the frames that were skipped, the errors in pixels of detected objects, and the
CPU time. Wall times depend on what else the machine does: the load average stands beside them.

Usage: python -m experiments.own_video.watch_pipe --out experiments/own_video/watch_pipe.json
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np

from experiments.records import write_record
from motes.models.checkpoint import load_with_config, save_model
from motes.video.prepare import PREPARATION, Preparation, preparation_to_json

HEIGHT, WIDTH, RADIUS, FPS = 180, 260, 8, 25
WARM_UP, DELAY, EVERY = 4.0, 5, 5


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", type=int, help="write this many frames to standard output")
    parser.add_argument("--speed", type=float, default=1.0, help="times the speed of the recording")
    given = parser.parse_args()
    if given.write is not None:
        write_frames(given.write, sys.stdout.buffer, given.speed)
        return
    with tempfile.TemporaryDirectory() as folder:
        run = model_folder(Path(folder) / "run")
        record = measure(run, round(given.seconds * FPS))
    write_record(record, given.out)


def centres(frame: int) -> np.ndarray:
    """Return the places of both balls in a frame, in pixels, [objects, 2]."""
    t = frame / FPS
    return np.array(
        [
            [130 + 90 * np.sin(1.1 * t), 90 + 60 * np.cos(1.7 * t)],
            [130 + 95 * np.cos(0.9 * t), 90 + 55 * np.sin(1.3 * t)],
        ]
    )


def write_frames(count: int, file: IO[bytes], speed: float) -> None:
    """Encode frames, each when its time has come; print the time of each to standard error."""
    import av

    container = av.open(file, "w", format="matroska")
    stream = container.add_stream("mjpeg", rate=FPS)
    stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
    random = np.random.default_rng(0)
    scene = random.integers(20, 60, (HEIGHT // 4, WIDTH // 4)).repeat(4, 0).repeat(4, 1)
    rows, columns = np.indices((HEIGHT, WIDTH))
    began = time.monotonic()
    for number in range(count):
        picture = scene.copy()
        for x, y in centres(number):
            picture[(columns - x) ** 2 + (rows - y) ** 2 <= RADIUS**2] = 210
        image = av.VideoFrame.from_ndarray(
            np.repeat(picture.astype(np.uint8)[..., None], 3, 2), format="rgb24"
        ).reformat(format="yuvj420p")
        image.pts, image.time_base = number, Fraction(1, FPS)
        time.sleep(max(began + number / FPS / speed - time.monotonic(), 0.0))
        for packet in stream.encode(image):
            container.mux(packet)
        file.flush()
        print(time.monotonic(), file=sys.stderr, flush=True)
    container.close()


def model_folder(folder: Path) -> Path:
    """Return a run folder of the shipped model, with the preparation of this scene."""
    model, config = load_with_config("cannonballs-structured")
    folder.mkdir()
    save_model(folder, model, config)
    (folder / PREPARATION).write_text(preparation_to_json(Preparation(*model.image_size)))
    return folder


def measure(run: Path, count: int) -> dict[str, Any]:
    """Return the record of one stream."""
    load = os.getloadavg()[0]
    me = [sys.executable, "-m", "experiments.own_video.watch_pipe", "--write", str(count)]
    watch = [sys.executable, "-m", "motes", "watch", "-", "--json", "--model", str(run)]
    watch += ["-n", "2", "--warm-up", str(WARM_UP), "--delay", str(DELAY), "--every", str(EVERY)]
    writer = subprocess.Popen(me, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False)
    reader = subprocess.Popen(
        watch, stdin=writer.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    assert reader.stdout is not None
    assert reader.stderr is not None
    writer.stdout.close()  # the reader has it
    sent: list[float] = []
    noting = threading.Thread(target=lambda: sent.extend(map(float, writer.stderr or ())))
    noting.start()
    rows = [(time.monotonic(), json.loads(line)) for line in reader.stdout]
    said = reader.stderr.read()
    code = reader.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the reader alone so far
    writer.wait()
    noting.join()
    late = np.array([came - sent[row["frame"]] for came, row in rows if row["frame"] < len(sent)])
    errors = [
        float(np.linalg.norm(centres(row["frame"]) - [row["x"], row["y"]], axis=-1).min())
        for _, row in rows
        if row["seen"]
    ]
    frames = sorted({row["frame"] for _, row in rows})
    stated = re.search(r"at most (\d+) frames \(([\d.]+) s\)", said)
    return {
        "exit_code": code,
        "said": said.splitlines()[-3:],
        "frames_sent": len(sent),
        "first_frame": frames[0] if frames else None,
        "rows": len(rows),
        "seen_rows": len(errors),
        "stated_frames": None if stated is None else int(stated[1]),
        "stated_seconds": None if stated is None else float(stated[2]),
        "delay_seconds": _percentiles(late),
        "error_px_of_seen": _percentiles(np.array(errors)),
        "cpu_ms_per_frame_with_start": round(1e3 * (used.ru_utime + used.ru_stime) / len(sent), 1),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def _percentiles(values: np.ndarray) -> dict[str, float]:
    """Return the median, the 95th percentile and the largest value."""
    if not len(values):
        return {}
    found = np.percentile(values, [50, 95, 100])
    return dict(zip(("p50", "p95", "max"), found.round(3).tolist(), strict=True))


if __name__ == "__main__":
    main()
