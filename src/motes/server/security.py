"""Who may ask, how much and for how long: the first thing that every request meets.

The server listens on this machine, and so do all web pages that its owner visits: a page of
somebody else can send requests here, or let its own name point here (DNS rebinding). So a request
must call the server by a name that is its own, and a request that a page has sent must come from
our page.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_SECONDS = 15.0  # for a body to arrive
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
    """A request that is not let through: status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class Guard:
    """Lets through what is small, quick and ours; answers the rest with one clear line.

    Law: other hosts, other origins, long and slow bodies are refused
    (test_other_names_of_the_server_are_refused, test_other_pages_are_refused,
    test_a_body_past_the_limit_is_refused, test_a_body_that_does_not_come_is_refused).
    """

    def __init__(self, app: ASGIApp, *, host: str, max_bytes: dict[str, int]) -> None:
        """Build a guard.

        Args:
            app: what lies behind it.
            host: the address that the server listens on; says by which names it may be called.
            max_bytes: the longest body for the paths that take more than the default, under "".
        """
        self.app, self.names, self.max_bytes = app, own_names(host), max_bytes
        self.any_address = host not in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks a request, reads its body and passes it on."""
        if scope["type"] != "http":
            return
        dressed = _with_headers(send)
        try:
            self.check(scope["path"], headers_of(scope))
            limit = self.max_bytes.get(scope["path"], self.max_bytes[""])
            body = await read_body(receive, headers_of(scope), limit)
        except RefusedError as refusal:
            await _refuse(dressed, refusal)
            return
        if body is None:
            return
        try:
            await self.app(scope, _replay(body, receive), dressed)
        except asyncio.CancelledError:  # Ctrl-C while the model still works
            await _refuse(dressed, RefusedError(503, "the playground was stopped"))

    def check(self, path: str, headers: dict[str, str]) -> None:
        """Raises `RefusedError` unless the request is addressed to us and comes from our page."""
        host = headers.get("host", "")
        name = host_name(host)
        if name not in self.names and not (self.any_address and is_address(name)):
            raise RefusedError(403, f"this server is not {host[:80]!r}; open it by its own address")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise RefusedError(403, f"pages of {origin[:80]!r} may not ask this server")
        # Pictures and scripts of other pages send no origin, but every browser says this much.
        site = headers.get("sec-fetch-site", "same-origin")
        if path.startswith("/api/") and site not in ("same-origin", "none"):
            raise RefusedError(403, "other pages may not ask this server")


def own_names(host: str) -> frozenset[str]:
    """The names by which a server that listens on `host` may be called."""
    return LOOPBACK if host in LOOPBACK else LOOPBACK | {host.lower(), socket.gethostname().lower()}


def host_name(host: str) -> str:
    """The name in a Host header, without the port and without brackets."""
    inner, bracket, rest = host[1:].partition("]")
    if host.startswith("[") and bracket and rest[:1] in ("", ":"):
        return inner.lower()
    return host.partition(":")[0].lower()


def is_address(name: str) -> bool:
    """Whether a name is a plain address, which cannot be made to point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their lower-case names."""
    pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


async def read_body(receive: Receive, headers: dict[str, str], limit: int) -> bytes | None:
    """The whole body, or None if the client has gone.

    Raises:
        RefusedError: it is too long, or does not come.
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
    """A receiver that hands over the body at once, and afterwards what else comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


def _with_headers(send: Send) -> Send:
    """A sender that adds our headers to every answer."""
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def send_dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return send_dressed


async def _refuse(send: Send, refusal: RefusedError) -> None:
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # what is left of a body need not be read
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
