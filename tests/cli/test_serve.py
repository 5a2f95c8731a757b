"""`motes serve` as a process: slow, broken and hostile clients do not block it."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from motes import cli
from motes.models.checkpoint import save_model
from motes.models.model import build
from motes.server.security import HEAD_SECONDS
from motes.training.presets import PRESETS
from serving import Server, serving

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SECONDS = 20.0  # for an answer on a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A playground of a small, untrained model: what is tested here does not depend on it."""
    folder, config = tmp_path_factory.mktemp("model"), PRESETS["sprites-smoke"]
    save_model(folder, build(config), config)
    with serving(folder) as started:
        yield started


def get(server: Server, path: str = "/api/about") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, json.loads(body)


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)


def open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed or cut a connection."""
    try:
        while connection.recv(2**16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.slow
def test_slow_and_lost_clients_are_disconnected_and_block_nobody(server: Server) -> None:
    get(server)
    before = open_files(server)
    about = b"GET /api/about HTTP/1.1\r\nHost: localhost\r\n"
    post = b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n{"
    examples = b"GET /api/examples HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        silent, half, later, reader = (
            [stack.enter_context(connected(server)) for _ in range(20)] for _ in range(4)
        )
        for connection in half:
            connection.sendall(about)  # the end of the headers never comes
        for connection in later:
            connection.sendall(about + b"\r\n" + about)  # nor that of a second request
        for connection in reader:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(20 * examples)  # and this one does not read its answers
        for _ in range(20):
            with connected(server) as vanishing:
                vanishing.sendall(post)
        began = time.monotonic()
        assert get(server)[0] == 200
        assert time.monotonic() - began < SECONDS / 2
        time.sleep(HEAD_SECONDS + 1)
        for connection in (*silent, *half, *later):
            assert ended(connection)
    deadline = time.monotonic() + SECONDS
    while open_files(server) > before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert open_files(server) <= before
    assert get(server)[0] == 200


@pytest.mark.parametrize(
    "bytes_sent",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000,
     b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: " + b"y" * 10**6 + b"\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"],
    ids=["TLS", "no version", "no host", "zeros", "long header", "two lengths", "websocket"],
)  # fmt: skip
def test_what_is_not_http_is_answered_or_cut_off(bytes_sent: bytes, server: Server) -> None:
    with connected(server) as connection:
        try:
            connection.sendall(bytes_sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(2**16)
        except OSError:  # cut off while it was sending
            answer = b""
    status = answer.split(b" ")[1] if answer else b"400"
    assert status in (b"400", b"403", b"200", b"431")
    assert get(server)[0] == 200


def test_it_listens_on_this_machine_alone(server: Server) -> None:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    here = [entry for entry in listening if int(entry.partition(":")[2], 16) == server.port]
    assert [entry.partition(":")[0] for entry in here] == ["0100007F"]  # 127.0.0.1, backwards


@pytest.mark.slow
def test_the_server_follows_its_openapi_schema(server: Server, tmp_path: Path) -> None:
    """Schemathesis makes requests from the schema, right ones and wrong ones."""
    # A schema cannot say that base64 must hold as many bytes as the frames have pixels, so what
    # fits it may be refused; everything else is checked.
    checks = ["--checks=all", "--exclude-checks=positive_data_acceptance"]
    amount = ["--max-examples=10", "--seed=1", "--generation-database=none", "--no-color"]
    done = subprocess.run(
        [SCHEMATHESIS, "run", f"{server.url}api/openapi.json", *checks, *amount],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (generated,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(generated) > 100
    assert get(server)[0] == 200


def test_a_port_in_use_is_one_line_and_exit_code_two(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", f"--port={server.port}"]) == 2
    printed = capsys.readouterr()
    assert f"port {server.port}" in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--port=70000"], "70000"), (["--host=nowhere.invalid"], "nowhere"), (["--model=x"], "'x'")],
)
def test_wrong_flags_are_one_line_and_exit_code_two(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", *flags]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_missing_packages_are_reported_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("motes.server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert cli.main(["serve"]) == 2
    assert "pip install 'motes[serve]'" in capsys.readouterr().err
