"""Store-and-forward through memory with copies against a synced disk queue (T2.7).

Senders, 70 % of whose messages have 1 KB and 30 % 10 KB, send to a messaging server (`relay.py`),
which stores each message, replies, forwards it to a back end and deletes it. Senders and back end
are one process, the messaging server another; the rate counts what the back end had and what was
deleted at the end of a steady spell. The queues:

    fabric, 1 copy      our queue on one Redis process; nothing is on disk
    fabric, 3 copies    a master and two copies of it: a message is replied to when two have it
    embedded            our embedded store, every message synced to disk
    files               a file for each message, one fsync each
    SQLite              a table in WAL mode with synchronous=FULL: one sync for each message

The thesis compares memory of three servers with a RAID system.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.beside import beside, ratio
from experiments.pipelined import HOST
from experiments.relay import LENGTH, OK
from experiments.rounds import in_turns
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import Worker, wait_for_go
from ringdove.bench.redis import copied_node
from ringdove.cluster.processes import free_ports
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiments.rounds import Cell

    Row = dict[str, Any]

#: What the thesis reports, in messages per second.
DOCUMENT_MEMORY, DOCUMENT_DISK = 3_600, 850

FABRIC, COPIED, EMBEDDED = "fabric, 1 copy", "fabric, 3 copies", "embedded"
FILES, SQLITE = "files", "SQLite"

_SENDERS = 64
_SMALL, _LARGE, _SMALL_SHARE = 1_000, 10_000, 0.7
#: What a body begins with: the number of the message.
_NUMBER_BYTES = 8
_WARM_S = 0.5
_DRAIN_S = 60


def run(*, quick: bool = False) -> dict[str, Any]:
    """Every queue in turns; see the module."""
    seconds, rounds = (0.3, 1) if quick else (3, 5)
    names = (FABRIC, FILES) if quick else (FABRIC, COPIED, EMBEDDED, FILES, SQLITE)
    cells: list[Cell] = [({"queue": name}, partial(_cell, name, seconds)) for name in names]
    rows = in_turns("store and forward", cells, rounds)
    return {"store_and_forward": rows, "beside": _beside(rows)}


def _cell(name: str, seconds: float) -> dict[str, Any]:
    """Messages per second through one messaging server."""
    with place(None) as data, _queue(name, data) as (kind, options):
        port, back_end_port = free_ports(2, HOST)
        load = Worker(__name__, "load", port=port, back_end_port=back_end_port, seconds=seconds)
        workers = [load]
        try:
            load.ready()
            relay = Worker(
                "experiments.relay", "run", kind=kind, queue=options, port=port,
                back_end_port=back_end_port,
            )  # fmt: skip
            workers.append(relay)
            relay.ready()
            relay.go()
            load.go()
            sent, relayed = load.result(), relay.result()
        finally:
            for worker in workers:
                worker.end()
    relay_us = round(1e6 * relayed["relay_cpu_s"] / sent["sent"])
    return {**sent, "relay_cpu_share": relayed["relay_cpu_share"], "relay_us_each": relay_us}


@contextmanager
def _queue(name: str, data: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the messaging server is told to use."""
    if name in (FILES, SQLITE):
        yield name.lower(), {"directory": str(data / "queue")}
    elif name == EMBEDDED:
        yield "ringdove", {"url": f"file:{data / 'queue'}"}
    else:
        copies = 3 if name == COPIED else 1
        with copied_node(data, copies) as nodes:
            url = f"redis://{HOST}:{nodes[0].port}?copies={copies}"
            yield "ringdove", {"url": url, "stripes": 1}


def _beside(rows: list[Row]) -> list[Row]:
    rates = {row["queue"]: row["per_s"] for row in rows}
    document = round(DOCUMENT_MEMORY / DOCUMENT_DISK, 1)
    disk = max(rates[name] for name in (FILES, SQLITE) if name in rates)
    return [
        beside(f"{name} over the faster disk queue", document, ratio(rates[name], disk))
        for name in (FABRIC, COPIED, EMBEDDED)
        if name in rates
    ]


# -- in the process of senders and back end -------------------------------------------------------


class Load:
    """Senders and the back end, and what they have seen."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        #: When the back end had each message, and how often it had one again.
        self.had: dict[int, float] = {}
        self.again = 0
        self._next = 0
        self._handlers: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}

    async def send(self, port: int, until_s: float, seed: int) -> None:
        """Send one message after the other, each when the last was replied to."""
        reader, writer = await asyncio.open_connection(HOST, port)
        dice = random.Random(seed)
        fillers = [bytes(size - _NUMBER_BYTES) for size in (_SMALL, _LARGE)]
        while time.perf_counter() < until_s:
            number, self._next = self._next, self._next + 1
            filler = fillers[dice.random() >= _SMALL_SHARE]
            length = LENGTH.pack(_NUMBER_BYTES + len(filler))
            writer.write(length + number.to_bytes(_NUMBER_BYTES, "big") + filler)
            await reader.readexactly(1)
            self.sent.add(number)
        writer.close()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The back end: answer every message."""
        task = asyncio.current_task()
        assert task is not None
        self._handlers[writer] = task
        try:
            while True:
                [length] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                body = await reader.readexactly(length)
                number = int.from_bytes(body[:_NUMBER_BYTES], "big")
                self.again += number in self.had
                self.had.setdefault(number, time.perf_counter())
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def close(self) -> None:
        """Hang up."""
        for writer in self._handlers:
            writer.close()
        await asyncio.gather(*self._handlers.values())


def load(port: int, back_end_port: int, seconds: float) -> dict[str, Any]:
    """Send for a while, and wait for the rest at the back end."""
    figures: dict[str, Any] = run_loop(_load(port, back_end_port, seconds))
    return figures


async def _load(port: int, back_end_port: int, seconds: float) -> dict[str, Any]:
    work = Load()
    server = await asyncio.start_server(work.take, HOST, back_end_port)
    await asyncio.to_thread(wait_for_go)
    cpu_s, began_s = time.process_time(), time.perf_counter()
    from_s, until_s = began_s + _WARM_S, began_s + _WARM_S + seconds
    await asyncio.gather(*(work.send(port, until_s, seed) for seed in range(_SENDERS)))
    share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
    deadline_s = time.perf_counter() + _DRAIN_S
    while not work.sent <= work.had.keys():
        if time.perf_counter() > deadline_s:
            raise StoreUnavailable(f"Messages did not arrive within {_DRAIN_S} s.")
        await asyncio.sleep(0.01)
    server.close()
    await work.close()
    return {
        "per_s": round(sum(from_s <= at_s < until_s for at_s in work.had.values()) / seconds),
        "sent": len(work.sent),
        "lost": len(work.sent - work.had.keys()),
        "again": work.again,
        "load_cpu_share": round(share, 2),
    }


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """Messages per second of each queue, beside the document's two."""
    from ringdove.bench.plots import figure_of, save

    rows = result["store_and_forward"]
    title = "Store and forward, 70 % 1 KB and 30 % 10 KB (T2.7)"
    figure, panels = figure_of(2, title)
    here, document = panels
    for axes, label, names, rates in (
        (here, "here", [row["queue"] for row in rows], [row["per_s"] for row in rows]),
        (document, "the document", ["memory,\n3 servers", "disk\n(RAID)"],
         [DOCUMENT_MEMORY, DOCUMENT_DISK]),
    ):  # fmt: skip
        bars = axes.bar(range(len(names)), rates, 0.6, label="forwarded")
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        axes.set_xticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
        axes.set_title(label)
        axes.set_ylabel("messages per second")
        axes.margins(y=0.12)
    save(figure, panels, path)
