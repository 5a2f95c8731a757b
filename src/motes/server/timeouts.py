"""Deadlines of connections: slow clients are disconnected."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 5.0  # for the first line and the headers of a request
EXCHANGE_SECONDS = 90.0  # for the body, the waiting and the response: enough for two uploads


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
