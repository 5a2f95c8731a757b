"""Connections with deadlines: a client that dawdles is cut off, so that it holds up nobody."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 5.0  # for the first line and the headers of a request
EXCHANGE_SECONDS = 90.0  # for the rest of it, the wait and the answer: two uploads fit


class Connection(H11Protocol):
    """uvicorn's connection, which by itself waits for ever for slow senders and slow readers."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock: the head of the first request is due."""
        super().connection_made(transport)
        self._set_deadline(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Starts the clock of a later request with its first byte; a whole head gains time."""
        waiting_for_head = self._idle()
        if waiting_for_head and self.deadline is None:
            self._set_deadline(HEAD_SECONDS)
        super().data_received(data)
        if waiting_for_head and not self._idle():
            self._set_deadline(EXCHANGE_SECONDS)

    def on_response_complete(self) -> None:
        """Stops the clock; uvicorn's own for idle connections takes over."""
        self._clear_deadline()
        super().on_response_complete()
        if not self._idle():  # the next request had come already
            self._set_deadline(EXCHANGE_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, without waiting for a client that does not read."""
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
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
