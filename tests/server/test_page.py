"""The playground in a browser: user actions and what the page shows."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import motes
from browser import Page, browser, executable
from serving import Server, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no Chromium here; .ci/run installs it"),
]
WIDE, SMALL = (1280, 900), (360, 740)
# Of style.css, on black.
COLOURS = {"inferred": "#6db3ff", "forecast": "#ff8a4c", "interpolated": "#45e0f0"}
ANSWERED = "/answered in \\d+ ms/.test(document.querySelector('#status').textContent)"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = executable()
    assert program is not None
    with browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(window: Page, server: Server) -> Iterator[Page]:
    """The playground with its first answers, at frame 16; nothing may have gone wrong after."""
    show(window, server)
    window.drag("#timeline", (0.5, 0.5), (0.5, 0.5))  # from wherever it had come to by then
    assert window.text("#clock") == "16 / 30"
    yield window
    assert window.complaints == []
    assert [url for url in window.requests if not url.startswith(server.url)] == []


def show(window: Page, server: Server, size: tuple[int, int] = WIDE, dark: bool = False) -> None:
    window.open(server.url, *size, dark)
    window.complaints.clear()
    window.requests.clear()
    window.wait("document.body?.dataset.ready === 'yes'")
    window.wait("document.querySelectorAll('.view:not(.empty)').length === 3")
    window.press(" ")
    assert window.text("#play").strip() == "▶"


def hidden(page: Page) -> list[int]:
    """The frames that the timeline shows as hidden."""
    script = "[...document.querySelectorAll('#timeline i')].map((cell) => cell.className)"
    return [t for t, name in enumerate(page.evaluate(script)) if "hidden" in name]


def is_empty(page: Page, kind: str) -> bool:
    return bool(page.evaluate(f"document.querySelector('#view-{kind}').matches('.empty')"))


def distance(page: Page, kind: str) -> float:
    """Pixels from the truth, as the page tells them."""
    return float(page.text(f"#view-{kind} p").split(" px")[0])


def near(picture: np.ndarray, colour: str, tolerance: int = 60) -> int:
    """How many pixels of a picture have nearly a colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(picture.astype(int) - wanted).max(-1) <= tolerance).sum())


def reanswered(page: Page, act: str) -> None:
    """Does something by a script and waits for the answer to it."""
    page.evaluate("document.querySelector('#status').textContent = ''")
    page.evaluate(act)
    page.wait(ANSWERED)


def test_the_page_opens_with_a_clip_and_three_predictions(page: Page) -> None:
    assert len(page.evaluate("[...document.querySelectorAll('#examples canvas')].map(c => 1)")) == 6
    picture = page.screenshot("#stage")
    for kind, colour in COLOURS.items():
        assert not is_empty(page, kind)
        assert near(picture, colour) > 30, kind
        assert page.screenshot(f"#view-{kind} canvas").max() > 100  # something is white there
    # Two balls for 30 frames: hidden frames are filled in better than they are forecast.
    assert distance(page, "interpolated") < distance(page, "forecast") < 10
    assert hidden(page) == list(range(8, 23))
    assert not page.evaluate("!document.querySelector('#message').hidden")


def test_dragging_over_the_timeline_hides_frames_and_updates_predictions(page: Page) -> None:
    page.click("[data-hide=none]")
    page.wait("document.querySelectorAll('.view.empty').length === 2")
    assert hidden(page) == []
    assert "Hide frames" in page.text("#view-interpolated p")
    page.drag("#timeline", (0.35, 0.5), (0.62, 0.5))
    assert hidden(page) == list(range(10, 19))
    page.wait("!document.querySelector('#view-interpolated').matches('.empty')")
    assert distance(page, "interpolated") < 4
    page.drag("#timeline", (0.52, 0.5), (0.9, 0.5))  # begun on a hidden frame: shows
    assert hidden(page) == list(range(10, 15))


def test_a_press_on_the_timeline_shows_that_frame_and_hides_none(page: Page) -> None:
    before = hidden(page)
    page.drag("#timeline", (0.05, 0.5), (0.05, 0.5))
    assert page.text("#clock") == "2 / 30"
    assert hidden(page) == before
    first = page.screenshot("#stage")
    page.drag("#timeline", (0.95, 0.5), (0.95, 0.5))
    assert page.text("#clock") == "29 / 30"
    assert (page.screenshot("#stage") != first).any()


def test_keys_play_step_hide_and_count(page: Page) -> None:
    page.click("#player-title")
    page.drag("#timeline", (0.0, 0.5), (0.0, 0.5))
    for _ in range(2):
        page.press("ArrowRight")
    page.press("ArrowLeft")
    assert page.text("#clock") == "2 / 30"
    page.press("Escape")
    assert hidden(page) == []
    page.press("h")
    assert hidden(page) == [1]
    page.press("ArrowRight", shift=True)
    assert hidden(page) == [1, 2]
    page.press("3")
    page.wait("document.querySelectorAll('.component').length === 3")
    page.press(" ")
    page.wait("document.querySelector('#clock').textContent !== '3 / 30'")
    assert page.text("#play").strip() == "❚❚"


def test_frames_after_the_end_are_forecast(page: Page) -> None:
    move = "const slider = document.querySelector('#ahead'); slider.value = 10;"
    reanswered(page, f"{{ {move} slider.dispatchEvent(new Event('input')); }}")
    assert page.evaluate("document.querySelectorAll('#timeline i.beyond').length") == 10
    page.drag("#timeline", (0.99, 0.5), (0.99, 0.5))
    assert page.text("#clock") == "40 / 40"
    assert "after the end" in page.text("#badge")


def test_a_thrown_ball_is_drawn_and_inferred_back(page: Page) -> None:
    page.click("#tab-throw")
    page.drag("#stage", (0.25, 0.6), (0.5, 0.3))
    page.wait("document.querySelectorAll('.component').length === 1")
    page.wait("document.querySelector('#view-inferred p').textContent.includes('px')")
    assert distance(page, "inferred") < 1.0
    assert hidden(page) == []
    page.drag("#stage", (0.8, 0.6), (0.6, 0.3))
    page.wait("document.querySelectorAll('.component').length === 2")
    assert near(page.screenshot("#stage"), COLOURS["inferred"]) > 30


def test_sampled_clips_follow_the_sliders(page: Page) -> None:
    page.click("#tab-sample")
    page.wait("document.querySelectorAll('#samples canvas').length === 4")
    for name, value in (("count", 3), ("frames", 41)):
        slider = f"document.querySelector('#sample-{name}')"
        page.evaluate(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input'));")
    reanswered(page, "document.querySelector('#sample-again').click()")
    page.wait("document.querySelector('#clock').textContent.endsWith('/ 41')")
    page.wait("document.querySelectorAll('.component').length === 3")


def test_the_count_button_counts_balls(page: Page) -> None:
    assert page.text("#counts").strip() == "123"
    page.click("#count")
    page.wait("document.querySelector('#counts').textContent.includes('%')")
    chosen = page.evaluate("document.querySelector('#counts [aria-checked=true]').textContent")
    assert chosen.startswith("2")  # the clip of the first look has two balls


def test_a_file_is_read_and_its_balls_are_counted(page: Page, tmp_path: Path) -> None:
    clips = motes.cannonballs(2, (1,), 24, 48, seed=99)
    np.savez(tmp_path / "mine.npz", frames=clips.frames.numpy())
    page.click("#tab-upload")
    page.choose_file("#upload", tmp_path / "mine.npz")
    page.wait("document.querySelectorAll('#uploaded canvas').length === 2")
    page.wait("document.querySelector('#clock').textContent.endsWith('/ 24')")
    page.wait("document.querySelectorAll('.component').length === 1")
    assert "%" in page.text("#counts")


def test_a_clip_chosen_while_another_is_counted_keeps_its_own_count(
    page: Page, tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", frames=motes.cannonballs(1, (3,), 24, 48, seed=99).frames)
    page.evaluate("""(() => {
        const fetchNow = window.fetch;
        window.fetch = async (path, options) => {
            if (path === "api/count") await new Promise((go) => { window.letGo = go; });
            return fetchNow(path, options);
        };
    })()""")
    page.click("#tab-upload")
    page.choose_file("#upload", tmp_path / "mine.npz")
    page.wait("document.querySelector('#status').textContent === 'counting balls …'")
    assert page.text("#view-forecast p") == "Computing …"
    page.click("#tab-examples")
    page.click("#examples button")  # one ball
    page.wait(ANSWERED)
    page.evaluate("window.letGo()")
    page.wait("performance.getEntriesByName(location.origin + '/api/count').length === 1")
    page.wait("document.querySelectorAll('.component').length === 1")
    assert "%" not in page.text("#counts")
    assert page.text("#counts [aria-checked=true]") == "1"


def test_errors_show_in_the_page_and_go_away(page: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.npz").write_text("no clip")
    page.click("#tab-upload")
    page.choose_file("#upload", tmp_path / "notes.npz")
    page.wait("document.querySelector('#message').textContent.includes('damaged')")
    assert page.screenshot("#message").size > 0
    page.complaints.clear()  # the console, too, tells that a request was refused
    page.click("[data-hide=end]")
    page.wait("document.querySelector('#message').hidden")
    page.drag("#timeline", (0.0, 0.5), (1.0, 0.5))
    page.wait("document.querySelector('#message').textContent.includes('Every frame is hidden')")


def test_other_pages_are_refused_and_a_stopped_server_is_reported(
    window: Page, server: Server
) -> None:
    with serving() as elsewhere:
        show(window, elsewhere)
        script = f"fetch('{server.url}api/about').then(() => 'read', () => 'refused')"
        assert window.evaluate(script) == "refused"
    window.click("[data-hide=end]")
    window.wait("document.querySelector('#message').textContent.includes('does not answer')")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [WIDE, SMALL, (768, 1024)])
def test_every_size_and_mode_fits_and_can_be_read(
    size: tuple[int, int], dark: bool, window: Page, server: Server
) -> None:
    show(window, server, size, dark)
    assert window.evaluate("document.documentElement.scrollWidth") <= size[0]
    brightness = window.screenshot().mean()
    assert brightness < 90 if dark else brightness > 120
    small = """[...document.querySelectorAll('button')].filter((button) => button.offsetParent)
        .map((button) => [button.id, button.offsetWidth, button.offsetHeight])
        .filter(([, width, height]) => width < 32 || height < 32)"""
    assert window.evaluate(small) == []  # fingers need room
    for text, background in window.evaluate(CONTRAST):
        assert contrast(text, background) >= 4.5  # what WCAG asks of plain text


CONTRAST = """['body', 'section', '#play', '.view p', 'footer p', '#count'].map((name) => {
    const element = document.querySelector(name);
    let behind = element;
    const clear = 'rgba(0, 0, 0, 0)';
    while (getComputedStyle(behind).backgroundColor === clear) behind = behind.parentElement;
    return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
})"""


def contrast(text: str, background: str) -> float:
    """WCAG's contrast of two colours such as rgb(1, 2, 3)."""

    def luminance(colour: str) -> float:
        values = np.array([int(part) for part in colour[4:-1].split(",")]) / 255
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    low, high = sorted((luminance(text), luminance(background)))
    return (high + 0.05) / (low + 0.05)
