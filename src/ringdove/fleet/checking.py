"""The checker: receives all that a fleet sends, in the same run, and notes it.

It has a subscription of its own that begins with the run and ends with it, so nobody else's
messages are touched.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from ringdove.client import aio
from ringdove.core.readings import device_name, is_intact, who_and_which
from ringdove.errors import QueueNotFound

if TYPE_CHECKING:
    from ringdove.fleet.ledger import Ledger
    from ringdove.fleet.plan import Plan

_BATCH = 1_000
_WAIT_S = 0.5

#: Seconds without a message after which one that is missing counts as lost.
_QUIET_S = 10.0


async def prepare_queue(connection: aio.Connection, name: str) -> aio.Queue:
    """The queue, made if there is none."""
    try:
        queue = connection.queue(name)
        await queue.stats()
    except QueueNotFound:
        queue = await connection.create_queue(name)
    return queue


class Checker:
    """See the module."""

    def __init__(self, url: str, plan: Plan, ledger: Ledger) -> None:
        self._plan = plan
        self._ledger = ledger
        self._connection = aio.connect(url)
        self._subscription = f"fleet-{secrets.token_hex(4)}"
        self._numbers = {device_name(n, plan.seed): n for n in range(plan.devices)}
        self._queue: aio.Queue | None = None
        self._work: asyncio.Task[None] | None = None
        self._heard_s = 0.0

    async def open(self) -> None:
        """Subscribe, and begin to receive."""
        await self._connection.open()
        queue = self._queue = await prepare_queue(self._connection, self._plan.queue)
        await queue.subscribe(self._subscription, start="latest", keep_default=True)
        self._work = asyncio.create_task(self._receive(queue))

    async def finish(self, *, hurry: bool) -> None:
        """Wait until everything that was acknowledged has come, or nothing comes any more."""
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        quiet_s = _QUIET_S / 5 if hurry else _QUIET_S
        work = self._work
        assert work is not None
        while loop.time() < self._heard_s + quiet_s and not work.done():
            if self._ledger.received >= self._ledger.acknowledged and not self._ledger.missing():
                return
            await asyncio.sleep(_WAIT_S / 5)
        if work.done():
            work.result()

    async def close(self) -> None:
        """Leave nothing behind."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._queue is not None:
            await self._queue.unsubscribe(self._subscription)
        await self._connection.close()

    async def _receive(self, queue: aio.Queue) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await queue.receive(max=_BATCH, wait=_WAIT_S, subscription=self._subscription)
            for body in batch.bodies():
                self._note(body)
            if batch:
                self._heard_s = loop.time()
                await batch.ack()

    def _note(self, body: bytes) -> None:
        found = who_and_which(body)
        if found is None or found[0] not in self._numbers:
            self._ledger.unexpected += 1
            return
        self._ledger.note_received(self._numbers[found[0]], found[1], intact=is_intact(body))
