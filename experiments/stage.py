"""A stage for failures: five servers in rings, a steady load, and kills (T3.8, T3.9).

Senders send messages of 30 KB at a fixed rate, whatever becomes of those before; receivers take
what there is and acknowledge it. Both are processes of their own and have a controller each. Every
message is written down when it is sent, acknowledged and received, so what a queue held at any
moment follows from that, without asking servers that are down.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.bench.measure import run_loop
from ringdove.bench.processes import Worker, wait_for_go
from ringdove.client import aio
from ringdove.client.sync import connect
from ringdove.cluster import forming
from ringdove.cluster.layout import Tuning
from ringdove.cluster.local import LocalCluster
from ringdove.cluster.processes import kill
from ringdove.errors import RingdoveError
from ringdove.stores.fabric.cluster import slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ringdove.client.delivery import BaseMessage
    from ringdove.core.ring import Rings
    from ringdove.core.settings import Order

#: The document's store is in memory; so the disk is not waited for.
TUNING = Tuning(fsync="everysec", node_timeout_ms=2_000, memory_bytes=512 * 1024 * 1024)

BODY_BYTES = 30_000
STRIPES = 30

#: Receivers, and the most that each takes at a time: one that holds messages of a server that is
#: gone waits for the take-over before it can acknowledge them; the others go on.
_RECEIVERS, _TAKE = 10, 5

#: Receivers end when they have everything, or nothing has come for so long.
_QUIET_S = 30.0

#: What is leased through a server that dies comes back soon.
_LEASE_MS = 5_000


class Sent(NamedTuple):
    """A message that was sent: when, when that was answered, and on which stripe it is."""

    number: int
    begun_s: float
    ended_s: float
    #: -1: the sender was told an error.
    stripe: int


class Got(NamedTuple):
    """A message that was received."""

    number: int
    stripe: int
    at_s: float


class Record(NamedTuple):
    """What happened on the stage; times are seconds since senders began."""

    sent: list[Sent]
    got: list[Got]
    #: When each kill was done.
    kills_s: list[float]
    #: The shard of each stripe, and all shards there are.
    shards: list[str]
    all_shards: list[str]


@contextmanager
def running(directory: Path, rings: Rings) -> Iterator[LocalCluster]:
    """A cluster for the length of an experiment."""
    cluster = LocalCluster.make(directory, rings, TUNING)
    try:
        cluster.up()
        yield cluster
    finally:
        kill(cluster.running())


class Scene(NamedTuple):
    """How much is sent and how."""

    rate: int
    seconds: float
    #: Sources that are bound to a stripe each; none: any stripe will do.
    keys: int = 0
    slowdown_s: float = 0.4

    @property
    def messages(self) -> int:
        """Messages in all."""
        return round(self.rate * self.seconds)


def play(
    cluster: LocalCluster, name: str, scene: Scene, kills: list[tuple[float, str]],
    watch: Callable[[float], None] = lambda _: None,
) -> Record:  # fmt: skip
    """Send, receive, and kill servers at their time; `watch` is called several times a second.

    When all is sent, the servers are started again, so that what only they and one other held can
    be received.
    """
    with connect(cluster.url) as connection:
        order: Order = "key" if scene.keys else "loose"
        info = connection.create_queue(
            name, stripes=STRIPES, order=order, lease_ms=_LEASE_MS
        ).info()
    workers = [
        Worker(__name__, "send", url=cluster.url, queue=name, scene=list(scene)),
        Worker(__name__, "receive", url=cluster.url, queue=name, count=scene.messages),
    ]
    try:
        for worker in workers:
            worker.ready()
        for worker in reversed(workers):
            worker.go()
        began_s = time.time()
        with ThreadPoolExecutor() as pool:
            # Read from the beginning: what they answer does not fit into a pipe.
            results = [pool.submit(worker.result) for worker in workers]
            kills_s = [_strike(cluster, began_s, at_s, server, watch) for at_s, server in kills]
            _watch_until(began_s + scene.seconds, began_s, watch)
            put_right(cluster, *(server for _, server in kills))
            sent, got = (result.result() for result in results)
        got += _rest(cluster, name)
    finally:
        for worker in workers:
            worker.end()
    zero_s = min(row[1] for row in sent)
    return Record(
        [Sent(n, begun - zero_s, ended - zero_s, stripe) for n, begun, ended, stripe in sent],
        [Got(n, stripe, at - zero_s) for n, stripe, at in got],
        [at_s - zero_s for at_s in kills_s],
        [_shard(cluster, info.id, number) for number in range(STRIPES)],
        list(cluster.blueprint.shards),
    )


def _rest(cluster: LocalCluster, name: str) -> list[Got]:
    """What receivers have left behind: a controller that comes anew looks everywhere."""
    found: list[Got] = []
    with connect(cluster.url) as connection:
        while batch := connection.queue(name).receive(100, wait=_LEASE_MS / 1000 + 1):
            found += [_got(message, time.time()) for message in batch]
            batch.ack()
    return found


def _got(message: BaseMessage, at_s: float) -> Got:
    return Got(int.from_bytes(message.body[:8], "big"), message.id.stripe.number, at_s)


def _strike(
    cluster: LocalCluster, began_s: float, at_s: float, server: str, watch: Callable[[float], None]
) -> float:
    _watch_until(began_s + at_s, began_s, watch)
    cluster.kill(server)
    return time.time()


def _watch_until(until_s: float, began_s: float, watch: Callable[[float], None]) -> None:
    while (now_s := time.time()) < until_s:
        watch(now_s - began_s)
        time.sleep(min(0.25, max(0.0, until_s - time.time())))


def _shard(cluster: LocalCluster, queue_id: int, number: int) -> str:
    slot = slot_of(f"{queue_id:x}.{number}.0".encode())
    rings = cluster.blueprint.rings
    return next(n for n, s in cluster.blueprint.shards.items() if slot in rings.slots(s))


def put_right(cluster: LocalCluster, *servers: str) -> None:
    """Start servers again, and give every master back."""
    for server in servers:
        cluster.restart(server)
    forming.await_settled(cluster.blueprint)
    forming.hand_back(cluster.blueprint)


# -- in the processes of senders and receivers ----------------------------------------------------


def send(url: str, queue: str, scene: list[Any]) -> list[Sent]:
    """One message after the other at a fixed rate."""
    found: list[Sent] = run_loop(_send(url, queue, Scene(*scene)))
    return found


async def _send(url: str, name: str, scene: Scene) -> list[Sent]:
    found: list[Sent] = []
    filler = random.Random(1).randbytes(BODY_BYTES - 8)
    async with aio.connect(url) as connection:
        backend: Any = connection.backend
        backend.enqueuer.slowdown_s = scene.slowdown_s
        queue = connection.queue(name)
        await queue.info()
        await asyncio.to_thread(wait_for_go)

        async def one(number: int) -> None:
            begun_s = time.time()
            key = str(number % scene.keys) if scene.keys else None
            try:
                sent = await queue.send(number.to_bytes(8, "big") + filler, key=key)
            except RingdoveError:
                found.append(Sent(number, begun_s, time.time(), -1))
            else:
                found.append(Sent(number, begun_s, time.time(), sent.stripe.number))

        tasks = []
        began_s = time.monotonic()
        for number in range(scene.messages):
            await asyncio.sleep(max(0.0, began_s + number / scene.rate - time.monotonic()))
            tasks.append(asyncio.create_task(one(number)))
        await asyncio.gather(*tasks)
    return found


def receive(url: str, queue: str, count: int) -> list[Got]:
    """So many messages, or until nothing comes any more."""
    found: list[Got] = run_loop(_receive(url, queue, count))
    return found


async def _receive(url: str, name: str, count: int) -> list[Got]:
    found: list[Got] = []
    numbers: set[int] = set()
    heard_s = time.time()

    async def one(queue: aio.Queue) -> None:
        nonlocal heard_s
        while len(numbers) < count and time.time() - heard_s < _QUIET_S:
            try:
                batch = await queue.receive(_TAKE, wait=0.5)
                now_s = time.time()
                for message in batch:
                    found.append(_got(message, now_s))
                    numbers.add(found[-1].number)
                    heard_s = now_s
                await batch.ack()
            except RingdoveError:
                await asyncio.sleep(0.05)

    async with aio.connect(url) as connection:
        queue = connection.queue(name)
        await queue.info()
        await asyncio.to_thread(wait_for_go)
        heard_s = time.time()
        await asyncio.gather(*(one(queue) for _ in range(_RECEIVERS)))
    return found


# -- what is made of a record ---------------------------------------------------------------------


def per_bin(times_s: list[float], bin_s: float, seconds: float) -> list[float]:
    """How often per second something happened, bin by bin."""
    counts = [0] * round(seconds / bin_s)
    for at_s in times_s:
        if 0 <= at_s < seconds:
            counts[min(len(counts) - 1, int(at_s / bin_s))] += 1
    return [count / bin_s for count in counts]


def lost(record: Record) -> int:
    """Messages that were acknowledged and never received."""
    acknowledged = {sent.number for sent in record.sent if sent.stripe >= 0}
    return len(acknowledged - {got.number for got in record.got})


def lengths(record: Record, at_s: float) -> dict[str, int]:
    """Messages acknowledged and not yet received at a moment, by shard."""
    held = dict.fromkeys(record.all_shards, 0)
    first = {got.number: got for got in sorted(record.got, key=lambda got: got.at_s, reverse=True)}
    for sent in record.sent:
        if sent.stripe >= 0 and sent.ended_s <= at_s:
            got = first.get(sent.number)
            if got is None or got.at_s > at_s:
                held[record.shards[sent.stripe]] += 1
    return held
