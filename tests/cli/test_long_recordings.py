import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motes.cli import long_recordings, main
from motes.cli.queries import Options, Query
from motes.video.source import write_mp4
from swinging import SIZE, frames_of, swinging_places, swinging_run

FRAMES, STRETCHES = 300, 3  # of 100 frames


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in the size of the model's frames."""
    path = tmp_path_factory.mktemp("long") / "swing.mp4"
    levels = (255 * frames_of(swinging_places(FRAMES))[0]).byte().numpy()
    write_mp4(path, (np.repeat(level[..., None], 3, 2) for level in levels), 25.0)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swinging_run(tmp_path_factory.mktemp("run") / "swing")


def command(recording: Path, run: Path, out: Path, *more: str) -> list[str]:
    options = ["--model", str(run), "--num-objects", "2", "--out", str(out), "--json"]
    return ["infer", str(recording), *options, *more]


@pytest.fixture(scope="module")
def in_stretches(
    recording: Path, run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The table, and what the command printed."""
    out, printed = tmp_path_factory.mktemp("table") / "many.csv", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(command(recording, run, out, "--stretch", "100")) == 0
    return out, json.loads(printed.getvalue())


def test_the_table_of_stretches_equals_that_of_one_piece(
    recording: Path, run: Path, tmp_path: Path, in_stretches: tuple[Path, dict[str, Any]]
) -> None:
    one, (many, record) = tmp_path / "one.csv", in_stretches
    assert main(command(recording, run, one)) == 0
    assert (record["frames"], record["stretches"]) == (FRAMES, STRETCHES)
    assert record["num_objects"] == [2]
    tables = []
    for path in (one, many):
        with path.open() as file:
            tables.append(list(csv.DictReader(file)))
    assert [row.keys() for row in tables[0]] == [row.keys() for row in tables[1]]
    exact = ("clip", "frame", "particle", "observed", "seen", "time")
    near = ("x", "y", "sd_x", "sd_y", "cov_xy", "vx", "vy")
    for row, other in zip(*tables, strict=True):
        assert [row[name] for name in exact] == [other[name] for name in exact]
        # 1e-3 px, and px/s at 25 frames a second; see `test_stretches`.
        apart = [abs(float(row[name]) - float(other[name])) for name in near]
        assert max(apart[:5]) < 1e-3
        assert max(apart[5:]) < 25e-3
    assert [path.name for path in many.parent.iterdir()] == ["many.csv"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kill_at", [2, STRETCHES])
def test_a_killed_run_resumes_to_the_same_bytes(
    recording: Path,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_stretches: tuple[Path, dict[str, Any]],
    kill_at: int,
) -> None:
    """Killed after the rows are written and before the state is, or before the last rename."""
    out = tmp_path / "out.csv"
    write, states = long_recordings.write_state, []

    def stop(path: Path, key: str, progress: long_recordings.Progress) -> None:
        states.append(progress)
        if len(states) == kill_at < STRETCHES:
            raise Killed
        write(path, key, progress)
        if len(states) == STRETCHES:
            raise Killed

    monkeypatch.setattr(long_recordings, "write_state", stop)
    with pytest.raises(Killed):
        main(command(recording, run, out, "--stretch", "100"))
    assert not out.exists()
    monkeypatch.setattr(long_recordings, "write_state", write)
    decoded: list[int] = []
    stretches = long_recordings._stretches

    def counted(*given: object) -> object:
        for progress in stretches(*given):
            decoded.append(progress.num_done)
            yield progress

    monkeypatch.setattr(long_recordings, "_stretches", counted)
    assert main(command(recording, run, out, "--stretch", "100", "--resume")) == 0
    assert len(decoded) == max(STRETCHES + 1 - kill_at, 1)
    assert out.read_bytes() == in_stretches[0].read_bytes()


def test_a_state_of_other_settings_is_not_resumed(tmp_path: Path) -> None:
    assert long_recordings.read_state(tmp_path / "none.npz", "a") is None
    np.savez(tmp_path / "other.npz", key=np.array("b"))
    assert long_recordings.read_state(tmp_path / "other.npz", "a") is None


def test_only_long_recordings_are_inferred_in_stretches(
    recording: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query("infer", Options((recording,), str(run)))
    assert not long_recordings.is_long(query, recording)
    monkeypatch.setattr("motes.video.clips.MAX_FRAMES", FRAMES - 1)
    assert long_recordings.is_long(query, recording)
    assert not long_recordings.is_long(Query("forecast", query.options), recording)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--overlay", "out.mp4"), "overlay is given for a long recording"),
        (("--stretch", "20"), "stretch is 20; give 64 to 10000"),
    ],
)
def test_what_needs_all_frames_is_refused(
    recording: Path,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, str],
    message: str,
) -> None:
    stretch = () if "--stretch" in more else ("--stretch", "100")
    assert main(command(recording, run, tmp_path / "out.csv", *more, *stretch)) == 2
    assert message in capsys.readouterr().err


def test_frames_are_those_of_the_model(recording: Path) -> None:
    from motes.video import open_video

    video = open_video(recording)
    assert (video.height, video.width, video.num_frames) == (SIZE, SIZE, FRAMES)
