"""`ringdove bench rds`: the four ways to dequeue on a real server (T4.1, T4.2, T4.5).

Ten senders send single messages of 1 KB to a queue of ten stripes, each at a steady pace and one at
a time, so an overloaded server slows them down. Ten back ends issue receives at Poisson times with
rate lambda, up to a number outstanding each, and acknowledge what they get. All speak the native
protocol; server, senders and back ends are three processes.

Three modes:

    injected   the store has the costs of table I (T4.4) at a tenth: a visit takes 2 ms, and 0.1 ms
               more for each message that it finds; an append 0.1 ms, a counter 0.01 ms. The event
               loop stands still meanwhile. One loop with a tenth of the costs can do what the
               document's ten servers can.
    light      the same at a hundredth
    plain      the server as it is, with lambda raised until it is busy

The document does not give the send rate, nor how many requests a back end has outstanding. 100/s
from each sender and two requests show the effect: the server could carry that if it made no visits
in vain, and cannot with them. Mode plain sends as much as the server takes, and has four requests
outstanding: with two, the back ends wait for answers most of the time, whatever lambda is.

What is compared is measured in turns, several times, and the median of each figure counts: the
machine may be slower for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import statistics
import struct
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from ringdove.bench.load import percentile
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import Worker, wait_for_go
from ringdove.client import aio
from ringdove.client.sync import connect
from ringdove.errors import ConnectionClosed, RingdoveError
from ringdove.server import Server
from ringdove.server_config import ServerConfig
from ringdove.stores.embedded import EmbeddedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringdove.controllers.broker import QueueStats
    from ringdove.core.dedup import Appended, Segment
    from ringdove.core.settings import Dequeue
    from ringdove.errors import ClientError
    from ringdove.pending import Pending
    from ringdove.stores.base import Delivery, StripeId, StripeStats

METHODS: tuple[Dequeue, ...] = ("poll", "monitor", "retry", "wake")
RATES = {
    "injected": (10, 20, 50, 100, 200),
    "light": (10, 20, 50, 100, 200),
    "plain": (100, 300, 1_000, 3_000),
}
PAUSES_MS = (50, 100, 200, 500, 1_000, 2_000, 5_000)
#: The store's costs as a share of table I's; 0 for those that it has by itself.
COST_SCALES = {"injected": 0.1, "light": 0.01, "plain": 0.0}
#: Messages per second that each sender sends at most.
SEND_RATES = {"injected": 100, "light": 100, "plain": 1_000}
#: Receives that each back end has outstanding at most.
OUTSTANDING_MAX = {"injected": 2, "light": 2, "plain": 4}

#: How often each cell is measured, in turns with those that it is compared with.
_ROUNDS = 3
_STRIPES = _SENDERS = _BACK_ENDS = 10
_NMAX = 100
_PAUSE_MS = 100
_WAIT_S = 30
_QUEUE = "rds"
#: File in which a server leaves its port.
_PORT = "port"
#: What back ends wait at the end for answers on their way.
_GRACE_S = 0.3
_BODY_BYTES = 1_000
#: What a body begins with: its number, and when it was sent.
_HEAD = struct.Struct(">Qd")
#: An overloaded server may be slow to answer, and is not dead.
_PATIENCE: dict[str, Any] = {"silence_s": 60, "timeout_s": 120}

#: Of a row, what identifies it, and what is counted.
_GIVEN = {"mode", "method", "pause_ms", "lambda_per_s"}
_COUNTED = {"delivered", "lost", "duplicates", "failed"}

#: The costs of table I: a visit, each message that it finds, an append, a look at a counter.
_VISIT_S = 0.020
_MESSAGE_S = 0.001
_APPEND_S = 0.001
_COUNTER_S = 0.000_1
#: Sleeping for less takes much longer than asked.
_SLEEP_S_MIN = 0.001


def run(
    directory: Path | None,
    seconds: float = 4,
    modes: Sequence[str] = ("injected", "light", "plain"),
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """Every method at every lambda, and retry at every pause; `seconds` for each cell."""
    rows: list[dict[str, Any]] = []
    rounds = 1 if quick else _ROUNDS
    for mode in modes:
        for cells in _groups(mode, quick):
            taken: list[list[dict[str, Any]]] = [[] for _ in cells]
            for _ in range(rounds):
                for own, (method, pause_ms, rate) in zip(taken, cells, strict=True):
                    spell_s = min(seconds, 1) if quick else max(seconds, 3 * pause_ms / 1_000)
                    with place(directory) as data:
                        own.append(_cell(data, mode, method, pause_ms, rate, spell_s / rounds))
            rows += map(_sum_up, taken)
    summary: dict[str, Any] = {
        name: sum(row[name] for row in rows) for name in ("lost", "duplicates", "failed")
    }
    for mode in modes:
        found = [row for row in rows if row["mode"] == mode]
        summary |= {f"{mode}_{name}": value for name, value in _compare(found).items()}
    return {"rds": rows, "latency_p50_ms": _latencies(rows), **summary}


def _groups(mode: str, quick: bool) -> Iterator[list[tuple[Dequeue, int, int]]]:
    """Cells that are compared with each other: method, pause and lambda of each."""
    *rates, top = RATES[mode]
    if not quick:
        for rate in rates:
            yield [(method, _PAUSE_MS, rate) for method in METHODS]
    pauses_ms = () if quick else PAUSES_MS
    yield [
        *((method, _PAUSE_MS, top) for method in METHODS),
        *(("retry", pause_ms, top) for pause_ms in pauses_ms if pause_ms != _PAUSE_MS),
    ]


def _sum_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What several rounds of a cell have found: the sum of what is counted, else the median."""
    found = dict(rows[0])
    for name in found.keys() - _GIVEN:
        values = [row[name] for row in rows if row[name] is not None]
        if name in _COUNTED:
            found[name] = sum(values)
        elif values:
            found[name] = round(statistics.median(values), 4)
    return found


def _cell(
    data: Path, mode: str, method: Dequeue, pause_ms: int, rate: int, seconds: float
) -> dict[str, Any]:
    """One method at one lambda on a fresh server."""
    # At first every receiver may visit every stripe in vain.
    outstanding = OUTSTANDING_MAX[mode]
    first_s = _BACK_ENDS * outstanding * _STRIPES * _VISIT_S * COST_SCALES[mode]
    warm_s = max(0.5, 1.5 * pause_ms / 1_000, 1.25 * first_s)
    server = Worker(__name__, "serve", data=str(data), scale=COST_SCALES[mode])
    workers = [server]
    try:
        server.ready()
        url = f"ringdove://127.0.0.1:{(data / _PORT).read_text()}"
        with connect(url, **_PATIENCE) as connection:
            queue = connection.create_queue(
                _QUEUE,
                stripes=_STRIPES,
                durability="memory",
                lease_ms=600_000,
                dequeue=method,
                dequeue_tries=3,
                dequeue_pause_ms=pause_ms,
            )
            spell = {"url": url, "warm_s": warm_s, "seconds": seconds}
            back_ends = Worker(
                __name__, "receive", rate_per_s=rate, outstanding=outstanding, **spell
            )
            workers.append(back_ends)
            senders = Worker(__name__, "send", rate_per_s=SEND_RATES[mode], **spell)
            workers.append(senders)
            back_ends.ready()
            senders.ready()
            back_ends.go()
            senders.go()
            time.sleep(warm_s)
            server.go()
            time.sleep(seconds)
            server.go()
            sent = senders.result()
            received = back_ends.result()
            stats = queue.stats()
        served = server.result()
    finally:
        for worker in workers:
            worker.end()
    return {
        "mode": mode,
        "method": method,
        "pause_ms": pause_ms if method in ("retry", "monitor") else None,
        "lambda_per_s": rate,
        **_figures(sent, received, served, stats, seconds),
    }


def _figures(
    sent: dict[str, Any],
    received: dict[str, Any],
    served: dict[str, Any],
    stats: QueueStats,
    seconds: float,
) -> dict[str, Any]:
    """What senders, back ends and server have counted, as a row of the table."""
    stored = sum(stripe.tail for stripe in stats.stripes.values())
    done = stored - sum(stats.subscriptions["default"])
    visits = served["hits"] + served["misses"]
    return {
        "sent_per_s": round(sent["in_window"] / seconds, 1),
        "delivered_per_s": round(received["in_window"] / seconds, 1),
        # A rate from a handful of messages says little.
        "delivered": received["in_window"],
        "receives_per_s": round(received["asked"] / seconds, 1),
        "visits_per_s": round(visits / served["seconds"], 1),
        "hit_rate": round(served["hits"] / visits, 4) if visits else None,
        "messages_per_hit": (
            round(served["delivered"] / served["hits"], 2) if served["hits"] else None
        ),
        "p50_ms": received["p50_ms"],
        "p99_ms": received["p99_ms"],
        "server_cpu_share": round(served["cpu_s"] / served["seconds"], 2),
        "server_cost_share": round(served["cost_s"] / served["seconds"], 2),
        "back_end_cpu_share": received["cpu_share"],
        # Every accepted message is stored, and none is done that no back end has had.
        "lost": sent["sent"] - stored + max(0, done - received["unique"]),
        "duplicates": received["total"] - received["unique"],
        "failed": sent["failed"] + received["failed"],
    }


def _compare(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the document compares, at the highest lambda."""
    top = max(row["lambda_per_s"] for row in rows)
    rows = [row for row in rows if row["lambda_per_s"] == top]
    usual = {row["method"]: row["delivered_per_s"] for row in rows if _usual(row)}
    best = max((row for row in rows if row["method"] == "retry"), key=itemgetter("delivered_per_s"))
    return {
        "retry_over_poll": _ratio(usual["retry"], usual["poll"]),
        "retry_best_pause_ms": best["pause_ms"],
        "retry_best_over_poll": _ratio(best["delivered_per_s"], usual["poll"]),
        "monitor_over_poll": _ratio(usual["monitor"], usual["poll"]),
        "wake_over_poll": _ratio(usual["wake"], usual["poll"]),
        "wake_over_retry": _ratio(usual["wake"], usual["retry"]),
        "wake_over_retry_best": _ratio(usual["wake"], best["delivered_per_s"]),
    }


def _latencies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median latency of every method, side by side for each mode and lambda."""
    table: dict[tuple[str, int], dict[str, Any]] = {}
    for row in filter(_usual, rows):
        mode, rate = row["mode"], row["lambda_per_s"]
        line = table.setdefault((mode, rate), {"mode": mode, "lambda_per_s": rate})
        line[row["method"]] = row["p50_ms"]
    return list(table.values())


def _usual(row: dict[str, Any]) -> bool:
    """Whether a row belongs to the sweep over lambda, not to that over pauses."""
    return row["pause_ms"] in (None, _PAUSE_MS)


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 2) if other else None


# -- in the server's process ----------------------------------------------------------------------


class CostlyStore(EmbeddedStore):
    """An embedded store with the document's costs, times `scale`."""

    scale = 1.0

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.cost_s = 0.0
        self._owed_s = 0.0

    async def lease(self, *arguments: Any) -> Delivery:
        """See StripeStore."""
        delivery = await super().lease(*arguments)
        found = sum(delivered.run.hi - delivered.run.lo for delivered in delivery.runs)
        self._spend(_VISIT_S + found * _MESSAGE_S)
        return delivery

    def submit_append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> Pending[list[Appended | ClientError]]:
        """See StripeStore."""
        self._spend(_APPEND_S)
        return super().submit_append(stripe, segments, version)

    async def stats(self, stripe: StripeId) -> StripeStats:
        """See StripeStore."""
        self._spend(_COUNTER_S)
        return await super().stats(stripe)

    def _spend(self, cost_s: float) -> None:
        """Have the event loop stand still; small costs are saved up until they can be slept."""
        self.cost_s += self.scale * cost_s
        self._owed_s += self.scale * cost_s
        if self._owed_s >= _SLEEP_S_MIN:
            began_s = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - began_s


def serve(data: str, scale: float) -> dict[str, float]:
    """Serve until standard input ends; answers what was counted between two lines of it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    counts: dict[str, float] = run_loop(_serve(Path(data), scale))
    return counts


async def _serve(data: Path, scale: float) -> dict[str, float]:
    CostlyStore.scale = scale
    store = (CostlyStore if scale else EmbeddedStore)(data / "queues")
    server = Server(ServerConfig(port=0, http=-1), store)
    await server.start()
    (data / _PORT).write_text(str(server.port))
    await asyncio.to_thread(wait_for_go)
    before = _counts(server)
    await asyncio.to_thread(sys.stdin.readline)
    after = _counts(server)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    return {name: after[name] - before[name] for name in after}


def _counts(server: Server) -> dict[str, float]:
    broker = server.native.broker
    return {
        "seconds": time.perf_counter(),
        "cpu_s": time.process_time(),
        "cost_s": broker.store.cost_s if isinstance(broker.store, CostlyStore) else 0.0,
        "hits": broker.dequeuer.hits,
        "misses": broker.dequeuer.misses,
        "delivered": broker.dequeuer.delivered,
    }


# -- in the senders' process ----------------------------------------------------------------------


def send(url: str, rate_per_s: float, warm_s: float, seconds: float) -> dict[str, int]:
    """Send single messages at a steady pace, from each sender one at a time."""
    counts: dict[str, int] = run_loop(_send(url, rate_per_s, warm_s, seconds))
    return counts


async def _send(url: str, rate_per_s: float, warm_s: float, seconds: float) -> dict[str, int]:
    connections = [await aio.connect(url, **_PATIENCE).open() for _ in range(_SENDERS)]
    numbers = itertools.count()
    counts = {"sent": 0, "in_window": 0, "failed": 0}
    began_s = await asyncio.to_thread(wait_for_go)

    async def work(queue: aio.Queue, first: int) -> None:
        due_s = began_s + first / rate_per_s / _SENDERS
        while (now_s := time.time()) < began_s + warm_s + seconds:
            if now_s < due_s:
                await asyncio.sleep(due_s - now_s)
            # A device that was held up goes on from there; it does not catch up.
            due_s = max(due_s, now_s) + 1 / rate_per_s
            head = _HEAD.pack(next(numbers), time.time())
            try:
                await queue.send(head + bytes(_BODY_BYTES - _HEAD.size))
            except RingdoveError:
                counts["failed"] += 1
            else:
                counts["sent"] += 1
                counts["in_window"] += warm_s <= time.time() - began_s < warm_s + seconds

    await asyncio.gather(*(work(c.queue(_QUEUE), n) for n, c in enumerate(connections)))
    for connection in connections:
        await connection.close()
    return counts


# -- in the back ends' process --------------------------------------------------------------------


class BackEnd:
    """Issues receives at Poisson times, without waiting for earlier ones, up to a number."""

    def __init__(self, connection: aio.Connection, seed: int, outstanding_max: int) -> None:
        self._connection = connection
        self._outstanding_max = outstanding_max
        self._queue = connection.queue(_QUEUE)
        self._gaps = random.Random(seed)
        self._outstanding: set[asyncio.Task[None]] = set()
        self._over = False
        self.failed = 0
        #: When each receive was asked; and of each message its number, when sent and when here.
        self.asked: list[float] = []
        self.had: list[tuple[int, float, float]] = []

    async def work(self, rate_per_s: float, until_s: float) -> None:
        """Ask until a time, then give up what is still outstanding."""
        due_s = time.time()
        while due_s < until_s:
            ahead_s = due_s - time.time()
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            if len(self._outstanding) < self._outstanding_max:
                self.asked.append(due_s)
                task = asyncio.create_task(self._receive())
                self._outstanding.add(task)
                task.add_done_callback(self._outstanding.discard)
            due_s += self._gaps.expovariate(rate_per_s)
        if self._outstanding:
            await asyncio.wait(self._outstanding, timeout=_GRACE_S)
        self._over = True
        await self._connection.close()
        await asyncio.gather(*self._outstanding)

    async def _receive(self) -> None:
        try:
            batch = await self._queue.receive(max=_NMAX, wait=_WAIT_S)
            now_s = time.time()
            self.had += [(*_HEAD.unpack_from(body), now_s) for body in batch.bodies()]
            if batch:
                await batch.ack()
        except ConnectionClosed:
            self.failed += not self._over
        except RingdoveError:
            self.failed += 1


def receive(
    url: str, rate_per_s: float, outstanding: int, warm_s: float, seconds: float
) -> dict[str, Any]:
    """Receive with all back ends."""
    counts: dict[str, Any] = run_loop(_receive(url, rate_per_s, outstanding, warm_s, seconds))
    return counts


async def _receive(
    url: str, rate_per_s: float, outstanding: int, warm_s: float, seconds: float
) -> dict[str, Any]:
    back_ends = [
        BackEnd(await aio.connect(url, **_PATIENCE).open(), seed, outstanding)
        for seed in range(_BACK_ENDS)
    ]
    began_s = await asyncio.to_thread(wait_for_go)
    cpu_s = time.process_time()
    from_s, until_s = began_s + warm_s, began_s + warm_s + seconds
    await asyncio.gather(*(back_end.work(rate_per_s, until_s) for back_end in back_ends))
    cpu_s = time.process_time() - cpu_s
    had = [message for back_end in back_ends for message in back_end.had]
    took_ms = [(here - sent) * 1e3 for _, sent, here in had if from_s <= here < until_s]
    return {
        "total": len(had),
        "unique": len({number for number, _, _ in had}),
        "in_window": len(took_ms),
        "asked": sum(from_s <= asked for back_end in back_ends for asked in back_end.asked),
        "p50_ms": percentile(took_ms, 50) if took_ms else None,
        "p99_ms": percentile(took_ms, 99) if took_ms else None,
        "cpu_share": round(cpu_s / (time.time() - began_s), 2),
        "failed": sum(back_end.failed for back_end in back_ends),
    }
