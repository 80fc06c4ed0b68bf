"""Attributes of a message: named values, as one MessagePack map.

Names are text; values are text, numbers, booleans, bytes, none, or flat lists of these. A hostile
map could grow seventyfold when decoded, so its shape is checked on the encoded bytes, level by
level, with every count bounded before anything is made of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringdove import limits
from ringdove.errors import LocalProtocolError, RemoteProtocolError

Attributes = dict[str, Any]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_level = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_FAILURES = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)
_SCALARS = (str, int, float, bool, bytes, type(None))

#: First bytes of MessagePack: small maps and lists hold their count themselves.
_SMALL_MAP, _SMALL_LIST, _SMALL_END = 0x80, 0x90, 0xA0
_MAPS = (0xDE, 0xDF)
_LISTS = (0xDC, 0xDD)
_EXTENSIONS = (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8)


def are_plain(attributes: Attributes) -> bool:
    """Whether names and values are of the kinds allowed, and lists short enough."""
    for name, value in attributes.items():
        values = value if isinstance(value, list | tuple) else (value,)
        if not isinstance(name, str) or len(values) > limits.ATTRIBUTE_LIST_MAX:
            return False
        if not all(isinstance(v, _SCALARS) for v in values):
            return False
    return True


def encode(attributes: Attributes) -> bytes:
    """The stored form, or LocalProtocolError when there is none."""
    if len(attributes) > limits.ATTRIBUTES_MAX or not are_plain(attributes):
        raise LocalProtocolError(
            f"A message has at most {limits.ATTRIBUTES_MAX} attributes; names are text, values are "
            "text, numbers, booleans, bytes, None, or flat lists of these, of at most "
            f"{limits.ATTRIBUTE_LIST_MAX}."
        )
    try:
        encoded = _encode(attributes)
    except _FAILURES as error:
        raise LocalProtocolError(f"A message's attributes cannot be stored: {error}.") from error
    if len(encoded) > limits.ATTRIBUTES_BYTES_MAX:
        raise LocalProtocolError(
            f"The attributes of a message take {len(encoded)} bytes; "
            f"at most {limits.ATTRIBUTES_BYTES_MAX} are allowed."
        )
    return encoded


def decode(encoded: bytes) -> Attributes:
    """The attributes from their stored form."""
    try:
        return _decode(encoded) if encoded else {}
    except _FAILURES as error:
        raise RemoteProtocolError(f"A message's attributes cannot be read: {error}.") from error


def check(encoded: bytes) -> None:
    """Raise RemoteProtocolError unless the stored form is one that `encode` could have made."""
    if not encoded:
        return
    if len(encoded) > limits.ATTRIBUTES_BYTES_MAX:
        raise RemoteProtocolError("A message's attributes exceed their limit.")
    if _count(encoded, _SMALL_MAP, _MAPS) > limits.ATTRIBUTES_MAX:
        raise RemoteProtocolError(f"A message has more than {limits.ATTRIBUTES_MAX} attributes.")
    try:
        for value in _decode_level(encoded).values():
            data = bytes(value)
            if _SMALL_LIST <= data[0] < _SMALL_END or data[0] in _LISTS:
                if _count(data, _SMALL_LIST, _LISTS) > limits.ATTRIBUTE_LIST_MAX:
                    raise RemoteProtocolError("A list among a message's attributes is too long.")
                for element in _decode_list(data):
                    _check_scalar(bytes(element))
            else:
                _check_scalar(data)
    except _FAILURES as error:
        raise RemoteProtocolError(f"A message's attributes cannot be read: {error}.") from error


def _check_scalar(data: bytes) -> None:
    kind = data[0]
    if _SMALL_MAP <= kind < _SMALL_END or kind in _MAPS + _LISTS + _EXTENSIONS:
        raise RemoteProtocolError(
            "Attributes are text, numbers, booleans, bytes, none, or flat lists of these."
        )
    msgspec.msgpack.decode(data)


def _count(data: bytes, small: int, large: tuple[int, int]) -> int:
    """How many entries a map or list announces; 0 when it is none, which decoding will refuse."""
    kind = data[0]
    if small <= kind < small + 16:
        return kind - small
    if kind in large:
        width = 2 if kind == large[0] else 4
        return int.from_bytes(data[1 : 1 + width], "big")
    return 0
