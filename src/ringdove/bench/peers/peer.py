"""What every peer is: something to obtain, to start, to drive, and to say facts about."""

from __future__ import annotations

import abc
import contextlib
import importlib
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ringdove.bench.peers import obtaining
from ringdove.cluster.processes import free_ports
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ringdove.bench.peers.ways import Way

HOST = "127.0.0.1"
#: Messages that a pipelined client writes at once.
PIPELINE = 500

_START_S_MAX = 60
_STOP_S_MAX = 20


class Server(NamedTuple):
    """A running server: where its clients find it, and its process."""

    address: str
    pid: int


class Client(Protocol):
    """One connection of a sender or a receiver, in a process of its own."""

    def __init__(self, address: str, queue: str) -> None: ...

    def send(self, bodies: list[bytes]) -> None:
        """Send them all; comes back when all are acknowledged."""

    def receive(self) -> list[bytes]:
        """Acknowledge what came last; then what has come, or nothing after a while."""

    def close(self) -> None:
        """Acknowledge what came last, and hang up."""


class Pipelined(abc.ABC):
    """A client whose sends are written before the acknowledgements of earlier ones have come."""

    @abc.abstractmethod
    def write(self, part: list[bytes]) -> None:
        """Send some without waiting."""

    @abc.abstractmethod
    def await_acknowledged(self, count: int) -> None:
        """Wait for the acknowledgements of the oldest so many."""

    def send(self, bodies: list[bytes]) -> None:
        """See Client."""
        send_pipelined([self], [bodies])


def send_pipelined(senders: Sequence[Pipelined], bodies: list[list[bytes]]) -> None:
    """Send over each connection what is its own, two pipelines on their way on each."""
    waiting = [0] * len(senders)
    for first in range(0, len(bodies[0]), PIPELINE):
        for at, sender in enumerate(senders):
            part = bodies[at][first : first + PIPELINE]
            sender.write(part)
            sender.await_acknowledged(waiting[at])
            waiting[at] = len(part)
    for at, sender in enumerate(senders):
        sender.await_acknowledged(waiting[at])


class Peer(abc.ABC):
    """A broker. One object serves for a whole run."""

    #: What it is called on the command line, and in tables.
    name: ClassVar[str]
    title: ClassVar[str]
    #: Which ways of ours it is compared with: queues, or SQS.
    family: ClassVar[str] = "queue"
    #: What its acknowledgement of a send means, synced and not.
    synced: ClassVar[str]
    unsynced: ClassVar[str]
    #: Python packages of its clients, pinned.
    packages: ClassVar[tuple[str, ...]] = ()
    #: Why it cannot take part in a workload, by the workload's name.
    cannot: ClassVar[Mapping[str, str]] = {}

    @property
    @abc.abstractmethod
    def ways(self) -> Sequence[Way]:
        """The ways to drive it, its best first."""

    @abc.abstractmethod
    def obtain(self) -> None:
        """Have what the server and its tools need; StoreUnavailable says why that cannot be."""

    @abc.abstractmethod
    def version(self) -> str:
        """The server's version."""

    @abc.abstractmethod
    def running(self, directory: Path, synced: bool) -> AbstractContextManager[Server]:
        """A server for the length of the `with`, its data in the directory."""

    @abc.abstractmethod
    def create(self, server: Server, queue: str, synced: bool) -> None:
        """Make a queue, or what stands for one."""

    @abc.abstractmethod
    def drop(self, server: Server, queue: str) -> None:
        """Delete it with what is left in it."""

    def park(self, queue: str, number: int) -> bytes:
        """What the consumer of this number says on its connection, in order to wait."""
        raise NotImplementedError

    def clients_path(self) -> str:
        """Where its Python clients are installed; obtained if need be."""
        if not self.packages:
            return ""
        return str(obtaining.python_packages(self.packages))


def library(name: str) -> Any:
    """A client library, which is not in the environment that Ringdove is installed in."""
    return importlib.import_module(name)


def use_clients(path: str) -> None:
    """Have `library` find what is installed there; ours come first."""
    if path and path not in sys.path:
        sys.path.append(path)
        importlib.invalidate_caches()


def free_port() -> int:
    """A port that nobody listens on."""
    return free_ports(1, HOST)[0]


@contextlib.contextmanager
def process(
    command: Sequence[str],
    port: int,
    directory: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process for the length of the `with`, once it listens; its output is a file."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "output").open("wb") as output:
        begun = subprocess.Popen(  # noqa: S603  a program that this benchmark has asked for
            list(command), stdout=output, stderr=subprocess.STDOUT, env=env, cwd=directory
        )
    try:
        _await_listening(begun, command, port, directory)
        yield begun
    finally:
        begun.terminate()
        try:
            begun.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            begun.kill()
            begun.wait()


def _await_listening(
    begun: subprocess.Popen[bytes], command: Sequence[str], port: int, directory: Path
) -> None:
    deadline_s = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline_s and begun.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.05)
    told = (directory / "output").read_text(errors="replace").strip()[-300:]
    raise StoreUnavailable(f"{command[0]} does not listen on port {port}: {told}")
