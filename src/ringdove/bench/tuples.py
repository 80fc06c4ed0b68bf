"""The same messages as Python tuples: what a data source costs that does not speak Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringdove.spark.reading import BatchReader, StreamReader
from ringdove.spark.source import RingdoveSource

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class _BatchTuples(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        for batch in super().read(partition):
            yield from zip(batch.column(0).to_pylist())


class _StreamTuples(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        for batch in super().read(partition):
            yield from zip(batch.column(0).to_pylist())
