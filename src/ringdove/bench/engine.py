"""`ringdove bench engine`: the embedded engine beside the raw disk, in one run.

For bodies of 100 B and 1 KB, in blocks of 1 to 1000, synced and not: append (one block per call,
the caller waits), append with eight blocks under way as a producer does it, lease+acknowledge, and
end to end. Each synced append figure stands beside a
sequential write + fdatasync of the same bytes; the two are measured in turns, and medians compared.
"""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, get_args

from ringdove import limits
from ringdove.bench.measure import middle, place, rate, raw_disk
from ringdove.client.outgoing import columns
from ringdove.client.sync import connect
from ringdove.core.block import Block
from ringdove.core.settings import Durability
from ringdove.pending import start

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.client.sync import Connection, Queue

_SIZES = (100, 1000)
_BLOCKS = (1, 10, 100, 1000)
_ROUNDS = 5


def run(directory: Path | None, *, quick: bool = False) -> dict[str, Any]:
    """All figures; see the module."""
    seconds = 0.05 if quick else 0.3
    rounds = 2 if quick else _ROUNDS
    rows = []
    with place(directory) as data, connect(f"file:{data}/queues") as connection:
        for durability in get_args(Durability):
            for size in _SIZES:
                rows += [
                    _cell(connection, data, durability, size, block, seconds, rounds)
                    for block in _BLOCKS
                ]
        single = _styles(connection, seconds * 3)
    largest = next(
        r for r in rows if (r["durability"], r["size"], r["block"]) == ("disk", 1000, 1000)
    )
    return {
        "engine": rows,
        "end_to_end_100B_unsynced": single,
        "synced_append_1000x1KB_of_raw_disk": largest["append_of_raw"],
        "synced_pipelined_append_1000x1KB_of_raw_disk": largest["pipelined_of_raw"],
        "end_to_end_100B_unsynced_per_s": max(s["messages_per_s"] for s in single),
    }


def _cell(
    connection: Connection,
    data: Path,
    durability: Durability,
    size: int,
    block: int,
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    queue = _queue(connection, durability)
    bodies = [os.urandom(size) for _ in range(block)]
    chunk = Block.build(bodies, sent_ms=1).buffer
    names = ("append", "pipelined", "lease", "end", "raw")
    figures: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        figures["append"].append(rate(lambda: len(queue.send_many(bodies)), seconds))
        figures["pipelined"].append(rate(lambda: _pipelined(connection, queue, bodies), seconds))
        figures["lease"].append(rate(lambda: _drain_some(queue, block, bodies), seconds))
        queue.purge()
        figures["end"].append(rate(lambda: _through(queue, bodies), seconds))
        if durability == "disk":
            figures["raw"].append(raw_disk(data, chunk, 1, seconds) / len(chunk) * block)
    connection.delete_queue(queue.name)
    append = middle(figures["append"])
    row = {
        "durability": durability,
        "size": size,
        "block": block,
        "append_per_s": round(append),
        "pipelined_per_s": round(middle(figures["pipelined"])),
        "lease_ack_per_s": round(middle(figures["lease"])),
        "end_to_end_per_s": round(middle(figures["end"])),
        "append_mb_per_s": round(append * size / 1e6, 1),
        "raw_disk_per_s": None,
        "append_of_raw": None,
        "pipelined_of_raw": None,
    }
    if figures["raw"]:
        row["raw_disk_per_s"] = round(middle(figures["raw"]))
        for name in ("append", "pipelined"):
            pairs = zip(figures[name], figures["raw"], strict=True)
            row[f"{name}_of_raw"] = round(middle([ours / raw for ours, raw in pairs]), 2)
    return row


def _styles(connection: Connection, seconds: float) -> list[dict[str, Any]]:
    """End to end with 100-byte messages, unsynced, in the styles the library offers."""
    bodies = [os.urandom(100) for _ in range(10_000)]
    queue = _queue(connection, "memory")
    styles = {
        "send_many 1000, bodies()": lambda: _through(queue, bodies[:1000]),
        "send_many 10000, bodies()": lambda: _through(queue, bodies),
        "send_many 1000, message by message": lambda: _message_by_message(queue, bodies[:1000]),
        "producer.send, bodies()": lambda: _produced(queue, bodies),
        "one message at a time": lambda: _through(queue, bodies[:1]),
    }
    rows = [
        {"style": style, "messages_per_s": round(rate(action, seconds))}
        for style, action in styles.items()
    ]
    connection.delete_queue(queue.name)
    return rows


def _pipelined(connection: Connection, queue: Queue, bodies: list[bytes]) -> int:
    """Send eight blocks without waiting in between, then wait for all."""
    flights = [
        start(connection.backend.send(queue.name, columns(bodies)))
        for _ in range(limits.PRODUCER_BLOCKS_IN_FLIGHT_MAX)
    ]
    return sum(len(flight.finish()) for flight in flights)


def _drain_some(queue: Queue, block: int, bodies: list[bytes]) -> int:
    """Lease and acknowledge one block's worth; refill when the queue has run dry."""
    batch = queue.receive(max=block)
    if not batch:
        for _ in range(10):
            queue.send_many(bodies)
        return 0
    batch.ack()
    return len(batch)


def _through(queue: Queue, bodies: list[bytes]) -> int:
    queue.send_many(bodies)
    batch = queue.receive(max=len(bodies))
    received = 0
    for _body in batch.bodies():
        received += 1
    batch.ack()
    return received


def _message_by_message(queue: Queue, bodies: list[bytes]) -> int:
    queue.send_many(bodies)
    batch = queue.receive(max=len(bodies))
    received = 0
    for message in batch:
        received += len(message.body) > 0
    batch.ack()
    return received


def _produced(queue: Queue, bodies: list[bytes]) -> int:
    with queue.producer(block_messages=1000) as producer:
        send = producer.send
        for body in bodies:
            send(body)
    received = 0
    while batch := queue.receive(max=10_000):
        received += len(batch.bodies())
        batch.ack()
    return received


_names = count(1)


def _queue(connection: Connection, durability: Durability) -> Queue:
    return connection.create_queue(f"bench-{next(_names)}", durability=durability)
