"""A second reader of blocks, written from docs/block-format.md alone.

It shares no code with `ringdove.core.block` and takes no short cuts: each rule of the document's
section "Reading a block" is one line here. Where the two readers disagree, one of them, or the
document, is wrong.
"""

import struct
from typing import Any

import lz4.block
import msgspec
import xxhash
import zstandard

Message = tuple[bytes, bytes, dict[str, Any], int]

_SCALARS = (type(None), bool, int, float, str, bytes)
_MIB = 1024 * 1024


class RefusedError(Exception):
    """The bytes are no block; the text names the rule that they break."""


def _must(holds: bool, rule: str) -> None:
    if not holds:
        raise RefusedError(rule)


def _up(length: int) -> int:
    return (length + 7) // 8 * 8


def _u(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _i(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little", signed=True)


def read(data: bytes) -> list[Message]:
    """Body, key, attributes and send time of each message, or RefusedError."""
    _must(len(data) >= 64, "R1")
    _must(data[:4] == b"RDBK", "R2")
    _must(data[4] == 1, "R3")
    _must(_u(data, 60, 4) == xxhash.xxh32_intdigest(data[:60]), "R4")
    payload = data[64:]
    _must(_u(data, 52, 4) == len(payload), "R5")
    _must(_u(data, 40, 8) == xxhash.xxh3_64_intdigest(payload), "R6")
    flags, codec, priority = data[5], data[6], data[7]
    count, raw_bytes = _u(data, 48, 4), _u(data, 56, 4)
    _must(1 <= count <= 65_536, "R7")
    _must(flags <= 3 and codec <= 2 and priority <= 9, "R8")
    _must(min(_i(data, at, 8) for at in (8, 16, 24, 32)) >= 0, "R9")
    _must(_i(data, 8, 8) + count <= 2**53, "R9")
    fixed = _up(4 * count) + (8 * count if flags & 1 else 0)
    stored = len(payload) - fixed
    _must(stored >= 0, "R10")
    _must(codec != 0 or raw_bytes == stored, "R11")
    _must(raw_bytes <= 1_000 * stored and 64 + fixed + raw_bytes <= 64 * _MIB, "R12")
    raw = _opened(payload[fixed:], codec, raw_bytes)
    columns = _columns(raw, count, 1 + (flags & 1) + (flags >> 1 & 1))
    sent_ms = _i(data, 16, 8)
    times = [sent_ms + _u(payload, 4 * n, 4) for n in range(count)]
    keys = columns[1] if flags & 1 else [b""] * count
    packed = columns[-1] if flags & 2 else [b""] * count
    attributes = [_attributes(each) if each else {} for each in packed]
    return list(zip(columns[0], keys, attributes, times, strict=True))


def _opened(stored: bytes, codec: int, raw_bytes: int) -> bytes:
    if codec == 0:
        return stored
    try:
        if codec == 1:
            _must(zstandard.frame_content_size(stored) == raw_bytes, "R13")
            opener = zstandard.ZstdDecompressor().decompressobj()
            raw = opener.decompress(stored)
            _must(opener.eof and not opener.unused_data, "R13")
        else:
            raw = lz4.block.decompress(stored, uncompressed_size=raw_bytes)
    except (zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
        raise RefusedError("R13") from error
    _must(len(raw) == raw_bytes, "R13")
    return raw


def _columns(raw: bytes, count: int, number: int) -> list[list[bytes]]:
    columns = []
    at = 0
    for _ in range(number):
        _must(at + _up(4 * count + 4) <= len(raw), "R14")
        offsets = struct.unpack_from(f"<{count + 1}i", raw, at)
        at += _up(4 * count + 4)
        _must(offsets[0] == 0, "R15")
        _must(all(offsets[n] <= offsets[n + 1] for n in range(count)), "R15")
        _must(at + _up(offsets[-1]) <= len(raw), "R14")
        columns.append([raw[at + offsets[n] : at + offsets[n + 1]] for n in range(count)])
        at += _up(offsets[-1])
    _must(at == len(raw), "R16")
    return columns


def _attributes(packed: bytes) -> dict[str, Any]:
    _must(len(packed) <= 1_048_576, "R17")
    try:
        named = msgspec.msgpack.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("R17") from error
    _must(isinstance(named, dict) and len(named) <= 64, "R17")
    for name, value in named.items():
        _must(isinstance(name, str), "R17")
        values = value if isinstance(value, list) else [value]
        _must(len(values) <= 64 and all(isinstance(each, _SCALARS) for each in values), "R17")
    return named
