"""The message layer of the CoAP front end: one UDP socket, bounded in everything.

A request that comes again is not done again (exchanges.py). A confirmable one is acknowledged with
its response, so the acknowledgement of a send says that the message is stored; where that takes
long, the acknowledgement goes ahead alone and the response follows, confirmably itself.

Under overload the answer is 5.03 with the seconds to wait in Max-Age: above the rate, with too many
requests under way, or with no room to remember another. Above twice the rate there is no answer
at all; devices repeat confirmable requests, ever more rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, cast

from ringdove import limits
from ringdove.core.policy import TokenBucket
from ringdove.errors import RemoteProtocolError, RingdoveError
from ringdove.frontends.coap.exchange import RETRY_S, Request, Response, later, refusal
from ringdove.pending import Pending
from ringdove.protocol.coap import packet as packets
from ringdove.protocol.coap.exchanges import Exchanges
from ringdove.protocol.coap.outbox import Outbox
from ringdove.protocol.coap.packet import Code, Kind, Option, Packet

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ringdove.frontends.coap.exchange import Observation, Peer
    from ringdove.pending import Driven, Runner

    #: Answers a request; drives nothing but pendings.
    Respond = Callable[[Request], Coroutine[Any, Any, Response]]

_log = logging.getLogger(__name__)

#: Seconds after which a request is acknowledged although its response is not there yet; clients
#: repeat it after 2.
_ACK_ALONE_S = 1.0

#: Bytes that the system keeps for us while we are busy: thousands of devices may send at once.
_RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024

_PORT_AND_MID = struct.Struct(">HH")


class CoapServer(asyncio.DatagramProtocol):
    """See the module."""

    def __init__(self, runner: Runner, respond: Respond, rate_max: int) -> None:
        self._loop = runner.loop
        self._runner = runner
        self._respond = respond
        self._admitted = TokenBucket(rate_max, 0)
        self._told_busy = TokenBucket(rate_max, 0)
        self._exchanges = Exchanges(limits.COAP_EXCHANGES_MAX, limits.COAP_EXCHANGE_BYTES_MAX)
        self._outbox: Outbox[Peer, Pending[bool]] = Outbox(random.Random())
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._under_way: set[_Exchange] = set()
        self._observers: dict[tuple[Peer, bytes], _Observer] = {}
        self._mids: dict[Peer, int] = {}
        self._transport: asyncio.DatagramTransport | None = None
        self._draining = False
        self._settled = asyncio.Event()
        #: Requests begun, repetitions recognised, requests refused under overload or dropped, and
        #: datagrams that were no CoAP.
        self.requests = 0
        self.repeated = 0
        self.refused = 0
        self.malformed = 0

    @property
    def observers(self) -> int:
        """Observations that go on."""
        return len(self._observers)

    @property
    def remembered(self) -> int:
        """Requests that would be recognised if they came again."""
        return self._exchanges.entries

    async def listen(self, host: str, port: int) -> int:
        """Listen on an address; answers the port, which is a free one for 0."""
        family, *_, address = (await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
        ours = socket.socket(family, socket.SOCK_DGRAM)
        try:
            ours.settimeout(0)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            ours.bind(address)
            await self._loop.create_datagram_endpoint(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        bound: int = ours.getsockname()[1]
        return bound

    async def close(self) -> None:
        """Answer what is under way, end what is parked and observed, and stop."""
        self._draining = True
        for observer in list(self._observers.values()):
            self._forget(observer)
        for exchange in list(self._under_way):
            exchange.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_S_MAX):
                while self._under_way:
                    self._settled.clear()
                    await self._settled.wait()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def error_received(self, exc: Exception) -> None:
        """See asyncio: a device is not reachable; repetition and giving up deal with it."""

    def datagram_received(self, data: bytes, addr: Peer) -> None:
        """See asyncio."""
        try:
            packet = packets.decode(data)
        except RemoteProtocolError:
            self.malformed += 1
            known = packets.kind_and_mid(data)
            if known is not None and known[0] == Kind.CON:
                self._send(packets.head(Kind.RST, Code.EMPTY, known[1]), addr)
            return
        if packet.is_request and packet.kind in (Kind.CON, Kind.NON):
            self._take(packet, addr)
        elif packet.kind in (Kind.ACK, Kind.RST):
            waiting = self._outbox.settle(addr, packet.mid)
            if waiting is not None:
                waiting.resolve(packet.kind == Kind.ACK)
        elif packet.kind == Kind.CON:
            # A ping, or a response to what nobody asked.
            self._send(packets.head(Kind.RST, Code.EMPTY, packet.mid), addr)

    # -- requests -------------------------------------------------------------------------------

    def _take(self, packet: Packet, peer: Peer) -> None:
        now_s = self._loop.time()
        key = peer[0].encode() + _PORT_AND_MID.pack(peer[1], packet.mid)
        known = self._exchanges.find(key, now_s)
        if known is not None:
            self.repeated += 1
            if packet.kind == Kind.CON and known.said is not None:
                self._acknowledge(packet, peer, known.said)
            return
        if not self._admit(packet, peer, now_s):
            return
        self.requests += 1
        self._exchanges.begin(key, now_s)
        if len(self._observers) >= limits.COAP_OBSERVERS_MAX:
            packet = _without_observe(packet)
        exchange = _Exchange(self, Request(peer, packet), key)
        self._under_way.add(exchange)
        exchange.begin(self._runner, self._respond)

    def _admit(self, packet: Packet, peer: Peer, now_s: float) -> bool:
        """Whether there is room for one more; otherwise say so, if that is affordable."""
        wait_s = self._exchanges.wait_s(now_s)
        if not wait_s:
            full = (
                len(self._under_way) >= limits.COAP_REQUESTS_MAX
                or len(self._outbox) >= limits.COAP_UNACKNOWLEDGED_MAX
            )
            if not full and not self._draining and self._admitted.take(1, int(now_s * 1000)):
                return True
            wait_s = RETRY_S
        self.refused += 1
        if not self._told_busy.take(1, int(now_s * 1000)):
            return False
        busy = Response(Code.UNAVAILABLE, payload=b"The server is busy: try again later.")
        self._answer(packet, peer, later(busy, wait_s))
        return False

    def _answer(self, packet: Packet, peer: Peer, response: Response) -> bytes:
        """Respond at once; answers what a repeated request must be told, if it was confirmable."""
        said = bytes([response.code]) + packets.tail(response.options, response.payload)
        if packet.kind == Kind.CON:
            self._acknowledge(packet, peer, said)
            return said
        mid = self._next_mid(peer)
        self._send(packets.head(Kind.NON, response.code, mid, packet.token) + said[1:], peer)
        return b""

    def _acknowledge(self, packet: Packet, peer: Peer, said: bytes) -> None:
        if said:
            self._send(packets.head(Kind.ACK, said[0], packet.mid, packet.token) + said[1:], peer)
        else:
            self._send(packets.head(Kind.ACK, Code.EMPTY, packet.mid), peer)

    def acknowledge_alone(self, exchange: _Exchange) -> None:
        """The response is not there yet: keep the client from repeating its request."""
        self._acknowledge(exchange.request.packet, exchange.request.peer, b"")
        self._exchanges.answered(exchange.key, b"")

    def finish(self, exchange: _Exchange, response: Response, *, alone: bool) -> None:
        """Send a response; `alone`, confirmably, when the request was acknowledged before."""
        peer, packet = exchange.request
        self._under_way.discard(exchange)
        self._settled.set()
        if alone:
            _, arrived = self._confirmably(response, peer, packet.token)
            if response.when_lost is not None:
                arrived.when_done(partial(_if_lost, arrived, response.when_lost))
        else:
            said = self._answer(packet, peer, response)
            if response.asks_again:
                self._exchanges.forget(exchange.key)
            else:
                self._exchanges.answered(exchange.key, said)
        if packet.number(Option.OBSERVE) is not None:
            self._end_observation(peer, packet.token)
        if response.observation is not None and not self._draining:
            self._observe(exchange.request, response.observation)

    def _confirmably(
        self, response: Response, peer: Peer, token: bytes
    ) -> tuple[int, Pending[bool]]:
        """Send until it is acknowledged: its message id, and a pending that says whether it was."""
        arrived: Pending[bool] = Pending()
        mid = self._next_mid(peer)
        data = packets.encode(
            Packet(Kind.CON, response.code, mid, token, response.options, response.payload)
        )
        self._send(data, peer)
        self._outbox.add(peer, mid, data, arrived, self._loop.time())
        self._wind()
        return mid, arrived

    def _next_mid(self, peer: Peer) -> int:
        """A message id that the peer has not seen for long: each peer has its own count."""
        mid = self._mids.get(peer)
        if mid is None:
            if len(self._mids) >= limits.COAP_OBSERVERS_MAX:
                self._mids.clear()
            mid = secrets.randbits(16)
        self._mids[peer] = (mid + 1) & 0xFFFF
        return mid

    def _send(self, data: bytes, peer: Peer) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.sendto(data, peer)

    # -- repetition -----------------------------------------------------------------------------

    def _wind(self) -> None:
        """Have the timer go off when the next message is due."""
        next_s = self._outbox.next_s()
        if next_s is None or (self._timer is not None and self._timer_s <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = self._loop.call_at(next_s, self._repeat)

    def _repeat(self) -> None:
        self._timer = None
        for due in self._outbox.due(self._loop.time()):
            if due.data is None:
                due.note.resolve(False)  # noqa: FBT003  whether it has arrived
            else:
                self._send(due.data, due.peer)
        self._wind()

    # -- observations ---------------------------------------------------------------------------

    def _observe(self, request: Request, observation: Observation) -> None:
        observer = _Observer(request)
        self._observers[observer.key] = observer
        observer.driven = self._runner.spawn(
            observation(partial(self._tell, observer)), partial(self._observed, observer)
        )

    def _tell(self, observer: _Observer, response: Response) -> Pending[bool]:
        observer.told = (observer.told + 1) & 0xFFFFFF
        count = (Option.OBSERVE, packets.uint(observer.told))
        told = response._replace(options=(*response.options, count))
        observer.mid, arrived = self._confirmably(told, *observer.key)
        return arrived

    def _observed(self, observer: _Observer, _: None, error: BaseException | None) -> None:
        """An observation has ended: a last word without the option says why, if there is more."""
        if self._observers.get(observer.key) is observer:
            del self._observers[observer.key]
        if isinstance(error, RingdoveError):
            self._confirmably(refusal(error), *observer.key)
        elif error is not None:
            _log.error("An observation failed.", exc_info=error)

    def _end_observation(self, peer: Peer, token: bytes) -> None:
        observer = self._observers.get((peer, token))
        if observer is not None:
            self._forget(observer)

    def _forget(self, observer: _Observer) -> None:
        """End an observation where it waits; what it has told last is repeated no more."""
        self._observers.pop(observer.key, None)
        if observer.mid is not None:
            self._outbox.settle(observer.key[0], observer.mid)
        if observer.driven is not None:
            observer.driven.cancel()


class _Exchange:
    """One request under way."""

    __slots__ = ("_alone", "_driven", "_over", "_server", "_timer", "key", "request")

    def __init__(self, server: CoapServer, request: Request, key: bytes) -> None:
        self._server = server
        self.request = request
        self.key = key
        self._driven: Driven | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._alone = False
        self._over = False

    def begin(self, runner: Runner, respond: Respond) -> None:
        """Have the request answered."""
        self._driven = runner.spawn(respond(self.request), self._answered)
        if not self._over and self.request.packet.kind == Kind.CON:
            self._timer = runner.loop.call_later(_ACK_ALONE_S, self._acknowledge)

    def drain(self) -> None:
        """End a request that may wait for messages; others are about to be answered."""
        waits = self.request.packet.code == Code.GET
        if waits and self._driven is not None and not self._over:
            self._driven.cancel()
            closing = Response(Code.UNAVAILABLE, payload=b"The server is closing.")
            self._answered(later(closing), None)

    def _acknowledge(self) -> None:
        self._alone = True
        self._server.acknowledge_alone(self)

    def _answered(self, response: Response | None, error: BaseException | None) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._server.finish(self, response or refusal(error), alone=self._alone)


class _Observer:
    """Who is told about a resource, until he or it has gone."""

    __slots__ = ("driven", "key", "mid", "told")

    def __init__(self, request: Request) -> None:
        self.key: tuple[Peer, bytes] = (request.peer, request.packet.token)
        self.driven: Driven | None = None
        #: The count in the option Observe; the response to the request had 0.
        self.told = 0
        #: Message id of the last notification.
        self.mid: int | None = None


def _without_observe(packet: Packet) -> Packet:
    """The request as one that only wants to look once."""
    rest = tuple(option for option in packet.options if option[0] != Option.OBSERVE)
    return packet._replace(options=rest)


def _if_lost(arrived: Pending[bool], act: Callable[[], None]) -> None:
    if not arrived.result():
        act()
