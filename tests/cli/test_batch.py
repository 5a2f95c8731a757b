"""Many recordings give the same table in one process, in two and on a cluster that loses one."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import motes
from motes import cli
from motes.cli.batch import Job, Workers, job_key, perform, run_jobs
from motes.data import write_gif

HEIGHT, WIDTH, FPS = 24, 32, 20.0
MANY, MANY_BROKEN = 40, (3, 17, 31)
FEW, BROKEN = 6, (3,)


def make_recording(path: Path, number: int, num_frames: int, fps: float = FPS) -> None:
    """One bright disk on a dark scene, on a straight line that the number chooses."""
    random = np.random.default_rng(number)
    start, step = random.uniform((6, 8), (12, 16)), random.uniform((0.8, -0.3), (1.2, 0.3))
    rows, columns = np.indices((HEIGHT, WIDTH))
    centres = start + step * np.arange(num_frames)[:, None]
    frames = [
        np.where((columns - x) ** 2 + (rows - y) ** 2 <= 10, 0.9, 0.1 + 0.05 * (rows % 2))
        for x, y in centres
    ]
    write_gif(path, torch.tensor(np.array(frames), dtype=torch.float32), fps=fps)


def make_recordings(folder: Path, count: int, broken: tuple[int, ...]) -> None:
    """Short recordings of several lengths, some of them cut short."""
    folder.mkdir()
    for number in range(count):
        path = folder / f"take{number}.gif"
        make_recording(path, number, 9 + number % 4)
        if number in broken:
            path.write_bytes(path.read_bytes()[:40])


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings, one of them broken, with their clips and a model."""
    folder = tmp_path_factory.mktemp("rig")
    make_recordings(folder / "videos", FEW, BROKEN)
    clips = ["prepare", f"{folder}/videos", "-o", f"{folder}/clips.npz", "--size=32"]
    assert cli.main([*clips, "--frames=8", "--stride=4", "--jobs=1"]) == 1
    train = ["train", "--preset=sprites-smoke", f"--data={folder}/clips.npz", "--iterations=4"]
    assert cli.main([*train, f"--out={folder}/run"]) == 0
    return folder


def ask(rig: Path, out: Path, *more: str, videos: str = "videos") -> int:
    given = ["infer", f"{rig}/{videos}", f"--model={rig}/run", "--num-objects=1", f"--out={out}"]
    return cli.main([*given, *more])


@pytest.fixture(scope="module")
def alone(rig: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "tracks.csv"
    assert ask(rig, out, "--jobs=1") == 1
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_broken_recordings_are_told_and_the_others_are_prepared(
    rig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["prepare", f"{rig}/videos", "-o", f"{tmp_path}/clips.npz", "--size=32", "--jobs=1"]
    assert cli.main([*given, "--frames=11", "--json"]) == 1
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    broken = {f"take{number}" for number in BROKEN}
    assert set(record["failed"]) == broken
    assert set(record["recordings"]) == {f"take{n}" for n in range(FEW)} - broken
    last = printed.err.strip().splitlines()[-1]
    assert f"1 of {FEW} recordings failed" in last
    assert "take3" in last
    clips = motes.load_clips(tmp_path / "clips.npz")
    assert len(clips) == record["clips"]
    # Recordings of 9 and 10 frames are shorter than a clip: their last frames are unobserved.
    assert clips.observed is not None
    assert sorted(set(clips.observed.sum(1).tolist())) == [9, 10, 11]


def test_one_table_names_recordings_and_numbers_particles_through(alone: Path) -> None:
    table = rows(alone)
    found = list(dict.fromkeys(row["recording"] for row in table))
    assert found == [f"take{number}" for number in range(FEW) if number not in BROKEN]
    owners: dict[str, set[str]] = {}
    for row in table:
        owners.setdefault(row["particle"], set()).add(row["recording"])
    assert [int(particle) for particle in owners] == list(range(FEW - len(BROKEN)))
    assert all(len(names) == 1 for names in owners.values())
    for number in (0, 4):  # every frame once
        frames = [int(row["frame"]) for row in table if row["recording"] == f"take{number}"]
        assert frames == list(range(9 + number % 4))


def test_two_processes_give_the_table_of_one(rig: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "tracks.csv"
    assert ask(rig, out, "--jobs=2") == 1
    assert out.read_text() == alone.read_text()


def test_corrections_change_their_recording_alone(rig: Path, alone: Path, tmp_path: Path) -> None:
    out, fixes = tmp_path / "tracks.csv", tmp_path / "fixes.json"
    told = {(row["recording"], row["frame"]): row for row in rows(alone)}
    x, y = (float(told["take4", "5"][name]) for name in ("x", "y"))
    pin = {"recording": "take4", "kind": "pin", "object": 0, "frame": 5, "x": x + 1, "y": y}
    fixes.write_text(json.dumps([{**pin, "sd": 0.01}]))
    assert ask(rig, out, "--jobs=1") == 1
    assert ask(rig, out, "--jobs=1", "--resume", f"--corrections={fixes}") == 1
    mended = {(row["recording"], row["frame"]): row for row in rows(out)}
    assert set(mended) == set(told)
    changed = {name for (name, _), row in mended.items() if row not in told.values()}
    assert changed == {"take4"}
    assert float(mended["take4", "5"]["x"]) == pytest.approx(x + 1, abs=0.1)
    assert ask(rig, out, "--jobs=1", "--resume") == 1  # without them, as before
    assert out.read_text() == alone.read_text()


def test_resume_does_only_what_is_left(
    rig: Path,
    alone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "tracks.csv"
    assert ask(rig, out, "--jobs=1") == 1
    parts = sorted((tmp_path / "tracks-parts").glob("take*.csv"))
    assert len(parts) == FEW - len(BROKEN)
    parts[2].unlink()
    done: list[str] = []

    def counted(job: Job) -> Any:
        done.append(job.recording)
        return perform(job)

    monkeypatch.setattr("motes.cli.batch.perform", counted)
    assert ask(rig, out, "--jobs=1", "--resume") == 1
    assert len(done) == 1 + len(BROKEN)
    assert out.read_text() == alone.read_text()
    done.clear()  # another option is another question
    assert ask(rig, out, "--jobs=1", "--resume", "--end=0.3") == 1
    assert len(done) == FEW


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """The address of a scheduler and two workers, all in processes of their own."""
    pytest.importorskip("distributed")
    file, processes = tmp_path / "scheduler.json", []
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    here = ["--host", "127.0.0.1"]
    dask = [sys.executable, "-m", "dask"]
    start = [*dask, "scheduler", *here, "--port", "0", "--no-dashboard"]
    processes.append(subprocess.Popen([*start, "--scheduler-file", str(file)], **quiet))
    try:
        while not file.is_file():
            assert processes[0].poll() is None
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        own = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory"]
        for name in ("a", "b"):
            worker = [*dask, "worker", address, *here, *own, str(tmp_path / name)]
            processes.append(subprocess.Popen(worker, **quiet))
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_forty_recordings_on_a_cluster_equal_one_process(
    rig: Path, tmp_path: Path, cluster: tuple[str, list["subprocess.Popen[bytes]"]]
) -> None:
    make_recordings(rig / "many", MANY, MANY_BROKEN)
    alone = tmp_path / "alone.csv"
    assert ask(rig, alone, "--jobs=1", videos="many") == 1
    address, workers = cluster
    out, parts = tmp_path / "tracks.csv", tmp_path / "tracks-parts"
    over = threading.Event()

    def kill_one() -> None:
        while not over.is_set() and len(list(parts.glob("take*.csv"))) < 5:
            time.sleep(0.01)
        workers[0].send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        assert ask(rig, out, f"--cluster={address}", videos="many") == 1
    finally:
        over.set()
        killer.join()
    assert workers[0].wait() == -signal.SIGKILL
    assert out.read_text() == alone.read_text()  # nothing lost, nothing twice
    summary = json.loads((parts / "summary.json").read_text())
    assert set(summary["failed"]) == {f"take{number}" for number in MANY_BROKEN}


def test_a_cluster_that_is_not_there_is_told(
    rig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("motes.cli.batch.CONNECT_SECONDS", 0.1)
    assert ask(rig, tmp_path / "tracks.csv", "--cluster=tcp://127.0.0.1:9") == 2
    assert "tcp://127.0.0.1:9" in capsys.readouterr().err.splitlines()[-1]


def write_or_die(often: int, part: Path) -> dict[str, Any]:
    """Write a part; the first few times, end the process instead, as if it were killed."""
    tries = part.with_suffix(".tries")
    count = int(tries.read_text()) if tries.exists() else 0
    tries.write_text(str(count + 1))
    if count < often:
        os._exit(9)
    part.write_text("done")
    return {"tries": count + 1}


def test_a_killed_process_costs_no_other_recording(tmp_path: Path) -> None:
    deaths = {"a": 0, "b": 1, "c": 99, "d": 0}
    source = tmp_path / "video"
    source.touch()
    jobs = [
        Job(name, write_or_die, often, tmp_path / f"{name}.csv", job_key(source, name))
        for name, often in deaths.items()
    ]
    results = {result.recording: result for result in run_jobs(jobs, Workers(jobs=2))}
    assert [name for name, result in results.items() if result.failed is None] == ["a", "b", "d"]
    assert "killed" in str(results["c"].failed)


def test_all_broken_is_a_failure_without_a_table(
    rig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [f"{tmp_path}/{name}.gif" for name in ("a", "b")]
    for path in broken:
        Path(path).write_bytes(b"GIF89a")
    out = tmp_path / "tracks.csv"
    assert cli.main(["infer", *broken, f"--model={rig}/run", f"--out={out}", "--jobs=1"]) == 1
    assert "all 2 recordings failed" in capsys.readouterr().err
    assert not out.exists()
