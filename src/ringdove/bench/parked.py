"""`ringdove bench parked`: what thousands of waiting receivers cost a server (T4.1, T4.2).

Ten thousand receivers, each on a TCP connection of its own, wait at a hundred queues for ten
minutes. While nothing happens, the server should do next to nothing; then messages are sent one
after the other to queues chosen at random, and each should reach a waiting receiver as fast as if
that were alone. The receiver acknowledges it and waits again. A hundredth and a tenth of the
receivers, on servers of their own, show how the costs grow.

The receivers speak frames themselves: thousands of whole clients would measure the clients. They
ping as often as the server asks for, spread evenly; that is part of what idleness costs.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from typing import TYPE_CHECKING, Any, cast

from ringdove.bench.load import percentile
from ringdove.bench.measure import OTHER_FILES, open_files, place, run_loop
from ringdove.bench.processes import ServerProcess, Worker, serving, wait_for_go
from ringdove.client import aio
from ringdove.client.address import parse
from ringdove.client.sync import connect
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.protocol import frames, messages
from ringdove.protocol.messages import Verb

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.protocol.frames import Frame

_PER_QUEUE = 100
_WAIT_S = 600
_CONNECTING_MAX = 100
#: Seconds between two rounds of pings, each for a few of the receivers.
_PING_STEP_S = 0.1
#: Seconds after which a message that reached nobody is taken for lost.
_LOST_S = 10
_NUMBER = struct.Struct(">Q")


def run(
    directory: Path | None,
    receivers: int = 10_000,
    seconds: float = 10,
    sends: int = 500,
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """Park receivers, watch the server idle for `seconds`, then send. See the module."""
    if quick:
        receivers, seconds, sends = min(receivers, 500), min(seconds, 1), min(sends, 100)
    counts = [receivers] if quick else [max(1, receivers // 100), receivers // 10, receivers]
    rows = []
    with open_files(receivers + OTHER_FILES):
        for count in counts:
            with place(directory) as data, serving(data / "queues") as server:
                rows.append(_measure(server, count, seconds, sends))
    return {
        "parked": rows,
        "idle_cpu_share": rows[-1]["idle_cpu_share"],
        "kb_per_receiver": rows[-1]["kb_per_receiver"],
        "p50_over_few_receivers": round(rows[-1]["p50_ms"] / rows[0]["p50_ms"], 2),
        **{name: sum(row[name] for row in rows) for name in ("lost", "left", "failed")},
    }


def _measure(server: ServerProcess, receivers: int, seconds: float, sends: int) -> dict[str, Any]:
    queues = [f"parked-{number}" for number in range(-(-receivers // _PER_QUEUE))]
    with connect(server.url) as connection:
        for name in queues:
            connection.create_queue(name, durability="memory")
        before_bytes = server.resident_bytes()
        worker = Worker(
            __name__, "park", url=server.url, receivers=receivers, queues=queues, sends=sends
        )
        try:
            worker.ready()
            grown_bytes = server.resident_bytes() - before_bytes
            cpu_s, began_s = server.cpu_s(), time.perf_counter()
            time.sleep(seconds)
            idle_share = (server.cpu_s() - cpu_s) / (time.perf_counter() - began_s)
            worker.go()
            found: dict[str, Any] = worker.result()
        finally:
            worker.end()
        stats = [connection.queue(name).stats() for name in queues]
    return {
        "receivers": receivers,
        "queues": len(queues),
        "park_s": found.pop("park_s"),
        "server_mb": round(grown_bytes / 1e6, 1),
        "kb_per_receiver": round(grown_bytes / 1e3 / receivers, 1),
        "idle_cpu_share": round(idle_share, 4),
        **found,
        # Messages that were sent and are not done: delivered, but not acknowledged.
        "left": sum(sum(state.subscriptions[DEFAULT_SUBSCRIPTION]) for state in stats),
    }


# -- in the receivers' process --------------------------------------------------------------------


class Hall:
    """What all receivers of the process share."""

    def __init__(self) -> None:
        self.scratch = bytearray(frames.SCRATCH_BYTES)
        self.idle_s = 1.0
        self.failed = 0
        self.closing = False
        #: By number of a message on its way: done when somebody has it, with the time.
        self.awaited: dict[int, asyncio.Future[float]] = {}


class Receiver(asyncio.BufferedProtocol):
    """One receiver: says HELLO, then has one RECEIVE outstanding for ever."""

    def __init__(self, hall: Hall, queue: str) -> None:
        self._hall = hall
        self._decoder = frames.FrameDecoder(hall.scratch)
        self._transport: asyncio.Transport | None = None
        ask = messages.Receive(queue, DEFAULT_SUBSCRIPTION, 1, _WAIT_S, None)
        self._ask = messages.encode(ask)
        self._number = 0
        self._receiving = 0
        self.parked = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. The answer to the ping says that the server has taken the receive."""
        self._transport = cast("asyncio.Transport", transport)
        hello = messages.Hello(messages.PROTOCOL_VERSION, "ringdove bench")
        self._write(Verb.HELLO, messages.encode(hello))
        self._receiving = self._write(Verb.RECEIVE, self._ask)
        self.ping()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio."""
        self._transport = None
        self._fail()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """See asyncio."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        for frame in self._decoder.wrote(nbytes):
            self._take(frame)

    def ping(self) -> None:
        """Say that this receiver lives."""
        self._write(Verb.PING, b"")

    def close(self) -> None:
        """Give up."""
        if self._transport is not None:
            self._transport.close()

    def _take(self, frame: Frame) -> None:
        if frame.verb != Verb.REPLY:
            self._fail()
        elif frame.number == self._receiving:
            self._received(frame)
        elif frame.number == 1:
            welcome: messages.Welcome = messages.decode(messages.Welcome, frame.meta)
            self._hall.idle_s = welcome.idle_s
        elif not self.parked.done():
            self.parked.set_result(None)

    def _received(self, frame: Frame) -> None:
        now_s = time.perf_counter()
        runs: list[messages.WireRun] = messages.decode(list[messages.WireRun], frame.meta)
        for block in frames.blocks_of(frame, sum(run.blocks for run in runs)):
            for body in block.bodies():
                awaited = self._hall.awaited.pop(_NUMBER.unpack(body)[0], None)
                if awaited is not None and not awaited.done():
                    awaited.set_result(now_s)
        if runs:
            settle = messages.Settle([run.receipt for run in runs])
            self._write(Verb.ACKNOWLEDGE, messages.encode(settle))
        self._receiving = self._write(Verb.RECEIVE, self._ask)

    def _write(self, verb: Verb, meta: bytes) -> int:
        self._number += 1
        if self._transport is not None:
            self._transport.write(frames.join([frames.encode(verb, self._number, meta)]))
        return self._number

    def _fail(self) -> None:
        if not self._hall.closing:
            self._hall.failed += 1
            if not self.parked.done():
                self.parked.set_result(None)


def park(url: str, receivers: int, queues: list[str], sends: int) -> dict[str, Any]:
    """Park receivers, and when told, send messages to them."""
    found: dict[str, Any] = run_loop(_park(url, receivers, queues, sends))
    return found


async def _park(url: str, receivers: int, queues: list[str], sends: int) -> dict[str, Any]:
    hall = Hall()
    began_s = time.perf_counter()
    parked = await _connect_all(hall, url, receivers, queues)
    park_s = time.perf_counter() - began_s
    pinging = asyncio.create_task(_keep_pinging(hall, parked))
    async with aio.connect(url) as connection:
        handles = [connection.queue(name) for name in queues]
        await asyncio.to_thread(wait_for_go)
        took_ms = [await _deliver(hall, random.choice(handles), n) for n in range(sends)]
        await asyncio.sleep(_PING_STEP_S)  # For the last acknowledgement.
    hall.closing = True
    pinging.cancel()
    for receiver in parked:
        receiver.close()
    arrived = [ms for ms in took_ms if ms is not None]
    return {
        "park_s": round(park_s, 2),
        "sends": sends,
        "p50_ms": percentile(arrived, 50),
        "p99_ms": percentile(arrived, 99),
        "lost": sends - len(arrived),
        "failed": hall.failed,
    }


async def _connect_all(hall: Hall, url: str, receivers: int, queues: list[str]) -> list[Receiver]:
    """Connect all receivers, a few at a time, and wait until the server holds them."""
    endpoint = parse(url).endpoints[0]
    loop = asyncio.get_running_loop()
    parked: list[Receiver] = []

    async def connect_one(number: int) -> None:
        queue = queues[number % len(queues)]
        _, receiver = await loop.create_connection(
            lambda: Receiver(hall, queue), endpoint.host, endpoint.port
        )
        await receiver.parked
        parked.append(receiver)

    for first in range(0, receivers, _CONNECTING_MAX):
        last = min(first + _CONNECTING_MAX, receivers)
        await asyncio.gather(*(connect_one(number) for number in range(first, last)))
    return parked


async def _keep_pinging(hall: Hall, receivers: list[Receiver]) -> None:
    """Have each receiver ping once per `idle_s`, a few at a time."""
    at = due = 0.0
    while True:
        await asyncio.sleep(_PING_STEP_S)
        due += len(receivers) * _PING_STEP_S / hall.idle_s
        while at < due:
            receivers[int(at) % len(receivers)].ping()
            at += 1


async def _deliver(hall: Hall, queue: aio.Queue, number: int) -> float | None:
    """Milliseconds from a send to the arrival at a receiver; None if it did not arrive."""
    arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    hall.awaited[number] = arrived
    began_s = time.perf_counter()
    await queue.send(_NUMBER.pack(number))
    try:
        return (await asyncio.wait_for(arrived, _LOST_S) - began_s) * 1e3
    except TimeoutError:
        return None
