"""Only the playground page may send requests; bodies are short and arrive in time."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from motes.server import app, security
from motes.server.app import BusyError, JobQueue
from motes.server.security import SecurityMiddleware, host_name, is_address

LIMIT = 100


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body."""
    body = (await receive()).get("body", b"")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


def client(host: str = "127.0.0.1", name: str = "localhost:8765") -> TestClient:
    limits = {"": LIMIT, "/api/upload": 2 * LIMIT}
    return TestClient(
        SecurityMiddleware(echo, host=host, max_bytes=limits), base_url=f"http://{name}"
    )


@pytest.mark.parametrize("name", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765", "LOCALHOST"])
def test_own_names_are_let_through(name: str) -> None:
    assert client().get("/api/about", headers={"host": name}).status_code == 200


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil.example",
     "192.168.1.5:8765", "evil.example@localhost", "", "[::1].evil.example"],
)  # fmt: skip
def test_other_names_of_the_server_are_refused(name: str) -> None:
    response = client().get("/", headers={"host": name})
    assert response.status_code == 403
    assert "error" in response.json()


def test_on_all_interfaces_any_address_is_let_through_but_no_name() -> None:
    wide = client("0.0.0.0")
    assert wide.get("/", headers={"host": "192.168.1.5:8765"}).status_code == 200
    assert wide.get("/", headers={"host": "[fe80::1]:8765"}).status_code == 200
    assert wide.get("/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:3000", "https://localhost:8765",
     "http://localhost:8765.evil.example", ""],
)  # fmt: skip
def test_other_pages_are_refused(origin: str) -> None:
    response = client().post("/api/query", content=b"x", headers={"origin": origin})
    assert response.status_code == 403
    assert "may not send requests" in response.json()["error"]


def test_the_playground_page_may_send_requests() -> None:
    headers = {"origin": "http://localhost:8765", "sec-fetch-site": "same-origin"}
    assert client().post("/api/query", content=b"xyz", headers=headers).text == "3"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_images_and_scripts_of_other_pages_are_refused_but_links_work(site: str) -> None:
    headers = {"sec-fetch-site": site}
    assert client().get("/api/examples", headers=headers).status_code == 403
    assert client().get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("status", [200, 403])
def test_every_answer_forbids_frames_sniffing_and_foreign_scripts(status: int) -> None:
    host = "localhost" if status == 200 else "evil.example"
    response = client().get("/", headers={"host": host})
    assert response.status_code == status
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in response.headers


def in_pieces(size: int) -> Any:
    """A body whose length is not declared."""
    for _ in range(size):
        yield b"x"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(("path", "limit"), [("/api/query", LIMIT), ("/api/upload", 2 * LIMIT)])
def test_a_body_past_the_limit_is_refused(path: str, limit: int, declared: bool) -> None:
    for size, status in ((limit, 200), (limit + 1, 413)):
        body = b"x" * size if declared else in_pieces(size)
        response = client().post(path, content=body)
        assert response.status_code == status
        if status == 413:
            assert "too long" in response.json()["error"]


@pytest.mark.parametrize("length", ["-1", "1e3", "word", "99999999999999999999"])
def test_an_invalid_length_is_refused(length: str) -> None:
    sent = asyncio.run(
        exchange(SecurityMiddleware(echo, host="127.0.0.1", max_bytes={"": LIMIT}), length=length)
    )
    assert sent[0]["status"] == 413


async def exchange(
    guarded: SecurityMiddleware, length: str = "5", arrives: bool = True
) -> list[Message]:
    """What is sent to a client whose body comes, or never does."""
    sent: list[Message] = []

    async def receive() -> Message:
        if not arrives:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": b"x" * 5, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", length.encode())]
    scope = {"type": "http", "path": "/api/query", "method": "POST", "headers": headers}
    await guarded(scope, receive, send)
    return sent


def test_a_body_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "BODY_SECONDS", 0.05)
    guarded = SecurityMiddleware(echo, host="127.0.0.1", max_bytes={"": LIMIT})
    sent = asyncio.run(exchange(guarded, arrives=False))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_disconnected_client_is_not_answered() -> None:
    async def gone() -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/", "headers": [(b"host", b"localhost")]}
        await SecurityMiddleware(echo, host="127.0.0.1", max_bytes={"": LIMIT})(
            scope, receive, send
        )
        return sent

    assert asyncio.run(gone()) == []


def test_a_waiting_client_gets_an_error_when_the_server_stops() -> None:
    async def working(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(3600)

    async def stopped() -> list[Message]:
        asking = asyncio.create_task(
            exchange(SecurityMiddleware(working, host="127.0.0.1", max_bytes={"": LIMIT}))
        )
        await asyncio.sleep(0.1)
        asking.cancel()
        return await asking

    start, body = asyncio.run(stopped())
    assert start["status"] == 503
    assert b"stopped" in body["body"]


def test_names_and_addresses_are_told_apart() -> None:
    assert host_name("[::1]:80") == "::1"
    assert host_name("Example.org:80") == "example.org"
    assert is_address("10.0.0.1")
    assert is_address("::1")
    assert not is_address("10.0.0.1.example.org")


def test_a_full_queue_refuses_and_an_emptied_one_takes_again() -> None:
    async def scenario() -> None:
        jobs_queue, release = JobQueue(max_waiting=2), threading.Event()
        jobs = [asyncio.create_task(jobs_queue.run(lambda: release.wait(30))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="2 requests"):
            await jobs_queue.run(lambda: True)
        release.set()
        assert await asyncio.gather(*jobs) == [True, True]
        assert await jobs_queue.run(lambda: "free") == "free"

    asyncio.run(scenario())


def test_a_job_that_waits_too_long_fails_and_a_running_one_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "WAIT_SECONDS", 0.1)

    async def scenario() -> None:
        jobs_queue, release, ran = JobQueue(), threading.Event(), threading.Event()
        running = asyncio.create_task(jobs_queue.run(lambda: release.wait(30)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="waited more than"):
            await jobs_queue.run(ran.set)
        release.set()
        assert await running
        assert jobs_queue.waiting == 0
        assert not ran.is_set()

    asyncio.run(scenario())


def test_a_job_that_fails_leaves_its_place() -> None:
    async def scenario() -> None:
        jobs_queue = JobQueue(max_waiting=1)
        for _ in range(3):
            with contextlib.suppress(ZeroDivisionError):
                await jobs_queue.run(lambda: 1 // 0)
        assert jobs_queue.waiting == 0

    asyncio.run(scenario())
