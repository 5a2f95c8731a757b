"""`motes serve`: the playground, a page in the browser."""

import contextlib
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from motes.cli.options import Json, ModelName
from motes.cli.terminal import print_result
from motes.core.errors import InputError

if TYPE_CHECKING:
    import uvicorn

MAX_CONNECTIONS = 400  # below 1024, the usual limit of open files per process
SWITCH_SECONDS = 5e-4  # after which a thread lets another one run; Python's default is 5e-3


def serve(
    model: ModelName[str] = "cannonballs-structured",
    host: str = "127.0.0.1",
    port: int = 8765,
    video: Path | None = None,
    workspace: Path | None = None,
    browser: bool = True,
    as_json: Json = False,
) -> None:
    """Serve a web page: from your video to a table, or play with a model.

    Example: motes serve --video juggling.mp4 --workspace juggling

    Example: motes serve --model runs/small --port 8000

    Args:
        model: shipped model or run folder.
        host: address to listen on; the default accepts connections from this machine only.
        port: port to listen on; 0: any free port.
        video: recording to open on the page for own videos.
        workspace: where that page keeps the model, the corrections and tables; default: a temporary
            folder, which is deleted at the end.
        browser: open the page in a browser if there is a display.
        as_json: print one JSON line instead of text.
    """
    from motes.video import find_preparation

    try:
        from motes.server.app import create_app
        from motes.server.playground import Playground
        from motes.server.workspace import Workspace
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "pydantic", "starlette", "uvicorn"):
            raise
        raise InputError("motes serve needs a web server; pip install 'motes[serve]'") from None
    if not 0 <= port <= 65535:
        raise InputError(f"port is {port}; give 0 to 65535")
    # A query returns to Python thousands of times, and each time it may wait this long for the
    # thread that serves other requests.
    sys.setswitchinterval(SWITCH_SECONDS)
    with _workspace_folder(workspace) as place, _listen(host, port) as listener:
        videos = Workspace(place)
        if video is not None:
            videos.open_file(video.resolve(), video.name)
        app = create_app(Playground.of(model, find_preparation(model)), host, videos)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}/"
        opened = url if video is None else f"{url}video.html"
        record = {"verb": "serve", "model": model, "url": url}
        text = f"playground of {model}: {url}  your video: {url}video.html  (stop with Ctrl-C)"
        print_result(record, as_json, text)
        sys.stdout.flush()
        if browser and not as_json and _has_display():
            webbrowser.open(opened)
        try:
            _server(app).run(sockets=[listener])
        finally:
            videos.stop()


@contextlib.contextmanager
def _workspace_folder(folder: Path | None) -> Iterator[Path]:
    """Yield a new or empty folder; without a name, a temporary one."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="motes-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InputError(f"workspace is {folder}, which is not empty; give a new one")
    yield folder.resolve()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port} ({error.strerror or error}); "
            "give another --port, or 0 for any free port"
        ) from None


def _has_display() -> bool:
    """Return whether a browser window can open; otherwise a text browser might start."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display) or sys.platform == "darwin"


def _server(app: object) -> "uvicorn.Server":
    import uvicorn

    from motes.server.security import DeadlineProtocol

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=DeadlineProtocol,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)
