"""Slow connections are closed; others stay open."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from motes.server import security
from motes.server.security import DeadlineProtocol

HEAD, EXCHANGE = 0.4, 1.2
PATIENCE = 10.0  # what a busy machine may add
HEADERS = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
LARGE = bytes(2**25)  # more than the buffers of both ends


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers /large with much, /slow with nothing, and the rest with two letters."""
    if scope["path"] == "/slow":
        await receive()
        await receive()
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = LARGE if scope["path"] == "/large" else b"ok"
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server in a thread, with short deadlines."""
    monkeypatch.setattr(security, "HEAD_SECONDS", HEAD)
    monkeypatch.setattr(security, "EXCHANGE_SECONDS", EXCHANGE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            answer, http=DeadlineProtocol, ws="none", lifespan="off", log_level="critical",
            timeout_keep_alive=2,
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = server.force_exit = True
        thread.join()


def seconds_until_cut(port: int, *pieces: bytes) -> float:
    """How long the server holds on to a client that sends this and nothing more."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        for piece in pieces:
            client.sendall(piece)
        began = time.monotonic()
        try:
            while client.recv(2**16):
                pass
        except ConnectionResetError:
            pass
        return time.monotonic() - began


@pytest.mark.parametrize(
    "pieces",
    [(), (b"G",), (HEADERS,), (HEADERS + b"\r\n" + HEADERS,), (HEADERS + b"\r\n", HEADERS)],
    ids=["silent", "one byte", "half a head", "half a second head", "later half of a head"],
)
def test_a_head_that_does_not_come_ends_the_connection(
    pieces: tuple[bytes, ...], port: int
) -> None:
    assert seconds_until_cut(port, *pieces) < HEAD + PATIENCE / 2


def test_an_exchange_that_does_not_end_is_ended(port: int) -> None:
    slow = HEADERS.replace(b" / ", b" /slow ") + b"Content-Length: 5\r\n\r\nx"
    assert EXCHANGE * 0.9 < seconds_until_cut(port, slow) < EXCHANGE + PATIENCE / 2


def test_a_client_that_does_not_read_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(HEADERS.replace(b" / ", b" /large ") + b"\r\n")
        time.sleep(EXCHANGE + 2.5)  # and the time that uvicorn lets connections idle
        received = 0
        try:
            while piece := client.recv(2**20):
                received += len(piece)
        except ConnectionResetError:
            pass
    assert received < len(LARGE)


def test_a_client_that_keeps_its_time_may_stay(port: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    client.connect()
    first = client.sock
    for _ in range(5):
        client.request("GET", "/")
        assert client.getresponse().read() == b"ok"
        time.sleep(EXCHANGE / 4)  # five of them are longer than any deadline of one exchange
    assert client.sock is first
    client.close()
