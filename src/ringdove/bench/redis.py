"""Redis processes for benchmarks, experiments and tests: a node that serves every slot, and copies.

Ports are free ones, everything is on the loopback interface, nothing is written to disk.
"""

from __future__ import annotations

import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import hiredis

from ringdove.bench.processes import cpu_s
from ringdove.cluster.processes import free_ports, redis_program
from ringdove.core.ring import SLOTS
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
PATIENCE_S = 20

#: Its stub knows only tuples of one word.
_pack: Any = hiredis.pack_command


class RedisProcess:
    """A cluster of one node; runs until the end of the `with`."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        slots: range = range(SLOTS),
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._reader = hiredis.Reader()
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._start(directory, options):  # Another may have taken the port meanwhile.
            if time.monotonic() > deadline_s:
                raise StoreUnavailable(f"Redis does not start in {directory}.")
        try:
            if password:
                self.ask("AUTH", password)
            if slots:
                self.ask("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
            if len(slots) == SLOTS:
                self.await_ready()
        except BaseException:
            self.__exit__()
            raise

    def _start(self, directory: Path, options: Sequence[str]) -> bool:
        """Begin a process and connect to it; False when it ends instead."""
        self.port, bus_port = free_ports(2, HOST)
        ports = ["--port", "0", "--tls-port"] if self._tls else ["--port"]
        command = [
            redis_program(), *ports, str(self.port), "--bind", HOST, "--dir", str(directory),
            "--cluster-enabled", "yes", "--cluster-port", str(bus_port),
            "--save", "", "--appendonly", "no", *options,
        ]  # fmt: skip
        self._process = subprocess.Popen(  # noqa: S603  a program that was asked for
            command, stdout=subprocess.DEVNULL
        )
        return self._connect()

    @property
    def url(self) -> str:
        """What a store connects to."""
        return f"redis://{HOST}:{self.port}?copies=1"

    def ask(self, *words: Any) -> Any:
        """The reply to a command."""
        self._socket.sendall(_pack(words))
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65_536)
            if not data:
                raise StoreUnavailable("Redis hung up.")
            self._reader.feed(data)
        return reply

    def cpu_s(self) -> float:
        """Seconds of processor time that it has used."""
        return cpu_s(self._process.pid)

    def await_ready(self) -> None:
        """Wait until every slot is served."""
        self._until(lambda: b"cluster_state:ok" in self.ask("CLUSTER", "INFO"))

    def meet(self, other: RedisProcess) -> None:
        """Be of one cluster with another node."""
        bus_port = other.ask("CONFIG", "GET", "cluster-port")[1]
        self.ask("CLUSTER", "MEET", HOST, other.port, bus_port)

    def copy(self, master: RedisProcess) -> None:
        """Hold what a master holds from now on."""
        self.meet(master)
        name = master.ask("CLUSTER", "MYID")
        self._until(lambda: self.ask("CLUSTER", "REPLICATE", name) == b"OK")
        self._until(lambda: b"master_link_status:up" in self.ask("INFO", "replication"))

    def _connect(self) -> bool:
        """Connect as soon as it listens; False when it has ended."""
        while self._process.poll() is None:
            try:
                plain = socket.create_connection((HOST, self.port), PATIENCE_S)
                self._socket = self._tls.wrap_socket(plain) if self._tls else plain
            except OSError:
                time.sleep(0.01)
            else:
                return True
        return False

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise StoreUnavailable(f"Redis does not become ready within {PATIENCE_S} s.")
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()


@contextmanager
def redis_processes(directory: Path, slots: Sequence[range]) -> Iterator[list[RedisProcess]]:
    """A node for each range of slots, which may be empty; begun together."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(slots)) as pool:
            begun = []
            for number, own in enumerate(slots):
                place = directory / str(number)
                place.mkdir(parents=True)
                begun.append(pool.submit(RedisProcess, place, slots=own))
        for future in begun:
            if future.exception() is None:
                stack.enter_context(future.result())
        yield [future.result() for future in begun]


@contextmanager
def single_nodes(directory: Path, count: int) -> Iterator[list[RedisProcess]]:
    """So many clusters of one node each."""
    with redis_processes(directory, [range(SLOTS)] * count) as nodes:
        yield nodes


@contextmanager
def joined_nodes(directory: Path, count: int) -> Iterator[list[RedisProcess]]:
    """A cluster of so many masters."""
    edges = [SLOTS * number // count for number in range(count + 1)]
    with redis_processes(directory, list(map(range, edges, edges[1:]))) as nodes:
        for node in nodes[1:]:
            node.meet(nodes[0])
        for node in nodes:
            node.await_ready()
        yield nodes


@contextmanager
def copied_node(directory: Path, copies: int) -> Iterator[list[RedisProcess]]:
    """A master of all slots and what holds its copies; `copies` in all, the master first."""
    with redis_processes(directory, [range(SLOTS), *[range(0)] * (copies - 1)]) as nodes:
        for node in nodes[1:]:
            node.copy(nodes[0])
        yield nodes
