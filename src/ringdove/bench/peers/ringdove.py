"""Ringdove itself, driven in the same ways as the others."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ringdove.bench.peers.clients import LOST_S
from ringdove.bench.peers.peer import Peer, Server
from ringdove.bench.peers.ways import Driven
from ringdove.bench.processes import Worker, serving
from ringdove.client.sync import connect
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.protocol import frames, messages
from ringdove.protocol.messages import Verb
from ringdove.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from ringdove.bench.peers.ways import Load, Way
    from ringdove.client.sync import Batch, Message

_E2E = "ringdove.bench.e2e"
_WAIT_S = 2
_PARKED_S = 600


class Ringdove(Peer):
    """`ringdove serve` with the embedded store."""

    name, title = "ringdove", "Ringdove"
    synced = "durability disk: synced before the acknowledgement, sends that wait share a sync"
    unsynced = "durability memory: written, not synced"

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (
            Blocks("send_many, stream", "batches", "blocks of 512 KB, 16 on their way", Streamed),
            Driven("producer, consumer", "joined",
                   "producer.send each, joined by the client; a loop over messages", Joined),
            Driven("send, receive", "single", "each send, receive and ack waited for", Single),
        )  # fmt: skip

    def obtain(self) -> None:
        """See Peer."""

    def version(self) -> str:
        """See Peer."""
        return __version__

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:  # noqa: ARG002  by queue
        """See Peer."""
        with serving(directory) as server:
            yield Server(server.url, server.pid)

    def create(self, server: Server, queue: str, synced: bool) -> None:
        """See Peer."""
        with connect(server.address) as connection:
            connection.create_queue(queue, durability="disk" if synced else "memory")

    def drop(self, server: Server, queue: str) -> None:
        """See Peer."""
        with connect(server.address) as connection:
            connection.delete_queue(queue)

    def park(self, queue: str, number: int) -> bytes:  # noqa: ARG002  they need no names
        """See Peer."""
        hello = messages.Hello(messages.PROTOCOL_VERSION, "ringdove bench")
        ask = messages.Receive(queue, DEFAULT_SUBSCRIPTION, 1, _PARKED_S, None)
        said = [(Verb.HELLO, messages.encode(hello)), (Verb.RECEIVE, messages.encode(ask))]
        return b"".join(
            frames.join([frames.encode(verb, number, meta)])
            for number, (verb, meta) in enumerate(said, 1)
        )


class Blocks(Driven):
    """As `ringdove bench e2e` does it: blocks one way, a stream the other."""

    def sender(self, peer: Peer, server: Server, queue: str, load: Load) -> Worker:  # noqa: ARG002
        """See Driven."""
        each = load.messages // load.producers
        return Worker(_E2E, "produce", url=server.address, queue=queue, each=each, size=load.size,
                      producers=load.producers)  # fmt: skip

    def receiver(self, peer: Peer, server: Server, queue: str, messages: int) -> Worker:  # noqa: ARG002
        """See Driven."""
        return Worker(_E2E, "consume", url=server.address, queue=queue, messages=messages,
                      subscription=DEFAULT_SUBSCRIPTION)  # fmt: skip


class Single:
    """Each send waited for; each receive, and each acknowledgement."""

    def __init__(self, address: str, queue: str) -> None:
        self._connection = connect(address)
        self._queue = self._connection.queue(queue)
        self._queue.info()
        self._last: Batch | None = None

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        for body in bodies:
            self._queue.send(body)

    def receive(self) -> list[bytes]:
        """See Client."""
        self._settle()
        self._last = self._queue.receive(wait=_WAIT_S)
        return self._last.bodies()

    def close(self) -> None:
        """See Client."""
        self._settle()
        self._connection.close()

    def _settle(self) -> None:
        if self._last:
            self._last.ack()
            self._last = None


class Streamed(Single):
    """Blocks one way, a stream the other."""

    def __init__(self, address: str, queue: str) -> None:
        super().__init__(address, queue)
        self._batches: Iterator[Batch] | None = None

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        self._queue.send_many(bodies)

    def receive(self) -> list[bytes]:
        """See Client."""
        if self._batches is None:
            self._stream = self._queue.stream(wait=LOST_S).__enter__()
            self._batches = iter(self._stream)
        for batch in self._batches:
            return batch.bodies()
        return []

    def close(self) -> None:
        """See Client."""
        if self._batches is not None:
            self._stream.close()
        super().close()


class Joined(Single):
    """A producer that joins what is sent, and a loop over messages."""

    def __init__(self, address: str, queue: str) -> None:
        super().__init__(address, queue)
        self._loop = self._messages()

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        with self._queue.producer() as producer:
            for body in bodies:
                producer.send(body)

    def receive(self) -> list[bytes]:
        """See Client."""
        bodies: list[bytes] = []
        for message in self._loop:
            bodies.append(message.body)
            if message.offset + 1 == message[2].hi:  # The last one of what is there.
                return bodies
        self._loop = self._messages()  # It ends when nothing has come for a while.
        return bodies

    def close(self) -> None:
        """See Client."""
        self._loop.close()
        super().close()

    def _messages(self) -> Generator[Message]:
        return iter(self._queue.consumer(wait=_WAIT_S))
