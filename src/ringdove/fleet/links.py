"""Ways of devices to a server: one socket each, and as little around it as possible.

Native devices are behind gateways: a thousand of them share a connection, as the client does it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import httptools

from ringdove.client import aio
from ringdove.client.address import authority
from ringdove.errors import ClientError, RemoteProtocolError, RingdoveError
from ringdove.fleet.device import ANSWER_S, Busy
from ringdove.fleet.mqtt_link import MqttLink
from ringdove.fleet.tcp_link import TcpLink
from ringdove.protocol.coap import packet as coap
from ringdove.protocol.coap.outbox import Outbox
from ringdove.protocol.coap.packet import Code, Kind, Option, Packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.fleet.device import Device, Link
    from ringdove.fleet.plan import Plan

#: Devices that share a native connection.
_PER_CONNECTION = 1_000

_JSON = (Option.CONTENT_FORMAT, coap.uint(50))


class CoapLink(asyncio.DatagramProtocol):
    """A UDP socket; requests are confirmable and repeated as RFC 7252 says."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self._address = plan.address
        query = [f"key={device.name}", *([f"token={plan.token}"] if plan.token else [])]
        self._options = (
            (Option.URI_PATH, b"q"),
            (Option.URI_PATH, plan.queue.encode()),
            _JSON,
            *((Option.URI_QUERY, part.encode()) for part in query),
        )
        self._outbox: Outbox[None, None] = Outbox(device.trouble)
        self._mid = device.trouble.getrandbits(16)
        self._answer: asyncio.Future[Packet] | None = None
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self) -> None:
        """See Link."""
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, remote_addr=self._address)

    async def send(self, body: bytes) -> None:
        """See Link."""
        answer = await self._ask(body)
        if answer.code in (Code.UNAVAILABLE, Code.TOO_MANY_REQUESTS):
            raise Busy(answer.number(Option.MAX_AGE) or 1)
        if answer.code != Code.CHANGED:
            said = answer.payload.decode(errors="replace")
            raise ClientError(f"The server answers {coap.name_of(answer.code)}: {said}")

    async def _ask(self, body: bytes) -> Packet:
        loop = asyncio.get_running_loop()
        self._mid = (self._mid + 1) & 0xFFFF
        token = self._mid.to_bytes(2, "big")
        data = coap.encode(Packet(Kind.CON, Code.POST, self._mid, token, self._options, body))
        answer: asyncio.Future[Packet] = loop.create_future()
        self._answer = answer
        self._write(data)
        self._outbox.add(None, self._mid, data, None, loop.time())
        while True:
            next_s = self._outbox.next_s()
            # Once the server has acknowledged without an answer, that comes by itself.
            left_s = ANSWER_S if next_s is None else max(0.0, next_s - loop.time())
            done, _ = await asyncio.wait([answer], timeout=left_s)
            if done:
                return answer.result()
            due = self._outbox.due(loop.time())
            if next_s is None or any(one.data is None for one in due):
                raise TimeoutError("There was no answer.")
            for one in due:
                self._write(cast("bytes", one.data))

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError("The socket is closed.")
        self._transport.sendto(data)

    def close(self) -> None:
        """See Link."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("The socket was closed."))

    def error_received(self, exc: Exception) -> None:
        """See asyncio: nobody listens there just now; the message will be repeated."""

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """See asyncio."""
        del addr
        try:
            packet = coap.decode(data)
        except RemoteProtocolError:
            return
        if packet.kind in (Kind.ACK, Kind.RST):
            self._outbox.settle(None, packet.mid)
        if packet.kind == Kind.CON:
            self._write(coap.head(Kind.ACK, Code.EMPTY, packet.mid))
        answer = self._answer
        expected = packet.token == self._mid.to_bytes(2, "big")
        if packet.is_response and expected and answer is not None and not answer.done():
            answer.set_result(packet)


class HttpLink(TcpLink[int]):
    """A connection that is kept; each reading is a POST of REST."""

    def __init__(self, plan: Plan, device: Device) -> None:
        super().__init__(plan.address)
        host, port = plan.address
        login = f"authorization: Bearer {plan.token}\r\n" if plan.token else ""
        path = f"/v1/queues/{quote(plan.queue, safe='')}/messages?key={device.name}"
        self._head = (
            f"POST {path} HTTP/1.1\r\nhost: {authority(host, port)}\r\n{login}"
            "content-type: application/octet-stream\r\ncontent-length: "
        ).encode()
        self._parser: Any = None

    async def send(self, body: bytes) -> None:
        """See Link."""
        self._parser = httptools.HttpResponseParser(self)
        status = await self.ask(self._head + b"%d\r\n\r\n" % len(body) + body)
        if status in (429, 503):
            raise Busy(1)
        if status != 201:
            raise ClientError(f"The server answers {status}.")

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_message_complete(self) -> None:
        """See httptools."""
        self.answered(self._parser.get_status_code())
        if not self._parser.should_keep_alive():
            self.close()


class Gateways:
    """Native connections that devices share."""

    def __init__(self, plan: Plan) -> None:
        host, port = plan.address
        secret = f":{quote(plan.token, safe='')}@" if plan.token else ""
        url = f"ringdove://{secret}{authority(host, port)}"
        count = -(-plan.devices // _PER_CONNECTION)
        self._queue = plan.queue
        self._connections = [aio.connect(url) for _ in range(count)]

    async def queue_for(self, device: Device) -> aio.Queue:
        """The queue, over the connection of a device."""
        connection = self._connections[device.number // _PER_CONNECTION]
        await connection.open()
        return connection.queue(self._queue)

    async def close(self) -> None:
        """Close them all."""
        for connection in self._connections:
            await connection.close()


class NativeLink:
    """A device behind a gateway."""

    def __init__(self, gateways: Gateways, device: Device) -> None:
        self._gateways = gateways
        self._device = device
        self._queue: aio.Queue | None = None

    async def open(self) -> None:
        """See Link."""
        self._queue = await self._gateways.queue_for(self._device)

    async def send(self, body: bytes) -> None:
        """See Link."""
        if self._queue is None:
            raise ConnectionResetError("The device is not connected.")
        try:
            await self._queue.send(body, key=self._device.name)
        except ClientError:
            raise
        except RingdoveError as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """See Link."""
        self._queue = None


def link_maker(plan: Plan, gateways: Gateways | None) -> Callable[[Device], Link]:
    """What makes the links of a plan's devices."""
    if gateways is not None:
        return lambda device: NativeLink(gateways, device)
    if plan.protocol == "mqtt":
        return lambda device: MqttLink(plan, device)
    if plan.protocol == "coap":
        return lambda device: CoapLink(plan, device)
    return lambda device: HttpLink(plan, device)
