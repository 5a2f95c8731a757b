"""The growth benchmark measures what it says, and its picture shows it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import scale
from benchmarks.__main__ import main
from benchmarks.scale import (
    CURVES,
    FAMILIES,
    Point,
    bench_scale,
    growth,
    num_points,
    peak_memory,
)
from motes.queries import SEARCH, SMOOTHING_BYTES

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "records" / "scale.json"


def test_the_peak_counts_what_came_and_went() -> None:
    with peak_memory() as grown:
        held = torch.ones(2**26, dtype=torch.uint8)  # 64 MiB, written to
        del held
    # Pages are counted in small lots, and the interpreter takes a little itself.
    assert 60 < grown.peak < 80
    assert grown.kept < 10
    with peak_memory() as grown:
        held = torch.ones(2**26, dtype=torch.uint8)
    assert 60 < grown.kept <= grown.peak + 1  # counted in small lots, at two moments
    del held
    with peak_memory() as grown:
        pass
    assert grown.peak < 10


ASK_SHORT_AND_LONG = """
import sys
from benchmarks.scale import Point, run_query, return_blocks_at_once
return_blocks_at_once()
family, *lengths = sys.argv[1:]
print(*(run_query(family, Point(frames=int(length)))["peak_mib"] for length in lengths))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "short", "long", "of_a_frame"),
    [
        # Of each position of the two objects some numbers are kept, 1 kB a frame in all, and
        # twice that while they are made; one picture of the frame would be 9: not half of one.
        ("paper", 250, 2500, 4_500),
        # Cells of six kinds, of two objects in three searches, would be 230 kB: not one picture.
        ("pictures", 300, 700, 9_000),
    ],
)
def test_a_longer_video_takes_little_more_memory(
    family: str, short: int, long: int, of_a_frame: int
) -> None:
    # In a process of its own: blocks that earlier tests left free would be counted, or not.
    words = [sys.executable, "-c", ASK_SHORT_AND_LONG, family, str(short), str(long)]
    told = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    ).stdout
    before, after = map(float, told.split())
    # Resident memory is counted in pages of many small blocks: equal queries differ by up to 4 MiB.
    assert (after - before - 4) * 2**20 < (long - short) * of_a_frame


def test_growth_is_the_power_of_the_last_tenfold() -> None:
    at = [30, 100, 300, 1000, 3000]
    assert math.isclose(growth(at, [float(x) ** 2 for x in at]), 2.0)
    assert math.isclose(growth(at, [5.0, 1.0, 7.0, 7.0, 7.0]), 0.0)


def test_progress_counts_every_question_and_each_is_stored_where_it_belongs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(family: str, point: Point) -> dict[str, float]:
        number = math.prod(point[:4]) * 10.0 ** list(FAMILIES).index(family)
        return {"seconds": number, "peak_mib": 2 * number, "answer_mib": 3 * number}

    monkeypatch.setattr(scale, "run_query", asked)
    monkeypatch.setattr(scale, "stream", lambda count, block: {"seconds": float(count)})
    monkeypatch.setattr(scale, "return_blocks_at_once", lambda: None)
    done: list[int] = []
    record = bench_scale(progress=done.append)
    assert done == list(range(1, num_points() + 1))
    for name, curve in CURVES.items():
        for at, *points in zip(
            curve.at, *(record["curves"][name][f] for f in FAMILIES), strict=True
        ):
            assert points == [asked(family, curve.point(at)) for family in FAMILIES]


def test_the_command_writes_the_record_of_every_axis_and_family_and_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    words = ["scale", "--smoke", "--out", str(out), "--picture", str(picture)]
    assert main(words) == 0
    record = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == record
    assert picture.read_bytes()[:4] == b"\x89PNG"
    for curve in record["curves"].values():
        for family in ("paper", "structured", "pictures"):
            assert [point["seconds"] > 0 for point in curve[family]] == [True] * len(curve["at"])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_question_about_many_clips_took_more_than_it_is_refused_for(family: str) -> None:
    curve = json.loads(RECORD.read_text("utf-8"))["curves"]["clips"]
    point = CURVES["clips"].point(curve["at"][-1])  # what does not grow matters least there
    positions = point.objects * point.frames
    model = scale.model_for(family, point)
    num_components = model.dynamics.num_components
    of_a_clip = model.inference.bytes_per_clip(point.objects, point.frames, num_components, SEARCH)
    of_a_clip += SMOOTHING_BYTES * positions
    assert curve[family][-1]["peak_mib"] * 2**20 <= point.clips * of_a_clip
