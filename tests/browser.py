"""A real Chromium without a screen, driven over its debugging pipe; no package is needed."""

import base64
import io
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SECONDS = 30.0  # for anything to happen; a busy machine is slow
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
KEYS = {" ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27}


def executable() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of a browser: what a person could do with it, and what they would see."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer, self._count = b"", 0
        self.session: str | None = None
        self.complaints: list[str] = []  # of the console, and refused requests
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._count:
                assert "error" not in reply, reply["error"]
                result: dict[str, Any] = reply["result"]
                return result
            self._note(reply)

    def open(self, url: str, width: int, height: int, dark: bool = False) -> None:
        """Shows an address in a window of a size."""
        mobile = width < 600
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Network.enable")
        self.call("Log.enable")
        self.resize(width, height, mobile)
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile},
        )

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """The value of an expression as soon as it is true."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if value := self.evaluate(condition):
                return value
            time.sleep(0.05)
        raise AssertionError(f"did not come true: {condition}; console: {self.complaints}")

    def text(self, selector: str) -> str:
        """The words of an element."""
        return str(self.evaluate(f"document.querySelector({selector!r}).textContent"))

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, which is scrolled into view."""
        script = f"""(() => {{
            const element = document.querySelector({selector!r});
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            const box = element.getBoundingClientRect();
            return [box.x, box.y, box.width, box.height];
        }})()"""
        left, top, width, height = self.evaluate(script)
        return left, top, width, height

    def click(self, selector: str) -> None:
        self.drag(selector, (0.5, 0.5), (0.5, 0.5))

    def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Presses the mouse at one place of an element and lets go at another, as shares."""
        left, top, width, height = self.box(selector)
        places = [(left + x * width, top + y * height) for x, y in (start, end)]
        self._mouse("mousePressed", *places[0])
        if start != end:
            for share in (0.25, 0.5, 0.75, 1.0):
                x, y = (a + share * (b - a) for a, b in zip(*places, strict=True))
                self._mouse("mouseMoved", x, y)
        self._mouse("mouseReleased", *places[1])

    def press(self, key: str, shift: bool = False) -> None:
        """Presses and releases a key."""
        code = KEYS.get(key, ord(key.upper()[0]))
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def choose_file(self, selector: str, path: Path) -> None:
        """Puts a file into a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def screenshot(self, selector: str | None = None) -> np.ndarray:
        """What is seen, [height, width, 3]: the window, or one element."""
        options: dict[str, Any] = {}
        if selector is not None:
            left, top, width, height = self.box(selector)
            y = top + float(self.evaluate("window.scrollY"))
            clip = {"x": left, "y": y, "width": width, "height": height, "scale": 1}
            options = {"clip": clip, "captureBeyondViewport": True}
        picture = self.call("Page.captureScreenshot", format="png", **options)["data"]
        opened = Image.open(io.BytesIO(base64.b64decode(picture)))
        return np.asarray(opened.convert("RGB"))

    def _mouse(self, kind: str, x: float, y: float) -> None:
        held = {"button": "left", "buttons": 0 if kind == "mouseReleased" else 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._read, 2**16)
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(details["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning"):
                self.complaints.append(str(details["args"]))
            case "Log.entryAdded" if details["entry"]["level"] == "error":
                self.complaints.append(details["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """Yields a blank page; the browser ends with the block."""
    to_browser, ours_write = os.pipe()
    ours_read, from_browser = os.pipe()
    flags = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
        "--disable-background-networking", f"--user-data-dir={profile}",
    ]  # fmt: skip
    # A browser reads commands from descriptor 3 and answers on 4.
    script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", script, program, *flags],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(ours_write, ours_read)
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours_write)
        os.close(ours_read)
