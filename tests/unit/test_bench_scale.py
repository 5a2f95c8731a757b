"""The growth benchmark measures what it says, and its picture shows it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from motes import cli
from motes.bench.scale import (
    bench_scale,
    growth,
    num_points,
    peak_memory,
)


def test_the_peak_counts_what_came_and_went() -> None:
    with peak_memory() as grown:
        held = torch.ones(2**26, dtype=torch.uint8)  # 64 MiB, written to
        del held
    # Pages are counted in small lots, and the interpreter takes a little itself.
    assert 60 < grown.peak < 80
    assert grown.kept < 10
    with peak_memory() as grown:
        held = torch.ones(2**26, dtype=torch.uint8)
    assert 60 < grown.kept <= grown.peak
    del held
    with peak_memory() as grown:
        pass
    assert grown.peak < 10


ASK_SHORT_AND_LONG = """
from motes.bench.scale import Point, ask_once, hand_back_at_once
hand_back_at_once()
print(*(ask_once("paper", Point(frames=frames))["peak_mib"] for frames in (250, 2500)))
"""


@pytest.mark.slow
def test_a_ten_times_longer_video_takes_little_more_memory() -> None:
    # In a process of its own: blocks that earlier tests left free would be counted, or not.
    words = [sys.executable, "-c", ASK_SHORT_AND_LONG]
    told = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
    short, long = map(float, told.split())
    # Of each position of the two objects some numbers are kept, 1 kB a frame in all, and
    # twice that while they are made; one picture of the frame would be 9: not half of one.
    assert (long - short) * 2**20 < 2250 * 4500


def test_growth_is_the_power_of_the_last_tenfold() -> None:
    at = [30, 100, 300, 1000, 3000]
    assert math.isclose(growth(at, [float(x) ** 2 for x in at]), 2.0)
    assert math.isclose(growth(at, [5.0, 1.0, 7.0, 7.0, 7.0]), 0.0)


def test_every_axis_and_both_families_are_measured() -> None:
    done: list[int] = []
    record = bench_scale(smoke=True, progress=done.append)
    assert done == list(range(1, num_points(smoke=True) + 1))
    for curve in record["curves"].values():
        for family in ("paper", "structured"):
            assert [point["seconds"] > 0 for point in curve[family]] == [True] * len(curve["at"])
    json.dumps(record)


def test_the_command_writes_the_record_and_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "scale.json", tmp_path / "scale.png"
    words = ["bench", "scale", "--smoke", "--out", str(out), "--picture", str(picture), "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert picture.read_bytes()[:4] == b"\x89PNG"
