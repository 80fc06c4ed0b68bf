"""What Ringdove's source is compared with: one that does not speak Arrow, and one without a queue.

The second one hands a batch of messages over again and again, as many rows as were asked for: no
source in Python can be faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringdove.spark.reading import BatchReader, Range, StreamReader
from ringdove.spark.source import RingdoveSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType


class TupleSource(RingdoveSource):
    """Format `ringdove-tuples`."""

    @classmethod
    def name(cls) -> str:
        """What stands in `.format(...)`."""
        return "ringdove-tuples"

    def reader(self, schema: StructType) -> BatchReader:
        """See DataSource."""
        return _BatchTuples(self._options, schema.names)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  Spark's name
        """See DataSource."""
        return _StreamTuples(self._options, schema.names)


class MemorySource(RingdoveSource):
    """Format `ringdove-memory`, batch only."""

    @classmethod
    def name(cls) -> str:
        """What stands in `.format(...)`."""
        return "ringdove-memory"

    def reader(self, schema: StructType) -> BatchReader:
        """See DataSource."""
        return _BatchMemory(self._options, schema.names)


class _BatchMemory(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        own: Range = partition.value
        batch = next(super().read(partition))
        whole, rest = divmod(own.end - own.start, batch.num_rows)
        for _ in range(whole):
            yield batch
        if rest:
            yield batch.slice(0, rest)


class _BatchTuples(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        for batch in super().read(partition):
            yield from zip(batch.column(0).to_pylist())


class _StreamTuples(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        for batch in super().read(partition):
            yield from zip(batch.column(0).to_pylist())
