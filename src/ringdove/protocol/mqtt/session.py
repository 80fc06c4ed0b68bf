"""A server's side of one MQTT connection, without I/O and without a clock.

Bytes and answers go in, events and bytes come out:

    machine.receive(data)      -> events: what the client wants, in its order
    machine.data_to_send()     -> bytes: what to write now

Events are the packets CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE themselves, their topic aliases
resolved, and the structures below. The gateway answers them with `accept`, `stored`, `send` and so
on, whenever it can; the machine keeps the order of packets, the identifiers in both directions,
flow control and the rules of the protocol. After `Ended` there are no more events, and what
`data_to_send` gives is the last.

*Incoming.* A PUBLISH of QoS 1 or 2 is answered when the gateway says `stored`. A second one of QoS
2 with an identifier that is not released yet is no event: it is answered again.

*Outgoing.* `deliver` sends a message under an identifier that the gateway chooses. Then comes
`Acknowledged` after PUBACK; or `Received` after PUBREC, to be answered with `release` when that
fact is remembered, and `Completed` after PUBCOMP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ringdove.errors import LocalProtocolError, PacketRefused
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import Decoder, encode, encode_puback
from ringdove.protocol.mqtt.packets import V5, Reason
from ringdove.protocol.mqtt.properties import forbidden
from ringdove.protocol.mqtt.topics import is_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringdove.protocol.mqtt.packets import Properties


class Acknowledged(msgspec.Struct, gc=False):
    """The client has taken over a message of QoS 1, or refused one: it is not sent again."""

    packet_id: int


class Received(msgspec.Struct, gc=False):
    """The client has taken over a message of QoS 2; call `release` when that is remembered."""

    packet_id: int


class Completed(msgspec.Struct, gc=False):
    """The client has forgotten the identifier of a message of QoS 2."""

    packet_id: int


class Released(msgspec.Struct, gc=False):
    """The client will not repeat a message of QoS 2; call `complete` when that is remembered."""

    packet_id: int


class Ended(msgspec.Struct, gc=False):
    """The connection is over: close it when everything is written."""

    reason: int
    #: Whether the client said goodbye, so that its will is void.
    goodbye: bool = False
    session_expiry_s: int | None = None
    text: str = ""


Event = (
    p.Connect | p.Publish | p.Subscribe | p.Unsubscribe | Acknowledged | Received | Completed
    | Released | Ended
)  # fmt: skip

#: States of an identifier on its way out.
_SENT: Final = 1
_RECEIVED: Final = 2
_RELEASED: Final = 3


class ServerMachine:
    """See the module."""

    __slots__ = (
        "_aliases_in", "_aliases_out", "_held", "_incoming", "_out", "_outgoing",
        "_packet_bytes_max", "_topic_alias_max", "accepted", "connect", "decoder", "ended",
        "problems", "receive_maximum", "version", "window",
    )  # fmt: skip

    def __init__(self, packet_bytes_max: int, receive_maximum: int) -> None:
        self.decoder = Decoder(None, packet_bytes_max)
        #: The CONNECT that has come, and whether it was accepted.
        self.connect: p.Connect | None = None
        self.accepted = False
        #: Packets that came behind it before it was.
        self._held: list[p.Packet] = []
        self.ended = False
        self.version = p.V311
        #: Messages that the client may have unacknowledged on their way here.
        self.receive_maximum = receive_maximum
        #: And this side on their way there.
        self.window = 0
        #: Whether reasons may be explained in words.
        self.problems = True
        #: Identifiers of QoS 1 and 2 that have come: False until stored, True until released.
        self._incoming: dict[int, bool] = {}
        #: State of identifiers that went out.
        self._outgoing: dict[int, int] = {}
        self._aliases_in: dict[int, str] | None = None
        #: Topics under their numbers on the way out; how many the client takes.
        self._aliases_out: dict[str, int] | None = None
        self._topic_alias_max = 0
        #: Bytes of one packet that the client takes; 0 for any.
        self._packet_bytes_max = 0
        self._out: list[bytes] = []

    # -- in -------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the client. What follows CONNECT waits until that is accepted."""
        events: list[Event] = []
        if self.ended:
            return events
        packets = self.decoder.feed(data)
        if self._held:
            packets, self._held = self._held + packets, []
        try:
            for at, packet in enumerate(packets):
                if self.accepted:
                    if type(packet) is p.Publish:
                        self._take_publish(packet, events)
                    else:
                        self._take(packet, events)
                    if self.ended:
                        return events
                elif self.connect is None:
                    events.append(self._take_connect(packet))
                else:
                    self._held = packets[at:]
                    return events
            if self.decoder.failure is not None:
                raise self.decoder.failure
        except PacketRefused as refusal:
            events.append(self.end(refusal.reason, str(refusal)))
        return events

    def _take(self, packet: p.Packet, events: list[Event]) -> None:
        handler = _HANDLERS.get(type(packet))
        if handler is None:
            raise forbidden(f"A client does not send {type(packet).__name__} here.")
        handler(self, packet, events)

    def _take_connect(self, packet: p.Packet) -> p.Connect:
        if not isinstance(packet, p.Connect):
            raise forbidden("The first packet is not CONNECT.")
        self.connect = packet
        self.version = packet.version
        properties = packet.properties or {}
        self.window = properties.get("receive_maximum", 0xFFFF)
        self._packet_bytes_max = properties.get("maximum_packet_size", 0)
        self._topic_alias_max = properties.get("topic_alias_maximum", 0)
        self.problems = packet.version == V5 and bool(
            properties.get("request_problem_information", 1)
        )
        if "authentication_data" in properties and "authentication_method" not in properties:
            raise forbidden("CONNECT has authentication data without a method.")
        if packet.will is not None:
            _check_message(packet.will.topic, packet.will.properties)
        return packet

    def _take_publish(self, packet: p.Publish, events: list[Event]) -> None:
        properties = packet.properties
        if properties is not None:
            self._resolve(packet, properties)
        _check_message(packet.topic, properties)
        packet_id = packet.packet_id
        if packet_id:
            incoming = self._incoming
            known = incoming.get(packet_id)
            if known is not None:
                if packet.qos == 2 and known:
                    self._write(p.PubRec(packet_id))
                # Otherwise it is being stored, and will be answered.
                return
            if len(incoming) >= self.receive_maximum and self.version == V5:
                raise PacketRefused(
                    f"More than {self.receive_maximum} messages are unacknowledged.",
                    Reason.RECEIVE_MAXIMUM_EXCEEDED,
                )
            incoming[packet_id] = False
        events.append(packet)

    def _resolve(self, packet: p.Publish, properties: Properties) -> None:
        if "subscription_identifier" in properties:
            raise forbidden("A client sends no subscription identifier with a message.")
        alias = properties.pop("topic_alias", None)
        if alias is not None:
            known = self._aliases_in
            if known is None:
                known = self._aliases_in = {}
            if not 0 < alias <= TOPIC_ALIAS_MAX:
                raise PacketRefused(
                    f"A topic alias is 1 to {TOPIC_ALIAS_MAX}.", Reason.TOPIC_ALIAS_INVALID
                )
            if packet.topic:
                known[alias] = packet.topic
            elif alias in known:
                packet.topic = known[alias]
            else:
                raise forbidden(f"Topic alias {alias} stands for no topic.")
        if not properties:
            packet.properties = None

    def _take_puback(self, packet: p.PubAck, events: list[Event]) -> None:
        if self._outgoing.pop(packet.packet_id, 0):
            events.append(Acknowledged(packet.packet_id))

    def _take_pubrec(self, packet: p.PubRec, events: list[Event]) -> None:
        state = self._outgoing.get(packet.packet_id, 0)
        if state == _SENT:
            if packet.reason >= 0x80:
                del self._outgoing[packet.packet_id]
                events.append(Acknowledged(packet.packet_id))
                return
            self._outgoing[packet.packet_id] = _RECEIVED
            events.append(Received(packet.packet_id))
        elif state == _RELEASED:
            self._write(p.PubRel(packet.packet_id))
        elif not state:
            self._write(p.PubRel(packet.packet_id, Reason.PACKET_ID_NOT_FOUND))

    def _take_pubrel(self, packet: p.PubRel, events: list[Event]) -> None:
        events.append(Released(packet.packet_id))

    def _take_pubcomp(self, packet: p.PubComp, events: list[Event]) -> None:
        if self._outgoing.pop(packet.packet_id, 0):
            events.append(Completed(packet.packet_id))

    def _take_request(self, packet: p.Subscribe | p.Unsubscribe, events: list[Event]) -> None:
        events.append(packet)

    def _take_ping(self, _: p.PingReq, __: list[Event]) -> None:
        self._write(p.PingResp())

    def _take_disconnect(self, packet: p.Disconnect, events: list[Event]) -> None:
        expiry_s = (packet.properties or {}).get("session_expiry_interval")
        connected_with = self.connect.properties if self.connect is not None else None
        if expiry_s and not (connected_with or {}).get("session_expiry_interval"):
            raise forbidden("A session without expiry cannot get one at its end.")
        self.ended = True
        goodbye = packet.reason == Reason.SUCCESS
        events.append(Ended(packet.reason, goodbye, expiry_s))

    # -- answers --------------------------------------------------------------------------------

    def accept(self, *, session_present: bool, properties: Properties | None) -> None:
        """Welcome the client."""
        self.accepted = True
        if self.version != V5:
            properties = None
        self._write(p.ConnAck(session_present, Reason.SUCCESS, properties))

    def end(self, reason: int, text: str = "") -> Ended:
        """End the connection from this side and say why, as far as the version can."""
        if not self.ended:
            self.ended = True
            told = {"reason_string": text[:_TEXT_MAX]} if text and self.problems else None
            data = self._farewell(reason, told)
            self._out.append(data if self._takes(data) else self._farewell(reason, None))
        return Ended(reason, text=text)

    def _farewell(self, reason: int, properties: Properties | None) -> bytes:
        """The last packet, or nothing where the version has none for it."""
        if self.accepted:
            packet = p.Disconnect(reason, properties)
            return encode(packet, self.version) if self.version == V5 else b""
        if self.connect is None and reason != Reason.UNSUPPORTED_VERSION:
            return b""
        version = self.decoder.version or self.version
        return encode(p.ConnAck(reason=reason, properties=properties), version)

    def _takes(self, data: bytes) -> bool:
        """Whether the client takes a packet of that size."""
        return len(data) <= (self._packet_bytes_max or len(data))

    def stored(self, packet_id: int, qos: int, reason: int = 0) -> None:
        """A message is stored, or refused: acknowledge it."""
        if qos == 1:
            self._incoming.pop(packet_id, None)
            if reason:
                self._write(p.PubAck(packet_id, reason))
            else:
                self._out.append(encode_puback(packet_id))
        elif qos == 2:
            if reason >= 0x80:
                self._incoming.pop(packet_id, None)
            else:
                self._incoming[packet_id] = True
            self._write(p.PubRec(packet_id, reason))

    def remember(self, packet_ids: Iterable[int]) -> None:
        """Identifiers of QoS 2 that came before, over another connection, and are not released."""
        self._incoming.update(dict.fromkeys(packet_ids, True))

    def complete(self, packet_id: int) -> None:
        """It is remembered that an identifier may be used anew."""
        known = self._incoming.pop(packet_id, None)
        self._write(p.PubComp(packet_id, 0 if known else Reason.PACKET_ID_NOT_FOUND))

    def subscribed(self, packet_id: int, reasons: list[int]) -> None:
        """Answer a SUBSCRIBE."""
        self._write(p.SubAck(packet_id, reasons))

    def unsubscribed(self, packet_id: int, reasons: list[int]) -> None:
        """Answer an UNSUBSCRIBE."""
        self._write(p.UnsubAck(packet_id, reasons))

    # -- out ------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many messages of QoS 1 or 2 may be sent now."""
        return self.window - len(self._outgoing)

    def in_use(self, packet_id: int) -> bool:
        """Whether an identifier is on its way out."""
        return packet_id in self._outgoing

    def deliver(self, packet: p.Publish) -> bool:
        """Send a message; False when the client takes none of that size, or MQTT has no words."""
        topic = packet.topic
        if self._topic_alias_max:
            self._alias(packet)
        try:
            data = encode(packet, self.version)
        except LocalProtocolError:
            data = b""
        if not data or not self._takes(data):
            if self._aliases_out and packet.topic:
                self._aliases_out.pop(topic, None)
            return False
        if packet.qos:
            self._outgoing[packet.packet_id] = _SENT
        self._out.append(data)
        return True

    def _alias(self, packet: p.Publish) -> None:
        known = self._aliases_out
        if known is None:
            known = self._aliases_out = {}
        alias = known.get(packet.topic)
        if alias is not None:
            packet.topic = ""
        elif len(known) < min(self._topic_alias_max, TOPIC_ALIAS_MAX):
            alias = known[packet.topic] = len(known) + 1
        else:
            return
        packet.properties = {**(packet.properties or {}), "topic_alias": alias}

    def release(self, packet_id: int) -> None:
        """It is remembered that the client has a message of QoS 2: it may forget the identifier."""
        self._outgoing[packet_id] = _RELEASED
        self._write(p.PubRel(packet_id))

    def data_to_send(self) -> bytes:
        """What to write now."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def _write(self, packet: p.Packet) -> None:
        self._out.append(encode(packet, self.version))


_HANDLERS: dict[type, Callable[[ServerMachine, Any, list[Event]], None]] = {
    p.PubAck: ServerMachine._take_puback,  # noqa: SLF001  its own table
    p.PubRec: ServerMachine._take_pubrec,  # noqa: SLF001
    p.PubRel: ServerMachine._take_pubrel,  # noqa: SLF001
    p.PubComp: ServerMachine._take_pubcomp,  # noqa: SLF001
    p.Subscribe: ServerMachine._take_request,  # noqa: SLF001
    p.Unsubscribe: ServerMachine._take_request,  # noqa: SLF001
    p.PingReq: ServerMachine._take_ping,  # noqa: SLF001
    p.Disconnect: ServerMachine._take_disconnect,  # noqa: SLF001
}

#: Topic aliases that either side may use; what is remembered for one connection is small.
TOPIC_ALIAS_MAX: Final = 64

#: Characters of an explanation.
_TEXT_MAX: Final = 200


def _check_message(topic: str, properties: Properties | None) -> None:
    if not is_topic(topic):
        raise PacketRefused(f"{topic!r} is no topic to publish to.", Reason.TOPIC_NAME_INVALID)
    if properties is not None:
        response = properties.get("response_topic")
        if response is not None and not is_topic(response):
            raise forbidden(f"{response!r} is no response topic.")
