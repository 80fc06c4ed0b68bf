"""A network that harms what passes: a TCP proxy that understands frames.

    with BadNetwork(server.port) as network:
        network.harm = Chance(seed=1, drop=0.1, corrupt=0.1)
        with ringdove.connect(network.url) as rd: ...

`harm` looks at every frame and names a fault, or none. By itself TCP neither loses nor damages nor
reorders; broken middle boxes and memory do, and a cut connection loses whatever was under way.
"""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from ringdove import limits
from ringdove.protocol import frames, messages
from ringdove.protocol.frames import FRAME_HEADER_BYTES, Frame, FrameDecoder
from ringdove.protocol.messages import Verb

PATIENCE_S = 60

#: Of a frame's header: where its length is.
_LENGTH_BYTES = 4

#: How late a delayed frame comes: some hundred others pass it.
_DELAY_S = 0.02


class Passing(NamedTuple):
    """A frame on its way, to the server or from it."""

    inward: bool
    frame: Frame

    @property
    def place(self) -> tuple[Any, ...]:
        """What a repetition of the frame has in common with it."""
        meta = bytes(self.frame.meta)
        if self.frame.verb == Verb.BLOCK:
            return messages.decode(tuple[messages.Stripe, int], meta)
        return (self.inward, self.frame.verb, meta, bytes(self.frame.blob))


#: Answers "", or a fault: drop, duplicate, delay, cut; corrupt, header or length say where a byte
#: is changed: in the frame's block, in its header or meta, or in its length.
Harm = Callable[[Passing], str]


def no_harm(_: Passing) -> str:
    """A good network."""
    return ""


class Chance:
    """Faults with given probabilities, on blocks that come from the server or sends that go to it.

    With `once`, what was harmed passes unharmed when it is sent again.
    """

    def __init__(
        self,
        seed: int,
        *,
        inward: bool = False,
        verbs: tuple[Verb, ...] = (),
        once: bool = False,
        **faults: float,
    ) -> None:
        self._random = random.Random(seed)
        self._inward = inward
        self._verbs = verbs or ((Verb.SEND,) if inward else (Verb.BLOCK,))
        self._once = once
        self._faults = faults
        self._harmed: set[tuple[Any, ...]] = set()

    def __call__(self, passing: Passing) -> str:
        if passing.inward != self._inward or passing.frame.verb not in self._verbs:
            return ""
        drawn = self._random.random()
        for fault, probability in self._faults.items():
            drawn -= probability
            if drawn < 0:
                if self._once and passing.place in self._harmed:
                    return ""
                self._harmed.add(passing.place)
                return fault
        return ""


def any_of(*harms: Harm) -> Harm:
    """The first fault that one of them names."""
    return lambda passing: next(filter(None, (harm(passing) for harm in harms)), "")


class BadNetwork:
    """The proxy, on an event loop in a thread of its own."""

    def __init__(self, port: int, harm: Harm = no_harm, seed: int = 1) -> None:
        self.harm = harm
        #: Frames that came by, by verb; their blocks' bytes; and faults, by name.
        self.passed: Counter[int] = Counter()
        self.block_bytes: Counter[int] = Counter()
        self.harmed: Counter[str] = Counter()
        self.connections = 0
        #: Whether new connections are refused.
        self.closed = False
        self.port = 0
        self._server_port = port
        self._random = random.Random(seed)
        self._pairs: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._ended: asyncio.Event
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ringdove://127.0.0.1:{self.port}"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        listener.close()
        self._cut_all()
        while self._serving:
            await asyncio.wait(self._serving)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.create_task(self._join(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        self._pairs[writer] = far_writer
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, inward=True)),
            asyncio.create_task(self._pump(far_reader, writer, inward=False)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._pairs.pop(writer, None)
        for end in (writer, far_writer):
            end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, inward: bool
    ) -> None:
        decoder = FrameDecoder()
        decoder.frame_bytes_max = limits.FRAME_BYTES_MAX
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(256 * 1024):
                for frame in decoder.feed(data):
                    if not self._pass(Passing(inward, frame), writer):
                        return
                await writer.drain()

    def _pass(self, passing: Passing, writer: asyncio.StreamWriter) -> bool:
        """Send a frame on, or do to it what `harm` says; False when the connection is cut."""
        frame = passing.frame
        self.passed[frame.verb] += 1
        self.block_bytes[frame.verb] += len(frame.blob)
        fault = self.harm(passing)
        if fault:
            self.harmed[fault] += 1
        data = _encode(frame)
        if fault == "cut":
            return False
        if fault == "delay":
            self._loop.call_later(_DELAY_S, writer.write, data)
        elif fault != "drop":
            writer.write(self._damage(data, len(frame.meta), fault))
        if fault == "duplicate":
            writer.write(data)
        return True

    def _damage(self, data: bytes, meta_bytes: int, fault: str) -> bytes:
        meta_end = FRAME_HEADER_BYTES + meta_bytes
        where = {
            "length": range(1),
            "header": range(_LENGTH_BYTES, meta_end),
            "corrupt": range(meta_end, len(data)),
        }.get(fault)
        if not where:
            return data
        damaged = bytearray(data)
        damaged[self._random.choice(where)] ^= 1 << self._random.randrange(8)
        return bytes(damaged)

    def _cut_all(self) -> None:
        for pair in self._pairs.items():
            for writer in pair:
                writer.transport.abort()

    def cut(self) -> None:
        """Break every connection."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def close(self) -> None:
        """End. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Raw(NamedTuple):
    buffer: Any

    @property
    def nbytes(self) -> int:
        return len(self.buffer)


def _encode(frame: Frame) -> bytes:
    blocks: Any = [_Raw(frame.blob)] if len(frame.blob) else []
    encoded = frames.encode(frame.verb, frame.number, bytes(frame.meta), blocks, frame.flags)
    return b"".join(encoded)
