"""Record batches as blocks, for the sink: columns are taken over as they are."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringdove import limits
from ringdove.core.attributes import encode
from ringdove.core.block import Block, key_hash
from ringdove.errors import InvalidArgument, MessageTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringdove.core.columns import Column

#: Column that the hashes of keys are kept in until a block is made.
_HASHES = "key hashes"

#: Columns that decide in which order rows are.
_SORTED = ("body", "key", "attributes")


class Packer:
    """Gathers rows for one stripe, and makes blocks of about the size that is best."""

    def __init__(self, compression: str, sent_ms: int) -> None:
        self.nbytes = 0
        self.blocks: list[Block] = []
        self._compression = compression
        self._sent_ms = sent_ms
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if self._waiting and self._waiting[0].schema != batch.schema:
            self.finish()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.get_total_buffer_size()
        if (
            self._waiting_rows >= limits.BLOCK_MESSAGES_TARGET
            or self._waiting_bytes >= limits.BLOCK_BYTES_TARGET
        ):
            self.finish()

    def finish(self) -> None:
        """Make blocks of what waits."""
        if not self._waiting:
            return
        whole = self._waiting[0] if len(self._waiting) == 1 else pa.concat_batches(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        for part in _cut(whole):
            block = _pack(part, self._sent_ms, self._compression)
            self.nbytes += block.nbytes
            self.blocks.append(block)

    def take(self) -> list[Block]:
        """The blocks so far, which are then forgotten."""
        blocks, self.blocks, self.nbytes = self.blocks, [], 0
        return blocks


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts of a batch that make a block each."""
    # Values of all columns together, each row behind the one before.
    columns = [c for c in batch.columns if pa.types.is_binary(c.type)]
    ends = np.zeros(batch.num_rows + 1, np.int64)
    for column in columns:
        ends += _offsets(column)
    first, count = 0, batch.num_rows
    while first < count:
        last = int(np.searchsorted(ends, ends[first] + limits.BLOCK_BYTES_TARGET, "right")) - 1
        last = min(count, max(first + 1, last), first + limits.BLOCK_MESSAGES_MAX)
        yield batch.slice(first, last - first)
        first = last


def _pack(batch: pa.RecordBatch, sent_ms: int, compression: str) -> Block:
    names = batch.schema.names
    keyed = _HASHES in names
    return Block.of_columns(
        _column(batch.column("body")),
        sent_ms=sent_ms,
        keys=_column(batch.column("key")) if keyed else None,
        hashes=batch.column(_HASHES).to_numpy().tobytes() if keyed else b"",
        attributes=_column(batch.column("attributes")) if "attributes" in names else None,
        compression=compression,
    )


def _offsets(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where values begin and end in their buffer."""
    whole = np.frombuffer(values.buffers()[1], np.int32)
    return whole[values.offset : values.offset + len(values) + 1]


def _column(values: pa.Array) -> Column:
    ends = _offsets(values)
    data = values.buffers()[2]
    own = memoryview((ends - ends[0]).tobytes()).cast("i")
    return own, memoryview(data) if data is not None else b"", int(ends[0])


def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as a queue takes them: no empty cells, keys hashed, attributes encoded."""
    names = batch.schema.names
    body = batch.column("body")
    if body.null_count:
        raise InvalidArgument("Column 'body' has nulls: give those rows a body, or leave them out.")
    columns = {"body": _binary(body)}
    if "key" in names and batch.column("key").null_count < batch.num_rows:
        keys = pc.fill_null(_binary(batch.column("key")), b"")
        longest = pc.max(pc.binary_length(keys)).as_py()
        if longest > limits.KEY_BYTES_MAX:
            raise MessageTooLarge(
                f"A key has {longest} bytes; at most {limits.KEY_BYTES_MAX} are allowed."
            )
        columns["key"] = keys
        columns[_HASHES] = np.frombuffer(array("Q", map(key_hash, keys.to_pylist())), np.uint64)
    if "attributes" in names and batch.column("attributes").null_count < batch.num_rows:
        encoded = [
            encode(dict(own)) if own else b"" for own in batch.column("attributes").to_pylist()
        ]
        columns["attributes"] = pa.array(encoded, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def _binary(values: pa.Array) -> pa.Array:
    """Text as the bytes it is; what is bytes already stays where it is."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_string(values.type):
        return values.view(pa.binary())
    return values.cast(pa.binary())  # Of large types, if Spark was told to use them.


def in_order(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in the order of their bytes: the same batches, in whatever order rows came."""
    if not batches:
        return
    table = pa.concat_tables(map(_as_table, batches), promote_options="default")
    for at, name in enumerate(table.schema.names):
        # A column that only some batches have is empty in the others.
        empty = pa.scalar(0, pa.uint64()) if name == _HASHES else b""
        table = table.set_column(at, name, pc.fill_null(table.column(name), empty))
    keys = [(name, "ascending") for name in _SORTED if name in table.schema.names]
    table = table.take(pc.sort_indices(table, keys)).combine_chunks()
    yield from table.to_batches(limits.BLOCK_MESSAGES_TARGET)


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def has_keys(batch: pa.RecordBatch) -> bool:
    """Whether every row has a key."""
    return _HASHES in batch.schema.names and bool(np.all(batch.column(_HASHES).to_numpy()))


def by_stripe(batch: pa.RecordBatch, stripes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows for each stripe of a queue that keeps order by key, in their order."""
    numbers = batch.column(_HASHES).to_numpy() % np.uint64(stripes)
    order = np.argsort(numbers, kind="stable")
    found, firsts = np.unique(numbers[order], return_index=True)
    for number, rows in zip(found, np.split(order, firsts[1:]), strict=True):
        yield int(number), batch.take(pa.array(rows))
