"""The data source that Spark finds by its name, `ringdove`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ringdove.errors import InvalidArgument
from ringdove.spark.columns import COLUMNS, WRITTEN
from ringdove.spark.options import Options
from ringdove.spark.reading import BatchReader, StreamReader
from ringdove.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType


class RingdoveSource(DataSource):
    """Queues as tables: `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.read(options)

    @classmethod
    def name(cls) -> str:
        """What stands in `.format(...)`."""
        return "ringdove"

    def schema(self) -> str:
        """The columns asked for, by default all."""
        return ", ".join(f"`{name}` {COLUMNS[name]}" for name in self._options.columns)

    def reader(self, schema: StructType) -> BatchReader:
        """See DataSource."""
        return BatchReader(self._options, _read_columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  Spark's name
        """See DataSource."""
        return StreamReader(self._options, _read_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001  Spark's
        """See DataSource."""
        if overwrite:
            raise InvalidArgument(
                "A queue is only ever appended to: write with .mode('append'), and purge it first "
                "('ringdove queue purge NAME') if what is there must go."
            )
        _check_written(schema)
        return BatchWriter(self._options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """See DataSource."""
        if overwrite:
            raise InvalidArgument(
                "A queue is only ever appended to: use outputMode 'append', or write from "
                "foreachBatch."
            )
        _check_written(schema)
        return StreamWriter(self._options)


def _read_columns(schema: StructType) -> list[str]:
    """The columns of a schema, which must be a queue's."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType.simpleString():
            raise InvalidArgument(
                f"A queue has no column {field.name!r} of type {field.dataType.simpleString()}; "
                f"it has {', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}."
            )
    return schema.names


def _check_written(schema: StructType) -> None:
    known = ", ".join(f"{name} ({' or '.join(kinds)})" for name, kinds in WRITTEN.items())
    for field in schema.fields:
        if field.dataType.simpleString() not in WRITTEN.get(field.name, ()):
            raise InvalidArgument(
                f"A queue does not take column {field.name!r} of type "
                f"{field.dataType.simpleString()}; it takes {known}. Put the rest into the body, "
                "for example by to_json(struct(*))."
            )
    if "body" not in schema.names:
        raise InvalidArgument(
            f"What is written to a queue needs a column 'body'; it takes {known}."
        )
