"""Order and duplicates by the K hint and by receivers per queue (B3, B5, B6).

Messages of 2 KB with a checksum go to many queues; then 1 to 3 receivers of each queue take one
message at a time, work on it for a while, and acknowledge it. Every receiver of a queue is in
another process and has a controller of its own, on one Redis process. K is 1, 2, 3, infinite (a
system without order) and auto.

Beside it the same workload on an index whose receive is not atomic (`split_index.py`), as the
document's store made it.

The metrics are those of B5, for each queue, and their mean over all queues. The correct order is
that in which a queue's messages were sent; the order received is by the time at which receivers had
them.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from statistics import mean
from typing import TYPE_CHECKING, Any

import xxhash

from experiments.beside import beside, ratio
from experiments.split_index import SplitIndex, open_cluster
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import Worker, wait_for_go
from ringdove.bench.redis import RedisProcess
from ringdove.cli.output import watched
from ringdove.client import aio
from ringdove.core.consistency import measure

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.core.settings import Spread

    Row = dict[str, Any]
    #: Where a receiver had a message: queue, number (-1: it was damaged), and when.
    Receipt = tuple[int, int, float]

SPREADS: tuple[Spread, ...] = (1, 2, 3, "infinite", "auto")
RECEIVERS = (1, 2, 3)
ATOMIC, SPLIT = "Ringdove", "two-step receive"

_BODY_BYTES = 2_000
#: Number of a message, and the checksum of what follows.
_HEAD = struct.Struct(">QQ")
#: A receive that finds nothing waits so long; then the queue is empty.
_WAIT_S = 0.2
_LEASE_MS = 60_000


def run(*, quick: bool = False) -> dict[str, Any]:
    """Every K with every number of receivers, on both; see the module."""
    size = _Size(2, 20, 0.001) if quick else _Size(20, 150, 0.01)
    spreads: tuple[Spread, ...] = (1, "infinite") if quick else SPREADS
    receivers = RECEIVERS[1:2] if quick else RECEIVERS
    # K is not adjusted where receives take two steps.
    both = [(ATOMIC, spreads), (SPLIT, spreads[:1] if quick else spreads[:-1])]
    cells = [(system, spread, count) for system, of in both for spread in of for count in receivers]
    with place(None) as data, RedisProcess(data) as node:
        rows = [
            {
                "system": system,
                "spread": spread,
                "receivers": count,
                **_cell(node, system, spread, count, size),
            }
            for system, spread, count in watched(cells, "spread")
        ]
    return {"spread": rows, "beside": _beside(rows)}


class _Size:
    """How much work a cell is."""

    def __init__(self, queues: int, messages: int, work_s: float) -> None:
        self.queues = queues
        self.messages = messages
        self.work_s = work_s


def _cell(
    node: RedisProcess, system: str, spread: Spread, receivers: int, size: _Size
) -> dict[str, Any]:
    """One K with so many receivers of each queue."""
    node.ask("FLUSHALL")
    fill = _fill_atomic if system == ATOMIC else _fill_split
    run_loop(fill(node.url, spread, size))
    workers = [
        Worker(
            __name__, "receive", url=node.url, system=system, spread=spread, seed=seed,
            queues=size.queues, work_s=size.work_s,
        )
        for seed in range(receivers)
    ]  # fmt: skip
    try:
        for worker in workers:
            worker.ready()
        for worker in workers:
            worker.go()
        found = [receipt for worker in workers for receipt in worker.result()]
    finally:
        for worker in workers:
            worker.end()
    return metrics([tuple(receipt) for receipt in found], size.queues, size.messages)


def metrics(receipts: list[Receipt], queues: int, messages: int) -> dict[str, Any]:
    """The metrics of B5, each the mean over all queues."""
    by_queue: list[list[Receipt]] = [[] for _ in range(queues)]
    for receipt in receipts:
        by_queue[receipt[0]].append(receipt)
    # What was damaged counts as lost, as if it had not come.
    found = [
        measure(
            range(messages),
            [number for _, number, _ in sorted(own, key=lambda receipt: receipt[2]) if number >= 0],
        )
        for own in by_queue
    ]
    times = [receipt[2] for receipt in receipts]
    span_s = max(times) - min(times)
    return {
        "messages": queues * messages,
        "lost": sum(one.lost for one in found),
        "damaged": sum(number < 0 for _, number, _ in receipts),
        "duplicated": sum(one.duplicated for one in found),
        "duplication_rate": round(mean(one.duplicated / one.sent for one in found), 4),
        "out_of_order_rate": round(mean(one.out_of_order_rate for one in found), 4),
        "displacement": round(mean(one.displacement for one in found), 3),
        "received_per_s": round(len(receipts) / span_s) if span_s else None,
    }


def _beside(rows: list[Row]) -> list[Row]:
    """What the document reports, and what was found."""
    top = max(row["receivers"] for row in rows)
    at_top = {(row["system"], row["spread"]): row for row in rows if row["receivers"] == top}
    ours = [row for row in rows if row["system"] == ATOMIC]
    first, infinite = at_top[ATOMIC, 1], at_top[ATOMIC, "infinite"]
    largest = max(spread for system, spread in at_top if system == ATOMIC and spread in (1, 2, 3))
    ordered = at_top[ATOMIC, largest]
    return [
        beside("messages lost or damaged", 0, sum(row["lost"] for row in ours)),
        beside("duplication, K = 1, receive not atomic", "grows with receivers",
               at_top[SPLIT, 1]["duplication_rate"]),
        beside("duplication, K = 1, atomic", "grows with receivers", first["duplication_rate"]),
        beside("out of order, K = 1", "almost none", first["out_of_order_rate"]),
        beside("out of order, no order", 0.5, infinite["out_of_order_rate"]),
        beside(f"displacement, no order over K = {largest}", 10.0,
               ratio(infinite["displacement"], ordered["displacement"])),
    ]  # fmt: skip


# -- messages -------------------------------------------------------------------------------------


def make_body(number: int) -> bytes:
    """A body of random bytes that knows its number and its checksum."""
    payload = random.Random(number).randbytes(_BODY_BYTES - _HEAD.size)
    return _HEAD.pack(number, xxhash.xxh64_intdigest(payload)) + payload


def read_body(body: bytes) -> int:
    """The number of a body; -1 when it was damaged."""
    if len(body) != _BODY_BYTES:
        return -1
    number, checksum = _HEAD.unpack_from(body)
    return int(number) if xxhash.xxh64_intdigest(body[_HEAD.size :]) == checksum else -1


def _name(queue: int) -> str:
    return f"spread-{queue}"


async def _fill_atomic(url: str, spread: Spread, size: _Size) -> None:
    async with aio.connect(url) as connection:
        for queue in range(size.queues):
            made = await connection.create_queue(_name(queue), spread=spread, stripes=1)
            await made.send_many(make_body(number) for number in range(size.messages))


async def _fill_split(url: str, spread: Spread, size: _Size) -> None:
    cluster = await open_cluster(url)
    try:
        for queue in range(size.queues):
            made = SplitIndex(cluster, _name(queue), spread)
            await made.send_many([make_body(number) for number in range(size.messages)])
    finally:
        cluster.close()


# -- in the process of the receivers --------------------------------------------------------------


def receive(
    url: str, system: str, spread: Spread, seed: int, queues: int, work_s: float
) -> list[Receipt]:
    """One receiver for each queue, until all are empty."""
    work = _receive_atomic if system == ATOMIC else _receive_split
    found: list[Receipt] = run_loop(work(url, spread, seed, queues, work_s))
    return found


async def _receive_atomic(
    url: str, _spread: Spread, seed: int, queues: int, work_s: float
) -> list[Receipt]:
    found: list[Receipt] = []

    async def receiver(connection: aio.Connection, at: int) -> None:
        queue = connection.queue(_name(at))
        pause = random.Random(seed * queues + at)
        while batch := await queue.receive(1, wait=_WAIT_S, lease_ms=_LEASE_MS):
            [body] = batch.bodies()
            found.append((at, read_body(body), time.monotonic()))
            await asyncio.sleep(work_s * pause.uniform(0.5, 1.5))
            await batch.ack()

    async with aio.connect(url) as connection:
        for at in range(queues):
            await connection.queue(_name(at)).info()
        await asyncio.to_thread(wait_for_go)
        await asyncio.gather(*(receiver(connection, at) for at in range(queues)))
    return found


async def _receive_split(
    url: str, spread: Spread, seed: int, queues: int, work_s: float
) -> list[Receipt]:
    found: list[Receipt] = []
    cluster = await open_cluster(url)

    async def receiver(at: int) -> None:
        queue = SplitIndex(cluster, _name(at), spread, seed * queues + at)
        pause = random.Random(seed * queues + at)
        while not await queue.is_empty():
            received = await queue.receive()
            if received is None:
                await asyncio.sleep(work_s)
                continue
            number, body = received
            found.append((at, read_body(body), time.monotonic()))
            await asyncio.sleep(work_s * pause.uniform(0.5, 1.5))
            await queue.delete(number)

    try:
        await asyncio.to_thread(wait_for_go)
        await asyncio.gather(*(receiver(at) for at in range(queues)))
    finally:
        cluster.close()
    return found


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """The three metrics against K's settings, a line for each number of receivers."""
    from ringdove.bench.plots import figure_of, grouped, save

    rows = result["spread"]
    figure, panels = figure_of(6, "K, receivers per queue, and what they do to order (B5, B6)")
    for at, (system, of_system) in enumerate(grouped(rows, "system").items()):
        for axes, (name, label) in zip(panels[3 * at : 3 * at + 3], _PANELS, strict=True):
            for number, (receivers, found) in enumerate(grouped(of_system, "receivers").items()):
                x = [place + 0.26 * number for place in range(len(found))]
                bars = axes.bar(x, [row[name] for row in found], 0.25,
                                label=f"{receivers} receiver{'s' * (receivers > 1)}")  # fmt: skip
                axes.bar_label(bars, fmt="{:.2g}", fontsize=7, padding=1)
            axes.set_xticks([at + 0.26 for at in range(len(found))],
                            [f"K = {row['spread']}" for row in found])  # fmt: skip
            axes.set_title(f"{system}: {label}")
            axes.set_ylabel(label)
            axes.margins(y=0.12)
    for name, axes in zip([name for name, _ in _PANELS] * 2, panels, strict=True):
        top = max(1e-3, *(row[name] for row in rows))
        axes.set_ylim(0, 1.15 * top)
        if name == "displacement":
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(0, 3 * top)
    save(figure, panels, path)


_PANELS = (
    ("duplication_rate", "duplicates per message"),
    ("out_of_order_rate", "out-of-order rate"),
    ("displacement", "average displacement (messages)"),
)
