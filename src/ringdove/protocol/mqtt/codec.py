"""Bytes to packets and back.

`Decoder.feed` takes bytes in pieces of any size and gives the packets that are complete. When
something is wrong behind them, `failure` says what; the stream cannot go on after that. The decoder
of a server learns the version from CONNECT, that of a client is told.

PUBLISH and PUBACK, nearly all that a busy server reads and writes, take the shortest way.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from ringdove.errors import LocalProtocolError, PacketRefused
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.packets import V5, V311, Reason
from ringdove.protocol.mqtt.properties import (
    VARINT_MAX,
    WILL,
    forbidden,
    malformed,
    read_bytes,
    read_properties,
    read_text,
    read_u16,
    write_bytes,
    write_properties,
    write_text,
    write_varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.protocol.mqtt.packets import Packet, Properties

#: Packet types, the upper half of the first byte.
(
    CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE,
    UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH,
) = range(1, 16)  # fmt: skip

#: Types whose lower half of the first byte is 2; it is 0 for all others but PUBLISH.
_MARKED: Final = frozenset({PUBREL, SUBSCRIBE, UNSUBSCRIBE})

_ID_REASON = struct.Struct(">HB")
_ACK = struct.Struct(">BBH")
_U16 = struct.Struct(">H")

#: What 3.1.1 says in CONNACK instead of a reason; all others become "server unavailable".
_RETURN_CODES: Final = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.CLIENT_ID_INVALID: 2,
    Reason.BAD_CREDENTIALS: 4,
    Reason.NOT_AUTHORIZED: 5,
}
_RETURN_CODE_OTHER: Final = 3
_REASONS: Final = {code: int(reason) for reason, code in _RETURN_CODES.items()} | {
    _RETURN_CODE_OTHER: int(Reason.SERVER_UNAVAILABLE)
}


class Decoder:
    """See the module. Holds at most one packet that is not complete."""

    __slots__ = ("_rest", "_wanted", "failure", "packet_bytes_max", "version")

    def __init__(self, version: int | None = None, packet_bytes_max: int = VARINT_MAX) -> None:
        #: None until CONNECT has said it.
        self.version = version
        #: Bytes of one packet, its first ones included.
        self.packet_bytes_max = packet_bytes_max
        self.failure: PacketRefused | None = None
        self._rest: bytes | bytearray = b""
        #: Bytes that the incomplete packet will have, once that is known.
        self._wanted = 0

    @property
    def partial_bytes(self) -> int:
        """How much of an incomplete packet has come."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Packet]:
        """Take bytes; the packets that are now complete, up to a failure."""
        if self.failure is not None:
            return []
        if self._rest:
            if not isinstance(self._rest, bytearray):
                self._rest = bytearray(self._rest)
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
            self._rest = b""
        found: list[Packet] = []
        try:
            used = self._cut(data, found)
        except PacketRefused as failure:
            self.failure = failure
        except (IndexError, struct.error):
            self.failure = malformed("A packet is shorter than its fields.")
        else:
            if used < len(data):
                self._rest = data[used:] if used else data
        return found

    def _cut(self, data: bytes, found: list[Packet]) -> int:
        """Append the packets in `data` to `found`; how many bytes they have."""
        start, end = 0, len(data)
        while start + 1 < end:
            first = data[start]
            length = data[start + 1]
            at = start + 2
            if length > 127:
                shift = 7
                length &= 0x7F
                while True:
                    if at == end:
                        self._wanted = at - start + 1
                        return start
                    byte = data[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 128:
                        break
                    shift += 7
                    if shift > 21:
                        raise malformed("A packet's length has more than four bytes.")
            stop = at + length
            if stop - start > self.packet_bytes_max:
                raise PacketRefused(
                    f"A packet of {stop - start} bytes exceeds {self.packet_bytes_max}.",
                    Reason.PACKET_TOO_LARGE,
                )
            if stop > end:
                self._wanted = stop - start
                return start
            if first >> 4 == PUBLISH:
                found.append(_read_publish(data, at, stop, first, self.version))
            else:
                found.append(self._read(first, data[at:stop]))
            start = stop
        self._wanted = 2
        return start

    def _read(self, first: int, body: bytes) -> Packet:
        kind = first >> 4
        if first & 0x0F != (2 if kind in _MARKED else 0) or kind == 0:
            raise malformed(f"No packet begins with {first:#04x}.")
        if kind == CONNECT:
            packet = _read_connect(body)
            self.version = packet.version
            return packet
        read = _READERS[kind]
        return read(body, self.version or V311)


# -- reading ---------------------------------------------------------------------------------------


def _read_publish(data: bytes, at: int, stop: int, first: int, version: int | None) -> p.Publish:
    topic_end = at + 2 + (data[at] << 8 | data[at + 1])
    qos = first >> 1 & 3
    if topic_end > stop or qos == 3 or (first & 8 and not qos):
        raise malformed("A PUBLISH has a bad topic length or bad flags.")
    try:
        topic = data[at + 2 : topic_end].decode()
    except UnicodeDecodeError:
        raise malformed("A topic is not UTF-8.") from None
    if "\0" in topic:
        raise malformed("A topic has the character 0.")
    at = topic_end
    packet_id = 0
    if qos:
        packet_id = data[at] << 8 | data[at + 1]
        at += 2
        if not packet_id or at > stop:
            raise malformed("A PUBLISH has no packet identifier.")
    properties: Properties | None = None
    if version == V5:
        if at < stop and data[at] == 0:
            at += 1
        else:
            properties, at = read_properties(data[:stop], at, PUBLISH)
    return p.Publish(
        topic, data[at:stop], qos, packet_id, first & 1 == 1, first & 8 == 8, properties
    )


def _read_connect(body: bytes) -> p.Connect:
    name, at = read_text(body, 0)
    version, flags = body[at], body[at + 1]
    if name != "MQTT" or version not in (V311, V5):
        raise PacketRefused(
            f"Protocol {name!r} {version} is not served: use MQTT 3.1.1 or 5.",
            Reason.UNSUPPORTED_VERSION,
        )
    keep_alive_s, at = read_u16(body, at + 2)
    has_will, will_qos, has_password, has_username = (
        flags >> 2 & 1, flags >> 3 & 3, flags >> 6 & 1, flags >> 7
    )  # fmt: skip
    if flags & 1 or will_qos == 3 or (not has_will and flags & 0x38):
        raise malformed(f"CONNECT has the flags {flags:#04x}.")
    if version == V311 and has_password and not has_username:
        raise malformed("CONNECT has a password without a user name.")
    properties = None
    if version == V5:
        properties, at = read_properties(body, at, CONNECT)
    client_id, at = read_text(body, at)
    will, username, password = None, None, None
    if has_will:
        will_properties = None
        if version == V5:
            will_properties, at = read_properties(body, at, WILL)
        topic, at = read_text(body, at)
        payload, at = read_bytes(body, at)
        will = p.Will(topic, payload, will_qos, flags >> 5 & 1 == 1, will_properties)
    if has_username:
        username, at = read_text(body, at)
    if has_password:
        password, at = read_bytes(body, at)
    _all_read(body, at)
    return p.Connect(
        client_id, version, flags & 2 == 2, keep_alive_s, username, password, will, properties
    )


def _all_read(body: bytes, at: int) -> None:
    if at != len(body):
        raise malformed(f"A packet has {len(body) - at} bytes too many.")


def _read_connack(body: bytes, version: int) -> p.ConnAck:
    if body[0] > 1:
        raise malformed("CONNACK has reserved flags.")
    reason, at = body[1], 2
    properties = None
    if version == V5:
        properties, at = read_properties(body, at, CONNACK)
    else:
        if reason not in _REASONS:
            raise malformed(f"{reason} is no return code of CONNACK.")
        reason = _REASONS[reason]
    _all_read(body, at)
    return p.ConnAck(body[0] == 1, reason, properties)


def _ack_reader(kind: int, make: Callable[..., Any]) -> Callable[[bytes, int], Any]:
    """Reads PUBACK, PUBREC, PUBREL or PUBCOMP."""

    def read(body: bytes, version: int) -> Any:
        packet_id, at = _read_id(body)
        if len(body) == 2:
            return make(packet_id)
        if version != V5:
            raise malformed("An acknowledgement has more than its number.")
        reason, properties = body[2], None
        at += 1
        if len(body) > 3:
            properties, at = read_properties(body, at, kind)
        _all_read(body, at)
        return make(packet_id, reason, properties)

    return read


def _read_id(body: bytes) -> tuple[int, int]:
    packet_id, at = read_u16(body, 0)
    if not packet_id:
        raise malformed("A packet identifier is 0.")
    return packet_id, at


def _read_id_properties(body: bytes, version: int, kind: int) -> tuple[int, Properties | None, int]:
    packet_id, at = _read_id(body)
    if version != V5:
        return packet_id, None, at
    return packet_id, *read_properties(body, at, kind)


def _read_subscribe(body: bytes, version: int) -> p.Subscribe:
    packet_id, properties, at = _read_id_properties(body, version, SUBSCRIBE)
    if properties and len(properties.get("subscription_identifier", ())) > 1:
        raise forbidden("SUBSCRIBE has two subscription identifiers.")
    filters = []
    while at < len(body):
        pattern, at = read_text(body, at)
        options = body[at]
        at += 1
        if options & 3 == 3 or options & (0xC0 if version == V5 else 0xFC):
            raise malformed(f"SUBSCRIBE has the options {options:#04x}.")
        if options >> 4 == 3:
            raise forbidden("Retain handling is 0, 1 or 2.")
        filters.append(
            p.Filter(pattern, options & 3, options & 4 == 4, options & 8 == 8, options >> 4)
        )
    if not filters:
        raise forbidden("SUBSCRIBE names no topic filter.")
    return p.Subscribe(packet_id, filters, properties)


def _read_suback(body: bytes, version: int) -> p.SubAck:
    packet_id, properties, at = _read_id_properties(body, version, SUBACK)
    return p.SubAck(packet_id, list(body[at:]), properties)


def _read_unsubscribe(body: bytes, version: int) -> p.Unsubscribe:
    packet_id, properties, at = _read_id_properties(body, version, UNSUBSCRIBE)
    patterns = []
    while at < len(body):
        pattern, at = read_text(body, at)
        patterns.append(pattern)
    if not patterns:
        raise forbidden("UNSUBSCRIBE names no topic filter.")
    return p.Unsubscribe(packet_id, patterns, properties)


def _read_unsuback(body: bytes, version: int) -> p.UnsubAck:
    packet_id, properties, at = _read_id_properties(body, version, UNSUBACK)
    if version != V5:
        _all_read(body, at)
    return p.UnsubAck(packet_id, list(body[at:]), properties)


def _read_pingreq(body: bytes, version: int) -> p.PingReq:  # noqa: ARG001
    _all_read(body, 0)
    return p.PingReq()


def _read_pingresp(body: bytes, version: int) -> p.PingResp:  # noqa: ARG001
    _all_read(body, 0)
    return p.PingResp()


def _read_disconnect(body: bytes, version: int) -> p.Disconnect:
    if not body:
        return p.Disconnect()
    if version != V5:
        raise malformed("DISCONNECT is not empty.")
    return p.Disconnect(body[0], _read_last_properties(body, DISCONNECT))


def _read_auth(body: bytes, version: int) -> p.Auth:
    if version != V5:
        raise malformed("AUTH is of version 5.")
    if not body:
        return p.Auth()
    return p.Auth(body[0], _read_last_properties(body, AUTH))


def _read_last_properties(body: bytes, kind: int) -> Properties | None:
    if len(body) == 1:
        return None
    properties, at = read_properties(body, 1, kind)
    _all_read(body, at)
    return properties


_READERS: dict[int, Callable[[bytes, int], Packet]] = {
    CONNACK: _read_connack,
    PUBACK: _ack_reader(PUBACK, p.PubAck),
    PUBREC: _ack_reader(PUBREC, p.PubRec),
    PUBREL: _ack_reader(PUBREL, p.PubRel),
    PUBCOMP: _ack_reader(PUBCOMP, p.PubComp),
    SUBSCRIBE: _read_subscribe,
    SUBACK: _read_suback,
    UNSUBSCRIBE: _read_unsubscribe,
    UNSUBACK: _read_unsuback,
    PINGREQ: _read_pingreq,
    PINGRESP: _read_pingresp,
    DISCONNECT: _read_disconnect,
    AUTH: _read_auth,
}


# -- writing ---------------------------------------------------------------------------------------


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of a packet."""
    return _WRITERS[type(packet)](packet, version)


def _join(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return b"".join((bytes((first,)), write_varint(len(body)), body))


def _props(properties: Properties | None, version: int) -> bytes:
    return write_properties(properties) if version == V5 else b""


def _write_connect(packet: p.Connect, version: int) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1
    payload = [write_text(packet.client_id)]
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        payload += [_props(will.properties, version), write_text(will.topic)]
        payload.append(write_bytes(will.payload))
    if packet.username is not None:
        flags |= 0x80
        payload.append(write_text(packet.username))
    if packet.password is not None:
        if packet.username is None and version != V5:
            raise LocalProtocolError("In version 3.1.1 a password needs a user name.")
        flags |= 0x40
        payload.append(write_bytes(packet.password))
    head = b"\0\4MQTT" + bytes((version, flags)) + _U16.pack(packet.keep_alive_s)
    return _join(CONNECT << 4, head, _props(packet.properties, version), *payload)


def _write_connack(packet: p.ConnAck, version: int) -> bytes:
    reason = packet.reason
    if version != V5:
        reason = _RETURN_CODES.get(Reason(reason), _RETURN_CODE_OTHER)
    head = bytes((packet.session_present, reason))
    return _join(CONNACK << 4, head, _props(packet.properties, version))


def _write_publish(packet: p.Publish, version: int) -> bytes:
    qos = packet.qos
    first = PUBLISH << 4 | packet.dup << 3 | qos << 1 | packet.retain
    packet_id = _U16.pack(packet.packet_id) if qos else b""
    properties = write_properties(packet.properties) if version == V5 else b""
    return _join(first, write_text(packet.topic), packet_id, properties, packet.payload)


def _ack_writer(kind: int) -> Callable[[Any, int], bytes]:
    first = kind << 4 | (2 if kind in _MARKED else 0)

    def write(packet: Any, version: int) -> bytes:
        if version != V5 or not (packet.reason or packet.properties):
            return _ACK.pack(first, 2, packet.packet_id)
        head = _ID_REASON.pack(packet.packet_id, packet.reason)
        if not packet.properties:
            return _join(first, head)
        return _join(first, head, write_properties(packet.properties))

    return write


def encode_puback(packet_id: int) -> bytes:
    """A PUBACK that all is well, in both versions."""
    return _ACK.pack(PUBACK << 4, 2, packet_id)


def _write_subscribe(packet: p.Subscribe, version: int) -> bytes:
    parts = [_U16.pack(packet.packet_id), _props(packet.properties, version)]
    for one in packet.filters:
        options = one.qos
        if version == V5:
            options |= one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        parts += [write_text(one.pattern), bytes((options,))]
    return _join(SUBSCRIBE << 4 | 2, *parts)


def _write_suback(packet: p.SubAck, version: int) -> bytes:
    reasons = packet.reasons
    if version != V5:
        reasons = [min(reason, 0x80) for reason in reasons]
    head = _U16.pack(packet.packet_id)
    return _join(SUBACK << 4, head, _props(packet.properties, version), bytes(reasons))


def _write_unsubscribe(packet: p.Unsubscribe, version: int) -> bytes:
    head = _U16.pack(packet.packet_id) + _props(packet.properties, version)
    return _join(UNSUBSCRIBE << 4 | 2, head, *map(write_text, packet.patterns))


def _write_unsuback(packet: p.UnsubAck, version: int) -> bytes:
    head = _U16.pack(packet.packet_id)
    if version != V5:
        return _join(UNSUBACK << 4, head)
    return _join(UNSUBACK << 4, head, write_properties(packet.properties), bytes(packet.reasons))


def _reason_writer(kind: int) -> Callable[[Any, int], bytes]:
    """Writes DISCONNECT or AUTH."""

    def write(packet: Any, version: int) -> bytes:
        if version != V5:
            if kind == AUTH:
                raise LocalProtocolError("AUTH is of version 5.")
            return _join(kind << 4)
        if not packet.reason and not packet.properties:
            return _join(kind << 4)
        return _join(kind << 4, bytes((packet.reason,)), write_properties(packet.properties))

    return write


_WRITERS: dict[type, Callable[[Any, int], bytes]] = {
    p.Connect: _write_connect,
    p.ConnAck: _write_connack,
    p.Publish: _write_publish,
    p.PubAck: _ack_writer(PUBACK),
    p.PubRec: _ack_writer(PUBREC),
    p.PubRel: _ack_writer(PUBREL),
    p.PubComp: _ack_writer(PUBCOMP),
    p.Subscribe: _write_subscribe,
    p.SubAck: _write_suback,
    p.Unsubscribe: _write_unsubscribe,
    p.UnsubAck: _write_unsuback,
    p.PingReq: lambda _, version: _join(PINGREQ << 4),  # noqa: ARG005
    p.PingResp: lambda _, version: _join(PINGRESP << 4),  # noqa: ARG005
    p.Disconnect: _reason_writer(DISCONNECT),
    p.Auth: _reason_writer(AUTH),
}
