"""Lost requests and replies, crashing receivers, dying servers: nothing may be lost (B7).

`clients` is the document's first two tests. With a probability p a call of a sender or receiver is
dropped on its way, or its reply is: the caller waits for a while and repeats it. With the same
probability a receiver crashes with a message in its hands, and another takes its place. The
metrics are those of B5, over all queues, and the response time of sends.

`servers` is its third: servers of a fabric are killed at random and start again after a while. The
document's mean times to failure are 100, 1,000 and 10,000 s with 10 s to recovery; here all are
scaled down so that a run takes a minute or two, and so is the number of servers.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from statistics import mean
from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.stage import put_right, running
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import serving
from ringdove.cli.output import watched
from ringdove.client import aio
from ringdove.core.consistency import measure
from ringdove.core.ring import Rings
from ringdove.errors import RingdoveError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ringdove.cluster.local import LocalCluster

    Row = dict[str, Any]

PROBABILITIES = (0.0001, 0.001, 0.01, 0.1)
#: Mean seconds to a server's failure; none: it does not fail.
MTTF_S: tuple[float | None, ...] = (None, 120.0, 40.0, 15.0)
MTTR_S = 3.0

_SERVERS = 5
_SENDERS = _RECEIVERS = 3
_BODY_BYTES = 2_048
_LEASE_MS = 2_000
#: What a caller waits before it takes its call for lost.
_PATIENCE_S = 0.05


class _Network:
    """Drops requests and replies, and crashes receivers, with a probability."""

    def __init__(self, probability: float, seed: int) -> None:
        self._probability = probability
        self._random = random.Random(seed)
        self.dropped: Counter[str] = Counter()

    def happens(self, what: str) -> bool:
        """Whether something goes wrong now."""
        found = self._random.random() < self._probability
        self.dropped[what] += found
        return found

    async def ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a call, repeated until one comes."""
        while True:
            lost = self.happens("call")
            if not (lost and self._random.random() < 0.5):  # Else the request is lost.
                try:
                    answer = await call()
                except RingdoveError as error:
                    # An acknowledgement whose lease has ended is not repeated: the message is back.
                    if not isinstance(error, StoreUnavailable):
                        return None
                    lost = True
                if not lost:
                    return answer
            await asyncio.sleep(_PATIENCE_S)


class _Trace:
    """What senders and receivers of all queues have seen."""

    def __init__(self, queues: int) -> None:
        self.sent: list[list[int]] = [[] for _ in range(queues)]
        self.received: list[list[int]] = [[] for _ in range(queues)]
        self.response_s: list[float] = []
        self.receive_s: list[float] = []

    def metrics(self) -> Row:
        """The metrics of B5, and response times."""
        found = [measure(s, r) for s, r in zip(self.sent, self.received, strict=True)]
        return {
            "messages": sum(one.sent for one in found),
            "lost": sum(one.lost for one in found),
            "duplication_rate": round(mean(one.duplicated / one.sent for one in found), 4),
            "out_of_order_rate": round(mean(one.out_of_order_rate for one in found), 4),
            "displacement": round(mean(one.displacement for one in found), 3),
            "send_ms": round(1000 * mean(self.response_s), 2),
            "receive_ms": round(1000 * mean(self.receive_s), 2),
        }


def run(*, quick: bool = False) -> dict[str, Any]:
    """Both parts; see the module."""
    queues, messages = (2, 20) if quick else (20, 100)
    probabilities = PROBABILITIES[-1:] if quick else (0.0, *PROBABILITIES)
    mttfs: tuple[float | None, ...] = (5.0,) if quick else MTTF_S
    seconds = 10.0 if quick else 60.0
    with place(None) as data, running(data / "cluster", Rings(_SERVERS)) as cluster:
        with serving(data / "unused", "--store", cluster.url) as server:
            clients = [
                {"probability": p, **run_loop(_clients(server.url, f"p{at}-", p, queues, messages))}
                for at, p in enumerate(watched(probabilities, "clients"))
            ]
        servers = [
            {"mttf_s": mttf_s, **_servers(cluster, f"m{at}-", mttf_s, seconds, queues)}
            for at, mttf_s in enumerate(watched(mttfs, "servers"))
        ]
    return {
        "clients": clients,
        "servers": servers,
        "beside": _beside(clients, servers),
        "mttr_s": MTTR_S,
    }


async def _clients(url: str, prefix: str, probability: float, queues: int, messages: int) -> Row:
    """Lost requests and replies, and crashing receivers."""
    network = _Network(probability, seed=1)
    trace = _Trace(queues)
    async with aio.connect(url) as connection:
        for at in range(queues):
            await connection.create_queue(f"{prefix}{at}", lease_ms=_LEASE_MS)
        done = [asyncio.Event() for _ in range(queues)]
        total = _SENDERS * messages
        await asyncio.gather(
            *(
                _send(connection.queue(f"{prefix}{at}"), network, trace, at, first, messages, 0.0)
                for at in range(queues)
                for first in range(_SENDERS)
            ),
            *(
                _receive(connection.queue(f"{prefix}{at}"), network, trace, at, done[at], total)
                for at in range(queues)
                for _ in range(_RECEIVERS)
            ),
        )
    return {**trace.metrics(), "calls_dropped": network.dropped["call"],
            "receivers_crashed": network.dropped["crash"]}  # fmt: skip


async def _send(
    queue: aio.Queue, network: _Network, trace: _Trace, at: int, first: int, messages: int,
    pause_s: float,
) -> None:  # fmt: skip
    """One sender: numbers that no other has, each until it is answered."""
    for step in range(messages):
        number = first + step * _SENDERS
        trace.sent[at].append(number)
        body = number.to_bytes(8, "big") + bytes(_BODY_BYTES - 8)
        began_s = time.monotonic()
        await network.ask(lambda body=body: queue.send(body))  # type: ignore[misc]
        trace.response_s.append(time.monotonic() - began_s)
        await asyncio.sleep(pause_s)


async def _receive(
    queue: aio.Queue, network: _Network, trace: _Trace, at: int, done: asyncio.Event, total: int
) -> None:
    """One receiver, and whoever takes its place when it crashes: until all messages have come."""
    while not done.is_set():
        began_s = time.monotonic()
        batch = await network.ask(lambda: queue.receive(1, wait=0.2))
        if not batch:
            continue
        trace.receive_s.append(time.monotonic() - began_s)
        [message] = batch
        number = int.from_bytes(message.body[:8], "big")
        if network.happens("crash"):
            continue
        trace.received[at].append(number)
        await network.ask(batch.ack)
        if len(set(trace.received[at])) >= total:
            done.set()


# -- servers --------------------------------------------------------------------------------------


class _Reaper:
    """Kills servers at random times, and starts them again, one after the other."""

    def __init__(self, cluster: LocalCluster, mttf_s: float | None) -> None:
        self._cluster = cluster
        self._mttf_s = mttf_s
        self._enough = threading.Event()
        self._random = random.Random(1)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.kills = 0
        self._thread.start()

    def _work(self) -> None:
        names = self._cluster.blueprint.rings.names
        while self._mttf_s is not None:
            # The next failure of any of so many servers.
            if self._enough.wait(self._random.expovariate(len(names) / self._mttf_s)):
                return
            victim = self._random.choice(names)
            self._cluster.kill(victim)
            self.kills += 1
            self._enough.wait(MTTR_S)
            put_right(self._cluster, victim)

    def stop(self) -> None:
        """Kill no more, when all servers are back."""
        self._enough.set()
        self._thread.join()


def _servers(
    cluster: LocalCluster, prefix: str, mttf_s: float | None, seconds: float, queues: int
) -> Row:
    trace = _Trace(queues)
    reaper = _Reaper(cluster, mttf_s)
    try:
        run_loop(_serve(cluster.url, prefix, trace, queues, seconds, reaper))
    finally:
        reaper.stop()
    return {**trace.metrics(), "kills": reaper.kills}


async def _serve(
    url: str, prefix: str, trace: _Trace, queues: int, seconds: float, reaper: _Reaper
) -> None:
    """Senders that pause, as the document's do, for a given time; then everything is received."""
    pause_s = 0.5
    messages = round(seconds / pause_s)
    network = _Network(0.0, seed=1)
    async with aio.connect(url) as connection:
        for at in range(queues):
            await network.ask(
                lambda at=at: connection.create_queue(  # type: ignore[misc]
                    f"{prefix}{at}", lease_ms=_LEASE_MS, stripes=5
                )
            )
        done = [asyncio.Event() for _ in range(queues)]
        receivers = [
            asyncio.create_task(
                _receive(
                    connection.queue(f"{prefix}{at}"), network, trace, at, done[at],
                    _SENDERS * messages,
                )
            )
            for at in range(queues)
            for _ in range(_RECEIVERS)
        ]  # fmt: skip
        await asyncio.gather(
            *(
                _send(
                    connection.queue(f"{prefix}{at}"), network, trace, at, first, messages, pause_s
                )
                for at in range(queues)
                for first in range(_SENDERS)
            )
        )
        await asyncio.to_thread(reaper.stop)
        await asyncio.gather(*receivers)


def _beside(clients: list[Row], servers: list[Row]) -> list[Row]:
    worst = clients[-1]
    return [
        beside("messages lost, calls dropped and receivers crashing", 0,
               sum(row["lost"] for row in clients)),
        beside("messages lost, servers dying", 0, sum(row["lost"] for row in servers)),
        beside(f"duplicates per message, p = {worst['probability']}", "rises at 0.1 only",
               worst["duplication_rate"]),
        beside("duplicates per message, lower p", "about constant",
               max((row["duplication_rate"] for row in clients[:-1]), default=None)),
        beside("sends while servers die", "not much slower",
               f"{servers[0]['send_ms']} ms to {servers[-1]['send_ms']} ms"),
    ]  # fmt: skip


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """Response times and metrics, by probability and by mean time to failure."""
    from ringdove.bench.plots import figure_of, save

    figure, panels = figure_of(4, "Faults: nothing is lost (B7)", columns=4)
    parts = (
        (panels[:2], result["clients"], "probability", "p of a dropped call or a crash"),
        (panels[2:], result["servers"], "mttf_s", f"mean time to failure (s), {MTTR_S:.0f} s down"),
    )
    for (times, metrics), rows, column, label in parts:
        x = range(len(rows))
        for name in ("send_ms", "receive_ms"):
            times.plot(x, [row[name] for row in rows], marker="o", label=name.removesuffix("_ms"))
        for name in ("duplication_rate", "out_of_order_rate", "displacement"):
            values = [row[name] for row in rows]
            metrics.plot(x, values, marker="o", label=name.replace("_", " "))
        lost = sum(row["lost"] for row in rows)
        times.set_title("mean response time")
        metrics.set_title(f"consistency; lost: {lost} of {sum(r['messages'] for r in rows):,}")
        times.set_ylabel("ms")
        metrics.set_ylabel("rate, or messages of displacement")
        metrics.set_yscale("symlog", linthresh=1e-3)
        times.set_ylim(bottom=0)
        for axes in (times, metrics):
            names = ["never" if row[column] is None else f"{row[column]:g}" for row in rows]
            axes.set_xticks(list(x), names)
            axes.set_xlabel(label)
    save(figure, panels, path)
