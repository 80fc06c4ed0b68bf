"""The newest message of a queue: looked at, and watched. Nothing is leased or done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.controllers.broker import Broker
    from ringdove.core.block import Block

    #: Names a message, and has it alone in a block.
    Newest = tuple[bytes, Block]


async def newest(broker: Broker, queue: str) -> Newest | None:
    """The message of a queue that was sent last and is still stored."""
    found: list[tuple[int, bytes, Block]] = []
    for stripe, stats in (await broker.queue_stats(queue)).stripes.items():
        if stats.tail > stats.head:
            for block in await broker.read(stripe, stats.tail - 1, 1):
                [sent_ms] = block.sent_times_ms(block.count - 1, block.count)
                last = block.slice(block.count - 1, block.count)
                found.append((sent_ms, stripe.place(last.base), last))
    if not found:
        return None
    _, place, block = max(found, key=lambda one: one[:2])
    return place, block


async def watch_newest(
    broker: Broker, queue: str, known: Newest | None, tell: Callable[[Newest], Awaitable[bool]]
) -> None:
    """Tell each newest message that is another than the one known, until it is not taken.

    Of several that come meanwhile only the last is told. After a long silence the one known is told
    again: who has gone does not take it.
    """
    taken = True
    while taken:
        info = await broker.get_queue(queue)
        arrival: Pending[None] = Pending()
        watches = [broker.store.watch(stripe) for stripe in info.stripes()]
        come = partial(_resolve, arrival)
        for watch in watches:
            watch.when_done(come)
        try:
            found = await newest(broker, queue)
            if found is not None and (known is None or found[0] != known[0]):
                known = found
                taken = await tell(found)
            elif not await arrival.until(limits.COAP_SILENCE_S_MAX) and known is not None:
                taken = await tell(known)
        finally:
            for watch in watches:
                watch.forget(come)


def _resolve(arrival: Pending[None]) -> None:
    if not arrival.done:
        arrival.resolve(None)
