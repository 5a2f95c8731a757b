"""Invalid queries for `tests.stress.fuzz`: Python calls, command lines, HTTP requests."""

import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

import motes
from motes import cli
from motes.data import cannonballs
from motes.models.checkpoint import save_model
from tests.stress.fuzz_files import (
    CONFIGS,
    NUMBERS,
    ODD,
    any_file,
    any_number,
    clip_bytes,
    damage_json,
    model,
    mutate,
    odd_array,
    shown_to,
)


def odd_input(chance: Random, plain: Callable[[], Any]) -> Any:
    """Something that is, was or never will be what a query takes."""
    match chance.randrange(5):
        case 0:
            return chance.choice(ODD)
        case 1:
            array = odd_array(chance)
            return array if chance.random() < 0.5 else array.tolist()
        case 2:
            return torch.full((1, chance.choice((0, 1, 2, 12)), 16, 16), any_number(chance))
    return plain()


def query(chance: Random, folder: Path) -> object:
    """Questions from Python."""
    chosen = model(chance.choice(sorted(CONFIGS)))
    plain = cannonballs(2, 1, num_frames=6, size=16, seed=3).frames
    frames = odd_input(chance, lambda: shown_to(chosen, plain))
    counts = chance.choice((1, 2, 1, 2, None, odd_input(chance, lambda: [1, 2])))
    seed = chance.choice((0, 0, 0, *ODD))
    match chance.randrange(4):
        case 0:
            return motes.infer(chosen, frames, counts, seed=seed).positions
        case 1:
            horizon: Any = chance.choice((1, 3, *NUMBERS))
            return motes.forecast(chosen, frames, counts, horizon, seed=seed).pixels
        case 2:
            observed = odd_input(chance, lambda: [True, True, False, False, True, True])
            return motes.interpolate(chosen, frames, observed, counts, seed=seed).pixels
    sizes: tuple[Any, ...] = (chance.choice((1, 2, *NUMBERS)), counts, chance.choice((2, *NUMBERS)))
    return motes.sample(chosen, *sizes, seed=seed).pixels


WORDS = (
    *("clips.npz", "none.npz", ".", "..", "/", "/dev/null", "/dev/zero", "run", "in\nfile", "é"),
    *(
        "0",
        "1",
        "2",
        "-1",
        "1e9",
        "99999999999999999999",
        "nan",
        "",
        "--",
        "5:2",
        "1:3",
        "0:99",
        "*",
    ),
)
FLAGS = (
    *("--model", "--num-objects", "--out", "--gif", "--seed", "--json", "--horizon", "--seen"),
    *("--hide", "--num-clips", "--num-frames", "--size", "--preset", "--family", "--iterations"),
    *("--replicas", "--resume", "--device", "--dry-run", "--help", "--clips", "--nonsense"),
    *("--from", "--data", "--world", "--overlay", "--plot", "--start", "--end", "--crop"),
    *("--roll-backs", "--report", "--tensorboard", "--colour"),
)
VERBS = ("infer", "forecast", "interpolate", "sample", "data", "train", "evaluate", "bogus")


def command_line(chance: Random, folder: Path) -> int:
    """Words and flags at random, many of them after a sensible beginning."""
    run, clips = folder / "run", folder / "clips.npz"
    run.mkdir()
    family = chance.choice(("paper", "structured", "structured", "pictures"))
    save_model(run, model(family), CONFIGS[family])
    clips.write_bytes(clip_bytes("npz"))
    os.chdir(folder / "out")
    verb = chance.choice(VERBS)
    words = [verb]
    if verb in ("infer", "forecast", "interpolate") and chance.random() < 0.8:
        words += [str(clips), "--model", str(run)]
        words += ["--hide", "2:4"] if verb == "interpolate" else []
    elif verb in ("sample", "evaluate"):
        words += ["--model", str(run)] if verb == "sample" else [str(run), "--num-clips", "2"]
    elif verb == "train":
        words += ["--preset", "paper-smoke", "--dry-run"]
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        words.append(chance.choice(FLAGS))
        if chance.random() < 0.8:
            words.append(chance.choice((*WORDS, str(chance.choice(NUMBERS)))))
    return cli.main(words)


@cache
def client(family: str = "structured") -> Any:
    """A client of the playground of a small model."""
    from starlette.testclient import TestClient

    from motes.server.app import create_app
    from motes.server.playground import Playground

    playground = Playground(model(family), CONFIGS[family], "small")
    return TestClient(create_app(playground), base_url="http://localhost")


def http(chance: Random, folder: Path) -> int:
    """Requests to the playground, each of which must be answered with 200 or a clear 4xx."""
    from motes.server.schemas import encode_frames

    pixels = encode_frames(torch.zeros(4, 16, 16))
    shown = {"num_frames": 4, "height": 16, "width": 16, "frames": pixels}
    question: Any = {"video": shown, "masks": [[True] * 4], "num_objects": 1}
    ball = {"x": 3.0, "y": 4.0, "vx": 0.1, "vy": 0.1}
    path, record = chance.choice(
        (
            ("/api/query", question),
            ("/api/count", {"video": shown}),
            ("/api/sample", {"num_objects": 1, "num_frames": 4}),
            ("/api/throw", {"balls": [ball], "num_frames": 4}),
        )
    )
    content = json.dumps(damage_json(chance, record)).encode()
    if chance.random() < 0.3:
        content = mutate(chance, content)
    headers = {"content-type": chance.choice(("application/json", "text/plain", "x"))}
    if chance.random() < 0.2:
        headers["host"] = chance.choice(("evil.example", "localhost:1", ""))
    chosen = client(chance.choice(("structured", "structured", "pictures")))
    return status_of(chosen.post(path, content=content, headers=headers))


def status_of(reply: Any) -> int:
    """The exit code of a reply: answered, or refused with a clear 4xx."""
    if reply.status_code == 200:
        return 0
    if not 400 <= reply.status_code < 500:
        raise RuntimeError(f"{reply.url} answered {reply.status_code}: {reply.text[:300]}")
    print(f"motes: {reply.text}")
    return 2


@cache
def upload_client() -> Any:
    """The same, where uploads are read in this process: the case has limits of its own."""
    from motes.server import uploads

    uploads.run_limited = lambda job, *given: job(*given).model_dump_json().encode()
    return client()


def upload(chance: Random, folder: Path) -> int:
    """Files sent to the playground, damaged or under another name; what raises is a defect."""
    tempfile.tempdir = str(folder)  # where the server keeps a file while it reads it
    content, suffix = any_file(chance, folder)
    name = chance.choice(("x", "", "../x", "é" * 200, "a\0b", "x.npz")) + chance.choice(
        (f".{suffix}", f".{suffix}", ".npz", ".mp4", ".GIF", ".exe", "")
    )
    return status_of(upload_client().post("/api/upload", params={"name": name}, content=content))


PREPARE_FLAGS = (
    *("--size", "--crop", "--start", "--end", "--fps", "--source-fps", "--frames", "--stride"),
    *("--background", "--threshold", "--colour", "--grow", "--num-objects", "--sheet"),
)
PREPARE_WORDS = (
    *("0", "1", "3", "6", "0.5", "-1", "nan", "1e9", "grey", "#ff8800", "#zz", "black", "../x.png"),
    *("out.png", "", "16 12", "0 0 16 16", "4 4 2 2", "99999999999999999999"),
)


def prepare(chance: Random, folder: Path) -> int:
    """`motes prepare` on files whole and damaged, with flags at random."""
    content, suffix = any_file(chance, folder)
    source = folder / f"in.{suffix}"
    source.write_bytes(content)
    os.chdir(folder / "out")
    words = ["prepare", str(source), "--out", "clips.npz", "--size", "16", "--frames", "4"]
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        words += [chance.choice(PREPARE_FLAGS), *chance.choice(PREPARE_WORDS).split()]
    return cli.main(words)


QUESTIONS: dict[str, tuple[Callable[[Random, Path], object], float]] = {
    "query": (query, 0.12),
    "command line": (command_line, 0.06),
    "http": (http, 0.06),
    "upload": (upload, 0.05),
    "prepare": (prepare, 0.05),
}
