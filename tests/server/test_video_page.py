"""The page for own videos in a browser: from a file to a table, with a correction."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import browser as browsers
from browser import Page, browser, executable
from own_videos import HEIGHT, NUM_FRAMES, WIDTH, write_two_balls
from serving import Server, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no Chromium here; .ci/run installs it"),
]
TRAINING_SECONDS = 600.0  # on a busy machine; it takes a quarter of a minute on an idle one


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def page(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = executable()
    assert program is not None
    with browser(program, tmp_path_factory.mktemp("profile")) as opened:
        opened.open(server.url + "video.html", 1280, 900)
        opened.wait("document.body?.dataset.ready === 'yes'")
        yield opened
        assert opened.complaints == []
        assert [url for url in opened.requests if not url.startswith((server.url, "data:"))] == []


def at(x: float, y: float) -> tuple[float, float]:
    """A pixel of the recording as a share of the picture."""
    return (x + 0.5) / WIDTH, (y + 0.5) / HEIGHT


def go_to(page: Page, frame: int) -> None:
    page.evaluate(
        "(() => { const slider = document.querySelector('#frame');"
        f"slider.value = {frame}; slider.dispatchEvent(new Event('input')); }})()"
    )
    page.wait(f"motesState.frame === {frame} && /^{frame + 1} /.test(clock.textContent)")


def object_place(page: Page, number: int, frame: int) -> tuple[float, float]:
    x, y = page.evaluate(f"motesState.tracks.tracks[{number}].places[{frame}]")
    return float(x), float(y)


def test_a_person_gets_from_a_file_to_a_table(
    page: Page, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_two_balls(tmp_path / "balls.mp4")
    page.choose_file("#file", tmp_path / "balls.mp4")
    page.wait("motesState.preview")
    go_to(page, 8)
    page.wait("motesState.masked === 8")
    assert page.text("#seen").startswith("3 in this frame")  # the logo blinks

    page.click("[data-tool=leave_out]")
    for x, y in ((4, 4), (48, 4), (48, 28), (4, 28), (4, 28)):  # the last closes the polygon
        page.drag("#picture", at(x, y), at(x, y))
    page.wait("/^2 in this frame, usually 2/.test(seen.textContent)")
    page.click("[data-tool=crop]")
    page.drag("#picture", at(1, 1), at(258, 178))
    page.wait("motesState.crop && motesState.preview.box.join() === motesState.crop.join()")
    assert np.abs(np.subtract(page.evaluate("motesState.crop"), (2, 2, 259, 179))).max() <= 1
    page.click("[data-tool=crop]")

    page.evaluate("iterations.value = 40")
    page.click("#train")
    monkeypatch.setattr(browsers, "SECONDS", TRAINING_SECONDS)
    page.wait("!sprite.hidden && sprite.naturalWidth > 0")  # the live picture
    page.wait("motesState.tracks || !message.hidden && !message.matches('.note')")
    assert page.text("#answered").startswith("2 objects in "), page.text("#message")
    assert not page.evaluate("result.hidden")

    # A swap made by the buttons, mended by dragging one object to where it is.
    go_to(page, 50)
    told = [object_place(page, number, 60) for number in (0, 1)]
    for number in (0, 1):
        place = at(*object_place(page, number, 50))
        page.drag("#picture", place, place)
    page.click("#swap")
    page.wait("motesState.corrections.length === 1 && !/…/.test(answered.textContent)")
    assert object_place(page, 0, 60) == told[1]
    go_to(page, 60)
    page.drag("#picture", at(*object_place(page, 0, 60)), at(*told[0]))
    page.wait("motesState.corrections.length === 2 && !/…/.test(answered.textContent)")
    mended = [object_place(page, number, 60) for number in (0, 1)]
    assert np.abs(np.subtract(mended, told)).max() < 1
    assert page.evaluate("corrections.children.length") == 2
    assert page.text("#corrections li:last-child") == "object 0 pinned, frame 61"

    rows = table(page)
    assert len(rows) == 2 * NUM_FRAMES
    shown = {(row["frame"], row["particle"]): float(row["x"]) for row in rows}
    assert shown["60", "0"] == pytest.approx(mended[0][0], abs=1e-3)
    page.click("#undo")
    page.wait("motesState.corrections.length === 1 && !/…/.test(answered.textContent)")
    assert object_place(page, 0, 60) == told[1]

    page.open(server.url + "video.html", 1280, 900)  # a reload keeps the work
    page.wait("document.body?.dataset.ready === 'yes' && motesState.tracks")
    assert page.evaluate("motesState.corrections.length") == 1


def table(page: Page) -> list[dict[str, str]]:
    """The table that the link downloads."""
    text = page.evaluate("fetch(document.querySelector('#export').href).then((r) => r.text())")
    return list(csv.DictReader(io.StringIO(text)))


def test_a_wrong_file_is_told_in_one_line(page: Page, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video" * 50)
    page.choose_file("#file", tmp_path / "bad.mp4")
    page.wait("/bad.mp4|reading failed/.test(message.textContent)")
    page.complaints.clear()  # the browser reports the status 400
