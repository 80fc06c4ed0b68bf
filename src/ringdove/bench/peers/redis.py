"""Redis Streams: XADD, and a group that reads and acknowledges."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import hiredis

from ringdove.bench.peers import obtaining
from ringdove.bench.peers.peer import (
    HOST,
    PIPELINE,
    Peer,
    Pipelined,
    Server,
    free_port,
    library,
    process,
)
from ringdove.bench.peers.ways import Driven
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ringdove.bench.peers.ways import Way

_GROUP = b"bench"
_COUNT = 1_000
_WAIT_MS = 2_000
#: More than any number of idle consumers that is asked for.
_CLIENTS_MAX = 60_000

#: Its stub knows only tuples of one word.
_pack: Any = hiredis.pack_command


class Redis(Peer):
    """`redis-server` with an append-only file."""

    name, title = "redis", "Redis Streams"
    synced = "appendfsync always: synced before the reply, commands that wait share a sync"
    unsynced = "no file, as with plain redis-server: in memory only"
    packages = ("redis==8.1.0",)

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (
            Driven("raw sockets", "batches",
                   "500 XADD in a pipeline; XREADGROUP of 1,000 with XACK", Raw),
            Driven("redis-py", "joined",
                   "pipelines of 500 XADD; XREADGROUP of 1,000 with XACK", Library),
            Driven("redis-py", "single", "each XADD, XREADGROUP and XACK waited for", OneByOne),
        )  # fmt: skip

    def obtain(self) -> None:
        """See Peer."""
        self._program = obtaining.program("redis-server", "redis-server")

    def version(self) -> str:
        """See Peer."""
        told = obtaining.version([self._program, "--version"])
        return told.partition("v=")[2].partition(" ")[0]

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:
        """See Peer."""
        port = free_port()
        file = ["--appendonly", "yes", "--appendfsync", "always"] if synced else []
        command = [self._program, "--port", str(port), "--bind", HOST, "--dir", ".", "--save", "",
                   "--maxclients", str(_CLIENTS_MAX), *file]  # fmt: skip
        with process(command, port, directory) as begun:
            yield Server(f"{HOST}:{port}", begun.pid)

    def create(self, server: Server, queue: str, synced: bool) -> None:  # noqa: ARG002  by server
        """See Peer."""
        _ask(server, b"XGROUP", b"CREATE", queue, _GROUP, b"0", b"MKSTREAM")

    def drop(self, server: Server, queue: str) -> None:
        """See Peer."""
        _ask(server, b"DEL", queue)

    def park(self, queue: str, number: int) -> bytes:
        """See Peer."""
        return _read(queue.encode(), b"consumer-%d" % number, 1, 0)


def _read(queue: bytes, consumer: bytes, count: int, wait_ms: int) -> bytes:
    """Ask for messages that nobody of the group has; 0 waits for ever."""
    packed: bytes = _pack(
        (b"XREADGROUP", b"GROUP", _GROUP, consumer, b"COUNT", count, b"BLOCK", wait_ms,
         b"STREAMS", queue, b">")
    )  # fmt: skip
    return packed


def _ask(server: Server, *words: Any) -> None:
    """A command on a connection of its own, which must succeed."""
    wire = _Wire(server.address)
    wire.write(_pack(words))
    wire.replies(1)
    wire.close()


class _Wire:
    """A connection that writes what is packed, and reads replies."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self.write = self._socket.sendall

    def replies(self, count: int) -> list[Any]:
        """The next so many; an error is raised."""
        found: list[Any] = []
        while len(found) < count:
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(1 << 18)
                if not data:
                    raise StoreUnavailable("Redis hung up.")
                self._reader.feed(data)
            elif isinstance(reply, Exception):
                raise StoreUnavailable(f"Redis refused: {reply}")
            else:
                found.append(reply)
        return found

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Raw(Pipelined):
    """Requests are packed by C code."""

    def __init__(self, address: str, queue: str) -> None:
        self._wire = _Wire(address)
        self._queue = queue.encode()
        self._ids: list[bytes] = []

    def write(self, part: list[bytes]) -> None:
        """See Pipelined."""
        queue = self._queue
        self._wire.write(b"".join([_pack((b"XADD", queue, b"*", b"b", body)) for body in part]))

    def await_acknowledged(self, count: int) -> None:
        """See Pipelined."""
        self._wire.replies(count)

    def receive(self) -> list[bytes]:
        """See Client."""
        acknowledged = self._write_ack()
        self._wire.write(_read(self._queue, b"one", _COUNT, _WAIT_MS))
        found = self._wire.replies(acknowledged + 1)[-1]
        entries = found[0][1] if found else []
        self._ids = [entry[0] for entry in entries]
        return [entry[1][1] for entry in entries]

    def close(self) -> None:
        """See Client."""
        self._wire.replies(self._write_ack())
        self._wire.close()

    def _write_ack(self) -> int:
        """Acknowledge what came last; answers how many replies will come."""
        if not self._ids:
            return 0
        self._wire.write(_pack((b"XACK", self._queue, _GROUP, *self._ids)))
        self._ids = []
        return 1


class Library:
    """The Python client as its users know it."""

    _count = _COUNT

    def __init__(self, address: str, queue: str) -> None:
        host, _, port = address.partition(":")
        self._redis = library("redis").Redis(host=host, port=int(port))
        self._redis.ping()
        self._queue = queue
        self._ids: list[bytes] = []

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        for first in range(0, len(bodies), PIPELINE):
            with self._redis.pipeline(transaction=False) as pipeline:
                for body in bodies[first : first + PIPELINE]:
                    pipeline.xadd(self._queue, {b"b": body})
                pipeline.execute()

    def receive(self) -> list[bytes]:
        """See Client."""
        self._ack()
        found = self._redis.xreadgroup(
            _GROUP, "one", {self._queue: ">"}, count=self._count, block=_WAIT_MS
        )
        entries = entries_of(found)
        self._ids = [entry[0] for entry in entries]
        return [entry[1][b"b"] for entry in entries]

    def close(self) -> None:
        """See Client."""
        self._ack()
        self._redis.close()

    def _ack(self) -> None:
        if self._ids:
            self._redis.xack(self._queue, _GROUP, *self._ids)
            self._ids = []


class OneByOne(Library):
    """The same, each message by itself."""

    _count = 1

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        for body in bodies:
            self._redis.xadd(self._queue, {b"b": body})


def entries_of(found: Any) -> list[Any]:
    """The entries of one stream, in any of the shapes that versions of redis-py answer."""
    if not found:
        return []
    if isinstance(found, dict):
        [parts] = found.values()
        return [entry for part in parts for entry in (part if isinstance(part, list) else [part])]
    return list(found[0][1])
