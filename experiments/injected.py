"""The document's queue on a real server: service times and failures injected around it (V3).

Messages come at Poisson times. A thread of the sender takes an exponential time for one and then
sends it; a thread of the receiver receives one, takes an exponential time, and acknowledges it, or
gives it back at once if its delivery is to fail. Threads are tasks of one event loop; the queue
between them is the real one. Several scenes run at once, each on a queue of its own, in a process
beside the server's.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import Worker, serving
from ringdove.client import aio

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHEN = struct.Struct(">dd")
#: Seconds that a receiver waits before it looks whether the scene is over.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One queue and its load."""

    rate_per_s: float
    broker_threads: int
    broker_s: float
    reliability: float = 1.0
    #: None: messages are sent as they come.
    sender_threads: int | None = None
    sender_s: float = 0.0
    seed: int = 0


def play(scenes: Sequence[Scene], seconds: float, warm_s: float) -> list[dict[str, Any]]:
    """Run scenes at once on a fresh server; what was measured after a warm-up, for each."""
    with place(None) as data, serving(data) as server:
        worker = Worker(
            __name__,
            "perform",
            url=server.url,
            scenes=[asdict(scene) for scene in scenes],
            seconds=seconds,
            warm_s=warm_s,
        )
        try:
            answer = worker.result()
        finally:
            worker.end()
    found: list[dict[str, Any]] = answer["scenes"]
    return found


# -- in the clients' process ----------------------------------------------------------------------


def perform(
    url: str, scenes: list[dict[str, Any]], seconds: float, warm_s: float
) -> dict[str, Any]:
    """Play all scenes."""
    return {"scenes": run_loop(_perform(url, [Scene(**s) for s in scenes], seconds, warm_s))}


async def _perform(
    url: str, scenes: list[Scene], seconds: float, warm_s: float
) -> list[dict[str, Any]]:
    acts = []
    for number, scene in enumerate(scenes):
        connection = await aio.connect(url).open()
        name = f"scene-{number}"
        await connection.create_queue(name, durability="memory", lease_ms=600_000)
        acts.append(_Act(connection, connection.queue(name), scene))
    begun_s = time.monotonic()
    window = (begun_s + warm_s, begun_s + warm_s + seconds)
    return list(await asyncio.gather(*(act.run(*window) for act in acts)))


class _Act:
    """One scene while it is played."""

    def __init__(self, connection: aio.Connection, queue: aio.Queue, scene: Scene) -> None:
        self._connection = connection
        self._queue = queue
        self._scene = scene
        self._chance = random.Random(scene.seed)
        self._produced: asyncio.Queue[float] = asyncio.Queue()
        self._until_s = 0.0
        self._sends: set[asyncio.Task[None]] = set()
        #: When deliveries that failed began to wait again, by the message's first moment.
        self._again_s: dict[float, float] = {}
        #: When each delivery ended, and how long it took from the message's first moment.
        self._delivered: list[tuple[float, float]] = []
        #: Spans of time: waiting at the sender and in the queue, and being served at both.
        self._waited: list[tuple[float, float]] = []
        self._sending: list[tuple[float, float]] = []
        self._serving: list[tuple[float, float]] = []

    async def run(self, from_s: float, until_s: float) -> dict[str, Any]:
        self._until_s = until_s
        senders = [self._send_some() for _ in range(self._scene.sender_threads or 0)]
        receivers = [self._receive_some() for _ in range(self._scene.broker_threads)]
        tasks = [asyncio.create_task(work) for work in (*senders, *receivers)]
        await self._produce()
        for task in tasks[: len(senders)]:
            task.cancel()
        await asyncio.gather(*tasks, *self._sends, return_exceptions=True)
        await self._connection.close()
        return self._figures(from_s, until_s)

    async def _produce(self) -> None:
        due_s = time.monotonic()
        while due_s < self._until_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if self._scene.sender_threads is None:
                # On its own: an open load does not wait for answers.
                task = asyncio.create_task(self._send(due_s))
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
            else:
                self._produced.put_nowait(due_s)
            due_s += self._chance.expovariate(self._scene.rate_per_s)

    async def _send(self, at_s: float) -> None:
        await self._queue.send(_WHEN.pack(at_s, time.monotonic()))

    async def _send_some(self) -> None:
        while True:
            at_s = await self._produced.get()
            begun_s = time.monotonic()
            self._waited.append((at_s, begun_s))
            await asyncio.sleep(self._chance.expovariate(1 / self._scene.sender_s))
            self._sending.append((begun_s, time.monotonic()))
            await self._send(at_s)

    async def _receive_some(self) -> None:
        """Until the time is over."""
        while time.monotonic() < self._until_s:
            batch = await self._queue.receive(max=1, wait=_LOOK_S)
            for message in batch:
                begun_s = time.monotonic()
                at_s, sent_s = _WHEN.unpack(message.body)
                self._waited.append((self._again_s.pop(at_s, sent_s), begun_s))
                await asyncio.sleep(self._chance.expovariate(1 / self._scene.broker_s))
                ended_s = time.monotonic()
                self._serving.append((begun_s, ended_s))
                if self._chance.random() < self._scene.reliability:
                    self._delivered.append((ended_s, ended_s - at_s))
                    await message.ack()
                else:
                    self._again_s[at_s] = ended_s
                    await message.release(0)

    def _figures(self, from_s: float, until_s: float) -> dict[str, Any]:
        """Means over the window, by the names that the simulation has for them."""
        span_s = until_s - from_s

        def level(spans: list[tuple[float, float]]) -> float:
            return (
                sum(
                    max(0.0, min(end_s, until_s) - max(begin_s, from_s)) for begin_s, end_s in spans
                )
                / span_s
            )

        times_s = [took_s for ended_s, took_s in self._delivered if from_s <= ended_s < until_s]
        scene = self._scene
        ordered = sorted(times_s)
        return {
            "delivered": len(times_s),
            "delivery_ms": 1e3 * sum(times_s) / max(1, len(times_s)),
            "p99_ms": 1e3 * ordered[int(0.99 * len(ordered))] if ordered else 0.0,
            "waiting": level(self._waited),
            "sender_utilisation": level(self._sending) / (scene.sender_threads or 1),
            "broker_utilisation": level(self._serving) / scene.broker_threads,
        }
