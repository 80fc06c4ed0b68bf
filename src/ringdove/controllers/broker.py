"""The broker: one object that serves every request on the queues of a store.

This is what the library talks to in the same process, and what front ends talk to in a server.
It keeps nothing that matters: any broker over the same store could serve the next request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ringdove import limits
from ringdove.controllers.accounts import Accounts
from ringdove.controllers.administration import administer
from ringdove.controllers.catalog import Catalog, QueueInfo
from ringdove.controllers.deadletter import DeadLetters
from ringdove.controllers.dequeue import Dequeuer, Settling
from ringdove.controllers.enqueue import Enqueuer
from ringdove.controllers.sending import Outgoing, Sender, SentBatch
from ringdove.controllers.streaming import BlockStream
from ringdove.core.settings import QueueSettings
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.core.tally import Tallies
from ringdove.errors import OffsetTrimmed, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from ringdove.controllers.catalog import Notes
    from ringdove.controllers.enqueue import Begun
    from ringdove.controllers.sending import Delivered, Parcel, Sent
    from ringdove.controllers.visiting import Received
    from ringdove.core.block import Block
    from ringdove.core.receipt import Receipt
    from ringdove.stores.base import Start, Store, StripeId, StripeStats

T = TypeVar("T")


class QueueStats(NamedTuple):
    """The state of a queue, over all its stripes."""

    name: str
    messages: int
    nbytes: int
    oldest_ms: int
    #: Per subscription: messages waiting, leased and delayed.
    subscriptions: dict[str, tuple[int, int, int]]
    stripes: dict[StripeId, StripeStats]

    @property
    def id(self) -> int:
        """The queue's."""
        return next(iter(self.stripes)).queue

    def waiting(self, subscription: str = DEFAULT_SUBSCRIPTION) -> int:
        """Messages that the subscription could receive now."""
        return self.subscriptions.get(subscription, (0, 0, 0))[0]


def total_stats(name: str, stripes: dict[StripeId, StripeStats]) -> QueueStats:
    """The state of a queue from that of its stripes."""
    totals: dict[str, tuple[int, int, int]] = {}
    for stats in stripes.values():
        for sub in stats.subscriptions:
            waiting, leased, delayed = totals.get(sub.name, (0, 0, 0))
            totals[sub.name] = (waiting + sub.waiting, leased + sub.leased, delayed + sub.delayed)
    return QueueStats(
        name,
        sum(stats.tail - stats.head for stats in stripes.values()),
        sum(stats.nbytes for stats in stripes.values()),
        min((s.oldest_ms for s in stripes.values() if s.oldest_ms), default=0),
        totals,
        stripes,
    )


class Broker:
    """Controllers over one store."""

    def __init__(self, store: Store, seed: int | None = None) -> None:
        self.store = store
        self._catalog = Catalog(store)
        #: Order and duplicates of queues, as this broker has seen them.
        self.tallies = Tallies()
        self.enqueuer = Enqueuer(store, self._catalog, self.tallies)
        self.dequeuer = Dequeuer(store, self._catalog, self.tallies, seed)
        self._sender = Sender(self._catalog, self.enqueuer.deliver, store.clock.now_ms)
        self._dead = DeadLetters(self._catalog, self._sender, self.dequeuer)
        self.accounts = Accounts(store)

    async def open(self) -> None:
        """Finish what a process that died has begun; raises if the store is not there."""
        try:
            await self._catalog.finish_deletions()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    # -- queues ---------------------------------------------------------------------------------

    async def create_queue(self, name: str, settings: dict[str, Any]) -> QueueInfo:
        """Make a queue; the same again is no error."""
        return await self._catalog.create(name, QueueSettings.make(**settings))

    async def adopt_queue(self, origin: QueueInfo, settings: QueueSettings) -> QueueInfo:
        """Make a copy of another broker's queue, under its name and id; only a relay fills it."""
        return await self._catalog.create(
            origin.name, settings.replace(relayed=True), queue_id=origin.id
        )

    async def get_queue(self, name: str) -> QueueInfo:
        """The queue, or QueueNotFound."""
        return await self._catalog.get(name)

    def known_queue(self, name: str) -> QueueInfo | None:
        """The queue, if it was looked up before; a call that uses it finds out if that is stale."""
        return self._catalog.known(name)

    async def list_queues(
        self, prefix: str = "", after: str = "", max: int | None = None
    ) -> list[QueueInfo]:
        """Queues by name, from the first one behind `after`; all of them without `max`."""
        if max is not None:
            return await self._catalog.find(prefix, after, max)
        found: list[QueueInfo] = []
        while True:
            page = await self._catalog.find(prefix, after, limits.SETTINGS_CACHE_MAX)
            found += page
            if len(page) < limits.SETTINGS_CACHE_MAX:
                return found
            after = page[-1].name

    def forget_queue(self, name: str) -> None:
        """Look a queue up anew at its next use."""
        self._catalog.forget(name)

    async def change_queue(
        self,
        name: str,
        settings: dict[str, Any],
        notes: Notes | None = None,
    ) -> QueueInfo:
        """Change some settings, and some `notes`, of which None removes one; see the catalogue."""
        return await self._catalog.change(name, settings, notes)

    async def delete_queue(self, name: str) -> None:
        """Forget a queue and everything in it."""
        await self._catalog.delete(name)

    async def purge_queue(self, name: str) -> int:
        """Drop every message of a queue; answers how many were waiting or leased."""

        async def purge(info: QueueInfo) -> int:
            return sum([await self.store.purge(stripe) for stripe in info.stripes()])

        return await self._on_stripes(name, purge)

    async def queue_stats(self, name: str) -> QueueStats:
        """The state of a queue."""

        async def stats(info: QueueInfo) -> QueueStats:
            stripes = {stripe: await self.store.stats(stripe) for stripe in info.stripes()}
            return total_stats(name, stripes)

        return await self._on_stripes(name, stats)

    async def _on_stripes(self, name: str, work: Callable[[QueueInfo], Awaitable[T]]) -> T:
        """Do something with all stripes of a queue, which may have to be made first."""
        info = await self._catalog.get(name)
        try:
            return await work(info)
        except QueueNotFound:
            info = await self._catalog.refresh(name)  # Made anew, or gone.
        try:
            return await work(info)
        except QueueNotFound:  # A power cut has taken what was in memory.
            await self._catalog.finish_change(info)
            return await work(info)

    # -- subscriptions --------------------------------------------------------------------------

    async def subscriptions(self, queue: str) -> tuple[str, ...]:
        """The subscriptions of a queue."""
        return await self._catalog.subscriptions(queue)

    async def subscribe(
        self, queue: str, subscription: str, start: Start, *, keep_default: bool = False
    ) -> None:
        """Add a subscription."""

        async def subscribe(_: QueueInfo) -> None:
            await self._catalog.subscribe(queue, subscription, start, keep_default=keep_default)

        await self._on_stripes(queue, subscribe)

    async def unsubscribe(self, queue: str, subscription: str) -> None:
        """Remove a subscription."""
        await self._catalog.unsubscribe(queue, subscription)

    # -- messages -------------------------------------------------------------------------------

    async def send(self, queue: str, outgoing: Outgoing) -> SentBatch:
        """Store messages."""
        return await self._sender.send(queue, outgoing)

    def send_one(self, queue: str, body: bytes) -> Coroutine[Any, Any, Sent]:
        """Store a message that is nothing but its body."""
        return self._sender.send_one(queue, body)

    def deliver(self, queue: str, version: int, parcel: Parcel) -> Coroutine[Any, Any, Delivered]:
        """Store messages that their sender has packed already, perhaps elsewhere."""
        return self.enqueuer.deliver(queue, version, parcel, check=True)

    def begin_to_deliver(self, queue: str, version: int, parcel: Parcel) -> Begun | None:
        """`deliver` without waiting, as far as that goes; see Enqueuer."""
        return self.enqueuer.begin_to_deliver(queue, version, parcel)

    def receive(
        self,
        queue: str,
        subscription: str,
        max: int,
        wait_s: float | None,
        lease_ms: int | None,
    ) -> Coroutine[Any, Any, list[Received]]:
        """Lease messages."""
        return self.dequeuer.receive(queue, subscription, max, wait_s, lease_ms)

    def acknowledge(self, receipts: Sequence[Receipt], *, earlier: bool = False) -> Settling:
        """Mark messages done; see Dequeuer for `earlier`."""
        return self.dequeuer.acknowledge(receipts, earlier=earlier)

    def extend(
        self, receipts: Sequence[Receipt], lease_ms: int, *, earlier: bool = False
    ) -> Settling:
        """Keep messages leased."""
        return self.dequeuer.extend(receipts, lease_ms, earlier=earlier)

    def release(
        self, receipts: Sequence[Receipt], delay_ms: int | None, *, earlier: bool = False
    ) -> Settling:
        """Give messages back."""
        return self.dequeuer.release(receipts, delay_ms, earlier=earlier)

    def unlease(self, receipts: Sequence[Receipt]) -> Settling:
        """Give messages back that nobody has seen."""
        return self.dequeuer.unlease(receipts)

    async def bury(self, queue: str, receipt: Receipt, blocks: list[Block], reason: str) -> None:
        """Move leased messages to the dead-letter queue."""
        await self._dead.bury(queue, receipt, blocks, reason)

    async def redrive(
        self,
        queue: str,
        target: str | None,
        max: int | None,
        on_progress: Callable[[int], None] | None = None,
        may_go: Callable[[str], bool] | None = None,
    ) -> int:
        """Send dead letters back."""
        return await self._dead.redrive(queue, target, max, on_progress, may_go)

    async def stream(
        self,
        queue: str,
        subscription: str,
        owner: bytes,
        positions: Mapping[StripeId, int],
        lease_ms: int,
        *,
        exact: bool = False,
    ) -> BlockStream:
        """Claim a subscription for ordered streaming; see `BlockStream.open`."""

        async def stream(info: QueueInfo) -> BlockStream:
            if not positions.keys() <= set(info.stripes()):
                info = await self._catalog.refresh(queue)
            opened = BlockStream(
                self.store, info, subscription, owner, lease_ms, self.tallies.of(info.id),
                partial(self._catalog.refresh, queue),
            )  # fmt: skip
            await opened.open(positions, exact=exact)
            return opened

        return await self._on_stripes(queue, stream)

    # -- reading by offset ----------------------------------------------------------------------

    async def read(
        self,
        stripe: StripeId,
        offset: int,
        messages_max: int,
        bytes_max: int = limits.BLOCK_BYTES_MAX,
        *,
        skip_trimmed: bool = True,
    ) -> list[Block]:
        """Blocks from `offset`, or from the oldest stored one if that was trimmed.

        The last one is cut where there are `messages_max`; with it there may be `bytes_max`.
        """
        try:
            return await self.store.read(stripe, offset, messages_max, bytes_max)
        except OffsetTrimmed:
            if not skip_trimmed:
                raise
            head = (await self.store.stats(stripe)).head
            return await self.store.read(stripe, head, messages_max, bytes_max)

    async def position(self, stripe: StripeId, start: Start) -> int:
        """The offset at which reading from `start` begins."""
        stats = await self.store.stats(stripe)
        if start.kind == "earliest":
            return stats.head
        if start.kind == "latest":
            return stats.tail
        if start.kind == "time":
            return await self.store.find(stripe, start.value)
        if start.kind == "offset":
            return start.value
        raise start.unknown()

    async def advance(self, stripe: StripeId, subscription: str, offset: int) -> None:
        """A reader by offset is done with everything below; after a crash perhaps with less."""
        await self.store.commit(stripe, subscription, offset, lazy=True)

    # -- accounts -------------------------------------------------------------------------------

    async def account(self, command: str, arguments: dict[str, Any]) -> Any:
        """Administer accounts: `command` is the name of a method of `Accounts`.

        Answers plain values, without secrets but for that of a key just made.
        """
        return await administer(self.accounts, command, arguments)
