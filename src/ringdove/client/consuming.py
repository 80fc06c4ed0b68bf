"""The loop of an asynchronous consumer: receive, hand over, acknowledge, keep leases alive."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ringdove.client.closing import AsyncClosable
from ringdove.client.leases import EXTENDS, EXTENDS_AGAIN, BaseConsumer
from ringdove.errors import ConnectionClosed, RingdoveError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ringdove.client.aio import Message, Queue
    from ringdove.client.leases import Appetite, LeaseKeeper


class Consumer(BaseConsumer["AsyncGenerator[Message]"], AsyncClosable):
    """Receives for ever and keeps leases alive while a message is being handled.

        async for message in queue.consumer():
            await handle(message)

    A message is acknowledged when the loop asks for the next one; acknowledgements go out together,
    at the end of each batch or after `ack_linger_ms`. With `ack="manual"` the handler settles each
    message itself. Leaving the loop gives unfinished messages back at once. Up to `max` messages
    are taken at a time; by default as many as are handled in about a tenth of a second.
    """

    _holder = set  # Also one that was left has to be awaited when it is closed.

    async def close(self) -> None:
        """End every loop over the messages; what is unfinished is given back. Idempotent."""
        for messages in list(self._open):
            await messages.aclose()
        self._open.clear()

    def __aiter__(self) -> AsyncGenerator[Message]:
        messages = self._messages()
        self._open.add(messages)
        return messages

    def _messages(self) -> AsyncGenerator[Message]:
        # It must not know the consumer: a loop that is left is noticed when nobody knows it.
        return _consume(
            self._queue, self._keeper, self._appetite,
            self._wait, self._subscription, self._lease_ms,
        )  # fmt: skip


async def _consume(
    queue: Queue,
    keeper: LeaseKeeper,
    appetite: Appetite,
    wait: float | None,
    subscription: str,
    lease_ms: int | None,
) -> AsyncGenerator[Message]:
    """The loop of a consumer."""

    async def flush() -> None:
        receipts = keeper.done()
        if receipts:
            await queue.backend.acknowledge(receipts)

    lease_ms = lease_ms or (await queue.settings()).lease_ms
    extender = asyncio.create_task(_extend(queue, keeper, lease_ms))
    try:
        while batch := await queue.receive(
            appetite.max, wait, subscription=subscription, lease_ms=lease_ms
        ):
            began_s = time.monotonic()
            keeper.begin(batch.chunks())
            for message in batch:
                yield message
                if keeper.handled(message):
                    await flush()
            appetite.handled(len(batch), time.monotonic() - began_s)
    finally:
        extender.cancel()
        await flush()
        seen, unseen = keeper.unfinished()
        if seen:
            await queue.backend.release(seen, 0)
        if unseen:
            await queue.backend.unlease(unseen)


async def _extend(queue: Queue, keeper: LeaseKeeper, lease_ms: int) -> None:
    """Keep leased what a consumer has in hand; one that could not be reached is asked again."""
    pause_ms = lease_ms / EXTENDS
    while True:
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = lease_ms / EXTENDS
        try:
            receipts = keeper.held()
            if receipts:
                await queue.backend.extend(receipts, lease_ms)
        except ConnectionClosed:
            return
        except RingdoveError:
            pause_ms = lease_ms / EXTENDS_AGAIN
