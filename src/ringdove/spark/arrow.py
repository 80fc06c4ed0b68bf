"""Blocks as Arrow record batches and back: wrapped where they lie, never looped over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ringdove.core.attributes import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ringdove.core.block import Block
    from ringdove.core.columns import Column
    from ringdove.stores.base import StripeId

_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())

#: Smaller blocks are put together until they have so many rows or bytes.
_ROWS_TARGET, _BYTES_TARGET = 10_000, 1024 * 1024


class Wrapper:
    """Makes record batches of the blocks of one stripe."""

    def __init__(self, stripe: StripeId, columns: Sequence[str]) -> None:
        self._stripe = stripe
        self._makers = [_MAKERS[name] for name in columns]
        self._names = list(columns)

    def wrap(self, block: Block, start: int, stop: int) -> pa.RecordBatch:
        """Messages `start` to `stop` of a block."""
        arrays = [make(block, self._stripe) for make in self._makers]
        # A count of rows must be known even when no column is asked for.
        batch = pa.RecordBatch.from_arrays(arrays, self._names)
        return batch if stop - start == block.count else batch.slice(start, stop - start)

    def wrap_all(self, parts: Iterable[tuple[Block, int, int]]) -> Iterator[pa.RecordBatch]:
        """Batches of about the size that Spark likes best."""
        waiting: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for block, start, stop in parts:
            waiting.append(self.wrap(block, start, stop))
            rows += stop - start
            nbytes += block.nbytes
            if rows >= _ROWS_TARGET or nbytes >= _BYTES_TARGET:
                yield _joined(waiting)
                waiting, rows, nbytes = [], 0, 0
        if waiting:
            yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


def _binary(column: Column, kind: pa.DataType) -> pa.Array:
    offsets, data, at = column
    values = memoryview(data)[at : at + offsets[-1]]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _body(block: Block, _: StripeId) -> pa.Array:
    return _binary(block.binary_columns()["body"], pa.binary())


def _key(block: Block, _: StripeId) -> pa.Array:
    column = block.binary_columns().get("key")
    return pa.nulls(block.count, pa.binary()) if column is None else _binary(column, pa.binary())


def _attributes(block: Block, _: StripeId) -> pa.Array:
    column = block.binary_columns().get("attributes")
    if column is None:
        return pa.nulls(block.count, _MAP)
    encoded = _binary(column, pa.binary()).to_pylist()
    return pa.array([_texts(value) for value in encoded], _MAP)


def _texts(encoded: bytes) -> list[tuple[str, str]]:
    """Attributes with their values as text; what is no text is written as JSON."""
    return [(name, value if isinstance(value, str) else _as_json(value))
            for name, value in decode(encoded).items()]  # fmt: skip


def _as_json(value: Any) -> str:
    return json.dumps(value, default=lambda data: data.hex())


def _sent(block: Block, _: StripeId) -> pa.Array:
    deltas = np.frombuffer(block.sent_deltas_ms(), np.uint32).astype(np.int64)
    return pa.array((deltas + block.sent_ms) * 1000).cast(_TIME)


def _repeated(block: Block, value: int, kind: type[np.integer[Any]]) -> pa.Array:
    return pa.array(np.full(block.count, value, kind))


_MAKERS: dict[str, Callable[[Block, StripeId], pa.Array]] = {
    "body": _body,
    "key": _key,
    "attributes": _attributes,
    "stripe": lambda block, stripe: _repeated(block, stripe.number, np.int32),
    "priority": lambda block, stripe: _repeated(block, stripe.level, np.int32),
    "offset": lambda block, _: pa.array(np.arange(block.base, block.end, dtype=np.int64)),
    "sent": _sent,
    "stored": lambda block, _: _repeated(block, block.stored_ms * 1000, np.int64).cast(_TIME),
}
