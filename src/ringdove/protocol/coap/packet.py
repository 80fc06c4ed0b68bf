"""A CoAP message (RFC 7252, section 3) as bytes and as a value, and the numbers that it is made of.

    0                   1                   2                   3
    |Ver| T |  TKL  |     Code      |          Message ID           |
    |   token, TKL bytes   |   options ...   | 0xff |   payload ...   |

An option is written as the difference of its number to the one before, its length, and its value.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ringdove.errors import RemoteProtocolError

_HEAD = struct.Struct(">BBH")
_VERSION = 1
_PAYLOAD_MARK = 0xFF
TOKEN_BYTES_MAX = 8


class Kind(IntEnum):
    """The type of a message: asks to be acknowledged, does not, acknowledges, or rejects."""

    CON = 0
    NON = 1
    ACK = 2
    RST = 3


class Code(IntEnum):
    """Methods and response codes: class in the upper three bits, detail in the lower five."""

    EMPTY = 0
    GET = 1
    POST = 2
    PUT = 3
    DELETE = 4
    CREATED = 2 << 5 | 1
    DELETED = 2 << 5 | 2
    CHANGED = 2 << 5 | 4
    CONTENT = 2 << 5 | 5
    CONTINUE = 2 << 5 | 31
    BAD_REQUEST = 4 << 5
    UNAUTHORIZED = 4 << 5 | 1
    BAD_OPTION = 4 << 5 | 2
    FORBIDDEN = 4 << 5 | 3
    NOT_FOUND = 4 << 5 | 4
    METHOD_NOT_ALLOWED = 4 << 5 | 5
    NOT_ACCEPTABLE = 4 << 5 | 6
    INCOMPLETE = 4 << 5 | 8
    CONFLICT = 4 << 5 | 9
    TOO_LARGE = 4 << 5 | 13
    TOO_MANY_REQUESTS = 4 << 5 | 29
    SERVER_ERROR = 5 << 5
    UNAVAILABLE = 5 << 5 | 3
    PROXYING_NOT_SUPPORTED = 5 << 5 | 5


class Option(IntEnum):
    """The options that Ringdove knows; odd ones are critical: who does not know them refuses."""

    URI_HOST = 3
    ETAG = 4
    OBSERVE = 6
    URI_PORT = 7
    LOCATION_PATH = 8
    URI_PATH = 11
    CONTENT_FORMAT = 12
    MAX_AGE = 14
    URI_QUERY = 15
    ACCEPT = 17
    LOCATION_QUERY = 20
    BLOCK2 = 23
    BLOCK1 = 27
    PROXY_URI = 35
    PROXY_SCHEME = 39
    SIZE1 = 60


#: Options in the order of their numbers; a number may come several times.
Options = tuple[tuple[int, bytes], ...]


class Packet(NamedTuple):
    """One message."""

    kind: int
    code: int
    #: The message id: acknowledgements and repetitions carry the same.
    mid: int
    #: What the asking side chose to recognise the response by.
    token: bytes = b""
    options: Options = ()
    payload: bytes = b""

    @property
    def is_request(self) -> bool:
        """Whether it asks for something."""
        return 0 < self.code < 32

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return self.code >= 64

    def values(self, number: int) -> list[bytes]:
        """The values of an option, in order."""
        return [value for found, value in self.options if found == number]

    def number(self, number: int) -> int | None:
        """The first value of an option that holds a number; None when it is missing."""
        for found, value in self.options:
            if found == number:
                return int.from_bytes(value, "big")
        return None


def uint(value: int) -> bytes:
    """A number as an option holds it: as short as possible."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def name_of(code: int) -> str:
    """A code as people write it: 4.04."""
    return f"{code >> 5}.{code & 31:02}"


def encode(packet: Packet) -> bytes:
    """The packet's bytes; its options may come in any order."""
    return head(packet.kind, packet.code, packet.mid, packet.token) + tail(
        packet.options, packet.payload
    )


def head(kind: int, code: int, mid: int, token: bytes = b"") -> bytes:
    """What comes before the options."""
    return _HEAD.pack(_VERSION << 6 | kind << 4 | len(token), code, mid) + token


def tail(options: Options, payload: bytes) -> bytes:
    """The options and the payload."""
    parts = bytearray()
    before = 0
    for number, value in sorted(options, key=_by_number):
        delta, delta_rest = _extended(number - before)
        length, length_rest = _extended(len(value))
        parts.append(delta << 4 | length)
        parts += delta_rest
        parts += length_rest
        parts += value
        before = number
    if payload:
        parts.append(_PAYLOAD_MARK)
        parts += payload
    return bytes(parts)


def _by_number(option: tuple[int, bytes]) -> int:
    return option[0]


def _extended(value: int) -> tuple[int, bytes]:
    """Four bits, and the bytes that say the rest."""
    if value < 13:
        return value, b""
    if value < 269:
        return 13, (value - 13).to_bytes(1, "big")
    return 14, (value - 269).to_bytes(2, "big")


def decode(data: bytes) -> Packet:
    """The packet, or RemoteProtocolError when the bytes are none."""
    if len(data) < _HEAD.size:
        raise RemoteProtocolError(f"A CoAP message has at least 4 bytes, not {len(data)}.")
    first, code, mid = _HEAD.unpack_from(data)
    length = first & 15
    if first >> 6 != _VERSION or length > TOKEN_BYTES_MAX:
        raise RemoteProtocolError(
            f"This is no message of CoAP's version 1 with a token of up to 8 bytes: {data[:4]!r}."
        )
    at = _HEAD.size + length
    if len(data) < at or (code == Code.EMPTY and len(data) > _HEAD.size):
        raise RemoteProtocolError("The message ends within its token, or is not empty as it says.")
    options, payload = _options(data, at)
    return Packet(first >> 4 & 3, code, mid, data[_HEAD.size : at], options, payload)


def kind_and_mid(data: bytes) -> tuple[int, int] | None:
    """Type and message id of what is no valid message otherwise, where they can be read."""
    if len(data) < _HEAD.size or data[0] >> 6 != _VERSION:
        return None
    return data[0] >> 4 & 3, _HEAD.unpack_from(data)[2]


def _options(data: bytes, at: int) -> tuple[Options, bytes]:
    found: list[tuple[int, bytes]] = []
    number = 0
    end = len(data)
    try:
        while at < end:
            byte = data[at]
            at += 1
            if byte == _PAYLOAD_MARK:
                if at == end:
                    raise RemoteProtocolError("There is no payload behind its mark.")
                return tuple(found), data[at:]
            delta, length = byte >> 4, byte & 15
            if delta > 12:
                delta, at = _read_extended(data, at, delta)
            if length > 12:
                length, at = _read_extended(data, at, length)
            if at + length > end:
                raise RemoteProtocolError("The message ends within an option.")
            number += delta
            found.append((number, data[at : at + length]))
            at += length
    except IndexError:
        raise RemoteProtocolError("The message ends within an option.") from None
    return tuple(found), b""


def _read_extended(data: bytes, at: int, value: int) -> tuple[int, int]:
    if value == 13:
        return data[at] + 13, at + 1
    if value == 14:
        return (data[at] << 8 | data[at + 1]) + 269, at + 2
    raise RemoteProtocolError("An option has a length or difference of 15, which is reserved.")
