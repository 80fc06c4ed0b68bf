"""Rows on their way between tasks: a few large parcels instead of many rows.

Spark moves rows one by one, which costs more than all that is done with a trace row. So a task
sorts its rows by the part they belong to and sends each part's as one binary value: a record batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

#: What moves: the number of a part, and rows of it.
PARCELS = pa.schema([("part", pa.int32()), ("parcel", pa.binary())])

#: Multiplying by it spreads numbers over all bits (2^64 divided by the golden ratio).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def pack(table: pa.Table, parts: NDArray[Any], first: int = 0) -> pa.RecordBatch:
    """The rows of a table in parcels; row i goes to part `first + parts[i]`."""
    order = np.argsort(parts.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    ordered = table.take(pa.array(order)).combine_chunks()
    numbers, starts = np.unique(parts[order], return_index=True)
    ends = [*starts.tolist()[1:], len(order)]
    parcels = [
        batch.serialize().to_pybytes()
        for start, end in zip(starts.tolist(), ends, strict=True)
        for batch in ordered.slice(start, end - start).to_batches()
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(first + numbers, pa.int32()), pa.array(parcels, pa.binary())], schema=PARCELS
    )


def unpack(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """The parts with all their rows."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for part, parcel in zip(batch["part"].to_pylist(), batch["parcel"], strict=True):
            rows = pa.ipc.read_record_batch(parcel.as_buffer(), schema)
            found.setdefault(part, []).append(rows)
    for part in list(found):
        yield part, pa.Table.from_batches(found.pop(part)).combine_chunks()


def spread(numbers: NDArray[Any], parts: int) -> NDArray[np.int64]:
    """Numbers as numbers of parts; equal ones go to the same part."""
    mixed = numbers.astype(np.uint64) * _SPREAD
    return ((mixed >> np.uint64(32)) % np.uint64(parts)).astype(np.int64)


def endings(ids: pa.Array) -> NDArray[np.uint64]:
    """The last eight bytes of binary values, as numbers: where ids differ most."""
    ids = pa.concat_arrays([ids])  # Without an offset, whatever it was sliced from.
    offsets = np.frombuffer(ids.buffers()[1], np.int32, len(ids) + 1).astype(np.int64)
    data = np.frombuffer(ids.buffers()[2] or b"", np.uint8)
    found = np.zeros(len(ids), np.uint64)
    for back in range(1, 9):
        at = offsets[1:] - back
        there = at >= offsets[:-1]
        found[there] |= data[at[there]].astype(np.uint64) << np.uint64(8 * (back - 1))
    return found
