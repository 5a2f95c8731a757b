"""A real server in a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class Server(NamedTuple):
    """A server that listens."""

    url: str
    process: "subprocess.Popen[str]"

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)


@contextmanager
def serving(model: str | Path = "cannonballs-structured") -> Iterator[Server]:
    """Yields a playground on a free port; it is stopped as Ctrl-C would stop it."""
    command = [sys.executable, "-m", "motes", "serve", "--port=0", "--json", f"--model={model}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Server(json.loads(process.stdout.readline())["url"], process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
