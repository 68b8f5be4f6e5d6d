"""Connections of a server that end if a request's headers do not: uvicorn waits for them as long as a client likes."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 10.0  # seconds from the first byte of a connection or a request to the end of its headers


class Connection(HttpToolsProtocol):
    """One client's connection."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._wait(over=True)
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(over=True)
        super().connection_lost(exc)

    def _wait(self, *, over: bool = False) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = None if over else self.loop.call_later(HEADERS_S, self.transport.close)
