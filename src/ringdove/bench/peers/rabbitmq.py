"""RabbitMQ: a quorum queue where it is to sync, a classic one otherwise; confirms in both."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringdove.bench.peers import obtaining
from ringdove.bench.peers.peer import HOST, Peer, Server, library, process
from ringdove.bench.peers.tools import Tool
from ringdove.bench.peers.ways import Driven, Flow, Way
from ringdove.cluster.processes import free_ports
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringdove.bench.peers.ways import Load

_WAIT_S = 2
_PREFETCH = 1_000
_RATE = re.compile(r"(sending|receiving) rate avg: (\d+) msg/s")


class RabbitMQ(Peer):
    """`rabbitmq-server` of the system, as a node of its own."""

    name, title = "rabbitmq", "RabbitMQ"
    synced = "a quorum queue of one member: synced before the confirm, sends that wait share a sync"
    unsynced = "a classic queue, transient messages: in memory, confirmed when queued"
    packages = ("pika==1.4.4",)

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (
            PerfTest("PerfTest", "batches",
                     "1,000 unconfirmed, prefetch 1,000, every 500th acknowledged for all"),
            Driven("pika", "single", "each publish confirmed; consume, each acknowledged", Library),
        )  # fmt: skip

    def obtain(self) -> None:
        """See Peer."""
        wrapper = Path(obtaining.program("rabbitmq-server", "rabbitmq-server")).resolve()
        # The one in /usr/sbin becomes another user; the one below it is RabbitMQ's own.
        own = sorted(Path("/usr/lib/rabbitmq/lib").glob("*/sbin/rabbitmq-server"))
        self._program = own[-1] if own else wrapper
        self._epmd = obtaining.program("epmd", "erlang-base")
        obtaining.java()
        obtaining.jars("perf-test")

    def version(self) -> str:
        """See Peer."""
        return self._program.parent.parent.name.rpartition("-")[2]

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:  # noqa: ARG002  by queue
        """See Peer."""
        port, among_nodes, names = free_ports(3, HOST)
        directory.mkdir(parents=True)
        env = {
            **os.environ,
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"bench-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(among_nodes),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            # Otherwise a shell stays in between, and takes half a minute to stop.
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput",
        }
        with (
            process([self._epmd, "-port", str(names), "-address", HOST], names, directory / "epmd"),
            process([str(self._program)], port, directory, env) as begun,
        ):
            yield Server(f"{HOST}:{port}", begun.pid)

    def create(self, server: Server, queue: str, synced: bool) -> None:
        """See Peer."""
        kind = {"x-queue-type": "quorum"} if synced else None
        with _channel(server.address) as channel:
            channel.queue_declare(queue, durable=synced, arguments=kind)

    def drop(self, server: Server, queue: str) -> None:
        """See Peer."""
        with _channel(server.address) as channel:
            channel.queue_delete(queue)

    def park(self, queue: str, number: int) -> bytes:  # noqa: ARG002  they need no names
        """See Peer: a whole handshake without waiting for the answers, then basic.consume."""
        name = queue.encode()
        start = (
            struct.pack(">I", 0) + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
        )
        consume = struct.pack(">H", 0) + _short(name) + _short(b"") + b"\0" + struct.pack(">I", 0)
        return b"AMQP\x00\x00\x09\x01" + b"".join((
            _method(0, 10, 11, start),
            _method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0)),
            _method(0, 10, 40, _short(b"/") + _short(b"") + b"\0"),
            _method(1, 20, 10, _short(b"")),
            _method(1, 60, 20, consume),
        ))  # fmt: skip


def _short(text: bytes) -> bytes:
    return struct.pack(">B", len(text)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _method(channel: int, kind: int, method: int, arguments: bytes) -> bytes:
    """A frame of AMQP 0-9-1 that carries a method."""
    payload = struct.pack(">HH", kind, method) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


@contextlib.contextmanager
def _channel(address: str) -> Iterator[Any]:
    connection = _connection(address)
    try:
        yield connection.channel()
    finally:
        connection.close()


def _connection(address: str) -> Any:
    pika = library("pika")
    host, _, port = address.partition(":")
    try:
        return pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0))
    except pika.exceptions.AMQPError as error:
        raise StoreUnavailable(f"RabbitMQ cannot be reached: {error!r}") from error


class Library:
    """The Python client as its users know it."""

    def __init__(self, address: str, queue: str) -> None:
        self._connection = _connection(address)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.basic_qos(prefetch_count=_PREFETCH)
        self._queue = queue
        self._messages: Any = None
        self._last: int | None = None

    def send(self, bodies: list[bytes]) -> None:
        """See Client. Messages are transient; a quorum queue keeps them on disk all the same."""
        publish, queue = self._channel.basic_publish, self._queue
        for body in bodies:
            publish("", queue, body, mandatory=True)

    def receive(self) -> list[bytes]:
        """See Client."""
        self._ack()
        if self._messages is None:
            self._messages = self._channel.consume(self._queue, inactivity_timeout=_WAIT_S)
        method, _, body = next(self._messages)
        if method is None:
            return []
        self._last = method.delivery_tag
        return [body]

    def close(self) -> None:
        """See Client."""
        self._ack()
        self._connection.close()

    def _ack(self) -> None:
        if self._last is not None:
            self._channel.basic_ack(self._last)
            self._last = None


class PerfTest(Way):
    """RabbitMQ's own load tool, a Java process."""

    #: Several seconds: Java has to warm up, and the tool looks once a second.
    fixed = 60_000
    workloads = frozenset({"100-bytes", "1-kb", "50-producers", "backlog", "idle"})

    def flow(self, peer: Peer, server: Server, queue: str, load: Load) -> Flow:  # noqa: ARG002
        """See Way."""
        each = load.messages // load.producers
        told = _perf_test(server, queue, load.size, "--producers", str(load.producers),
                          "--pmessages", str(each), "--consumers", "1",
                          "--cmessages", str(each * load.producers))  # fmt: skip
        return _flow(each * load.producers, rates(told)["receiving"])

    def backlog(self, peer: Peer, server: Server, queue: str, load: Load) -> tuple[Flow, Flow]:  # noqa: ARG002
        """See Way."""
        count = str(load.messages)
        filled = _perf_test(server, queue, load.size, "--producers", "1", "--consumers", "0",
                            "--pmessages", count)  # fmt: skip
        drained = _perf_test(server, queue, load.size, "--producers", "0", "--consumers", "1",
                             "--cmessages", count)  # fmt: skip
        return (
            _flow(load.messages, rates(filled)["sending"]),
            _flow(load.messages, rates(drained)["receiving"]),
        )


def _flow(messages: int, per_s: int) -> Flow:
    """The tool ends only when it has counted all messages: nothing is lost then."""
    return Flow(messages, messages / per_s, 0)


def _perf_test(server: Server, queue: str, size: int, *options: str) -> str:
    command = [
        obtaining.java(), "-cp", obtaining.jars("perf-test"), "com.rabbitmq.perf.PerfTest",
        "--uri", f"amqp://{server.address}", "--queue", queue, "--predeclared",
        "--size", str(size), "--confirm", "1000", "--qos", str(_PREFETCH),
        "--multi-ack-every", "500", *options,
    ]  # fmt: skip
    tool = Tool(command)
    try:
        return tool.output()[0]
    finally:
        tool.end()


def rates(told: str) -> dict[str, int]:
    """Messages per second that PerfTest tells at its end, by direction."""
    found = {name: int(rate) for name, rate in _RATE.findall(told)}
    if not any(found.values()):
        raise StoreUnavailable(f"PerfTest told no rate: {told.strip()[-300:]}")
    return found
