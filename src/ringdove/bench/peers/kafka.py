"""Kafka: a broker of one node, a topic of one partition."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ringdove.bench import kafka
from ringdove.bench.peers.peer import Peer, Server, library
from ringdove.bench.peers.tools import Tool
from ringdove.bench.peers.ways import Driven, Flow, Way
from ringdove.errors import RingdoveError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ringdove.bench.peers.ways import Load

_CONSUME_MAX = 1_000
_WAIT_S = 2.0
_ASK_S = 30
_SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
_DATE = "%Y-%m-%d %H:%M:%S:%f"


class Kafka(Peer):
    """A broker that is its own controller; from Maven Central, on the libraries of Spark."""

    name, title = "kafka", "Kafka"
    synced = "log.flush.interval.messages=1: synced before the acknowledgement, by request"
    unsynced = "acks=all on one broker, as by default: written, not synced"
    packages = ("confluent-kafka==2.16.1",)
    cannot: ClassVar = {
        "idle": "a partition has one consumer of a group: 10,000 would need as many partitions"
    }

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (
            Tools("its own tools", "batches",
                  "ProducerPerformance and ConsumerPerformance, batches of 64 KB, linger 5 ms"),
            Driven("confluent-kafka", "joined",
                   "produce each, joined by the client; poll, then consume up to 1,000", Library),
        )  # fmt: skip

    def obtain(self) -> None:
        """See Peer."""
        try:
            kafka.command("broker", "tools")
        except ImportError as error:
            raise StoreUnavailable(
                f"Kafka runs on libraries of pyspark: pip install 'ringdove[spark]' ({error})."
            ) from error
        except StoreUnavailable:
            raise
        except RingdoveError as error:
            raise StoreUnavailable(str(error)) from error

    def version(self) -> str:
        """See Peer."""
        [clients] = (jar.name for jar in kafka.jars("broker") if "clients" in jar.name)
        return clients.removeprefix("kafka-clients-").removesuffix(".jar")

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:
        """See Peer."""
        # Otherwise the first consumer of a group waits three seconds for others.
        settings = ["group.initial.rebalance.delay.ms=0"]
        if synced:
            settings.append("log.flush.interval.messages=1")
        with kafka.running(directory, *settings) as broker:
            yield Server(broker.address, broker.pid)

    def create(self, server: Server, queue: str, synced: bool) -> None:  # noqa: ARG002  by server
        """See Peer."""
        admin = _admin(server)
        _wait(admin.create_topics([library("confluent_kafka.admin").NewTopic(queue, 1, 1)]))

    def drop(self, server: Server, queue: str) -> None:
        """See Peer."""
        admin = _admin(server)
        _wait(admin.delete_topics([queue]))


def _admin(server: Server) -> Any:
    return library("confluent_kafka.admin").AdminClient(
        {"bootstrap.servers": server.address, "log_level": 3}
    )


def _wait(asked: dict[str, Any]) -> None:
    for answer in asked.values():
        try:
            answer.result(_ASK_S)
        except Exception as error:
            raise StoreUnavailable(f"Kafka refused: {error}") from error


class Library:
    """The Python client as its users know it: librdkafka beneath."""

    def __init__(self, address: str, queue: str) -> None:
        self._library = library("confluent_kafka")
        self._address = address
        self._queue = queue
        self._producer: Any = None
        self._consumer: Any = None

    def send(self, bodies: list[bytes]) -> None:
        """See Client. What could not be delivered is missed by the receiver."""
        if self._producer is None:
            self._producer = self._library.Producer({"bootstrap.servers": self._address})
        produce, queue = self._producer.produce, self._queue
        for body in bodies:
            try:
                produce(queue, body)
            except BufferError:
                self._producer.poll(0.1)
                produce(queue, body)
        self._producer.flush()

    def receive(self) -> list[bytes]:
        """See Client. Positions are committed now and then, as by default."""
        if self._consumer is None:
            self._consumer = self._subscribed()
        first = self._consumer.poll(_WAIT_S)
        if first is None:
            return []
        found = [first, *self._consumer.consume(_CONSUME_MAX - 1, timeout=0)]
        return [message.value() for message in found if message.error() is None]

    def close(self) -> None:
        """See Client."""
        if self._consumer is not None:
            self._consumer.close()

    def _subscribed(self) -> Any:
        consumer = self._library.Consumer(
            {"bootstrap.servers": self._address, "group.id": f"bench-{self._queue}"}
        )
        # Its partition is named, so that no time goes into dividing partitions among a group.
        consumer.assign([self._library.TopicPartition(self._queue, 0, 0)])
        return consumer


class Consumed(NamedTuple):
    """What ConsumerPerformance tells."""

    ended_s: float
    #: How long it fetched; without the time to become a member of its group.
    fetched_s: float
    messages: int


class Tools(Way):
    """Kafka's own load tools, each a Java process."""

    #: Several seconds: Java has to warm up.
    fixed = 600_000
    #: A process has one producer; fifty would measure how Java starts.
    workloads = frozenset({"100-bytes", "1-kb", "backlog"})

    def flow(self, peer: Peer, server: Server, queue: str, load: Load) -> Flow:  # noqa: ARG002
        """See Way. The producer's begin is known from its end and its rate."""
        consumer = _consumer(server, queue, load)
        try:
            _await_member(server, queue)
            producer = _producer(server, queue, load)
            try:
                sent, ended_s = producer.output()
            finally:
                producer.end()
            received = consumed(consumer.output()[0])
        finally:
            consumer.end()
        elapsed_s = received.ended_s - (ended_s - produced_s(sent))
        return Flow(load.messages, elapsed_s, load.messages - received.messages)

    def backlog(self, peer: Peer, server: Server, queue: str, load: Load) -> tuple[Flow, Flow]:  # noqa: ARG002
        """See Way."""
        producer = _producer(server, queue, load)
        try:
            filled_s = produced_s(producer.output()[0])
        finally:
            producer.end()
        consumer = _consumer(server, queue, load)
        try:
            received = consumed(consumer.output()[0])
        finally:
            consumer.end()
        lost = load.messages - received.messages
        return Flow(load.messages, filled_s, 0), Flow(load.messages, received.fetched_s, lost)


def _producer(server: Server, queue: str, load: Load) -> Tool:
    return Tool([
        *kafka.command("broker", "tools"), "org.apache.kafka.tools.ProducerPerformance",
        "--topic", queue, "--num-records", str(load.messages), "--record-size", str(load.size),
        "--throughput", "-1", "--bootstrap-server", server.address,
        "--command-property", "batch.size=65536", "linger.ms=5",
    ])  # fmt: skip


def _consumer(server: Server, queue: str, load: Load) -> Tool:
    return Tool([
        *kafka.command("broker", "tools"), "org.apache.kafka.tools.ConsumerPerformance",
        "--topic", queue, "--num-records", str(load.messages), "--timeout", "20000",
        "--bootstrap-server", server.address, "--group", f"bench-{queue}",
    ])  # fmt: skip


def _await_member(server: Server, queue: str) -> None:
    """Wait until the consumer has its partition."""
    admin = _admin(server)
    group = f"bench-{queue}"
    deadline_s = time.monotonic() + _ASK_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(library("confluent_kafka").KafkaException):
            described = admin.describe_consumer_groups([group])[group].result(_ASK_S)
            if any(member.assignment.topic_partitions for member in described.members):
                return
        time.sleep(0.1)
    raise StoreUnavailable(f"ConsumerPerformance has no partition after {_ASK_S} s.")


def produced_s(told: str) -> float:
    """How long ProducerPerformance took, by its last line about all records."""
    found = _SENT.findall(told)
    if not found:
        raise StoreUnavailable(f"ProducerPerformance told no rate: {told.strip()[-300:]}")
    count, rate = found[-1]
    return int(count) / float(rate)


def consumed(told: str) -> Consumed:
    """What the line below the heading of ConsumerPerformance says, by the heading's names."""
    lines = [line.split(", ") for line in told.splitlines()]
    for heading, values in zip(lines, lines[1:], strict=False):
        if heading[0] == "start.time" and len(values) == len(heading):
            row = dict(zip(heading, values, strict=True))
            ended = datetime.strptime(row["end.time"], _DATE).astimezone()
            fetched_s = int(row["fetch.time.ms"]) / 1e3
            return Consumed(ended.timestamp(), fetched_s, int(row["data.consumed.in.nMsg"]))
    raise StoreUnavailable(f"ConsumerPerformance told no figures: {told.strip()[-300:]}")
