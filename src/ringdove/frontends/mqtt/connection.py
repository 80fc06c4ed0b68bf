"""One client's connection: bytes in, what it wants to the gateway, packets out.

All packets of a received buffer are taken at once, and all answers of a turn leave in one write.
Reading pauses while too much of the client is being stored or it does not take its answers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from ringdove import limits
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt import session as events
from ringdove.protocol.mqtt.packets import Reason
from ringdove.protocol.mqtt.session import ServerMachine

if TYPE_CHECKING:
    from ringdove.frontends.mqtt.access import Identity
    from ringdove.frontends.mqtt.gateway import Gateway
    from ringdove.frontends.mqtt.message import Message
    from ringdove.frontends.mqtt.session import Session

_log = logging.getLogger(__name__)

#: Seconds that a connection has to send CONNECT.
_CONNECT_S_MAX = 10


#: Bytes that a message, and each of its user properties, take in memory beside what they hold.
_MESSAGE_BYTES = 512
_PAIR_BYTES = 128


class Connection(asyncio.Protocol):
    """See the module. Thousands may be idle, so it is as small as it can be."""

    __slots__ = (
        "_gateway", "_reading", "_storing_bytes", "_transport", "foreign", "heard_s", "identity",
        "keep_alive_s", "machine", "session", "unasked", "writable",
    )  # fmt: skip

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.machine = ServerMachine(limits.MQTT_CONNECT_BYTES_MAX, limits.MQTT_RECEIVE_MAXIMUM)
        self.session: Session | None = None
        self.identity: Identity | None = None
        #: Whether the client was let in because everybody was.
        self.unasked = False
        #: Whether a page from elsewhere asks through a browser of this machine.
        self.foreign = False
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self.writable = True
        self._storing_bytes = 0
        self.keep_alive_s = 0.0
        self.heard_s = gateway.loop.time()

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES // 4)
        self._gateway.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio."""
        self._transport = None
        self._gateway.disconnected(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        gateway = self._gateway
        gateway.statistics.bytes_in += len(data)
        self.heard_s = gateway.loop.time()
        self.take(data)

    def eof_received(self) -> bool:
        """See asyncio."""
        return False

    def pause_writing(self) -> None:
        """See asyncio."""
        self.writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.writable = True
        self._regulate()
        if self.session is not None:
            self._gateway.deliveries.refill(self.session)

    def certificate(self) -> dict[str, Any] | None:
        """The client's certificate, which TLS has checked, if it gave one."""
        if self._transport is None:
            return None
        found: dict[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    # -- in -------------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Do what the bytes say."""
        gateway = self._gateway
        for event in self.machine.receive(data):
            if type(event) is p.Publish:
                if self.session is None:
                    return  # What came before it has ended the connection.
                self._storing_bytes += _nbytes(event)
                gateway.publish(self, event)
            else:
                self._take(event)
        self.flush()
        if self._storing_bytes > limits.MQTT_STORING_BYTES_MAX:
            self._regulate()

    def _take(self, event: events.Event) -> None:
        gateway, session = self._gateway, self.session
        match event:
            case p.Connect():
                self._reading = False
                if self._transport is not None:
                    self._transport.pause_reading()
                gateway.connect(self, event)
            case events.Ended():
                gateway.ended(self, event)
                self.close()
            case _ if session is None:
                return
            case events.Acknowledged():
                gateway.deliveries.acknowledged(session, event.packet_id)
            case events.Received():
                gateway.deliveries.received(self, session, event.packet_id)
            case events.Completed():
                gateway.deliveries.completed(session, event.packet_id)
            case events.Released():
                gateway.released(self, session, event.packet_id)
            case p.Subscribe():
                gateway.subscriber.subscribe(self, session, event)
            case p.Unsubscribe():
                gateway.subscriber.unsubscribe(self, session, event)

    def let_in(self) -> None:
        """The client was accepted: read on."""
        self.machine.decoder.packet_bytes_max = limits.MQTT_PACKET_BYTES_MAX
        self.flush()
        self._regulate()
        self.take(b"")

    def stored(self, packet: p.Publish, reason: int) -> None:
        """A message of the client was stored, or refused."""
        self._storing_bytes -= _nbytes(packet)
        if packet.qos:
            self.machine.stored(packet.packet_id, packet.qos, reason)
        if not self._reading:
            self._regulate()

    # -- out ------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many messages of QoS 1 or 2 may be sent now."""
        return self.machine.room if self.writable and self._transport is not None else 0

    @property
    def open(self) -> bool:
        """Whether something can be sent at all."""
        return self._transport is not None and not self.machine.ended

    def send(self, message: Message, packet_id: int, now_ms: int, *, dup: bool = False) -> bool:
        """Send a message; False when the client may not have it, or takes none of that size."""
        if self.identity is not None and not self.identity.may_see(message.topic):
            return False
        sent = self.machine.deliver(message.packet(packet_id, now_ms, dup=dup))
        self._gateway.deliveries.dirty.add(self)
        self._gateway.statistics.messages_out += sent
        return sent

    def flush(self) -> None:
        """Write what the machine has to say."""
        data = self.machine.data_to_send()
        if data and self._transport is not None:
            self._gateway.statistics.bytes_out += len(data)
            self._transport.write(data)

    def end(self, reason: int, text: str = "") -> None:
        """End the connection from this side and say why."""
        ended = not self.machine.ended
        event = self.machine.end(reason, text)
        if ended:
            self._gateway.ended(self, event)
        self.close()

    def close(self) -> None:
        """Write what there is to say, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- time and pressure ----------------------------------------------------------------------

    def _regulate(self) -> None:
        wanted = (
            self.writable
            and self._storing_bytes <= limits.MQTT_STORING_BYTES_MAX
            and (self.machine.accepted or self.machine.connect is None)
        )
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self.heard_s = self._gateway.loop.time()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def expire(self, now_s: float) -> None:
        """End the connection if nothing was heard for too long."""
        silent_s = now_s - self.heard_s
        if self.machine.ended:
            if silent_s > _CONNECT_S_MAX:
                self.abort()  # It does not take its goodbye.
        elif self.machine.connect is None:
            if silent_s > _CONNECT_S_MAX:
                self.abort()
        elif not self.writable:
            if silent_s > limits.IDLE_S_MAX:
                self.abort()
        elif self._reading and self.keep_alive_s and silent_s > self.keep_alive_s * 1.5:
            self.end(Reason.KEEP_ALIVE_TIMEOUT, "Nothing was heard within the keep-alive time.")


def _nbytes(packet: p.Publish) -> int:
    """About what a message takes in memory while it is being stored."""
    nbytes = _MESSAGE_BYTES + len(packet.topic) + len(packet.payload)
    if packet.properties is not None:
        for name, value in packet.properties.get("user_property", ()):
            nbytes += _PAIR_BYTES + len(name) + len(value)
        nbytes += len(packet.properties.get("correlation_data", b""))
    return nbytes
