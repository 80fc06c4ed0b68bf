"""What devices' TCP connections share: one question on its way at a time."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar, cast

from ringdove.fleet.device import ANSWER_S

T = TypeVar("T")


class TcpLink(asyncio.Protocol, Generic[T]):
    """Connects, asks and hangs up; who derives from it reads the answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[T] | None = None

    async def open(self) -> None:
        """See Link."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            await loop.create_connection(lambda: self, *self._address)

    async def ask(self, data: bytes) -> T:
        """Write something, and wait for its answer."""
        if self._transport is None:
            raise ConnectionResetError("The server has hung up.")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._transport.write(data)
        async with asyncio.timeout(ANSWER_S):
            return await answer

    def answered(self, answer: T) -> None:
        """The answer has come; one that nobody waits for is dropped."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def close(self) -> None:
        """See Link."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("The server has hung up."))
