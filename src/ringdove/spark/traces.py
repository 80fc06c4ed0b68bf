"""Trace analytics on Spark (S2, B5): from rows to figures by queue, producer and window.

    from ringdove.spark import trace_sources, traces

    report = traces.analyse(trace_sources.from_parquet(spark, "traces/"), window_ms=10_000)

One job of three stages: rows are sorted into parts by message; the rows of a part become messages,
which are sorted into parts by queue, by producer and by window; each of these parts becomes
figures. What moves in between are parcels of rows (parcels.py); tasks work on Arrow tables as a
whole (matching.py, tally.py).

All figures are exact: those of `core.consistency` for what was sent and received in the group. A
message belongs to the window in which it was sent; one that nobody sent, to the window in which it
first came. The messages of a queue are put into order by one task, which needs some 300 bytes of
memory for each.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from ringdove.errors import InvalidArgument
from ringdove.spark.matching import MESSAGES, match
from ringdove.spark.parcels import PARCELS, endings, pack, spread, unpack
from ringdove.spark.tally import FIGURES, tally
from ringdove.spark.watching import watching
from ringdove.tracing.parquet import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from ringdove.spark.trace_sources import Batches, Reader, Traces
    from ringdove.spark.watching import OnProgress

WINDOW_MS = 10_000

#: Rows that one task matches: some hundred megabytes.
_ROWS_PER_PART = 1_000_000

#: Rows that are sorted into parcels together.
_ROWS_TOGETHER = 500_000

#: Parts of a stage at most; their numbers are sorted as 16 bits.
_PARTS_MAX = 10_000


class _Level(NamedTuple):
    """What messages are grouped by."""

    keys: tuple[str, ...]
    #: One producer's messages are in order if their sequence is; no clock is asked.
    by_sequence: bool = False


_LEVELS = {
    "queues": _Level(("queue",)),
    "producers": _Level(("queue", "producer"), by_sequence=True),
    "windows": _Level(("queue", "window_us")),
}

_KEYS = [pa.field("queue", pa.string()), pa.field("producer", pa.string()),
         pa.field("window_us", pa.int64())]  # fmt: skip
_TOLD = pa.schema([("level", pa.string()), *_KEYS, *FIGURES])


@dataclass(frozen=True, slots=True)
class Report:
    """Figures by queue, by producer and by window: rows with their keys and those of FIGURES."""

    window_ms: int
    queues: list[dict[str, Any]]
    producers: list[dict[str, Any]]
    windows: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON gives it."""
        return asdict(self)


def analyse(
    traces: Traces, window_ms: int = WINDOW_MS, on_progress: OnProgress | None = None
) -> Report:
    """All figures of the traces, by queue, producer and window."""
    if window_ms < 1:
        raise InvalidArgument(f"A window of {window_ms} ms is none: give 1 ms or more.")
    context = traces.frame.sparkSession.sparkContext
    parts = max(context.defaultParallelism, -(-traces.rows_about // _ROWS_PER_PART))
    with watching(context, on_progress):
        told = figures(traces, window_ms, min(parts, _PARTS_MAX)).toArrow()
    return Report(window_ms, **{name: _rows(told, name) for name in _LEVELS})


def figures(traces: Traces, window_ms: int, parts: int) -> DataFrame:
    """A row for each group of each level; columns that do not name the group are null."""
    parcels = from_arrow_schema(PARCELS)
    rows = traces.frame.mapInArrow(partial(_sort_rows, read=traces.read, parts=parts), parcels)
    rows = rows.repartitionById(parts, "part")
    window_us = window_ms * 1000
    work = partial(_sort_messages, parts=parts, window_us=window_us)
    messages = rows.mapInArrow(work, parcels)
    messages = messages.repartitionById(parts * len(_LEVELS), "part")
    work = partial(_tally, parts=parts, window_us=window_us)
    return messages.mapInArrow(work, from_arrow_schema(_TOLD))


# -- in tasks -------------------------------------------------------------------------------------


def _sort_rows(batches: Batches, read: Reader, parts: int) -> Batches:
    """The first stage: all rows of a message go to the same part."""
    for table in _tables(read(batches)):
        yield pack(table, spread(endings(table["message"].chunk(0)), parts))


def _sort_messages(batches: Batches, parts: int, window_us: int) -> Batches:
    """The second: rows become messages; all messages of a group go to the same part."""
    for _, rows in unpack(batches, SCHEMA):
        messages = match(rows).combine_chunks()
        windowed = _windowed(messages, window_us)
        for number, level in enumerate(_LEVELS.values()):
            yield pack(messages, spread(_hashes(windowed, level.keys), parts), number * parts)


def _tally(batches: Batches, parts: int, window_us: int) -> Batches:
    """The third: figures of each group."""
    for part, messages in unpack(batches, MESSAGES):
        name, (keys, by_sequence) = list(_LEVELS.items())[part // parts]
        told = tally(_windowed(messages, window_us), keys, by_sequence=by_sequence)
        columns = {field.name: pa.nulls(len(told), field.type) for field in _KEYS}
        columns |= {"level": pa.repeat(name, len(told))}
        columns |= dict(zip(told.column_names, told.columns, strict=True))
        yield from pa.table([columns[field] for field in _TOLD.names], schema=_TOLD).to_batches()


def _windowed(messages: pa.Table, window_us: int) -> pa.Table:
    """The messages with the beginning of their window."""
    at = pc.coalesce(messages["sent_us"], messages["received_us"]).to_numpy()
    return messages.append_column("window_us", pa.array(at // window_us * window_us))


def _tables(batches: Batches) -> Iterator[pa.Table]:
    """Batches put together, about as many rows as are sorted at a time."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= _ROWS_TOGETHER:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _hashes(messages: pa.Table, keys: tuple[str, ...]) -> NDArray[np.uint64]:
    """Numbers that are equal for messages of the same group."""
    found = np.zeros(len(messages), np.uint64)
    for key in keys:
        column = messages[key].combine_chunks()
        if pa.types.is_string(column.type):
            encoded = pc.fill_null(column, "").dictionary_encode()
            known = [zlib.crc32(text.encode()) for text in encoded.dictionary.to_pylist()]
            values = np.array(known, np.uint64)[encoded.indices.to_numpy()]
        else:
            values = column.to_numpy().astype(np.uint64)
        found = found * np.uint64(31) + values
    return found


def _rows(told: pa.Table, level: str) -> list[dict[str, Any]]:
    """The figures of a level by their keys, without the columns of other levels."""
    keys = _LEVELS[level].keys
    own = told.filter(pc.equal(told["level"], level)).select([*keys, *FIGURES.names])
    rows: list[dict[str, Any]] = own.to_pylist()
    rows.sort(key=lambda row: tuple((row[key] is not None, row[key]) for key in keys))
    for row in rows:
        while row["displaced"] and not row["displaced"][-1]:
            row["displaced"].pop()
    return rows
