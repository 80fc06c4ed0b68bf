"""A light load generator for HTTP, the same for every server: thousands of keep-alive connections.

It writes requests and reads answers on `asyncio.Protocol`, because on a machine with two cores a
comfortable client would be what is measured.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import httptools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class HttpConnection(asyncio.Protocol):
    """One connection, with one request under way at a time; a new one where servers hang up."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\n".encode()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parts: list[bytes] = []

    async def ask(self, action: str, body: bytes, headers: bytes = b"") -> tuple[int, bytes]:
        """Have an SQS action done; status and body of the answer."""
        if self._transport is None or self._transport.is_closing():
            await self.open()
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._parts.clear()
        assert self._transport is not None
        self._transport.write(
            b"POST / HTTP/1.1\r\n"
            + self._head
            + headers
            + b"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS."
            + action.encode()
            + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        return await self._answer

    async def open(self) -> None:
        """Connect."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("The server hung up."))

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))


async def connect(port: int) -> HttpConnection:
    """A connection to a server on this machine."""
    connection = HttpConnection(port)
    await connection.open()
    return connection


async def measure(
    port: int,
    connections: int,
    seconds: float,
    work: Callable[[HttpConnection], Awaitable[int]],
) -> float:
    """How much of what `work` counts is done per second, over and over on every connection."""
    opened = [await connect(port) for _ in range(connections)]
    done = 0
    began_s = time.perf_counter()
    end_s = began_s + seconds

    async def go_on(connection: HttpConnection) -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            count = await work(connection)
            if not count:
                return
            done += count

    await asyncio.gather(*map(go_on, opened))
    elapsed_s = time.perf_counter() - began_s
    for connection in opened:
        connection.close()
    return done / elapsed_s
