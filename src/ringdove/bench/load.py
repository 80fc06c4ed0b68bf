"""`ringdove bench load`: response time of single sends against offered load (B6).

First closed-loop senders, each with one send outstanding, find the saturation rate S: 64 of them,
then twice as many for as long as that gives a tenth more, because sends share commits. Then sends
arrive at Poisson times, whether or not earlier ones were answered, at 10 to 110 % of S. Response
time counts from the moment a send was due, so a sender that falls behind hides nothing. A consumer
drains the queue meanwhile and counts, so that loss would show.

The reference is M/M/1: the response time at the lowest load, taken for the service time, over one
minus the load. A server that joins what comes while it is busy should stay below it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import time
from statistics import mean
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import ServerProcess, Worker, serving, wait_for_go
from ringdove.client import aio
from ringdove.client.sync import connect
from ringdove.errors import RingdoveError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
SHARES_QUICK = (0.2, 0.6, 1.0)

_CONNECTIONS = 8
_CONCURRENT, _CONCURRENT_MAX = 64, 2_048
#: More senders must give this much more, or the server is saturated.
_GAIN = 1.1
_BODY_BYTES = 2_000
_QUEUE = "load"
#: What a body begins with: the run that sent it, and its number in that run.
_HEAD = struct.Struct(">II")
#: The run of the last message, after which the consumer stops.
_LAST_RUN = 0xFFFF_FFFF
#: An event loop's timers are a millisecond coarse: nearer arrivals are awaited by looking.
_COARSE_S = 0.0015


def run(
    directory: Path | None,
    seconds: float = 3,
    durabilities: Sequence[str] = ("disk", "memory"),
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """Response times from 10 to 110 % of saturation; `seconds` for each load. See the module."""
    shares = SHARES_QUICK if quick else SHARES
    seconds = min(seconds, 0.5) if quick else seconds
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for durability in durabilities:
        with place(directory) as data, serving(data / "queues") as server:
            found, told = curve(server, shares, seconds, durability=durability)
        rows += [{"durability": durability, **row} for row in found]
        summary |= {f"{durability}_{name}": value for name, value in told.items()}
    return {"load": rows, **summary}


def curve(
    server: ServerProcess,
    shares: Sequence[float],
    seconds: float,
    senders_max: int = _CONCURRENT_MAX,
    **settings: Any,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The response times of a queue with these settings, and what else there is to say of them."""
    with connect(server.url) as connection:
        queue = connection.create_queue(_QUEUE, **settings)
        consumer = Worker(__name__, "drain", url=server.url)
        try:
            consumer.ready()
            consumer.go()
            closed = _saturate(server, seconds, senders_max)
            top = max(closed, key=lambda row: row["done_per_s"])
            rows = []
            for number, share in enumerate(shares, len(closed)):
                rate = share * top["done_per_s"]
                row = _send(server, "offer", number=number, seconds=seconds, rate_per_s=rate)
                rows.append({"load_share": share, **row})
            queue.send(_HEAD.pack(_LAST_RUN, 0))
            received = consumer.result()
        finally:
            consumer.end()
    add_reference(rows)
    calm = [row for row in rows if row["load_share"] <= 0.8]
    sent = sum(row["sent"] for row in closed + rows)
    return rows, {
        "saturation_per_s": top["done_per_s"],
        "saturation_senders": top["concurrent"],
        "saturation_server_cpu_share": top["server_cpu_share"],
        "saturation_sender_cpu_share": top["sender_cpu_share"],
        "sent": sent,
        "failed": sum(row["failed"] for row in closed + rows),
        "lost": sent - received["unique"],
        "duplicates": received["total"] - received["unique"],
        "mean_ms_max_to_80_percent": max(row["mean_ms"] for row in calm),
        "p99_ms_max_to_80_percent": max(row["p99_ms"] for row in calm),
    }


def _saturate(server: ServerProcess, seconds: float, senders_max: int) -> list[dict[str, Any]]:
    """Closed loops of more and more senders, until more of them do not help."""
    rows: list[dict[str, Any]] = []
    concurrent = _CONCURRENT
    while concurrent <= senders_max:
        row = _send(server, "saturate", number=len(rows), seconds=seconds, concurrent=concurrent)
        rows.append({"concurrent": concurrent, **row})
        if len(rows) > 1 and row["done_per_s"] < _GAIN * rows[-2]["done_per_s"]:
            break
        concurrent *= 2
    return rows


def _send(server: ServerProcess, function: str, **arguments: Any) -> dict[str, Any]:
    worker = Worker(__name__, function, url=server.url, **arguments)
    try:
        worker.ready()
        cpu_s = server.cpu_s()
        worker.go()
        row: dict[str, Any] = worker.result()
    finally:
        worker.end()
    busy_s = row.pop("seconds")
    row["server_cpu_share"] = round((server.cpu_s() - cpu_s) / busy_s, 2)
    return row


def add_reference(rows: list[dict[str, Any]]) -> None:
    """Add to each row what M/M/1 would say; None at and beyond saturation."""
    service_ms = rows[0]["mean_ms"]
    for row in rows:
        share = row["load_share"]
        row["reference_ms"] = round(service_ms / (1 - share), 3) if share < 1 else None


# -- in a sender's process ------------------------------------------------------------------------


class Senders:
    """Single sends over several connections, and what became of them."""

    def __init__(self, queues: list[aio.Queue], number: int) -> None:
        self._queues = queues
        self._number = number
        self._filler = bytes(_BODY_BYTES - _HEAD.size)
        self.sent = 0
        self.failed = 0
        #: Of each send that was answered: when it was due, and when its answer came.
        self.answered: list[tuple[float, float]] = []

    async def send(self, due_s: float) -> None:
        """Send one message and note how long that took since it was due."""
        position = self.sent + self.failed
        self.sent += 1
        body = _HEAD.pack(self._number, position) + self._filler
        try:
            await self._queues[position % len(self._queues)].send(body)
        except RingdoveError:
            self.sent -= 1
            self.failed += 1
        else:
            self.answered.append((due_s, time.perf_counter()))

    async def closed_loop(self, until_s: float) -> None:
        """Send one after the other."""
        while (now_s := time.perf_counter()) < until_s:
            await self.send(now_s)

    async def open_loop(self, rate_per_s: float, until_s: float) -> None:
        """Send at Poisson times, and wait for the answers."""
        gaps = random.Random(self._number)
        due_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while (due_s := due_s + gaps.expovariate(rate_per_s)) < until_s:
                await until(due_s)
                group.create_task(self.send(due_s))


def saturate(url: str, number: int, seconds: float, concurrent: int) -> dict[str, Any]:
    """As many sends as `concurrent` senders manage that each wait for their answers."""

    async def work(senders: Senders, until_s: float) -> None:
        await asyncio.gather(*(senders.closed_loop(until_s) for _ in range(concurrent)))

    row: dict[str, Any] = run_loop(_timed(url, number, seconds, work))
    return row


def offer(url: str, number: int, seconds: float, rate_per_s: float) -> dict[str, Any]:
    """Sends at Poisson times."""

    async def work(senders: Senders, until_s: float) -> None:
        await senders.open_loop(rate_per_s, until_s)

    return {"offered_per_s": round(rate_per_s), **run_loop(_timed(url, number, seconds, work))}


async def _timed(
    url: str,
    number: int,
    seconds: float,
    work: Callable[[Senders, float], Coroutine[Any, Any, None]],
) -> dict[str, Any]:
    """Have `work` send until a time, and tell how it went."""
    connections = [await aio.connect(url, timeout_s=120).open() for _ in range(_CONNECTIONS)]
    senders = Senders([connection.queue(_QUEUE) for connection in connections], number)
    await senders.closed_loop(time.perf_counter() + 0.1)  # So that everything is looked up.
    senders.answered.clear()
    await asyncio.to_thread(wait_for_go)
    gc.disable()  # It is the server that is to be measured.
    cpu_s = time.process_time()
    began_s = time.perf_counter()
    until_s = began_s + seconds
    await work(senders, until_s)
    elapsed_s = time.perf_counter() - began_s
    cpu_s = time.process_time() - cpu_s
    for connection in connections:
        await connection.close()
    took_ms = [(end_s - due_s) * 1e3 for due_s, end_s in senders.answered]
    in_time = sum(end_s <= until_s for _, end_s in senders.answered)
    return {
        "done_per_s": round(in_time / seconds),
        "mean_ms": round(mean(took_ms), 3),
        "p50_ms": percentile(took_ms, 50),
        "p99_ms": percentile(took_ms, 99),
        "sent": senders.sent,
        "failed": senders.failed,
        "sender_cpu_share": round(cpu_s / elapsed_s, 2),
        "seconds": elapsed_s,
    }


# -- in the consumer's process --------------------------------------------------------------------


def drain(url: str) -> dict[str, int]:
    """Receive and acknowledge until the last message, then count."""
    counts: dict[str, int] = run_loop(_drain(url))
    return counts


async def _drain(url: str) -> dict[str, int]:
    seen: set[bytes] = set()
    total = 0
    async with aio.connect(url, timeout_s=120) as connection:
        queue = connection.queue(_QUEUE)
        await asyncio.to_thread(wait_for_go)
        while True:
            batch = await queue.receive(max=1_000, wait=30)
            heads = [body[: _HEAD.size] for body in batch.bodies()]
            if heads:
                await batch.ack()
            last = _HEAD.pack(_LAST_RUN, 0) in heads
            seen.update(heads)
            total += len(heads)
            if last or not heads:
                return {"unique": len(seen) - last, "total": total - last}


# -- for the other benchmarks too -----------------------------------------------------------------


async def until(due_s: float) -> None:
    """Wait until a time of `time.perf_counter`, more exactly than the loop's timers can."""
    while (ahead_s := due_s - time.perf_counter()) > 0:  # noqa: ASYNC110  a time, not an event
        await asyncio.sleep(max(0.0, ahead_s - _COARSE_S))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))], 3)
