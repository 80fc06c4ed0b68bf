"""A million messages through the embedded engine, with a consumer that dies half way.

One producer, several consumers, one process, everything synced to disk. Each message carries its
number and a checksum. Half way one consumer dies with messages in its hands; their lease ends and
others get them. At the end every message is accounted for with the metrics of B5.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import place
from ringdove.client.sync import connect
from ringdove.core.consistency import measure

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.client.sync import Queue

_QUEUE = "readings"
_LEASE_MS = 3_000
_BATCH = 2_000
_PATIENCE_S = 1.0


class Million:
    """One run."""

    def __init__(self, queue: Queue, messages: int, consumers: int) -> None:
        self.queue = queue
        self.messages = messages
        self.sent = 0
        self.sent_bytes = 0
        self.arrivals: list[int] = []
        self.damaged = 0
        self.died_holding = 0
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._guard, args=(self._produce,))]
        self._threads += [
            threading.Thread(target=self._guard, args=(self._consume, number == 0))
            for number in range(consumers)
        ]

    def start(self) -> None:
        """Begin producing and consuming."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the end; raises what went wrong in a thread."""
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _guard(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001  raised again by join
            self.failure = error
            self.finished.set()

    def _produce(self) -> None:
        sizes = random.Random(1)
        filler = sizes.randbytes(2_000)
        with self.queue.producer() as producer:
            for number in range(self.messages):
                size = sizes.choice((40, 80, 100, 100, 200, 300, 1000))
                head = number.to_bytes(8, "big") + filler[number % 900 : number % 900 + size]
                producer.send(head + zlib.crc32(head).to_bytes(4, "big"))
                self.sent += 1
                self.sent_bytes += len(head) + 4
                if self.finished.is_set():
                    return

    def _consume(self, mortal: bool) -> None:
        while not self.finished.is_set():
            batch = self.queue.receive(max=_BATCH, wait=_PATIENCE_S)
            if mortal and len(self.arrivals) > self.messages // 2 and batch:
                self.died_holding = len(batch)
                return
            for body in batch.bodies():
                if zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "big"):
                    self.damaged += 1
                self.arrivals.append(int.from_bytes(body[:8], "big"))
            batch.ack()
            if self.sent == self.messages and len(self.arrivals) >= self.messages:
                self.finished.set()


def run(messages: int, consumers: int, directory: Path | None) -> dict[str, Any]:
    """Send and receive with progress on standard error; answers the report."""
    consumers = max(2, consumers)
    with place(directory) as data, connect(f"file:{data.absolute()}/queues") as connection:
        queue = connection.create_queue(_QUEUE, lease_ms=_LEASE_MS)
        million = Million(queue, messages, consumers)
        started = time.perf_counter()
        million.start()
        _watch(million)
        million.join()
        elapsed_s = time.perf_counter() - started
        left = queue.stats().waiting()
    result = measure(range(messages), million.arrivals)
    return {
        "messages": messages,
        "megabytes": round(million.sent_bytes / 1e6, 1),
        "seconds": round(elapsed_s, 2),
        "messages_per_s": round(messages / elapsed_s),
        "consumers": consumers,
        "died_holding": million.died_holding,
        "lost": result.lost,
        "damaged": million.damaged,
        "unexpected": result.unexpected,
        "duplicated": result.duplicated,
        "out_of_order_rate": round(result.out_of_order_rate, 6),
        "displacement": round(result.displacement, 3),
        "left_in_queue": left,
    }


def _watch(million: Million) -> None:
    """Show how far it is, until it ends: bars on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:>9}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        sent = bars.add_task("sent", total=million.messages)
        received = bars.add_task("received", total=million.messages)
        told = 0
        told_death = False
        while not million.finished.wait(0.1):
            bars.update(sent, completed=million.sent)
            bars.update(received, completed=len(million.arrivals))
            if million.died_holding and not told_death:
                told_death = True
                console.print(f"A consumer died holding {million.died_holding:,} messages.")
            quarter = 4 * len(million.arrivals) // million.messages
            if not console.is_terminal and quarter > told:
                told = quarter
                print(f"received {25 * quarter} %", file=sys.stderr)
        bars.update(sent, completed=million.sent)
        bars.update(received, completed=len(million.arrivals))


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    from ringdove.cli.output import table

    stored = f"{report['megabytes']} MB, each synced to disk before its send was acknowledged"
    through = f"sent, stored, received and done in {report['seconds']} s, one process"
    rows = [
        ["messages", report["messages"], stored],
        ["rate", f"{report['messages_per_s']:,}/s", through],
        ["died holding", report["died_holding"], "in the hands of the consumer that died"],
        ["lost", report["lost"], "sent and never received"],
        ["damaged", report["damaged"], "received with a wrong checksum"],
        ["duplicates", report["duplicated"], "received more than once"],
        ["out of order", f"{100 * report['out_of_order_rate']:.2f} %", "the dead one's among them"],
        ["displacement", f"{report['displacement']:,.1f}", "mean distance from the right place"],
    ]
    table("What happened", ["", "figure", "what it means"], rows)
