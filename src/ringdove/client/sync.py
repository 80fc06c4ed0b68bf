"""The synchronous client: `ringdove.connect(...)`.

    with ringdove.connect("file:./data") as rd:
        queue = rd.create_queue("readings")
        queue.send(b"hello")
        for message in queue.receive(max=10, wait=5):
            message.ack()

Each method drives its asynchronous twin (aio.py) in the calling thread. Connections and queues may
be shared by threads; producers and consumers belong to one thread each.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from ringdove.client import aio
from ringdove.client.closing import Closable
from ringdove.client.delivery import BaseBatch, BaseMessage, Chunk
from ringdove.client.joining import Joiner, ProducerOptions
from ringdove.client.leases import EXTENDS, EXTENDS_AGAIN, BaseConsumer
from ringdove.client.outgoing import as_bytes
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import ConnectionClosed, RingdoveError, SequenceRefused, WaitTimeout
from ringdove.pending import Pending, run, start

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from ringdove.client import options as by_name
    from ringdove.client.backend import Backend
    from ringdove.client.leases import LeaseKeeper
    from ringdove.client.outgoing import Body, NewMessage, Text
    from ringdove.controllers.broker import QueueStats
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.sending import Outgoing, Sent, SentBatch
    from ringdove.core.attributes import Attributes
    from ringdove.core.settings import QueueSettings
    from ringdove.stores.base import Start

_log = logging.getLogger(__name__)

#: Seconds that a process which ends waits for what a producer that is still open has not stored.
_AT_EXIT_S = 10.0


class Message(BaseMessage):
    """A received message. Settle it with `ack`, `release` or `bury`; `extend` keeps it longer."""

    __slots__ = ()

    def ack(self) -> None:
        """Mark the message done, as durably as it was sent."""
        run(aio.Message(self).ack())

    def release(self, delay_ms: int | None = None) -> None:
        """Give the message back, after `delay_ms` or by default after the queue's back-off."""
        run(aio.Message(self).release(delay_ms))

    def extend(self, lease_ms: int | None = None) -> None:
        """Keep the message for `lease_ms` from now, by default the queue's lease time."""
        run(aio.Message(self).extend(lease_ms))

    def bury(self, reason: str = "buried by the receiver") -> None:
        """Move the message to the queue's dead-letter queue at once."""
        run(aio.Message(self).bury(reason))


class Batch(BaseBatch[Message]):
    """The messages of one receive."""

    __slots__ = ("_twin",)

    def __init__(self, twin: aio.Batch) -> None:
        super().__init__(Message, twin.chunks())
        self._twin = twin

    def ack(self) -> int:
        """Mark all messages of the batch done, in one commit; answers how many were not yet."""
        return run(self._twin.ack())

    def release(self, delay_ms: int | None = None) -> int:
        """Give all messages back."""
        return run(self._twin.release(delay_ms))

    def extend(self, lease_ms: int | None = None) -> None:
        """Keep all messages longer."""
        run(self._twin.extend(lease_ms))


class Connection(Closable):
    """A way to queues: in this process, on a server, or on a fabric, by its URL."""

    def __init__(self, url: str, **options: Unpack[by_name.ConnectionArguments]) -> None:
        self._twin = run(aio.Connection(url, **options).open())

    def __repr__(self) -> str:
        return repr(self._twin)

    @property
    def url(self) -> str:
        """Where the queues are."""
        return self._twin.url

    @property
    def backend(self) -> Backend:
        """What serves the requests."""
        return self._twin.backend

    def close(self) -> None:
        """Finish what was accepted, and close. Idempotent."""
        run(self._twin.close())

    def queue(self, name: str) -> Queue:
        """A queue by name. Nothing is looked up until it is used."""
        return Queue(self._twin.queue(name))

    def create_queue(self, name: str, **settings: Unpack[by_name.QueueArguments]) -> Queue:
        """Make a queue with these settings. If it exists with the same ones, that is fine."""
        return Queue(run(self._twin.create_queue(name, **settings)))

    def queues(self, prefix: str = "") -> list[Queue]:
        """All queues, by name."""
        return [Queue(twin) for twin in run(self._twin.queues(prefix))]

    def delete_queue(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a queue and everything in it."""
        run(self._twin.delete_queue(name, missing_ok=missing_ok))

    def settle(self, receipt: bytes) -> None:
        """Acknowledge a message by its receipt, wherever it was received."""
        run(self._twin.settle(receipt))


class Queue:
    """A queue. Get it from a connection."""

    def __init__(self, twin: aio.Queue) -> None:
        self._twin = twin
        self.name = twin.name

    def __repr__(self) -> str:
        return repr(self._twin)

    # -- the queue itself -----------------------------------------------------------------------

    def info(self) -> QueueInfo:
        """Settings, version and age of the queue."""
        return run(self._twin.info())

    def settings(self) -> QueueSettings:
        """The queue's settings."""
        return run(self._twin.settings())

    def configure(self, **settings: Unpack[by_name.QueueArguments]) -> QueueSettings:
        """Change some settings; the others stay."""
        return run(self._twin.configure(**settings))

    def stats(self) -> QueueStats:
        """How many messages wait, are leased, and so on."""
        return run(self._twin.stats())

    def purge(self) -> int:
        """Drop every message; answers how many."""
        return run(self._twin.purge())

    def redrive(
        self,
        target: str | None = None,
        max: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Of a dead-letter queue: send messages back to where they came from, or to `target`."""
        return run(self._twin.redrive(target, max, on_progress))

    # -- sending --------------------------------------------------------------------------------

    def send(
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
        return run(
            self._twin.send(
                body, key=key, attributes=attributes, id=id, priority=priority, delay_ms=delay_ms
            )
        )

    def send_many(
        self,
        messages: Iterable[Body | NewMessage],
        *,
        priority: int = 0,
        delay_ms: int | None = None,
        compression: str = "none",
    ) -> SentBatch:
        """Send many messages in one commit per stripe, in order."""
        return run(
            self._twin.send_many(
                messages, priority=priority, delay_ms=delay_ms, compression=compression
            )
        )

    def producer(self, **options: Unpack[by_name.ProducerArguments]) -> Producer:
        """A producer that joins single sends into blocks; see client.joining.ProducerOptions."""
        return Producer(self._twin, ProducerOptions(**options))

    # -- receiving ------------------------------------------------------------------------------

    def receive(
        self,
        max: int = 1,
        wait: float | None = 0,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        lease_ms: int | None = None,
    ) -> Batch:
        """Lease up to `max` messages, waiting `wait` seconds (None: for ever) for the first."""
        return Batch(
            run(self._twin.receive(max, wait, subscription=subscription, lease_ms=lease_ms))
        )

    def stream(
        self, subscription: str = DEFAULT_SUBSCRIPTION, **options: Unpack[by_name.StreamArguments]
    ) -> Stream:
        """The messages of a subscription in order, for one reader at a time; see Stream."""
        return Stream(self._twin.stream(subscription, **options))

    def consumer(self, **options: Unpack[by_name.ConsumerArguments]) -> Consumer:
        """An endless iterator over messages; see Consumer."""
        return Consumer(self._twin, **options)

    def peek(self, max: int = 10, *, subscription: str = DEFAULT_SUBSCRIPTION) -> Batch:
        """Look at messages from the oldest that is not done on; leased ones are among them."""
        return Batch(run(self._twin.peek(max, subscription=subscription)))

    def replay(self, start: str | int | Start = "earliest") -> Iterator[Message]:
        """Read messages again, done or not, as long as they are stored; stripe by stripe.

        `start` is "earliest", "latest", an offset, or Start("time", milliseconds).
        """
        messages = self._twin.replay(start)
        while True:
            try:
                yield Message(run(anext(messages)))  # type: ignore[arg-type]
            except StopAsyncIteration:
                return

    # -- subscriptions --------------------------------------------------------------------------

    def subscribe(
        self, name: str, start: str | int | Start = "latest", *, keep_default: bool = False
    ) -> None:
        """Add an independent reader group. The first one replaces `default`, if that is unused."""
        run(self._twin.subscribe(name, start, keep_default=keep_default))

    def unsubscribe(self, name: str) -> None:
        """Remove a reader group."""
        run(self._twin.unsubscribe(name))

    def subscriptions(self) -> tuple[str, ...]:
        """The names of the reader groups."""
        return run(self._twin.subscriptions())


class Producer(Closable):
    """Joins single sends into blocks. `send` waits only while too many blocks are in flight.

    A thread of its own closes blocks that have lingered and collects the answers, in order. What
    is not stored when the process ends by itself is waited for, for ten seconds, and told of if
    that is not enough.
    """

    def __init__(self, queue: aio.Queue, options: ProducerOptions) -> None:
        self._queue = queue
        self._joiner = Joiner(options)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._flights: deque[_Flight] = deque()
        self._closed = False
        self._looked = False
        self._thread = threading.Thread(target=self._collect, name="ringdove-producer", daemon=True)
        self._thread.start()
        _open_producers.add(self)

    def send(
        self, body: Body, key: Text | None = None, attributes: Attributes | None = None
    ) -> Pending[SentBatch]:
        """Add a message; the result is that of its whole block; `.wait()` for it if wanted."""
        if type(body) is not bytes:
            body = as_bytes(body, "body")
        with self._lock:  # Entering the condition itself would cost as much as all of the rest.
            if self._closed:
                raise ConnectionClosed("The producer has been closed.")
            joiner = self._joiner
            ticket = joiner.ticket
            if joiner.add(body, key, attributes):
                self._attend()
        return ticket

    def _attend(self) -> None:
        """See to a block that has begun or is full; the caller holds the lock."""
        if len(self._joiner.bodies) == 1:
            self._changed.notify_all()
        if self._joiner.full():
            self._dispatch()

    def flush(self) -> None:
        """Wait until everything sent so far is stored; raises the first failure since the last."""
        self._flush(None)

    def _flush(self, timeout_s: float | None) -> None:
        with self._changed:
            self._dispatch()
            if not self._changed.wait_for(lambda: not self._flights, timeout_s):
                waiting = sum(len(outgoing.bodies) for _, outgoing, _ in self._flights)
                raise WaitTimeout(f"{waiting} messages were not stored within {timeout_s} s.")
            self._joiner.raise_failure()

    def flush_at_exit(self) -> None:
        """Have what is left stored, as far as there is time, or say that it is lost."""
        self._looked = True  # A first block is alone, so there is no order to see to.
        try:
            if not self._closed:
                self._flush(_AT_EXIT_S)
        except RingdoveError as error:
            _log.warning(
                "Messages for queue %r were lost with the end of the process, whose producer was "
                "not closed: %s", self._queue.name, error,
            )  # fmt: skip

    def close(self) -> None:
        """Flush, and end. Idempotent."""
        try:
            if not self._closed:
                self.flush()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()
            _open_producers.discard(self)

    def _dispatch(self) -> None:
        """Close the block and start its send; the caller holds the condition."""
        while len(self._flights) >= self._joiner.options.in_flight_max:
            self._changed.wait()
        if self._joiner.bodies and not self._looked:
            # Once the queue is known, blocks go out in the order in which they are started.
            with contextlib.suppress(RingdoveError):
                run(self._queue.info())
            self._looked = True
        taken = self._joiner.take()
        if taken is not None:
            outgoing, ticket = taken
            try:
                finish = start(self._queue.backend.send(self._queue.name, outgoing)).finish
                self._flights.append((finish, outgoing, ticket))
            except Exception as error:  # noqa: BLE001  told by flush
                self._joiner.failed(ticket, error)
            except BaseException:  # Ctrl-C ends what the caller does, not what he has handed over.
                self._flights.append((partial(self._send, outgoing), outgoing, ticket))
                raise
            finally:
                self._changed.notify_all()

    def _send(self, outgoing: Outgoing) -> SentBatch:
        return run(self._queue.backend.send(self._queue.name, outgoing))

    def _collect(self) -> None:
        linger_s = self._joiner.options.linger_ms / 1000
        while True:
            with self._changed:
                while not self._flights and not self._joiner.bodies and not self._closed:
                    self._changed.wait()
                if not self._flights:
                    if self._closed:
                        return
                    waiting = self._joiner.ticket
                    self._changed.wait(linger_s)
                    if not self._flights and self._joiner.ticket is waiting:
                        self._dispatch()
                    continue
                flight = self._flights[0]
            self._finish(*flight)
            with self._changed:
                self._flights.popleft()
                self._changed.notify_all()

    def _finish(
        self, finish: Callable[[], SentBatch], outgoing: Outgoing, ticket: Pending[SentBatch]
    ) -> None:
        """Collect one answer.

        All earlier blocks are settled by now: one that came too early for its sequence goes again.
        """
        try:
            try:
                ticket.resolve(finish())
            except SequenceRefused:
                ticket.resolve(self._send(outgoing))
        except BaseException as error:  # noqa: BLE001  delivered with the ticket and by flush
            self._joiner.failed(ticket, error)


_Flight = tuple["Callable[[], SentBatch]", "Outgoing", "Pending[SentBatch]"]

_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _flush_open() -> None:
    for producer in list(_open_producers):
        producer.flush_at_exit()


# A forked process has none of the threads; what it inherited is the other's to send.
os.register_at_fork(after_in_child=_open_producers.clear)


class Consumer(BaseConsumer["Generator[Message]"], Closable):
    """Receives for ever and keeps leases alive while a message is being handled.

        for message in queue.consumer():
            handle(message)

    A message is acknowledged when the loop asks for the next one; acknowledgements go out together,
    at the end of each block or after `ack_linger_ms`. With `ack="manual"` the handler settles each
    message itself. Leaving the loop gives unfinished messages back at once; use `with` to make
    sure. The loop ends when nothing came for `wait` seconds; by default it never does. Up to `max`
    messages are taken at a time; by default as many as are handled in about a tenth of a second.
    """

    _holder = weakref.WeakSet  # One that is left ends when nobody knows it.

    def close(self) -> None:
        """End every loop over the messages; what is unfinished is given back. Idempotent."""
        for messages in list(self._open):
            messages.close()
        self._open.clear()

    def __iter__(self) -> Generator[Message]:
        messages = self._messages()
        self._open.add(messages)
        return messages

    def _messages(self) -> Generator[Message]:
        lease_ms = self._lease_ms or run(self._queue.settings()).lease_ms
        stop = threading.Event()
        # The thread must not know the consumer: leaving the loop is noticed when nobody does.
        extender = threading.Thread(
            target=_extend,
            args=(self._queue, self._keeper, lease_ms, stop),
            name="ringdove-consumer",
            daemon=True,
        )
        extender.start()
        try:
            while batch := self._receive(lease_ms):
                began_s = time.monotonic()
                self._keeper.begin(batch.chunks())
                for message in batch:
                    yield message
                    if self._keeper.handled(message):
                        self._flush()
                self._appetite.handled(len(batch), time.monotonic() - began_s)
        finally:
            stop.set()
            extender.join()
            self._flush()
            seen, unseen = self._keeper.unfinished()
            if seen:
                run(self._queue.backend.release(seen, 0))
            if unseen:
                run(self._queue.backend.unlease(unseen))

    def _receive(self, lease_ms: int) -> Batch:
        return Batch(
            run(
                self._queue.receive(
                    self._appetite.max,
                    self._wait,
                    subscription=self._subscription,
                    lease_ms=lease_ms,
                )
            )
        )

    def _flush(self) -> None:
        receipts = self._keeper.done()
        if receipts:
            run(self._queue.backend.acknowledge(receipts))


def _extend(queue: aio.Queue, keeper: LeaseKeeper, lease_ms: int, stop: threading.Event) -> None:
    """Keep leased what a consumer has in hand; one that could not be reached is asked again."""
    pause_ms = lease_ms / EXTENDS
    while not stop.wait(pause_ms / 1000):
        pause_ms = lease_ms / EXTENDS
        try:
            receipts = keeper.held()
            if receipts:
                run(queue.backend.extend(receipts, lease_ms))
        except ConnectionClosed:
            return
        except RingdoveError:
            pause_ms = lease_ms / EXTENDS_AGAIN


class Stream(Closable):
    """Batches in order, from the subscription's position or one that you keep (reading.py).

        with queue.stream("billing") as stream:
            for batch in stream:
                apply(batch)

    A batch is acknowledged when the loop asks for the next; with `ack="manual"`, by `stream.ack`.
    Nobody else may stream or receive from the subscription meanwhile. The loop ends when nothing
    came for `wait` seconds; by default it never does.
    """

    def __init__(self, twin: aio.Stream) -> None:
        self._twin = twin

    @property
    def fence(self) -> int:
        """Larger than that of every reader before."""
        return self._twin.fence

    @property
    def position(self) -> bytes:
        """Where a stream must begin to get everything after what was handed out so far."""
        return self._twin.position

    def __enter__(self) -> Self:
        run(self._twin.__aenter__())
        return self

    def close(self) -> None:
        """Give the claim up. Idempotent."""
        run(self._twin.close())

    def __iter__(self) -> Generator[Batch]:
        while batch := Batch(run(self._twin.next_batch())):
            yield batch
            if self._twin.auto and not self._twin.refused:
                self.ack(batch)

    def ack(self, batch: Batch) -> None:
        """Mark a batch done, and everything before it on its stripe."""
        run(self._twin.acknowledge(batch))

    def refuse(self, batch: Batch) -> None:
        """Have a batch again, and everything after it on its stripe."""
        self._twin.refuse(batch)


def connect(
    url: str = "file:./ringdove-data", **options: Unpack[by_name.ConnectionArguments]
) -> Connection:
    """Connect to the queues at `url`: 'file:DIRECTORY', 'ringdove://HOST:PORT' or 'memory:'."""
    return Connection(url, **options)


__all__ = [
    "Batch", "Chunk", "Connection", "Consumer", "Message", "Producer", "Queue", "Stream", "connect",
]  # fmt: skip
