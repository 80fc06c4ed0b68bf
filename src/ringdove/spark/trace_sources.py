"""Where traces come from: Parquet, a trace queue, or any table of Spark that has their columns.

Tasks read files and take trace messages apart themselves, and hand on what they have made of the
rows, so that Spark need not move single rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ringdove.errors import InvalidArgument
from ringdove.tracing.block import TraceBlock
from ringdove.tracing.parquet import SCHEMA, to_arrow
from ringdove.tracing.tracer import ROWS_PER_MESSAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches: TypeAlias = Iterator[pa.RecordBatch]

#: In a task: makes batches in the columns of SCHEMA of what the task is given.
Reader: TypeAlias = Callable[[Batches], Batches]


@dataclass(frozen=True, slots=True)
class Traces:
    """Traces that a job can read."""

    #: What tasks are given.
    frame: DataFrame
    read: Reader
    #: How many rows there are; a guess will do.
    rows_about: int


def from_parquet(spark: SparkSession, path: str | Path) -> Traces:
    """The rows in a file or directory of Parquet, as tracers write it.

    A path that is a URL is read by Spark; any other must lead to the same files on all machines.
    """
    if "://" in str(path):
        return from_frame(spark.read.parquet(str(path)))
    place = Path(path)
    files = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
    if not files or not place.exists():
        raise InvalidArgument(f"There are no traces at {path}: it has no Parquet files.")
    opened = [(str(file.absolute()), pq.ParquetFile(file)) for file in files]
    for name, file in opened:
        _check(name, file.schema_arrow.names)
    groups = [
        (number, name, group)
        for number, (name, group) in enumerate(
            (name, group) for name, file in opened for group in range(file.num_row_groups)
        )
    ]
    frame = spark.createDataFrame(groups, "number int, file string, row_group int")
    frame = frame.repartitionById(max(1, len(groups)), "number")
    return Traces(frame, _read_files, sum(file.metadata.num_rows for _, file in opened))


def from_queue(spark: SparkSession, url: str, queue: str) -> Traces:
    """The rows in a trace queue, all that are stored; they stay there."""
    reader = spark.read.format("ringdove").option("url", url).option("columns", "body")
    frame = reader.load(queue)
    return Traces(frame, _decode, frame.count() * ROWS_PER_MESSAGE)


def from_frame(frame: DataFrame) -> Traces:
    """The rows of a table that has the columns of SCHEMA."""
    _check("The table", frame.columns)
    return Traces(frame.select(*SCHEMA.names), _cast, frame.count())


def _check(what: str, columns: list[str]) -> None:
    missing = [name for name in SCHEMA.names if name not in columns]
    if missing:
        raise InvalidArgument(
            f"{what} holds no traces: there is no column {missing[0]!r}. It has "
            f"{', '.join(columns)}; traces have {', '.join(SCHEMA.names)}."
        )


# -- in tasks -------------------------------------------------------------------------------------


def _read_files(batches: Batches) -> Batches:
    for batch in batches:
        for row in batch.to_pylist():
            file = pq.ParquetFile(row["file"])
            rows = file.read_row_group(row["row_group"], columns=SCHEMA.names, use_threads=False)
            yield from rows.select(SCHEMA.names).cast(SCHEMA).to_batches()


def _decode(batches: Batches) -> Batches:
    for batch in batches:
        for body in batch.column("body"):
            yield to_arrow(TraceBlock.decode(body.as_py()))


def _cast(batches: Batches) -> Batches:
    for batch in batches:
        yield batch.cast(SCHEMA)  # Spark's times are in the session's zone.
