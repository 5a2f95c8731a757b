"""Measure the ways from a recording to a table that need no reading, and store what was said.

`command`: `motes infer FILE` without a model. `page`: what the page for own videos asks the server
for if nothing is changed: open the file, look at a frame, train, follow, export. Both use two
threads. Wall time depends on what else the machine does, so the CPU time and the load average
before and after stand beside it.

Usage: python -m experiments.own_video.measure_paths VIDEO [VIDEO ...]
           --out experiments/own_video/paths.json
       The word "made" instead of a file stands for a recording of two balls made here.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from experiments.records import write_record
from motes.video.source import write_mp4

LIMIT = 300.0  # seconds: five minutes
HEIGHT, WIDTH, FRAMES, RADIUS = 180, 260, 70, 8  # of the made recording


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--way", choices=("command", "page"), help="default: both")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = []
    ways = {"command": by_command, "page": by_page}
    for name in given.videos:
        for way in ways.values() if given.way is None else (ways[given.way],):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / (Path(name).name if name != "made" else "made.mp4")
                if name == "made":
                    write_two_balls(path)
                else:
                    path.symlink_to(Path(name).resolve())
                results.append({"recording": path.name, **measured(way, path)})
    write_record({"limit_seconds": LIMIT, "paths": results}, given.out)


def measured(way: Any, path: Path) -> dict[str, Any]:
    """Return what a way said, with its times and the load of the machine."""
    load, before, began = os.getloadavg()[0], _cpu(), time.monotonic()
    said = way(path)
    wall, cpu = time.monotonic() - began, _cpu() - before
    return {
        "way": way.__name__.removeprefix("by_"),
        **said,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
        "within_limit": wall < LIMIT,
        "cpu_within_limit_on_one_core": cpu < LIMIT,
    }


def _cpu() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_command(path: Path) -> dict[str, Any]:
    """Infer without a model; return the lines printed and the size of the table."""
    command = [sys.executable, "-m", "motes", "infer", path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    table = path.with_name(f"{path.stem}-infer.csv")
    rows = len(table.read_text("utf-8").splitlines()) - 1 if table.is_file() else 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("motes:")]
    return {
        "command": f"motes infer {path.name}",
        "exit_code": done.returncode,
        "said": [*lines, *done.stdout.splitlines()],
        "rows": rows,
    }


def by_page(path: Path) -> dict[str, Any]:
    """Open, train, follow and export through a server of its own; return what it answered."""
    with serving() as url:
        opened = ask(f"{url}api/video/open?name={path.name}", path.read_bytes())
        settings: dict[str, Any] = {}
        middle = opened["num_frames"] // 2
        seen = ask(f"{url}api/video/preview", {"frame": middle, "settings": settings})
        ask(f"{url}api/video/train", {"settings": settings})
        while (progress := ask(f"{url}api/video")["progress"])["phase"] not in ("done", "failed"):
            time.sleep(0.5)
        if progress["phase"] == "failed":
            return {"said": [progress["message"]], "rows": 0}
        asked = {"num_objects": seen["typical_objects"], "corrections": []}
        tracks = ask(f"{url}api/video/tracks", asked)
        with urllib.request.urlopen(f"{url}api/video/table?format=csv") as answer:
            rows = len(answer.read().splitlines()) - 1
    said = [
        f"{opened['num_frames']} frames of {opened['width']}x{opened['height']} pixels",
        f"usually {seen['typical_objects']} objects at threshold {seen['threshold']}",
        *progress["warnings"],
        f"{len(tracks['tracks'])} tracks, followed in {tracks['milliseconds']} ms",
        *([tracks["warning"]] if tracks["warning"] else []),
    ]
    return {"said": said, "rows": rows}


def ask(url: str, body: bytes | dict[str, Any] | None = None) -> Any:
    """Return the JSON that the server answers."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    kind = "application/json" if isinstance(body, dict) else "application/octet-stream"
    request = urllib.request.Request(url, content, {"content-type": kind})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


@contextmanager
def serving() -> Iterator[str]:
    """Yield the address of a server on a free port; it is stopped as Ctrl-C would stop it."""
    command = [sys.executable, "-m", "motes", "serve", "--port=0", "--json", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def write_two_balls(path: Path) -> None:
    """Write two balls that cross before a textured scene, with camera noise."""
    random, t = np.random.default_rng(0), np.arange(FRAMES)
    places = np.stack(
        [
            np.stack([15 + 3.3 * t, 150 - 6.2 * t + 0.085 * t**2], -1),
            np.stack([245 - 3.2 * t, 60 + 1.1 * t], -1),
        ]
    )
    scene = random.integers(20, 60, (HEIGHT // 4, WIDTH // 4)).repeat(4, 0).repeat(4, 1)
    rows, columns = np.indices((HEIGHT, WIDTH))

    def pictures() -> Iterator[np.ndarray]:
        for points in places.transpose(1, 0, 2):
            picture = scene.astype(float)
            for x, y in points:
                picture[(columns - x) ** 2 + (rows - y) ** 2 <= RADIUS**2] = 210
            noisy = picture + random.normal(0, 2, picture.shape)
            yield np.repeat(noisy.round().clip(0, 255).astype(np.uint8)[..., None], 3, 2)

    write_mp4(path, pictures(), 25.0)


if __name__ == "__main__":
    main()
