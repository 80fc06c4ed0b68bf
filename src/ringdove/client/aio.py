"""The asynchronous client: `ringdove.aio.connect(...)`.

    async with ringdove.aio.connect("file:./data") as rd:
        queue = await rd.create_queue("readings")
        await queue.send(b"hello")
        for message in await queue.receive(max=10, wait=5):
            await message.ack()

The synchronous client (sync.py) is a thin shell around these classes.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self, Unpack

from ringdove import limits
from ringdove.client import arguments, forks
from ringdove.client.address import without_token
from ringdove.client.backend import Backend, make_backend
from ringdove.client.closing import AsyncClosable
from ringdove.client.consuming import Consumer
from ringdove.client.delivery import BaseBatch, BaseMessage, Chunk, chunks_of
from ringdove.client.joining import Joiner, ProducerOptions
from ringdove.client.outgoing import Body, NewMessage, Text, as_bytes, columns, single
from ringdove.client.reading import Reading
from ringdove.controllers.dequeue import raise_refusals
from ringdove.core.receipt import Receipt
from ringdove.core.settings import check_name
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION, Part
from ringdove.errors import ConnectionClosed, QueueNotFound, RingdoveError, SequenceRefused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable

    from ringdove.client import options as by_name
    from ringdove.controllers.broker import QueueStats
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.sending import Outgoing, Sent, SentBatch
    from ringdove.core.attributes import Attributes
    from ringdove.core.block import Block
    from ringdove.core.settings import QueueSettings
    from ringdove.pending import Pending
    from ringdove.stores.base import Start, StripeId


class Message(BaseMessage):
    """A received message. Settle it with `ack`, `release` or `bury`; `extend` keeps it longer."""

    __slots__ = ()

    async def ack(self) -> None:
        """Mark the message done, as durably as it was sent."""
        await self._queue().acknowledge(self._one())
        self[2].settled.add(self[1])

    async def release(self, delay_ms: int | None = None) -> None:
        """Give the message back, after `delay_ms` or by default after the queue's back-off."""
        arguments.check_whole_or_none("delay_ms", delay_ms)
        raise_refusals(await self._queue().backend.release([self._one()], delay_ms))
        self[2].settled.add(self[1])

    async def extend(self, lease_ms: int | None = None) -> None:
        """Keep the message for `lease_ms` from now, by default the queue's lease time."""
        await self._queue().extend([self._one()], lease_ms)

    async def bury(self, reason: str = "buried by the receiver") -> None:
        """Move the message to the queue's dead-letter queue at once."""
        arguments.check_text("reason", reason)
        queue, chunk = self._queue(), self[2]
        at = self[1] - chunk.part.block.base
        block = chunk.part.block.slice(at, at + 1)
        await queue.backend.bury(queue.name, self._one(), [block], reason)
        chunk.settled.add(self[1])

    def _one(self) -> Receipt:
        return self[2].receipt(self[1], self[1] + 1)

    def _queue(self) -> Queue:
        queue: Queue = self[2].queue
        return queue


class Batch(BaseBatch[Message]):
    """The messages of one receive."""

    __slots__ = ("_queue",)

    def __init__(self, queue: Queue, chunks: list[Chunk]) -> None:
        super().__init__(Message, chunks)
        self._queue = queue

    async def ack(self) -> int:
        """Mark all messages of the batch done, in one commit; answers how many were not yet."""
        return await self._queue.acknowledge(*self.receipts())

    async def release(self, delay_ms: int | None = None) -> int:
        """Give all messages back."""
        arguments.check_whole_or_none("delay_ms", delay_ms)
        return raise_refusals(await self._queue.backend.release(self.receipts(), delay_ms))

    async def extend(self, lease_ms: int | None = None) -> None:
        """Keep all messages longer."""
        await self._queue.extend(self.receipts(), lease_ms)


class Connection(AsyncClosable):
    """A way to queues: in this process, on a server, or on a fabric, by its URL."""

    def __init__(self, url: str, **options: Unpack[by_name.ConnectionArguments]) -> None:
        self.url = url
        self._options = options
        self._backend: Backend | None = None
        self._forked = False

    def __repr__(self) -> str:
        return f"Connection({without_token(self.url)!r})"

    @property
    def backend(self) -> Backend:
        """What serves the requests."""
        if self._backend is None:
            why = "is of the process that forked; connect anew" if self._forked else "is not open"
            raise ConnectionClosed(f"The connection to {without_token(self.url)!r} {why}.")
        return self._backend

    async def open(self) -> Self:
        """Open the connection; `async with` and `await` do it too."""
        if self._backend is None:
            backend = make_backend(self.url, **self._options)
            await backend.open()
            self._backend = backend
            self._forked = False
            forks.opened(self)
        return self

    def leave(self) -> Backend | None:
        """After a fork, in the new process: the connection is the other's."""
        backend, self._backend = self._backend, None
        self._forked = backend is not None
        return backend

    async def close(self) -> None:
        """Finish what was accepted, and close. Idempotent; after Ctrl-C it goes on where it was."""
        if self._backend is not None:
            await self._backend.close()
            self._backend = None

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    def queue(self, name: str) -> Queue:
        """A queue by name. Nothing is looked up until it is used."""
        return Queue(self, check_name(name))

    async def create_queue(self, name: str, **settings: Unpack[by_name.QueueArguments]) -> Queue:
        """Make a queue with these settings. If it exists with the same ones, that is fine."""
        await self.backend.create_queue(check_name(name), {**settings})
        return self.queue(name)

    async def queues(self, prefix: str = "") -> list[Queue]:
        """All queues, by name."""
        return [self.queue(info.name) for info in await self.backend.list_queues(prefix)]

    async def delete_queue(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a queue and everything in it."""
        try:
            await self.backend.delete_queue(name)
        except QueueNotFound:
            if not missing_ok:
                raise

    async def settle(self, receipt: bytes) -> None:
        """Acknowledge a message by its receipt, wherever it was received."""
        raise_refusals(await self.backend.acknowledge([Receipt.decode(receipt)]))


#: What a send says of a message that is nothing but its body.
_BODY_ONLY = (None, None, None, 0, None)


class Queue:
    """A queue. Get it from a connection."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name

    @property
    def backend(self) -> Backend:
        """What serves the requests."""
        return self.connection.backend

    def __repr__(self) -> str:
        return f"Queue({self.name!r} at {without_token(self.connection.url)!r})"

    # -- the queue itself -----------------------------------------------------------------------

    async def info(self) -> QueueInfo:
        """Settings, version and age of the queue."""
        return await self.backend.get_queue(self.name)

    async def settings(self) -> QueueSettings:
        """The queue's settings."""
        return (await self.info()).settings

    async def configure(self, **settings: Unpack[by_name.QueueArguments]) -> QueueSettings:
        """Change some settings; the others stay."""
        return (await self.backend.change_queue(self.name, {**settings})).settings

    async def stats(self) -> QueueStats:
        """How many messages wait, are leased, and so on."""
        return await self.backend.queue_stats(self.name)

    async def purge(self) -> int:
        """Drop every message; answers how many."""
        return await self.backend.purge_queue(self.name)

    async def redrive(
        self,
        target: str | None = None,
        max: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Of a dead-letter queue: send messages back to where they came from, or to `target`."""
        arguments.check_whole_or_none("max", max)
        target = None if target is None else check_name(target)
        return await self.backend.redrive(self.name, target, max, on_progress)

    # -- sending --------------------------------------------------------------------------------

    async def send(
        self,
        body: Body,
        *,
        key: Text | None = None,
        attributes: Attributes | None = None,
        id: Text | None = None,
        priority: int = 0,
        delay_ms: int | None = None,
    ) -> Sent:
        """Send one message; when this returns it is as durable as the queue promises."""
        backend = self.connection.backend
        if (key, attributes, id, priority, delay_ms) == _BODY_ONLY:
            plain = body if isinstance(body, bytes) else as_bytes(body, "body")
            return await backend.send_one(self.name, plain)
        outgoing = single(NewMessage(body, key, attributes, id), priority, delay_ms)
        return (await backend.send(self.name, outgoing))[0]

    async def send_many(
        self,
        messages: Iterable[Body | NewMessage],
        *,
        priority: int = 0,
        delay_ms: int | None = None,
        compression: str = "none",
    ) -> SentBatch:
        """Send many messages in one commit per stripe, in order."""
        arguments.check_send(priority, delay_ms)
        outgoing = columns(messages, priority=priority, delay_ms=delay_ms, compression=compression)
        return await self.backend.send(self.name, outgoing)

    def producer(self, **options: Unpack[by_name.ProducerArguments]) -> Producer:
        """A producer that joins single sends into blocks; see client.joining.ProducerOptions."""
        return Producer(self, ProducerOptions(**options))

    # -- receiving ------------------------------------------------------------------------------

    async def receive(
        self,
        max: int = 1,
        wait: float | None = 0,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        lease_ms: int | None = None,
    ) -> Batch:
        """Lease up to `max` messages, waiting `wait` seconds (None: for ever) for the first."""
        arguments.check_receive(max, wait, subscription, lease_ms)
        backend = self.connection.backend
        received = await backend.receive(self.name, subscription, max, wait, lease_ms)
        return Batch(self, chunks_of(self, received))

    def stream(
        self, subscription: str = DEFAULT_SUBSCRIPTION, **options: Unpack[by_name.StreamArguments]
    ) -> Stream:
        """The messages of a subscription in order, for one reader at a time; see Stream."""
        return Stream(self, subscription, **options)

    def consumer(self, **options: Unpack[by_name.ConsumerArguments]) -> Consumer:
        """An endless iterator over messages; see Consumer."""
        return Consumer(self, **options)

    async def peek(self, max: int = 10, *, subscription: str = DEFAULT_SUBSCRIPTION) -> Batch:
        """Look at messages from the oldest that is not done on; leased ones are among them."""
        stats = await self.stats()
        arguments.check_peek(max, subscription, stats.name, stats.subscriptions)
        chunks: list[Chunk] = []
        left = max
        for stripe, state in sorted(stats.stripes.items(), key=lambda s: (-s[0].level, s[0])):
            floor = next(
                (s.floor for s in state.subscriptions if s.name == subscription), state.head
            )
            if left > 0 and floor < state.tail:
                for block in await self.backend.read(stripe, floor, left):
                    chunks.append(_read_chunk(self, stripe, block))
                    left -= block.count
        return Batch(self, chunks)

    async def replay(self, start: str | int | Start = "earliest") -> AsyncIterator[Message]:
        """Read messages again, done or not, as long as they are stored; stripe by stripe.

        `start` is "earliest", "latest", an offset, or Start("time", milliseconds).
        """
        for stripe in (await self.info()).stripes():
            at = await self.backend.position(stripe, arguments.as_start(start))
            while blocks := await self.backend.read(stripe, at, limits.BLOCK_MESSAGES_MAX):
                for message in Batch(self, [_read_chunk(self, stripe, b) for b in blocks]):
                    yield message
                at = blocks[-1].end

    async def acknowledge(self, *receipts: Receipt) -> int:
        """Mark leased messages done, in one commit; answers how many were not yet."""
        return raise_refusals(await self.backend.acknowledge(receipts))

    async def extend(self, receipts: list[Receipt], lease_ms: int | None = None) -> None:
        """Keep leased messages longer, by default for the queue's lease time."""
        arguments.check_whole_or_none("lease_ms", lease_ms)
        if lease_ms is None:
            lease_ms = (await self.settings()).lease_ms
        raise_refusals(await self.backend.extend(receipts, lease_ms))

    # -- subscriptions --------------------------------------------------------------------------

    async def subscribe(
        self, name: str, start: str | int | Start = "latest", *, keep_default: bool = False
    ) -> None:
        """Add an independent reader group. The first one replaces `default`, if that is unused."""
        check_name(name, "subscription")
        at = arguments.as_start(start)
        await self.backend.subscribe(self.name, name, at, keep_default=keep_default)

    async def unsubscribe(self, name: str) -> None:
        """Remove a reader group."""
        await self.backend.unsubscribe(self.name, name)

    async def subscriptions(self) -> tuple[str, ...]:
        """The names of the reader groups."""
        return await self.backend.subscriptions(self.name)


class Producer(AsyncClosable):
    """Joins single sends into blocks. `send` waits only while too many blocks are in flight."""

    def __init__(self, queue: Queue, options: ProducerOptions) -> None:
        self._queue = queue
        self._joiner = Joiner(options)
        self._flights: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(options.in_flight_max)
        self._linger: asyncio.TimerHandle | None = None
        self._order = asyncio.Lock()
        #: The ticket of the block before.
        self._last: Pending[SentBatch] | None = None

    async def send(
        self, body: Body, key: Text | None = None, attributes: Attributes | None = None
    ) -> Pending[SentBatch]:
        """Add a message; the result is that of its whole block, to be awaited whenever wanted."""
        joiner = self._joiner
        ticket = joiner.ticket
        if joiner.add(as_bytes(body, "body"), key, attributes) and joiner.full():
            try:
                await self._dispatch()
            except asyncio.CancelledError:
                self._linger_on()  # The block is still to go.
                raise
        else:
            self._linger_on()
        return ticket

    def _linger_on(self) -> None:
        """See that the block goes, if nothing else sends it."""
        if self._linger is None:
            loop = asyncio.get_running_loop()
            linger_s = self._joiner.options.linger_ms / 1000
            self._linger = loop.call_later(linger_s, self._linger_over)

    async def flush(self) -> None:
        """Wait until everything sent so far is stored; raises the first failure since the last."""
        await self._dispatch()
        while self._flights:
            await asyncio.wait(set(self._flights))
        self._joiner.raise_failure()

    async def close(self) -> None:
        """Flush."""
        await self.flush()

    def _linger_over(self) -> None:
        task = asyncio.get_running_loop().create_task(self._dispatch())
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    async def _dispatch(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        async with self._order:
            if not self._joiner.bodies:
                return
            if self._last is None:
                # Once the queue is known, blocks go out in the order in which they are started.
                with contextlib.suppress(RingdoveError):
                    await self._queue.info()
            await self._room.acquire()
            # Nothing is awaited from here on: who is cancelled must not take a block with him.
            taken = self._joiner.take()
            if taken is None:
                self._room.release()
                return
            task = asyncio.get_running_loop().create_task(self._fly(*taken, self._last))
            self._last = taken[1]
            self._flights.add(task)
            task.add_done_callback(self._flights.discard)

    async def _fly(
        self, outgoing: Outgoing, ticket: Pending[SentBatch], before: Pending[SentBatch] | None
    ) -> None:
        """Send a block; one that came too early for its sequence again, after the one before it."""
        try:
            backend, name = self._queue.backend, self._queue.name
            try:
                ticket.resolve(await backend.send(name, outgoing))
            except SequenceRefused:
                if before is not None:
                    await before.until(None)
                ticket.resolve(await backend.send(name, outgoing))
        except BaseException as error:
            self._joiner.failed(ticket, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._room.release()


class Stream(Reading, AsyncClosable):
    """Batches in order, from the subscription's position or one that you keep (reading.py).

        async with queue.stream("billing") as stream:
            async for batch in stream:
                await apply(batch)

    A batch is acknowledged when the loop asks for the next; with `ack="manual"`, by `stream.ack`.
    Nobody else may stream or receive from the subscription meanwhile. The loop ends when nothing
    came for `wait` seconds; by default it never does.
    """

    def __init__(
        self, queue: Queue, subscription: str, **options: Unpack[by_name.StreamArguments]
    ) -> None:
        super().__init__(subscription, **options)
        self._queue = queue

    async def __aenter__(self) -> Self:
        await self.open(self._queue.backend, self._queue.name)
        return self

    async def __aiter__(self) -> AsyncGenerator[Batch]:
        while batch := await self.next_batch():
            yield batch
            if self.auto and not self.refused:
                await self.acknowledge(batch)

    async def next_batch(self) -> Batch:
        """The next batch; an empty one when the wait is over."""
        streamed = await self.next()
        if streamed is None:
            return Batch(self._queue, [])
        return Batch(self._queue, [_read_chunk(self._queue, streamed.stripe, streamed.block)])

    async def ack(self, batch: Batch) -> None:
        """Mark a batch done, and everything before it on its stripe."""
        await self.acknowledge(batch)


def _read_chunk(queue: Queue, stripe: StripeId, block: Block) -> Chunk:
    """A chunk of messages that are read and not received."""
    return Chunk(queue, stripe, Part(block, 0, block.count), None)


def connect(
    url: str = "file:./ringdove-data", **options: Unpack[by_name.ConnectionArguments]
) -> Connection:
    """A connection to the queues at `url`; open it with `async with` or `await`."""
    return Connection(url, **options)
