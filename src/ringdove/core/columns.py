"""Columns of a block: fixed-width numbers, and values of any length in Arrow's binary layout."""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from itertools import accumulate, repeat
from operator import sub
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.attributes import Attributes

Buffer = bytes | bytearray | memoryview

#: Offsets of the values (32-bit, as they are stored), the buffer that holds the values, and where
#: in it they start.
Column = tuple[memoryview, Buffer, int]

#: Shapes of columns (length, count) for which the way to cut them is remembered.
_SHAPES_CACHED = 8
_SLICES_PER_CALL = 1000

#: Offsets that are compared one by one sooner than all at once.
_FEW = 8


def time_column(sent_ms: int | Sequence[int], count: int) -> tuple[int, bytes]:
    """The earliest send time, and the differences from it."""
    if isinstance(sent_ms, int):
        return sent_ms, bytes(padded(4 * count))
    first_ms = min(sent_ms)
    if max(sent_ms) - first_ms > limits.BLOCK_SPAN_MS_MAX:
        raise LocalProtocolError(
            f"Send times within one block span at most {limits.BLOCK_SPAN_MS_MAX} ms; "
            "put older messages into a block of their own."
        )
    return first_ms, pad(array("I", map(sub, sent_ms, repeat(first_ms))).tobytes())


def binary_column(values: Sequence[Buffer]) -> list[Buffer]:
    """A column in Arrow's binary layout, as pieces to be joined."""
    lengths = list(map(len, values))
    total = sum(lengths)
    if total > limits.BLOCK_BYTES_MAX:
        raise LocalProtocolError(
            f"A block holds at most {limits.BLOCK_BYTES_MAX} bytes, not {total}: "
            "send fewer messages at once."
        )
    count = len(lengths)
    if lengths.count(lengths[0]) == count:
        return padded_column(_equal_offsets(lengths[0], count), values, total)
    offsets = struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0))
    return padded_column(offsets, values, total)


def padded_column(offsets: bytes, values: Sequence[Buffer], total: int) -> list[Buffer]:
    """Offsets and values, padded."""
    return [pad(offsets), *values, bytes(-total % 8)]


@lru_cache(maxsize=_SHAPES_CACHED)
def _equal_offsets(length: int, count: int) -> bytes:
    return array(
        "i", range(0, length * count + 1, length) if length else [0] * (count + 1)
    ).tobytes()


def cut(column: Column, start: int, stop: int) -> list[bytes]:
    """Values `start` to `stop`. Equal lengths, usual among devices, are cut by one C call."""
    offsets, data, at = column
    count = len(offsets) - 1
    if stop - start < count:
        at_offsets = offsets[start : stop + 1]
        return [
            bytes(data[at + lo : at + hi])
            for lo, hi in zip(at_offsets, at_offsets[1:], strict=False)
        ]
    length = offsets[1]
    if length and _are_equal(offsets):
        return _cut_equal(data, at, length, count)
    values = bytes(data[at : at + offsets[-1]])
    ends = offsets.tolist()
    return [values[lo:hi] for lo, hi in zip(ends, ends[1:], strict=False)]


def _are_equal(offsets: memoryview) -> bool:
    """Whether all values have the length of the first, without looking at each in Python."""
    count = len(offsets) - 1
    length = offsets[1]
    return (
        offsets[0] == 0
        and length >= 0
        and offsets[-1] == length * count
        and bytes(offsets) == _equal_offsets(length, count)
    )


def _grow(offsets: memoryview) -> bool:
    """Whether offsets start at zero and never fall."""
    if len(offsets) > _FEW and _are_equal(offsets):
        return True
    ends = offsets.tolist()
    return ends[0] == 0 and ends == sorted(ends)


def _cut_equal(data: Buffer, at: int, length: int, count: int) -> list[bytes]:
    """Cut `count` values of one length, a thousand at a time."""
    values: list[bytes] = []
    for first in range(0, count, _SLICES_PER_CALL):
        slices = _equal_slices(length, min(count - first, _SLICES_PER_CALL))
        values += slices.unpack_from(data, at + first * length)
    return values


@lru_cache(maxsize=_SHAPES_CACHED)
def _equal_slices(length: int, count: int) -> struct.Struct:
    """The way to cut `count` values of one length in one call."""
    return struct.Struct(f"{length}s" * count)


def split_columns(raw: Buffer, count: int, columns_count: int, *, check: bool) -> list[Column]:
    """The columns of a variable part; `check` also their offsets, which checksums cannot."""
    columns: list[Column] = []
    at, end = 0, len(raw)
    index_bytes = 4 * (count + 1)
    index_room = padded(index_bytes)
    for _ in range(columns_count):
        if at + index_room > end:
            raise RemoteProtocolError("The block ends within a column's offsets.")
        offsets = memoryview(raw)[at : at + index_bytes].cast("B").cast("i")
        at += index_room
        total = offsets[-1]
        if check and (total < 0 or not _grow(offsets)):
            raise RemoteProtocolError("A column's offsets do not grow from zero.")
        columns.append((offsets, raw, at))
        at += padded(total)
        if at > end:
            raise RemoteProtocolError("The block ends within a column's bytes.")
    if at != end:
        raise RemoteProtocolError(f"The block has {end - at} bytes after its last column.")
    return columns


def padded(length: int) -> int:
    """The next multiple of eight."""
    return length + -length % 8


def pad(data: bytes) -> bytes:
    """The data with zeros up to a multiple of eight bytes."""
    return data + bytes(-len(data) % 8)


def pieces(column: Column) -> list[Buffer]:
    """A column as pieces to be joined."""
    offsets, data, at = column
    total = offsets[-1]
    return padded_column(bytes(offsets), [memoryview(data)[at : at + total]], total)


def check_columns(
    count: int,
    sent_ms: int | Sequence[int],
    keys: Sequence[bytes] | None,
    attributes: Sequence[Attributes | None] | None,
    not_before_ms: int,
    priority: int,
) -> None:
    """Refuse what the format cannot hold."""
    if keys is not None and len(keys) != count:
        raise LocalProtocolError(f"{len(keys)} keys do not fit {count} bodies.")
    if attributes is not None and len(attributes) != count:
        raise LocalProtocolError(f"{len(attributes)} attributes do not fit {count} bodies.")
    if isinstance(sent_ms, int):
        first_ms = last_ms = sent_ms
    elif len(sent_ms) == count:
        first_ms, last_ms = min(sent_ms), max(sent_ms)
    else:
        raise LocalProtocolError(f"{len(sent_ms)} send times do not fit {count} bodies.")
    if first_ms < 0 or last_ms > _TIME_MS_MAX or not 0 <= not_before_ms <= _TIME_MS_MAX:
        raise LocalProtocolError("Times are milliseconds since 1970, from 0 to 2^63 - 1.")
    if not 0 <= priority <= limits.PRIORITY_MAX:
        raise LocalProtocolError(f"Priority {priority} is not 0 to {limits.PRIORITY_MAX}.")


_TIME_MS_MAX = 2**63 - 1
