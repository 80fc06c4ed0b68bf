"""beanstalkd: tubes of jobs that are put, reserved and deleted."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from ringdove.bench.peers import obtaining
from ringdove.bench.peers.peer import HOST, Peer, Pipelined, Server, free_port, library, process
from ringdove.bench.peers.ways import Driven
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ringdove.bench.peers.ways import Way

#: Its input buffer is read in small steps; more reserves on their way gain nothing.
_RESERVES = 100
_WAIT_S = 2
_LEASE_S = 600


class Beanstalkd(Peer):
    """`beanstalkd`, with a binlog where it is to sync."""

    name, title = "beanstalkd", "beanstalkd"
    synced = "-b -f 0: the binlog is synced at every write"
    unsynced = "no binlog, as by default: in memory only"
    packages = ("greenstalk==2.1.1",)

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (
            Driven("raw sockets", "batches",
                   "500 puts in a pipeline; 100 reserves, then their deletes", Raw),
            Driven("greenstalk", "single", "each put, reserve and delete waited for", Library),
        )  # fmt: skip

    def obtain(self) -> None:
        """See Peer."""
        self._program = obtaining.program("beanstalkd", "beanstalkd")

    def version(self) -> str:
        """See Peer."""
        return obtaining.version([self._program, "-v"]).removeprefix("beanstalkd ")

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:
        """See Peer."""
        port = free_port()
        (directory / "binlog").mkdir(parents=True)
        file = ["-b", str(directory / "binlog"), "-f", "0"] if synced else []
        command = [self._program, "-l", HOST, "-p", str(port), *file]
        with process(command, port, directory) as begun:
            yield Server(f"{HOST}:{port}", begun.pid)

    def create(self, server: Server, queue: str, synced: bool) -> None:
        """See Peer: a tube is there when it is named."""

    def drop(self, server: Server, queue: str) -> None:
        """Delete what is left; a tube goes when nobody names it."""
        wire = _Wire(server.address)
        wire.ask(b"use %b\r\n" % queue.encode(), b"USING")
        while True:
            told = wire.answer(b"peek-ready\r\n")
            if told[0] != b"FOUND":
                break
            wire.body(int(told[2]))
            wire.ask(b"delete %b\r\n" % told[1], b"DELETED")
        wire.close()

    def park(self, queue: str, number: int) -> bytes:  # noqa: ARG002  they need no names
        """See Peer."""
        return b"watch %b\r\nignore default\r\nreserve\r\n" % queue.encode()


class _Wire:
    """A connection, and its lines."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", 1 << 18)
        self.write = self._socket.sendall

    def line(self) -> list[bytes]:
        """The words of the next line."""
        found = self._file.readline()
        if not found:
            raise StoreUnavailable("beanstalkd hung up.")
        return found.split()

    def body(self, nbytes: int) -> bytes:
        """A job's body."""
        found: bytes = self._file.read(nbytes + 2)[:-2]
        return found

    def answer(self, words: bytes) -> list[bytes]:
        """The line that answers a command."""
        self.write(words)
        return self.line()

    def ask(self, words: bytes, wanted: bytes) -> None:
        """A command that must be answered so."""
        if (told := self.answer(words))[0] != wanted:
            raise StoreUnavailable(f"beanstalkd answered {told} to {words!r}.")

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()


class Raw(Pipelined):
    """The protocol by hand."""

    def __init__(self, address: str, queue: str) -> None:
        self._wire = _Wire(address)
        name = queue.encode()
        self._wire.ask(b"use %b\r\n" % name, b"USING")
        self._wire.ask(b"watch %b\r\n" % name, b"WATCHING")
        self._wire.ask(b"ignore default\r\n", b"WATCHING")
        self._ids: list[bytes] = []

    def write(self, part: list[bytes]) -> None:
        """See Pipelined."""
        self._wire.write(
            b"".join([b"put 0 0 %d %d\r\n%b\r\n" % (_LEASE_S, len(body), body) for body in part])
        )

    def await_acknowledged(self, count: int) -> None:
        """See Pipelined."""
        self._expect(b"INSERTED", count)

    def receive(self) -> list[bytes]:
        """See Client."""
        deletes = len(self._ids)
        asked = b"reserve-with-timeout %d\r\n" % _WAIT_S + b"reserve-with-timeout 0\r\n" * (
            _RESERVES - 1
        )
        self._wire.write(b"".join([b"delete %b\r\n" % own for own in self._ids]) + asked)
        self._expect(b"DELETED", deletes)
        self._ids, bodies = [], []
        for _ in range(_RESERVES):
            told = self._wire.line()
            if told[0] == b"RESERVED":
                self._ids.append(told[1])
                bodies.append(self._wire.body(int(told[2])))
        return bodies

    def close(self) -> None:
        """See Client."""
        self._wire.write(b"".join([b"delete %b\r\n" % own for own in self._ids]))
        self._expect(b"DELETED", len(self._ids))
        self._wire.close()

    def _expect(self, word: bytes, count: int) -> None:
        for _ in range(count):
            if (told := self._wire.line())[0] != word:
                raise StoreUnavailable(f"beanstalkd answered {told}, and not {word!r}.")


class Library:
    """The Python client as its users know it."""

    def __init__(self, address: str, queue: str) -> None:
        host, _, port = address.partition(":")
        self._errors = library("greenstalk")
        self._client = self._errors.Client((host, int(port)), encoding=None, use=queue, watch=queue)
        self._last: Any = None

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        for body in bodies:
            self._client.put(body, ttr=_LEASE_S)

    def receive(self) -> list[bytes]:
        """See Client."""
        self._delete()
        try:
            self._last = self._client.reserve(timeout=_WAIT_S)
        except self._errors.TimedOutError:
            return []
        return [self._last.body]

    def close(self) -> None:
        """See Client."""
        self._delete()
        self._client.close()

    def _delete(self) -> None:
        if self._last is not None:
            self._client.delete(self._last)
            self._last = None
