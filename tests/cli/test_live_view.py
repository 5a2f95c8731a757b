"""The live view of training in a terminal."""

import io

import numpy as np
import pytest
from rich.console import Console

from motes.cli.live_view import (
    BARS,
    downsample,
    half_blocks,
    panel,
    plain_line,
    progress_line,
    sparkline,
    supports_images,
    training_panel,
)
from motes.output.demo import Snapshot


def snapshot(start=0, side=44):
    glyph = np.linspace(0, 1, side * side).reshape(side, side)
    step, of, rate = (8, 24, 0.0) if start else (42, 168, 2.0)
    return Snapshot(restart=start, step=step, of=of, rate=rate, bound=-181.27, sprite=glyph)


def test_a_sparkline_goes_from_the_lowest_bar_to_the_highest():
    line = sparkline([-300.0, -200.0, -150.0, -160.0], 40)
    assert line[0] == BARS[0]
    assert line[2] == BARS[-1]
    assert [BARS.index(bar) for bar in line] == [0, 5, 7, 7]  # 7 * (2/3, 1, 14/15), rounded
    assert sparkline([], 40) == ""
    assert sparkline([1.0, 1.0], 40) == 2 * BARS[0]
    assert len(sparkline(list(range(100)), 40)) == 40


def test_downsampling_averages_blocks():
    picture = np.arange(16.0).reshape(4, 4)
    expected = [[2.5, 4.5], [10.5, 12.5]]
    np.testing.assert_allclose(downsample(picture, 2), expected, rtol=1e-12)
    assert downsample(picture, 22).shape == (4, 4)


def test_half_blocks_hold_two_rows_in_a_line():
    text = half_blocks(np.array([[0.0, 1.0], [0.5, 0.25], [1.0, 1.0]]))
    assert text.plain == "▀▀\n▀▀"
    styles = [str(span.style) for span in text.spans if span.end - span.start == 1]
    assert styles[:4] == [
        "#000000 on #808080", "#ffffff on #404040", "#ffffff on #000000", "#ffffff on #000000",
    ]  # fmt: skip


def test_progress_has_speed_and_time_left():
    assert progress_line(snapshot()) == "step 42/168, 2.0 steps/s, 63 s left"
    assert progress_line(snapshot(start=3)) == "restart 3/4, step 8/24"
    assert plain_line(snapshot()) == f"{progress_line(snapshot())}, bound -181.3 nats per clip"


@pytest.mark.parametrize("start", [0, 3])
def test_a_panel_shows_step_bound_and_sprite_within_a_small_window(start):
    console = Console(
        file=io.StringIO(), width=80, height=24, force_terminal=True, color_system="256"
    )
    with console.capture() as capture:
        console.print(panel("learning", snapshot(start), [-200.0, -181.27]))
    shown = capture.get()
    assert "-181.3" in shown
    assert progress_line(snapshot(start)) in shown
    assert shown.count("▀") == 22 * 11
    assert len(shown.splitlines()) <= 23


def test_without_colours_snapshots_are_plain_lines(capsys):
    for terminal, colours, encoding in ((False, "truecolor", "utf-8"), (True, "standard", "utf-8")):
        assert not supports_images(terminal, colours, encoding)
    assert not supports_images(True, "256", "latin-1")
    assert supports_images(True, "256", "utf-8")
    with training_panel("learning") as show:
        show(snapshot(3))
        show(snapshot())
    assert capsys.readouterr().err.splitlines() == [
        "learning", plain_line(snapshot(3)), plain_line(snapshot())
    ]  # fmt: skip
