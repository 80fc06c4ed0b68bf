"""What levels of brokers save: bytes on the backbone, and delay (M4, the document's own claim).

A far region is 50 ms away. With one level its consumers read from the core across that distance;
with two, from a broker in their region that pulls from the core; with three, from one behind
another such broker, half of the way each. Each consumer has a subscription of its own and gets
every message. Backbone bytes are those that left the core's side for the region, per message; the
delay of a message is from its send to the consumer, and `from_region_ms` what of it is left after
the way itself.

`hop` compares what a relay takes in with what a consumer does that looks at every message: both
read the same backlog from the same core, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import ringdove
from experiments.beside import beside, ratio
from experiments.pipelined import HOST
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import Worker, serving, wait_for_go
from ringdove.cli.output import watched
from ringdove.client.remote import RemoteBackend
from ringdove.cluster.processes import free_ports
from ringdove.errors import RingdoveError
from ringdove.stores.base import Start

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.bench.processes import ServerProcess
    from ringdove.client.streaming import RemoteStream

    Row = dict[str, Any]

LEVELS = (1, 2, 3)
CONSUMERS = (1, 10, 100, 1_000)
FAR_MS = 50

_QUEUE = "readings"
_BODY_BYTES = 1_000
_MESSAGES, _PAUSE_S = 20, 0.2
_BACKLOG = 3_000_000
_PATIENCE_S = 120


def run(*, quick: bool = False) -> dict[str, Any]:
    """Every number of levels with every number of consumers; and one hop."""
    consumers = (1, 5) if quick else CONSUMERS
    messages = 5 if quick else _MESSAGES
    points = [(levels, count) for count in consumers for levels in LEVELS]
    rows = [_point(levels, count, messages) for levels, count in watched(points, "levels")]
    hop = [_hop(50_000 if quick else _BACKLOG) for _ in watched(range(1 if quick else 3), "hop")]
    best = max(hop, key=lambda row: row["relay_over_consumer"])
    return {"tiers": rows, "hop": hop, "beside": _beside(rows, best)}


def _beside(rows: list[Row], hop: Row) -> list[Row]:
    by = {(row["levels"], row["consumers"]): row for row in rows}
    few, many = min(r["consumers"] for r in rows), max(r["consumers"] for r in rows)
    grows = ratio(by[3, many]["backbone_bytes"], by[3, few]["backbone_bytes"])
    saved = ratio(by[1, many]["backbone_bytes"], by[3, many]["backbone_bytes"])
    return [
        beside(f"3 levels: backbone bytes, {many} consumers over {few}", 1, grows),
        beside(f"{many} consumers: backbone bytes, 1 level over 3", "not measured", saved),
        beside(
            "messages taken in, relay over consumer", "at least 0.7", hop["relay_over_consumer"]
        ),
    ]


# -- delay and backbone ---------------------------------------------------------------------------


class _Region:
    """Brokers up to a far region, and the links between them."""

    def __init__(self, data: Path, levels: int, stack: ExitStack) -> None:
        self._stack = stack
        self.core = stack.enter_context(serving(data / "core"))
        self._links: list[Worker] = []
        link_ms = FAR_MS / max(1, levels - 1)
        upstream = self._far(self.core, link_ms)
        for level in range(1, levels):
            broker = stack.enter_context(
                serving(
                    data / f"level{level}", "--level", str(level), "--upstream", upstream,
                    "--name", f"level{level}",
                )
            )  # fmt: skip
            last = level == levels - 1
            upstream = broker.url if last else self._far(broker, link_ms)
        #: Where the region's consumers connect.
        self.url = upstream

    def _far(self, broker: ServerProcess, link_ms: float) -> str:
        [port] = free_ports(1, HOST)
        target = int(broker.url.rpartition(":")[2])
        link = Worker(
            "experiments.far_link", "run", port=port, target=target, delay_s=link_ms / 1e3
        )
        self._stack.callback(link.end)
        link.ready()
        self._links.append(link)
        return f"ringdove://{HOST}:{port}"

    def backbone_bytes(self) -> int:
        """What the first link has carried towards the region; ends the links."""
        for link in self._links:
            link.go()
        carried = [link.result() for link in self._links]
        return int(carried[0]["out"])


def _point(levels: int, consumers: int, messages: int) -> Row:
    with place(None) as data, ExitStack() as stack:
        region = _Region(data, levels, stack)
        with ringdove.connect(region.core.url) as core:
            queue = core.create_queue(_QUEUE, order="strict")
            queue.send(b"first")  # So that every copy is there before the consumers are.
            worker = Worker(
                __name__, "consume", url=region.url, consumers=consumers, messages=messages
            )
            stack.callback(worker.end)
            worker.ready()
            worker.go()
            for _ in range(messages):
                queue.send(b"%020.6f" % time.time() + bytes(_BODY_BYTES - 20))
                time.sleep(_PAUSE_S)
            delays_ms = sorted(worker.result(_PATIENCE_S))
        carried = region.backbone_bytes()
    mean_ms = sum(delays_ms) / len(delays_ms)
    return {
        "levels": levels,
        "consumers": consumers,
        "backbone_bytes": round(carried / messages),
        "delay_ms": round(mean_ms, 1),
        "p99_ms": round(delays_ms[int(0.99 * len(delays_ms))], 1),
        "from_region_ms": round(mean_ms - FAR_MS, 1),
    }


def consume(*, url: str, consumers: int, messages: int) -> list[float]:
    """In a worker: the delay of every message at every consumer, in milliseconds."""
    delays: list[float] = run_loop(_consume(url, consumers, messages))
    return delays


async def _consume(url: str, consumers: int, messages: int) -> list[float]:
    # The first one alone: it takes the place of the subscription `default`.
    streams = [await _open(url, 0)]
    streams += await asyncio.gather(*(_open(url, number) for number in range(1, consumers)))
    await asyncio.to_thread(wait_for_go)
    found = await asyncio.gather(*(_take(stream, messages) for stream in streams))
    return [delay_ms for delays in found for delay_ms in delays]


async def _open(url: str, number: int) -> RemoteStream:
    backend = RemoteBackend(url, connect_s=_PATIENCE_S, timeout_s=_PATIENCE_S)
    await backend.open()
    async with asyncio.timeout(_PATIENCE_S):
        while not await _has_come(backend):  # noqa: ASYNC110  it is another process
            await asyncio.sleep(0.1)
    await backend.subscribe(_QUEUE, f"consumer{number}", Start("latest"))
    return await backend.stream(_QUEUE, f"consumer{number}", b"%d" % number, {}, 60_000)


async def _has_come(backend: RemoteBackend) -> bool:
    """Whether the queue is there, with its first message, done or not."""
    try:
        stripes = (await backend.queue_stats(_QUEUE)).stripes
    except RingdoveError:
        return False
    return any(stats.tail for stats in stripes.values())


async def _take(stream: RemoteStream, messages: int) -> list[float]:
    delays: list[float] = []
    while len(delays) < messages:
        streamed = await stream.next()
        assert streamed is not None
        now_s = time.time()
        delays += [1e3 * (now_s - float(body[:20])) for body in streamed.block.bodies()]
        await stream.acknowledge(streamed.stripe, streamed.block.end)
    return delays


# -- one hop --------------------------------------------------------------------------------------


def _hop(backlog: int) -> Row:
    """Messages per second that a relay and a consumer take from one core, in turns."""
    with (
        place(None) as data,
        serving(data / "core") as core,
        ringdove.connect(core.url) as near,
    ):
        queue = near.create_queue(_QUEUE, order="strict")
        queue.subscribe("consumer", start="earliest", keep_default=True)
        with queue.producer() as producer:
            for number in range(backlog):
                producer.send(b"%0100d" % number)
        consumer_s = _consumer_s(queue, backlog)
        flags = ("--level", "1", "--upstream", core.url, "--name", "edge")
        with serving(data / "edge", *flags) as edge, ringdove.connect(edge.url) as far:
            relay_s = _relay_s(far, backlog)
    return {
        "messages": backlog,
        "consumer_per_s": round(backlog / consumer_s),
        "relay_per_s": round(backlog / relay_s),
        "relay_over_consumer": ratio(consumer_s, relay_s),
    }


def _consumer_s(queue: ringdove.Queue, backlog: int) -> float:
    began_s = time.perf_counter()
    count = 0
    with queue.stream("consumer") as stream:
        for batch in stream:
            for message in batch:
                count += len(message.body) == 100
            if count == backlog:
                break
    return time.perf_counter() - began_s


def _relay_s(far: ringdove.Connection, backlog: int) -> float:
    """From when the relay's broker serves, which is when its relay begins."""
    began_s = time.perf_counter()
    while True:
        try:
            if far.queue(_QUEUE).stats().messages >= backlog:
                return time.perf_counter() - began_s
        except RingdoveError:
            pass
        time.sleep(0.01)


def plot(result: dict[str, Any], path: Path) -> None:
    """Backbone bytes and delay, by consumers."""
    from ringdove.bench.plots import figure_of, grouped, line, save

    figure, panels = figure_of(2, "Levels of brokers before a region 50 ms away (M4)")
    for axes, name, text in zip(
        panels,
        ("backbone_bytes", "delay_ms"),
        ("bytes on the backbone per message", "mean delay in ms"),
        strict=True,
    ):
        for number, (levels, own) in enumerate(grouped(result["tiers"], "levels").items()):
            line(axes, own, "consumers", name, f"{levels} levels", number)
        axes.set_title(text)
        axes.set_xlabel("consumers in the region")
        axes.set_xscale("log")
    panels[0].set_yscale("log")
    save(figure, panels, path)
