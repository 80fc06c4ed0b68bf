"""Trace rows become messages: who sent each, who had it first, how often it came.

Works on Arrow tables that hold all rows of their messages; Spark sees to that. Columns are numbered
and sorted as a whole; only messages that were sent or received more than once are looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: A message: its send and its first receive, null if there was none. Times are microseconds.
MESSAGES = pa.schema(
    [
        ("queue", pa.string()),
        ("producer", pa.string()),
        ("sequence", pa.int64()),
        ("sent_us", pa.int64()),
        ("receiver", pa.string()),
        ("arrival", pa.int64()),
        ("received_us", pa.int64()),
        ("receives", pa.int32()),
        ("corrupted", pa.int32()),
    ]
)


_PACKED_MAX = 2**62


class _Events(NamedTuple):
    """Sends or receives: which message, when, and who with which number."""

    rows: Ints
    message: Ints
    time: Ints
    party: Ints
    number: Ints

    def take(self, chosen: NDArray[Any]) -> _Events:
        return _Events(*(column[chosen] for column in self))


def match(rows: pa.Table) -> pa.Table:
    """One row per message, in the columns of MESSAGES."""
    message, count = _numbered(rows)
    sends, _ = _firsts(_events(rows, message, "producer", "sequence", "sent"))
    arrivals, distinct = _firsts(_events(rows, message, "receiver", "arrival", "received"))
    damaged = distinct.rows[_flags(rows["intact"])[distinct.rows] == 0]
    sample = np.empty(count, np.int64)
    sample[message] = np.arange(len(message))
    sent, received = _places(sends, count), _places(arrivals, count)
    return pa.table(
        [
            rows["queue"].take(pa.array(sample)),
            *(rows[name].take(sent) for name in ("producer", "sequence")),
            _micros(rows["sent"]).take(sent),
            *(rows[name].take(received) for name in ("receiver", "arrival")),
            _micros(rows["received"]).take(received),
            pa.array(np.bincount(distinct.message, minlength=count), pa.int32()),
            pa.array(np.bincount(message[damaged], minlength=count), pa.int32()),
        ],
        schema=MESSAGES,
    )


def codes(column: pa.ChunkedArray) -> Ints:
    """Texts as numbers of the same order; null is the first."""
    encoded = column.combine_chunks().dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    found = np.zeros(len(column), np.int64)
    known = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    found[known] = rank[encoded.indices.drop_null().to_numpy()]
    return found


def sorting(*keys: Ints) -> Ints:
    """The order of rows by their keys, the weightiest first."""
    # Sorting is faster by one key than by many, so as many as fit share the bits of one.
    packed: list[Ints] = []
    room = 0
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    for key in keys:
        low = int(key.min())
        span = int(key.max()) - low + 1
        if packed and span <= room:
            packed[-1] = packed[-1] * span + (key - low)
            room //= span
        elif span <= _PACKED_MAX:
            packed.append(key - low)
            room = _PACKED_MAX // span
        else:
            packed.append(key)
            room = 0
    return np.argsort(packed[0]) if len(packed) == 1 else np.lexsort(packed[::-1])


def ints(column: pa.ChunkedArray) -> Ints:
    """Numbers, with 0 for null."""
    filled: Ints = pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False)
    return filled


def _numbered(rows: pa.Table) -> tuple[Ints, int]:
    """Each row's message as a number, and how many there are."""
    ids = rows["message"].combine_chunks().dictionary_encode()
    pairs = ids.indices.to_numpy().astype(np.int64)
    queues = codes(rows["queue"])
    if queues.min(initial=1) == queues.max(initial=1):
        return pairs, len(ids.dictionary)
    known, found = np.unique(pairs * (queues.max() + 1) + queues, return_inverse=True)
    return found, len(known)


def _events(rows: pa.Table, message: Ints, party: str, number: str, time: str) -> _Events:
    there = np.flatnonzero(rows[time].is_valid().to_numpy())
    columns = [message, ints(_micros(rows[time])), codes(rows[party]), ints(rows[number])]
    return _Events(there, *(column[there] for column in columns))


def _firsts(events: _Events) -> tuple[_Events, _Events]:
    """Of each message the first event; and all events, those written down twice only once."""
    repeated = np.bincount(events.message)[events.message] > 1
    several = events.take(repeated)
    several = several.take(sorting(*several[1:]))
    new = np.zeros(len(several.rows), bool)
    first = np.zeros(len(several.rows), bool)
    if len(new):
        new[0] = first[0] = True
        for column in several[1:]:
            new[1:] |= column[1:] != column[:-1]
        first[1:] = several.message[1:] != several.message[:-1]
    single = events.take(~repeated)
    return _joined(single, several.take(first)), _joined(single, several.take(new))


def _joined(one: _Events, other: _Events) -> _Events:
    return _Events(*(np.concatenate(pair) for pair in zip(one, other, strict=True)))


def _places(events: _Events, count: int) -> pa.Array:
    """For each message the row of its event, or null."""
    at = np.full(count, -1, np.int64)
    at[events.message] = events.rows
    return pa.array(at, mask=at < 0)


def _micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int64())


def _flags(column: pa.ChunkedArray) -> NDArray[np.int8]:
    """0 for false, 1 for true, 2 for null."""
    found: NDArray[np.int8] = pc.fill_null(column.cast(pa.int8()), 2).to_numpy()
    return found
