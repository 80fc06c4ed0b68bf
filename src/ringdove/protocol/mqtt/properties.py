"""The properties of version 5: a number, a type and the packets that may carry them.

`_TABLE` is the whole of it. A property that may come more than once is a list in the dictionary:
`user_property` of pairs, `subscription_identifier` of numbers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from ringdove.errors import LocalProtocolError, PacketRefused
from ringdove.protocol.mqtt.packets import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.protocol.mqtt.packets import Properties

VARINT_MAX: Final = 268_435_455
STRING_BYTES_MAX: Final = 65_535

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")

#: Packets, as a set of bits by packet type; the will has a number that no packet has.
_CONNECT, _CONNACK, _PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP = (1 << n for n in range(1, 8))
_SUBSCRIBE, _SUBACK, _UNSUBSCRIBE, _UNSUBACK = (1 << n for n in range(8, 12))
_DISCONNECT, _AUTH, _WILL = 1 << 14, 1 << 15, 1 << 16
WILL: Final = 16
_MESSAGE = _PUBLISH | _WILL
_ACKS = _PUBACK | _PUBREC | _PUBREL | _PUBCOMP | _SUBACK | _UNSUBACK
_ANSWERS = _CONNACK | _ACKS | _DISCONNECT | _AUTH
_ALL = _CONNECT | _PUBLISH | _WILL | _SUBSCRIBE | _UNSUBSCRIBE | _ANSWERS

_TABLE: tuple[tuple[int, str, str, int], ...] = (
    (0x01, "payload_format_indicator", "flag", _MESSAGE),
    (0x02, "message_expiry_interval", "u32", _MESSAGE),
    (0x03, "content_type", "text", _MESSAGE),
    (0x08, "response_topic", "text", _MESSAGE),
    (0x09, "correlation_data", "bytes", _MESSAGE),
    (0x0B, "subscription_identifier", "varint", _PUBLISH | _SUBSCRIBE),
    (0x11, "session_expiry_interval", "u32", _CONNECT | _CONNACK | _DISCONNECT),
    (0x12, "assigned_client_identifier", "text", _CONNACK),
    (0x13, "server_keep_alive", "u16", _CONNACK),
    (0x15, "authentication_method", "text", _CONNECT | _CONNACK | _AUTH),
    (0x16, "authentication_data", "bytes", _CONNECT | _CONNACK | _AUTH),
    (0x17, "request_problem_information", "flag", _CONNECT),
    (0x18, "will_delay_interval", "u32", _WILL),
    (0x19, "request_response_information", "flag", _CONNECT),
    (0x1A, "response_information", "text", _CONNACK),
    (0x1C, "server_reference", "text", _CONNACK | _DISCONNECT),
    (0x1F, "reason_string", "text", _ANSWERS),
    (0x21, "receive_maximum", "u16", _CONNECT | _CONNACK),
    (0x22, "topic_alias_maximum", "u16", _CONNECT | _CONNACK),
    (0x23, "topic_alias", "u16", _PUBLISH),
    (0x24, "maximum_qos", "flag", _CONNACK),
    (0x25, "retain_available", "flag", _CONNACK),
    (0x26, "user_property", "pair", _ALL),
    (0x27, "maximum_packet_size", "u32", _CONNECT | _CONNACK),
    (0x28, "wildcard_subscription_available", "flag", _CONNACK),
    (0x29, "subscription_identifier_available", "flag", _CONNACK),
    (0x2A, "shared_subscription_available", "flag", _CONNACK),
)
_LISTS = frozenset({"user_property", "subscription_identifier"})
_NEVER_ZERO = frozenset({"receive_maximum", "maximum_packet_size", "subscription_identifier"})


def malformed(text: str) -> PacketRefused:
    """Bytes that are no packet."""
    return PacketRefused(text, Reason.MALFORMED_PACKET)


def forbidden(text: str) -> PacketRefused:
    """A packet that the protocol does not allow."""
    return PacketRefused(text, Reason.PROTOCOL_ERROR)


# -- reading: each answers a value and where the next one begins -----------------------------------


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to four bytes, in its shortest form."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise malformed("A number is written with more bytes than it needs.")
            return value, at
        shift += 7
        if shift > 21:
            raise malformed("A number has more than four bytes.")


def read_u16(data: bytes, at: int) -> tuple[int, int]:
    """Two bytes."""
    return data[at] << 8 | data[at + 1], at + 2


def _read_u32(data: bytes, at: int) -> tuple[int, int]:
    return _U32.unpack_from(data, at)[0], at + 4


def _read_flag(data: bytes, at: int) -> tuple[int, int]:
    if data[at] > 1:
        raise forbidden(f"A property that is 0 or 1 is {data[at]}.")
    return data[at], at + 1


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes behind their length."""
    end = at + 2 + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise malformed("A field ends behind its packet.")
    return data[at + 2 : end], end


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """Text behind its length."""
    raw, end = read_bytes(data, at)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise malformed("A text is not UTF-8.") from None
    if "\0" in text:
        raise malformed("A text has the character 0.")
    return text, end


def _read_pair(data: bytes, at: int) -> tuple[tuple[str, str], int]:
    name, at = read_text(data, at)
    value, at = read_text(data, at)
    return (name, value), at


_READERS: dict[str, Callable[[bytes, int], tuple[Any, int]]] = {
    "flag": _read_flag, "u16": read_u16, "u32": _read_u32, "varint": read_varint,
    "text": read_text, "bytes": read_bytes, "pair": _read_pair,
}  # fmt: skip
_BY_NUMBER = {
    number: (name, _READERS[kind], allowed, name in _LISTS)
    for number, name, kind, allowed in _TABLE
}


def read_properties(data: bytes, at: int, packet_type: int) -> tuple[Properties | None, int]:
    """The properties of a packet."""
    length, at = read_varint(data, at)
    if not length:
        return None, at
    end = at + length
    if end > len(data):
        raise malformed("Properties end behind their packet.")
    found: Properties = {}
    part = data[:end]
    while at < end:
        known = _BY_NUMBER.get(data[at])
        if known is None or not known[2] & 1 << packet_type:
            raise malformed(f"Property {data[at]:#04x} has no place in this packet.")
        name, read, _, repeats = known
        value, at = read(part, at + 1)
        if value == 0 and name in _NEVER_ZERO:
            raise forbidden(f"The property {name} is 0.")
        if repeats:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise forbidden(f"The property {name} comes twice.")
        else:
            found[name] = value
    return found, at


# -- writing ---------------------------------------------------------------------------------------


def write_varint(value: int) -> bytes:
    """A number in one to four bytes."""
    if value < 128:
        return bytes((value,))
    if value > VARINT_MAX:
        raise LocalProtocolError(f"{value} is above {VARINT_MAX}, the largest that MQTT can write.")
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes(value: bytes) -> bytes:
    """Bytes behind their length."""
    if len(value) > STRING_BYTES_MAX:
        raise LocalProtocolError(f"A field of {len(value)} bytes exceeds {STRING_BYTES_MAX}.")
    return _U16.pack(len(value)) + value


def is_text(value: str) -> bool:
    """Whether text can be written at all."""
    return "\0" not in value and len(value.encode(errors="replace")) <= STRING_BYTES_MAX


def write_text(value: str) -> bytes:
    """Text behind its length."""
    try:
        return write_bytes(value.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{value!r} cannot be written as UTF-8.") from error


def _write_pair(value: tuple[str, str]) -> bytes:
    return write_text(value[0]) + write_text(value[1])


_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "flag": lambda value: bytes((value,)), "u16": _U16.pack, "u32": _U32.pack,
    "varint": write_varint, "text": write_text, "bytes": write_bytes, "pair": _write_pair,
}  # fmt: skip
_BY_NAME = {
    name: (bytes((number,)), _WRITERS[kind], name in _LISTS) for number, name, kind, _ in _TABLE
}


def write_properties(properties: Properties | None) -> bytes:
    """Properties behind their length."""
    if not properties:
        return b"\0"
    parts = []
    for name, value in properties.items():
        try:
            number, write, repeats = _BY_NAME[name]
            parts += [number + write(one) for one in (value if repeats else (value,))]
        except (KeyError, struct.error, ValueError, TypeError) as error:
            raise LocalProtocolError(f"MQTT has no property {name} = {value!r}.") from error
    body = b"".join(parts)
    return write_varint(len(body)) + body
