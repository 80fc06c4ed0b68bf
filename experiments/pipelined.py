"""Raw sockets with prebuilt requests, so that it is servers that are measured and not clients.

A pipeline has at most two batches outstanding: the server always has the next one before it has
answered the last. Replies of Redis are counted by hiredis and looked at for refusals; those of
memcached are compared with what they must be, byte for byte.
"""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from experiments.beside import ratio
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import StoreUnavailable
from ringdove.pending import run
from ringdove.stores.base import Claim, StripeId
from ringdove.stores.fabric import FabricStore
from ringdove.stores.fabric.wire import Large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HOST = "127.0.0.1"

_OUTSTANDING_MAX = 2
_READ_BYTES = 1 << 20
_LEASE_MS = 600_000
#: Blocks of different content that are sent in turn: Lua keeps one copy of equal strings.
_VARIANTS = 4
_NAME_BYTES = 12
#: Smaller pieces are sent together.
_PIECE_BYTES_MIN = 64 * 1024

#: Its stub knows only tuples of one word.
pack: Any = hiredis.pack_command


class Batch(NamedTuple):
    """Requests that are sent together."""

    pieces: list[bytes]
    #: Replies to wait for: how many of Redis, which of memcached.
    expected: int | bytes
    messages: int


class Pipeline:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._reader = hiredis.Reader()
        self._unread = bytearray()
        self._outstanding: deque[Batch] = deque()

    def put(self, batch: Batch) -> None:
        """Send a batch, after all but the last one before it were answered."""
        while len(self._outstanding) >= _OUTSTANDING_MAX:
            self.take()
        self._outstanding.append(batch)
        for piece in batch.pieces:
            left = memoryview(piece)
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    # A server that cannot send its replies does not read on.
                    readable, _, _ = select.select([self._socket], [self._socket], [])
                    if readable:
                        self._receive()

    def take(self) -> None:
        """Wait for the replies to the oldest batch."""
        expected = self._outstanding.popleft().expected
        if isinstance(expected, bytes):
            while len(self._unread) < len(expected):
                self._receive(wait=True)
            if not self._unread.startswith(expected):
                raise StoreUnavailable(f"memcached answered {bytes(self._unread[:80])!r}.")
            del self._unread[: len(expected)]
            return
        self._reader.feed(bytes(self._unread))
        self._unread.clear()
        for _ in range(expected):
            while (reply := self._reader.gets()) is False:
                self._receive(wait=True)
                self._reader.feed(bytes(self._unread))
                self._unread.clear()
            _check(reply)

    def finish(self) -> None:
        """Wait for all replies."""
        while self._outstanding:
            self.take()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _receive(self, *, wait: bool = False) -> None:
        if wait:
            select.select([self._socket], [], [])
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise StoreUnavailable("The server has hung up.")
        self._unread += data


def _check(reply: Any) -> None:
    """Raise a refusal, also one inside the reply to a transaction."""
    for answer in (reply, reply[-1]) if isinstance(reply, list) and reply else (reply,):
        refused = isinstance(answer, list) and bool(answer) and answer[0] == b"!"
        if refused or isinstance(answer, hiredis.ReplyError):
            raise StoreUnavailable(f"Redis refused: {answer!r}.")


class Server(NamedTuple):
    """What is measured: where it listens, and the processor time it has used."""

    port: int
    cpu_s: Callable[[], float]


def measure(
    servers: Sequence[Server], streams: Sequence[Iterator[Batch]], seconds: float
) -> dict[str, Any]:
    """Messages per second through one pipeline for each stream, and who was busy.

    Streams go to the servers in turn.
    """
    pipelines = [Pipeline(servers[at % len(servers)].port) for at in range(len(streams))]
    try:
        for pipeline, stream in zip(pipelines, streams, strict=True):
            pipeline.put(next(stream))  # Everything is looked up and allocated.
            pipeline.finish()
        server_s = -sum(server.cpu_s() for server in servers)
        client_s = -time.process_time()
        began_s = time.perf_counter()
        done = 0
        while not done or time.perf_counter() - began_s < seconds:
            for pipeline, stream in zip(pipelines, streams, strict=True):
                batch = next(stream)
                pipeline.put(batch)
                done += batch.messages
        for pipeline in pipelines:
            pipeline.finish()
        elapsed_s = time.perf_counter() - began_s
        client_s += time.process_time()
        server_s += sum(server.cpu_s() for server in servers)
    finally:
        for pipeline in pipelines:
            pipeline.close()
    return figures(done, elapsed_s, server_s, client_s)


def figures(done: int, elapsed_s: float, server_s: float, client_s: float) -> dict[str, Any]:
    """What every measurement tells: the rate, and the cores that server and client kept busy."""
    return {
        "per_s": round(done / elapsed_s),
        "server_cpu_share": round(server_s / elapsed_s, 2),
        "client_cpu_share": round(client_s / elapsed_s, 2),
        "per_server_cpu_s": ratio(done, server_s),
    }


class StripeRequests:
    """The very requests of the fabric store for one stripe: append, lease, read, acknowledge.

    They are recorded once, and then sent again with other bodies and offsets. Tokens follow from
    the lease's seed, so they are known.
    """

    def __init__(self, url: str, stripe: StripeId, size: int, count: int) -> None:
        self.count = count
        self._next = count
        made = [Block.build(bodies(size, count, seed), sent_ms=1) for seed in range(_VARIANTS)]
        self._blocks = [bytes(block.buffer) for block in made]
        commands = _recorded(url, stripe, made[0])
        _, self._log, name, _ = commands["HSET"]
        # What comes before and behind the name of a block, which is drawn anew for each.
        self._puts = [
            (pack(("MULTI",)) + pack(("HSET", self._log, name, block))).split(name)
            for block in self._blocks
        ]
        self._append = (pack(commands["append"]) + pack(("EXEC",))).split(name)
        self._lease = pack(commands["lease"])
        self._settle = list(commands["settle"])
        self._find = list(commands["ZRANGEBYLEX"])

    def cycles(self, count: int, *, reading: bool = False) -> Iterator[Batch]:
        """Batches of so many cycles of append, lease and acknowledge, without end.

        With `reading` the bodies are read between the lease and the acknowledgement.
        """
        while True:
            pieces = []
            for _ in range(count):
                name = os.urandom(_NAME_BYTES)
                before, block = self._puts[self._next // self.count % _VARIANTS]
                call, end = self._append
                rest = self._rest(name if reading else None)
                pieces += [before + name, block, call + name + end + self._lease + rest]
            if len(self._blocks[0]) < _PIECE_BYTES_MIN:
                pieces = [b"".join(pieces)]
            # A transaction of two commands has four replies.
            yield Batch(pieces, count * (8 if reading else 6), count * self.count)

    def bare(self) -> Iterator[Batch]:
        """The same blocks put into a stream and trimmed, without functions: no queue, no state."""
        log = f"{self._log}:bare"
        buffers = [pack(("XADD", log, "*", "b", block)) for block in self._blocks]
        trim = pack(("XTRIM", log, "MAXLEN", 0))
        while True:
            for buffer in buffers:
                yield Batch([buffer, trim], 2, self.count)

    def _rest(self, name: bytes | None) -> bytes:
        """The acknowledgement of what was appended last; with the block's name, its reading too."""
        lo, hi = self._next, self._next + self.count
        self._next = hi
        self._settle[-3], self._settle[-2] = lo, hi
        data: bytes = pack(tuple(self._settle))
        if name is not None:
            self._find[2] = b"[" + lo.to_bytes(8)
            data = pack(tuple(self._find)) + pack(("HMGET", self._log, name)) + data
        return data


def bodies(size: int, count: int, seed: int = 0) -> list[bytes]:
    """So many bodies, no two of them alike."""
    dice = random.Random(seed)
    return [dice.randbytes(size) for _ in range(count)]


def _recorded(url: str, stripe: StripeId, block: Block) -> dict[str, tuple[Any, ...]]:
    """What stores send for a block that one appends and another leases and acknowledges."""
    found: dict[str, tuple[Any, ...]] = {}
    stores = [_recording(FabricStore(url), found) for _ in range(2)]

    async def exchange(sender: FabricStore, receiver: FabricStore) -> None:
        await sender.create(stripe, QueueSettings.make(copies=1), 1)
        await sender.append(stripe, [Segment(block)], 1)
        delivery = await receiver.lease(stripe, "default", block.count, _LEASE_MS, 1, 1)
        [leased] = delivery.runs
        claim = Claim(delivery.epoch, leased.run.token, leased.run.lo, leased.run.hi)
        await receiver.acknowledge(stripe, "default", [claim], 1)

    try:
        run(exchange(*stores))
    finally:
        for store in stores:
            run(store.close())
    return found


def _recording(store: FabricStore, found: dict[str, tuple[Any, ...]]) -> FabricStore:
    """A store whose requests are noted by the last word of their functions' names."""
    cluster = store._cluster  # noqa: SLF001  requests as they are sent, not as a copy says
    ask = cluster.ask

    async def recorded(slot: int, attempt: Any, *rest: Any, **named: Any) -> Any:
        for command in attempt() if callable(attempt) else [attempt]:
            name = command[1].rpartition("_")[2] if command[0] == "FCALL" else command[0]
            words = (word.data if isinstance(word, Large) else word for word in command)
            found[name] = tuple(bytes(w) if isinstance(w, memoryview | bytearray) else w
                                for w in words)  # fmt: skip
        return await ask(slot, attempt, *rest, **named)

    cluster.ask = recorded  # type: ignore[method-assign]
    return store
