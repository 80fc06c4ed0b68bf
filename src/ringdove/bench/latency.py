"""`ringdove bench latency`: how long a message takes from send to receiver through a server.

One message in flight: a producer and a consumer on connections of their own, in one process; the
consumer is parked when the message is sent. `delivery` is from `send` to the message in the
consumer's hands, `send` until the producer has its acknowledgement; both again with a server and a
client that stay awake (`spin_us`). Beside them, in turns with them: a bare TCP round trip between
two processes, and one synced LMDB commit of the same size.

At half of the peak: blocks are sent at half the rate that `bench e2e` finds here, and every message
carries the time at which it was handed to the client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, get_args

import lmdb

from ringdove.bench import e2e
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import ServerProcess, Worker, serving, wait_for_go
from ringdove.client import aio
from ringdove.client.sync import connect
from ringdove.core.settings import Durability

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TIME = struct.Struct(">d")
_WARM_UP = 50
#: How often the parts take turns: the machine may be slower for a while.
_ROUNDS = 5
#: What server and client spin for, where they do; longer than anything here takes.
_SPIN_US = 5_000
_BLOCKS_PER_S = 200


def run(directory: Path | None, *, size: int = 100, count: int = 2000) -> dict[str, Any]:
    """All figures; see the module."""
    with place(directory) as data:
        rows = [_row(*name, found) for name, found in _in_turns(data, size, count).items()]
        half = _at_half_peak(data / "half", size)
    p50_us = {(row["durability"], row["what"]): row["p50_us"] for row in rows}
    commit_us = p50_us["disk", "one LMDB commit"]
    return {
        "latency": rows + half["rows"],
        "peak_messages_per_s": half["peak"],
        "unsynced_delivery_p50_us": p50_us["memory", "delivery"],
        "unsynced_delivery_spinning_p50_us": p50_us["memory", "delivery, spinning"],
        "synced_delivery_p50_over_one_commit": round(p50_us["disk", "delivery"] / commit_us, 2),
        "synced_delivery_spinning_p50_over_one_commit": round(
            p50_us["disk", "delivery, spinning"] / commit_us, 2
        ),
    }


def _in_turns(data: Path, size: int, count: int) -> dict[tuple[str, str], list[float]]:
    """Everything with one message in flight: seconds by durability and what takes them."""
    times: dict[tuple[str, str], list[float]] = {}
    part = count // _ROUNDS
    with (
        serving(data / "queues") as asleep,
        serving(data / "spinning", "--spin-us", str(_SPIN_US)) as awake,
    ):
        for _ in range(_ROUNDS):
            times.setdefault(("", "bare TCP round trip"), []).extend(_tcp_round_trips(part))
            times.setdefault(("disk", "one LMDB commit"), []).extend(_commits(data, size, part))
            for server, spin_us in ((asleep, 0), (awake, _SPIN_US)):
                for durability in get_args(Durability):
                    found = run_loop(_one_in_flight(server.url, durability, size, part, spin_us))
                    for what, own in found.items():
                        name = f"{what}, spinning" if spin_us else what
                        times.setdefault((durability, name), []).extend(own)
    return times


def _row(durability: str, what: str, times_s: list[float]) -> dict[str, Any]:
    times_s = sorted(times_s)
    found: dict[str, Any] = {"durability": durability, "what": what, "count": len(times_s)}
    for name, share in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)):
        found[name] = round(times_s[min(len(times_s) - 1, int(len(times_s) * share))] * 1e6)
    return found


def _timed(action: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return times


def _tcp_round_trips(count: int) -> list[float]:
    """What the operating system alone takes between two processes on two cores."""
    cores = os.sched_getaffinity(0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        os.sched_setaffinity(0, {min(cores) if child else max(cores)})
        if child == 0:
            _echo(listener)
        with socket.create_connection(listener.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = _timed(lambda: (connection.send(b"x"), connection.recv(1)), count)
    os.sched_setaffinity(0, cores)
    os.waitpid(child, 0)
    return times


def _echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(1):
        connection.send(data)
    os._exit(0)


def _commits(directory: Path, size: int, count: int) -> list[float]:
    (directory / "lmdb").mkdir(exist_ok=True)
    with lmdb.open(str(directory / "lmdb"), map_size=1 << 30) as env:
        body = os.urandom(size)

        def commit() -> None:
            with env.begin(write=True) as txn:
                txn.put(os.urandom(8), body)

        return _timed(commit, count)


async def _one_in_flight(
    url: str, durability: Durability, size: int, count: int, spin_us: int
) -> dict[str, list[float]]:
    deliveries: list[float] = []
    sends: list[float] = []
    body = bytes(size)
    async with (
        aio.connect(url, spin_us=spin_us) as producer,
        aio.connect(url, spin_us=spin_us) as consumer,
    ):
        queue = await producer.create_queue(f"latency-{durability}", durability=durability)
        source = consumer.queue(queue.name)
        await source.info()
        receiving = asyncio.create_task(_receive(source))
        await source.info()  # Answered after the receive was parked: requests are begun in order.
        try:
            for number in range(count + _WARM_UP):
                began = time.perf_counter()
                await queue.send(body)
                sent = time.perf_counter()
                batch, delivered = await receiving
                if number >= _WARM_UP:
                    deliveries.append(delivered - began)
                    sends.append(sent - began)
                receiving = asyncio.create_task(_receive(source))
                await asyncio.sleep(0)
                await batch.ack()
        finally:
            receiving.cancel()
    return {"delivery": deliveries, "send": sends}


async def _receive(source: aio.Queue) -> tuple[aio.Batch, float]:
    batch = await source.receive(wait=10)
    return batch, time.perf_counter()


def _at_half_peak(directory: Path, size: int) -> dict[str, Any]:
    peak = e2e.run(directory.parent, 1_000_000, [size], [1], ["disk"])["e2e"][0]["messages_per_s"]
    with serving(directory) as server:
        times = _paced(server, size, peak // 2, 3.0)
    return {"peak": peak, "rows": [_row("disk", f"delivery at {peak // 2:,}/s", times)]}


def _paced(server: ServerProcess, size: int, rate: int, seconds: float) -> list[float]:
    with connect(server.url) as connection:
        queue = connection.create_queue("paced")
        queue.subscribe("reader", "earliest")
    blocks = int(seconds * _BLOCKS_PER_S)
    shared = {"url": server.url, "queue": "paced", "blocks": blocks}
    consumer = Worker(__name__, "consume", **shared, each=rate // _BLOCKS_PER_S)
    producer = Worker(__name__, "produce", **shared, each=rate // _BLOCKS_PER_S, size=size)
    try:
        for worker in (consumer, producer):
            worker.ready()
        for worker in (consumer, producer):
            worker.go()
        producer.result()
        found: list[float] = consumer.result()
    finally:
        consumer.end()
        producer.end()
    return found


def produce(url: str, queue: str, blocks: int, each: int, size: int) -> int:
    """In a process: send a block of `each` messages every few milliseconds."""

    async def work() -> int:
        filler = [bytes(size)] * (each - 1)
        async with aio.connect(url) as connection:
            target = connection.queue(queue)
            wait_for_go()
            begun = time.time()
            async with asyncio.TaskGroup() as group:
                for number in range(blocks):
                    await asyncio.sleep(max(0, begun + number / _BLOCKS_PER_S - time.time()))
                    stamped = _TIME.pack(time.time()).ljust(size)
                    group.create_task(target.send_many([stamped, *filler]))
        return blocks

    done: int = run_loop(work())
    return done


def consume(url: str, queue: str, blocks: int, each: int) -> list[float]:
    """In a process: how long after its sending each block was in hand, body by body."""

    async def work() -> list[float]:
        found: list[float] = []
        left = blocks * each
        async with (
            aio.connect(url) as connection,
            connection.queue(queue).stream("reader", wait=30) as stream,
        ):
            wait_for_go()
            async for batch in stream:
                bodies = batch.bodies()
                now = time.time()
                found.append(now - _TIME.unpack_from(bodies[0])[0])
                left -= len(bodies)
                if left <= 0:
                    break
        return found

    times: list[float] = run_loop(work())
    return times
