"""`ringdove bench e2e`: producers, server and consumer in processes of their own (M7).

Producers send bodies that they have in hand; each starts with its producer's number and its own.
The consumer streams, takes every body out, and afterwards checks loss, duplicates and order. The
rate is messages over the time from the first send to the last body in the consumer's hands.
Producers are connections, in one process.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import ServerProcess, Worker, serving, wait_for_go
from ringdove.client import aio
from ringdove.client.sync import connect

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What a body begins with: its producer, and its position there.
HEAD = struct.Struct(">II")
_IN_FLIGHT = 16
_BLOCK_BYTES = 512 * 1024


def run(
    directory: Path | None,
    messages: int,
    sizes: Sequence[int],
    producers: Sequence[int],
    durabilities: Sequence[str] = ("disk", "memory"),
) -> dict[str, Any]:
    """All combinations; see the module."""
    rows = []
    for durability in durabilities:
        for size in sizes:
            for count in producers:
                # The same bytes for every size, so that large messages do not take forever.
                share = max(count, messages * 100 // max(size, 100))
                with place(directory) as data, serving(data / "queues") as server:
                    row = measure(
                        server, f"e2e-{durability}", size, count, share, durability=durability
                    )
                    rows.append({"durability": durability, **row})
    return {"e2e": rows}


def measure(
    server: ServerProcess, name: str, size: int, producers: int, messages: int, **settings: Any
) -> dict[str, Any]:
    """Send messages through a new queue of a server, and receive and check them all."""
    with connect(server.url) as connection:
        queue = connection.create_queue(name, **settings)
        queue.subscribe("reader", "earliest")
    each = messages // producers
    module = __name__
    shared = {"url": server.url, "queue": queue.name}
    consumer = Worker(module, "consume", **shared, messages=each * producers)
    sender = Worker(module, "produce", **shared, each=each, size=size, producers=producers)
    try:
        consumer.ready()
        sender.ready()
        cpu_s = server.cpu_s()
        consumer.go()
        sender.go()
        sent = sender.result()
        received = consumer.result()
    finally:
        consumer.end()
        sender.end()
    elapsed_s = received["ended_s"] - sent["began_s"]
    return {
        "size": size,
        "producers": producers,
        "messages": each * producers,
        "seconds": round(elapsed_s, 2),
        "messages_per_s": round(each * producers / elapsed_s),
        "mb_per_s": round(each * producers * size / elapsed_s / 1e6, 1),
        "lost": received["lost"],
        "duplicates": received["duplicates"],
        "out_of_order": received["out_of_order"],
        "producer_cpu_s": round(sent["cpu_s"], 2),
        "server_cpu_s": round(server.cpu_s() - cpu_s, 2),
        "consumer_cpu_s": round(received["cpu_s"], 2),
    }


# -- in the producers' process --------------------------------------------------------------------


def produce(url: str, queue: str, each: int, size: int, producers: int) -> dict[str, float]:
    """Send `each` messages over each of `producers` connections, as fast as they are taken."""
    filler = bytes(max(0, size - HEAD.size))
    block = max(1, min(10_000, _BLOCK_BYTES // size, each))
    bodies = [
        [HEAD.pack(number, position) + filler for position in range(each)]
        for number in range(producers)
    ]
    sent: dict[str, float] = run_loop(_produce(url, queue, bodies, block))
    return sent


async def _produce(url: str, queue: str, bodies: list[list[bytes]], block: int) -> dict[str, float]:
    connections = [await aio.connect(url).open() for _ in bodies]
    in_flight = max(1, min(_IN_FLIGHT, 64 // len(bodies)))
    began_s = wait_for_go()
    cpu_s = time.process_time()
    await asyncio.gather(
        *(
            _send_all(connection.queue(queue), own, block, in_flight)
            for connection, own in zip(connections, bodies, strict=True)
        )
    )
    ended_s = time.time()
    for connection in connections:
        await connection.close()
    return {"began_s": began_s, "ended_s": ended_s, "cpu_s": time.process_time() - cpu_s}


async def _send_all(queue: aio.Queue, bodies: list[bytes], block: int, in_flight: int) -> None:
    room = asyncio.Semaphore(in_flight)

    async def send(first: int) -> None:
        try:
            await queue.send_many(bodies[first : first + block])
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for first in range(0, len(bodies), block):
            await room.acquire()
            group.create_task(send(first))


# -- in the consumer's process --------------------------------------------------------------------


def consume(url: str, queue: str, messages: int, subscription: str = "reader") -> dict[str, float]:
    """Stream `messages` messages, then check them."""
    batches, ended_s, cpu_s = run_loop(_consume(url, queue, messages, subscription))
    return {"ended_s": ended_s, "cpu_s": cpu_s, **check(batches, messages)}


async def _consume(
    url: str, queue: str, messages: int, subscription: str
) -> tuple[list[list[bytes]], float, float]:
    batches = []
    left = messages
    async with (
        aio.connect(url) as connection,
        connection.queue(queue).stream(subscription, wait=60) as stream,
    ):
        wait_for_go()
        cpu_s = time.process_time()
        async for batch in stream:
            bodies = batch.bodies()
            batches.append(bodies)
            left -= len(bodies)
            if left <= 0:
                break
        ended_s = time.time()
        cpu_s = time.process_time() - cpu_s
    return batches, ended_s, cpu_s


def check(batches: list[list[bytes]], messages: int) -> dict[str, int]:
    """Loss, duplicates, and how often a message came right behind a later one of its producer."""
    last: dict[int, int] = {}
    total = out_of_order = 0
    unique: set[bytes] = set()
    for bodies in batches:
        for body in bodies:
            producer, position = HEAD.unpack_from(body)
            out_of_order += position < last.get(producer, 0)
            last[producer] = position
            unique.add(body[: HEAD.size])
        total += len(bodies)
    return {
        "lost": messages - len(unique),
        "duplicates": total - len(unique),
        "out_of_order": out_of_order,
    }
