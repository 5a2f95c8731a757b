"""Protection of the playground: checks of every request, deadlines of every connection.

The server listens on the user's machine, and any web page that the user visits can send requests
to it, or make its own host name resolve to it (DNS rebinding). Therefore a request must name this
server in its Host header, and a request sent by a page must come from the playground page. Slow
clients are disconnected.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_SECONDS = 15.0  # for a body to arrive
HEAD_SECONDS = 5.0  # for the first line and the headers of a request
EXCHANGE_SECONDS = 90.0  # for the body, the waiting and the response: enough for two uploads
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class RefusedError(Exception):
    """A rejected request: status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class SecurityMiddleware:
    """ASGI middleware that rejects requests of other pages, long bodies and slow bodies.

    Law: other hosts, other origins, long and slow bodies are refused
    (test_other_names_of_the_server_are_refused, test_other_pages_are_refused,
    test_a_body_past_the_limit_is_refused, test_a_body_that_does_not_come_is_refused).
    """

    def __init__(self, app: ASGIApp, *, host: str, max_bytes: dict[str, int]) -> None:
        """Wrap an application.

        Args:
            app: The application to protect.
            host: Address that the server listens on; determines the accepted host names.
            max_bytes: Longest body of a path; the default is under "".
        """
        self.app, self.names, self.max_bytes = app, own_names(host), max_bytes
        self.any_address = host not in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, read its body and pass both to the application."""
        if scope["type"] != "http":
            return
        send = _with_headers(send)
        try:
            self.check(scope["path"], headers_of(scope))
            limit = self.max_bytes.get(scope["path"], self.max_bytes[""])
            body = await read_body(receive, headers_of(scope), limit)
        except RefusedError as refusal:
            await _refuse(send, refusal)
            return
        if body is None:
            return
        try:
            await self.app(scope, _replay(body, receive), send)
        except asyncio.CancelledError:  # Ctrl-C during a query
            await _refuse(send, RefusedError(503, "the playground was stopped"))

    def check(self, path: str, headers: dict[str, str]) -> None:
        """Raise `RefusedError` unless the request names this server and comes from its page."""
        host = headers.get("host", "")
        name = host_name(host)
        if name not in self.names and not (self.any_address and is_address(name)):
            raise RefusedError(403, f"this server is not {host[:80]!r}; open it by its own address")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise RefusedError(
                403, f"pages of {origin[:80]!r} may not send requests to this server"
            )
        # Images and scripts of other pages send no Origin, but browsers send this header.
        site = headers.get("sec-fetch-site", "same-origin")
        if path.startswith("/api/") and site not in ("same-origin", "none"):
            raise RefusedError(403, "other pages may not send requests to this server")


def own_names(host: str) -> frozenset[str]:
    """Return the host names of a server that listens on `host`."""
    return LOOPBACK if host in LOOPBACK else LOOPBACK | {host.lower(), socket.gethostname().lower()}


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    inner, bracket, rest = host[1:].partition("]")
    if host.startswith("[") and bracket and rest[:1] in ("", ":"):
        return inner.lower()
    return host.partition(":")[0].lower()


def is_address(name: str) -> bool:
    """Return whether a name is an IP address, which DNS cannot redirect."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by lower-case name."""
    pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


async def read_body(receive: Receive, headers: dict[str, str], limit: int) -> bytes | None:
    """Return the whole body, or None if the client has disconnected.

    Raises:
        RefusedError: The body is too long or does not arrive in time.
    """
    too_long = RefusedError(413, f"the body is too long; send at most {limit / 2**20:.0f} MiB")
    declared = headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > limit:
                    raise too_long
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {BODY_SECONDS:.0f} s") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that yields the body first, then later messages."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


def _with_headers(send: Send) -> Send:
    """Return a sender that adds the security headers to every response."""
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return send_with_headers


async def _refuse(send: Send, refusal: RefusedError) -> None:
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of the body is not read
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP protocol with deadlines; by itself it waits for slow clients without limit."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set the deadline of the head of the first request."""
        super().connection_made(transport)
        self._set_deadline(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Set the deadline of a later request at its first byte; extend it after the head."""
        waiting_for_head = self._idle()
        if waiting_for_head and self.deadline is None:
            self._set_deadline(HEAD_SECONDS)
        super().data_received(data)
        if waiting_for_head and not self._idle():
            self._set_deadline(EXCHANGE_SECONDS)

    def on_response_complete(self) -> None:
        """Clear the deadline; uvicorn closes idle connections itself."""
        self._clear_deadline()
        super().on_response_complete()
        if not self._idle():  # the next request has arrived already
            self._set_deadline(EXCHANGE_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once if the client does not read."""
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clear the deadline."""
        self._clear_deadline()
        super().connection_lost(exc)

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self.deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
