"""A messaging server as in the thesis (T2.1): receive, store, reply at once, forward, delete.

The same program with different queues. Senders write a length and a body and wait for one byte; the
back end is written to in the same way. A message is replied to when it is stored, and deleted when
the back end has answered. At most `BACKLOG_MAX` messages are stored and not yet delivered: a sender
waits meanwhile, so the rate is one that can be kept up.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import struct
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from experiments.pipelined import HOST
from ringdove.bench.measure import run_loop
from ringdove.bench.processes import wait_for_go
from ringdove.client import aio

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")
    #: Messages with what their queue deletes them by.
    Taken = tuple[Any, list[bytes]]

LENGTH = struct.Struct(">I")
OK = b"+"
BACKLOG_MAX = 1_000

_TAKE_MAX = 100
_FORWARDERS = 4
_WAIT_S = 0.2
#: Syncs of a disk queue that are under way at the same time.
_DISK_THREADS = 16


class RelayQueue(Protocol):
    """What a messaging server needs of a queue."""

    async def open(self) -> None:
        """Begin empty."""

    async def put(self, body: bytes) -> None:
        """Store a message, so that it will not be lost."""

    async def take(self) -> Taken:
        """Some messages; none after a while without any."""

    async def delete(self, handle: Any) -> None:
        """Be done with what was taken together."""

    async def close(self) -> None:
        """Give everything back."""


class RingdoveQueue:
    """A queue of ours, its controllers inside the messaging server."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._connection = aio.connect(url)
        self._settings = settings
        self._queue: aio.Queue

    async def open(self) -> None:
        """See RelayQueue."""
        await self._connection.open()
        self._queue = await self._connection.create_queue("relay", **self._settings)

    async def put(self, body: bytes) -> None:
        """See RelayQueue."""
        await self._queue.send(body)

    async def take(self) -> Taken:
        """See RelayQueue."""
        batch = await self._queue.receive(_TAKE_MAX, wait=_WAIT_S)
        return batch, batch.bodies()

    async def delete(self, handle: Any) -> None:
        """See RelayQueue."""
        await handle.ack()

    async def close(self) -> None:
        """See RelayQueue."""
        await self._connection.close()


class DiskQueue:
    """What disk queues share: threads that may wait for the disk, and who is next."""

    def __init__(self, directory: str, threads: int) -> None:
        self._directory = Path(directory)
        self._threads = ThreadPoolExecutor(threads)
        self._numbers = itertools.count()
        self._waiting: deque[int] = deque()
        self._stored = asyncio.Event()

    async def take(self) -> Taken:
        """See RelayQueue."""
        if not self._waiting:
            self._stored.clear()
            try:
                async with asyncio.timeout(_WAIT_S):
                    await self._stored.wait()
            except TimeoutError:
                return [], []
        count = min(_TAKE_MAX, len(self._waiting))
        numbers = [self._waiting.popleft() for _ in range(count)]
        return numbers, await self._in_thread(lambda: self.read(numbers))

    def read(self, numbers: list[int]) -> list[bytes]:
        """The bodies of messages."""
        raise NotImplementedError

    async def close(self) -> None:
        """See RelayQueue."""
        self._threads.shutdown()

    def _arrived(self, number: int) -> None:
        self._waiting.append(number)
        self._stored.set()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class FileQueue(DiskQueue):
    """A file for each message, synced once; as mail servers keep their queues."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory, _DISK_THREADS)

    async def open(self) -> None:
        """See RelayQueue."""
        self._directory.mkdir()

    async def put(self, body: bytes) -> None:
        """See RelayQueue."""
        number = next(self._numbers)
        await self._in_thread(lambda: self._write(number, body))
        self._arrived(number)

    def _write(self, number: int, body: bytes) -> None:
        fd = os.open(self._path(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        try:
            os.write(fd, body)
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, numbers: list[int]) -> list[bytes]:
        """See DiskQueue."""
        return [self._path(number).read_bytes() for number in numbers]

    async def delete(self, handle: list[int]) -> None:
        """See RelayQueue."""
        await self._in_thread(lambda: self._unlink(handle))

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:09}"


class SqliteQueue(DiskQueue):
    """A table, each insert a synced transaction of its own; deletions of a batch share one."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory, 1)  # A connection belongs to one thread.
        self._database: sqlite3.Connection

    async def open(self) -> None:
        """See RelayQueue."""
        await self._in_thread(self._create)

    def _create(self) -> None:
        self._database = sqlite3.connect(f"{self._directory}.sqlite")
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE queue (number INTEGER PRIMARY KEY, body BLOB)")

    async def put(self, body: bytes) -> None:
        """See RelayQueue."""
        number = next(self._numbers)
        await self._in_thread(lambda: self._insert(number, body))
        self._arrived(number)

    def _insert(self, number: int, body: bytes) -> None:
        with self._database:
            self._database.execute("INSERT INTO queue VALUES (?, ?)", (number, body))

    def read(self, numbers: list[int]) -> list[bytes]:
        """See DiskQueue."""
        bodies = []
        for number in numbers:
            found = self._database.execute("SELECT body FROM queue WHERE number = ?", (number,))
            bodies.append(found.fetchone()[0])
        return bodies

    async def delete(self, handle: list[int]) -> None:
        """See RelayQueue."""
        await self._in_thread(lambda: self._delete(handle))

    def _delete(self, numbers: list[int]) -> None:
        with self._database:
            self._database.executemany(
                "DELETE FROM queue WHERE number = ?", [(number,) for number in numbers]
            )

    async def close(self) -> None:
        """See RelayQueue."""
        await self._in_thread(self._database.close)
        await super().close()


QUEUES: dict[str, Callable[..., RelayQueue]] = {
    "ringdove": RingdoveQueue,
    "files": FileQueue,
    "sqlite": SqliteQueue,
}


class Relay:
    """The messaging server."""

    def __init__(self, queue: RelayQueue) -> None:
        self._queue = queue
        self._room = asyncio.Semaphore(BACKLOG_MAX)
        self._over = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take in the messages of a sender."""
        try:
            while True:
                [length] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                body = await reader.readexactly(length)
                await self._room.acquire()
                await self._queue.put(body)
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def forward(self, port: int) -> None:
        """Hand messages on to the back end until there are none and no more will come."""
        reader, writer = await asyncio.open_connection(HOST, port)
        while True:
            handle, bodies = await self._queue.take()
            if bodies:
                writer.writelines([LENGTH.pack(len(body)) + body for body in bodies])
                await reader.readexactly(len(bodies))
                await self._queue.delete(handle)
                for _ in bodies:
                    self._room.release()
            elif self._over:
                writer.close()
                return

    def end(self) -> None:
        """No more will come."""
        self._over = True


def run(kind: str, queue: dict[str, Any], port: int, back_end_port: int) -> dict[str, Any]:
    """In a process of its own: relay until standard input ends; the processor time it took."""
    figures: dict[str, Any] = run_loop(_run(kind, queue, port, back_end_port))
    return figures


async def _run(kind: str, options: dict[str, Any], port: int, back_end_port: int) -> dict[str, Any]:
    queue = QUEUES[kind](**options)
    await queue.open()
    relay = Relay(queue)
    server = await asyncio.start_server(relay.serve, HOST, port)
    forwarders = [asyncio.create_task(relay.forward(back_end_port)) for _ in range(_FORWARDERS)]
    await asyncio.to_thread(wait_for_go)
    cpu_s, began_s = -time.process_time(), time.perf_counter()
    await asyncio.to_thread(sys.stdin.read)
    cpu_s += time.process_time()
    share = cpu_s / (time.perf_counter() - began_s)
    relay.end()
    await asyncio.gather(*forwarders)
    server.close()
    await queue.close()
    return {"relay_cpu_s": cpu_s, "relay_cpu_share": round(share, 2)}
