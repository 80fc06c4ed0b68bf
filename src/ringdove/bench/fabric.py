"""`ringdove bench fabric`: through one controller, and past it, on the same Redis processes.

A fabric of three servers, every message on all three before it is acknowledged. *Bare*: a producer
that adds blocks to a stream with XADD and WAIT, and a consumer that reads them with XREAD, each
over one connection to its master; no queue, only bytes. *Controller*: the producers and the
consumer of `ringdove bench e2e` with a `ringdove serve --store redis://...` between. Single sends,
one message in flight on each connection, come last.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any, Literal

import hiredis

from ringdove.bench import e2e
from ringdove.bench.measure import middle, place, run_loop
from ringdove.bench.processes import Worker, serving, wait_for_go
from ringdove.client import aio
from ringdove.client.sync import connect
from ringdove.cluster.layout import Tuning
from ringdove.cluster.local import LocalCluster
from ringdove.core.block import Block
from ringdove.core.ring import Rings
from ringdove.errors import StoreUnavailable
from ringdove.stores.fabric.cluster import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Fsync = Literal["always", "everysec"]

_SIZE = 100
_BLOCK_MESSAGES = 5_000
_IN_FLIGHT = 16
_COPIES = 2
_CONNECTIONS = 50
_MEMORY_BYTES = 2 * 1024**3


def run(
    directory: Path | None, messages: int, rounds: int, seconds: float, fsync: Fsync
) -> dict[str, Any]:
    """Both, in turn, `rounds` times; see the module."""
    tuning = Tuning(fsync=fsync, node_timeout_ms=5_000, memory_bytes=_MEMORY_BYTES)
    with place(directory) as data:
        cluster = LocalCluster.make(data / "fabric", Rings(3), tuning)
        cluster.up()
        try:
            rows = [
                row
                for number in range(rounds)
                for row in (
                    _bare(cluster, number, messages),
                    _controlled(cluster, data, number, messages),
                )
            ]
            singles = _singles(cluster, data, seconds)
        finally:
            cluster.down()
    bare, controlled = (
        middle([row["messages_per_s"] for row in rows if row["way"] == way])
        for way in ("bare", "controller")
    )
    return {
        "fabric": rows,
        "controller_to_bare": round(controlled / bare, 2),
        "single_sends_per_s": singles,
        "connections_of_single_sends": _CONNECTIONS,
    }


def _bare(cluster: LocalCluster, number: int, messages: int) -> dict[str, Any]:
    """A stream on one master, filled and read at the same time."""
    key = f"bare-{number}"
    slot = slot_of(key.encode())
    rings = cluster.blueprint.rings
    [home] = [n for n, shard in cluster.blueprint.shards.items() if slot in rings.slots(shard)]
    host, port = cluster.blueprint.holding(home)[0].address
    blocks = messages // _BLOCK_MESSAGES
    shared = {"host": host, "port": port, "key": key, "blocks": blocks}
    consumer = Worker(__name__, "take", **shared)
    producer = Worker(__name__, "fill", **shared)
    try:
        consumer.ready()
        producer.ready()
        consumer.go()
        producer.go()
        sent, received = producer.result(), consumer.result()
    finally:
        consumer.end()
        producer.end()
    return {
        "way": "bare",
        "messages": received["messages"],
        "messages_per_s": round(received["messages"] / (received["ended_s"] - sent["began_s"])),
        "producer_cpu_s": round(sent["cpu_s"], 2),
        "server_cpu_s": None,
        "consumer_cpu_s": round(received["cpu_s"], 2),
        "lost": blocks * _BLOCK_MESSAGES - received["messages"],
    }


def _controlled(cluster: LocalCluster, data: Path, number: int, messages: int) -> dict[str, Any]:
    """The same number of messages through a controller of their own."""
    with serving(data / f"queues-{number}", "--store", cluster.url) as server:
        row = e2e.measure(server, f"e2e-{number}", _SIZE, producers=1, messages=messages, copies=3)
    kept = (
        "messages", "messages_per_s", "producer_cpu_s", "server_cpu_s", "consumer_cpu_s",
        "lost",
    )  # fmt: skip
    return {"way": "controller", **{name: row[name] for name in kept}}


def _singles(cluster: LocalCluster, data: Path, seconds: float) -> int:
    """Messages per second of many connections that send one at a time, to one stripe per shard."""
    with serving(data / "singles", "--store", cluster.url) as server:
        with connect(server.url) as connection:
            connection.create_queue("singles", stripes=len(cluster.blueprint.shards), copies=3)
        sender = Worker(__name__, "send_singles", url=server.url, seconds=seconds)
        try:
            sender.ready()
            sender.go()
            messages: int = sender.result()["messages"]
            return round(messages / seconds)
        finally:
            sender.end()


def send_singles(url: str, seconds: float) -> dict[str, int]:
    """In a process of its own: each connection sends, waits for the answer, and sends again."""
    messages: int = run_loop(_send_singles(url, seconds))
    return {"messages": messages}


async def _send_singles(url: str, seconds: float) -> int:
    connections = [await aio.connect(url).open() for _ in range(_CONNECTIONS)]
    body = bytes(_SIZE)
    until_s = wait_for_go() + seconds

    async def send(queue: aio.Queue) -> int:
        count = 0
        while time.time() < until_s:
            await queue.send(body)
            count += 1
        return count

    counts = await asyncio.gather(*(send(c.queue("singles")) for c in connections))
    for connection in connections:
        await connection.close()
    return sum(counts)


# -- the bare clients, in processes of their own --------------------------------------------------


class _Line:
    """One blocking connection to a node; replies are only counted or looked at."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._reader: Any = hiredis.Reader(notEnoughData=_NOT_ENOUGH)

    def send(self, *commands: Sequence[Any]) -> None:
        self._socket.sendall(b"".join(_pack(tuple(command)) for command in commands))

    def replies(self, count: int) -> Iterator[Any]:
        for _ in range(count):
            while (reply := self._reader.gets()) is _NOT_ENOUGH:
                data = self._socket.recv(1 << 20)
                if not data:
                    raise StoreUnavailable("Redis hung up.")
                self._reader.feed(data)
            if isinstance(reply, Exception):
                raise reply
            yield reply


def fill(host: str, port: int, key: str, blocks: int) -> dict[str, float]:
    """Add blocks to a stream, so many at a time, each lot on two copies before the next."""
    block = bytes(Block.build([bytes(_SIZE)] * _BLOCK_MESSAGES, sent_ms=0).buffer)
    line = _Line(host, port)
    lots = [min(_IN_FLIGHT, blocks - first) for first in range(0, blocks, _IN_FLIGHT)]
    began_s = wait_for_go()
    cpu_s = time.process_time()
    for lot in lots:
        line.send(*[("XADD", key, "*", "b", block)] * lot, ("WAIT", _COPIES, 10_000))
        *_, reached = line.replies(lot + 1)
        if reached < _COPIES:
            raise StoreUnavailable(f"Only {reached} copies have followed.")
    return {"began_s": began_s, "cpu_s": time.process_time() - cpu_s}


def take(host: str, port: int, key: str, blocks: int) -> dict[str, float]:
    """Read the blocks of a stream as they come, and take the bodies out."""
    line = _Line(host, port)
    after, left, messages = "0", blocks, 0
    wait_for_go()
    cpu_s = time.process_time()
    while left:
        line.send(("XREAD", "COUNT", 4, "BLOCK", 1_000, "STREAMS", key, after))
        [found] = line.replies(1)
        for entry, (_, data) in found[0][1] if found else ():
            messages += len(Block.decode(data, trusted=True).bodies())
            after = entry
            left -= 1
    return {"messages": messages, "ended_s": time.time(), "cpu_s": time.process_time() - cpu_s}


_NOT_ENOUGH = object()
_pack: Any = hiredis.pack_command
