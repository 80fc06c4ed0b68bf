"""A network between the servers of a cluster that a test can spoil: a TCP proxy in its own process.

    with Network() as network:
        network.name("127.1.0.1", "A")
        network.listen("A", "127.1.0.1", port, real_port)
        network.block(["A"], ["B", "C"])
        network.calm()

Every process of a server is reached through a port of the proxy, which tells who calls by the
address that the call comes from; whoever has no name is a client, "". What passes from one to the
other has the *weather* of that pair: it may be held back, come late, or be lost together with its
connection. TCP repeats what a network swallows, so what was held back arrives when the block ends,
as it would after a partition of real networks.

It is a process of its own because the load of a test would slow it down otherwise, and a slow
network is a fault that nobody asked for.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Who has no name: controllers, senders, receivers, and the test itself.
CLIENTS = ""

#: Bytes that wait on a connection before its sender has to wait, too.
_HELD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to bytes on their way."""

    blocked: bool = False
    delay_s: float = 0.0
    #: Probability that a piece is lost, and its connection with it.
    loss: float = 0.0


CALM = Weather()


class Network:
    """The proxy as a test sees it: commands to a child process."""

    def __init__(self, seed: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _do(self, *command: Any) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer == b"ok\n", f"the network answers {answer!r} to {command}"

    def name(self, address: str, name: str) -> None:
        """Calls from an address come from somebody."""
        self._do("name", address, name)

    def listen(self, name: str, host: str, port: int, real_port: int) -> None:
        """Take calls for somebody and pass them on to where he really listens."""
        self._do("listen", name, host, port, real_port)

    def spoil(self, sources: Iterable[str], targets: Iterable[str], weather: Weather) -> None:
        """Give what passes from sources to targets, not back, another weather."""
        pairs = [(a, b) for a in sources for b in targets if a != b]
        self._do("spoil", pairs, weather.blocked, weather.delay_s, weather.loss)

    def block(self, some: Iterable[str], others: Iterable[str]) -> None:
        """A partition: nothing passes between some and others, in either direction."""
        some, others = list(some), list(others)
        self.spoil(some, others, Weather(blocked=True))
        self.spoil(others, some, Weather(blocked=True))

    def cut(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Break all connections between some and others; new ones are welcome."""
        self._do("cut", list(some), list(others))

    def calm(self) -> None:
        """Let everything pass again; what was held back arrives now."""
        self._do("calm")

    def close(self) -> None:
        """End. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the child process --------------------------------------------------------------------------


class _Proxy:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.weather: dict[tuple[str, str], Weather] = {}
        self.names: dict[str, str] = {}
        self.ends: set[_End] = set()

    async def obey(self, what: str, *words: Any) -> None:
        match what:
            case "name":
                address, name = words
                self.names[address] = name
            case "listen":
                name, host, port, real_port = words
                loop = asyncio.get_running_loop()
                make = lambda: _Caller(self, name, (host, real_port))
                await loop.create_server(make, host, port)
            case "spoil":
                pairs, blocked, delay_s, loss = words
                for a, b in pairs:
                    self.weather[a, b] = Weather(blocked, delay_s, loss)
                self._pass_on()
            case "cut":
                some, others = map(set, words)
                for end in list(self.ends):
                    if {end.source, end.target} & some and {end.source, end.target} & others:
                        end.abort()
            case "calm":
                self.weather.clear()
                self._pass_on()

    def _pass_on(self) -> None:
        for end in list(self.ends):
            end.pass_on()


class _End(asyncio.Protocol):
    """One end of a connection: passes on what it reads to the other end, in order."""

    def __init__(self, proxy: _Proxy, source: str, target: str) -> None:
        self.proxy = proxy
        self.source = source
        self.target = target
        self.other: _End | None = None
        self._transport: Any = None
        #: What has come, with the time before which it must not go on; empty at the end.
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._ended = False
        self._resting = False
        self._timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.proxy.ends.add(self)

    def data_received(self, data: bytes) -> None:
        weather = self.proxy.weather.get((self.source, self.target), CALM)
        if weather.loss and self.proxy.random.random() < weather.loss:
            self.abort()
            return
        self._hold(data, weather)

    def eof_received(self) -> bool:
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._hold(b"", self.proxy.weather.get((self.source, self.target), CALM))

    def _hold(self, data: bytes, weather: Weather) -> None:
        now_s = asyncio.get_running_loop().time()
        last_s = self._held[-1][0] if self._held else 0.0
        self._held.append((max(last_s, now_s + weather.delay_s), data))
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES_MAX:
            self._rest(True)
        self.pass_on()

    def _rest(self, choice: bool) -> None:
        """Read no more for now, or go on."""
        if choice != self._resting and not self._ended and not self._transport.is_closing():
            self._resting = choice
            (self._transport.pause_reading if choice else self._transport.resume_reading)()

    def pass_on(self) -> None:
        """Give the other end what may go."""
        weather = self.proxy.weather.get((self.source, self.target), CALM)
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held and not weather.blocked and self.other is not None:
            when_s, data = self._held[0]
            if when_s > loop.time() and weather.delay_s:
                self._timer = loop.call_at(when_s, self.pass_on)
                return
            self._held.popleft()
            self._held_bytes -= len(data)
            self.other.write(data)
        if not self._held:
            self._rest(False)
            if self._transport.is_closing():
                self.proxy.ends.discard(self)

    def write(self, data: bytes) -> None:
        """Send what the other end has read; nothing means that it has ended."""
        if self._transport is None or self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
        elif self._ended or (self.other is not None and self.other._transport.is_closing()):
            self._transport.close()
        else:
            self._transport.write_eof()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other._rest(True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.pass_on()

    def abort(self) -> None:
        """Break the connection; what is held back is lost."""
        for end in (self, self.other):
            if end is not None:
                end._held.clear()
                end._held_bytes = 0
                end._transport.abort()


class _Caller(_End):
    """The end towards whoever called; the other end is made as soon as he has."""

    def __init__(self, proxy: _Proxy, target: str, place: tuple[str, int]) -> None:
        super().__init__(proxy, CLIENTS, target)
        self._place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, _ = transport.get_extra_info("peername")
        self.source = self.proxy.names.get(host, CLIENTS)
        self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        other = _End(self.proxy, self.target, self.source)
        try:
            await asyncio.get_running_loop().create_connection(lambda: other, *self._place)
        except OSError:
            self._transport.abort()
            return
        self.other, other.other = other, self
        self.pass_on()
        other.pass_on()


async def _serve(seed: int) -> None:
    loop = asyncio.get_running_loop()
    proxy = _Proxy(seed)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        await proxy.obey(*json.loads(line))
        sys.stdout.write("ok\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
