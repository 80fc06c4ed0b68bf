"""Traces as Arrow tables and Parquet files. Needs pyarrow: `pip install 'ringdove[spark]'`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringdove.errors import InvalidArgument
from ringdove.tracing.block import INTACT, UNCHECKED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ringdove.tracing.block import TraceBlock

_TIME = pa.timestamp("us", tz="UTC")

#: A row tells of a send, of a receive, or of both; the columns of what it does not tell are null.
SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("message", pa.binary()),
        ("producer", pa.string()),
        ("sequence", pa.int64()),
        ("sent", _TIME),
        ("receiver", pa.string()),
        ("arrival", pa.int64()),
        ("received", _TIME),
        ("intact", pa.bool_()),
    ]
)

#: Rows of one file: enough for Spark to read it well, few enough to hold in memory.
ROWS_PER_FILE = 1_000_000


def to_arrow(block: TraceBlock) -> pa.RecordBatch:
    """A block's rows in the columns of SCHEMA."""
    count = block.count
    party = pa.repeat(pa.scalar(block.party), count)
    numbers = pa.array(np.arange(block.first, block.first + count))
    times = pa.array(np.frombuffer(block.times_us, "<i8")).cast(_TIME)
    ids = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(block.offsets), pa.py_buffer(block.ids)]
    )
    nothing = [pa.nulls(count, pa.string()), pa.nulls(count, pa.int64()), pa.nulls(count, _TIME)]
    if block.kind == "sent":
        columns = [party, numbers, times, *nothing, pa.nulls(count, pa.bool_())]
    else:
        checks = np.frombuffer(block.checks, np.uint8)
        intact = pa.array(checks == INTACT, mask=checks == UNCHECKED)
        columns = [*nothing, party, numbers, times, intact]
    queue = pa.repeat(pa.scalar(block.queue), count)
    return pa.RecordBatch.from_arrays([queue, ids, *columns], schema=SCHEMA)


class ParquetSink:
    """Writes files of a million rows, and what is left at the end; a crash loses the last file."""

    def __init__(self, directory: Path, queue: str, name: str) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(
                f"Traces cannot be written to {directory}, which must be a directory: "
                f"{error.strerror}."
            ) from error
        self._directory = directory
        # Whoever uses a name again writes other files.
        self._stem = f"{quote(queue, safe='')}-{quote(name, safe='')}-{secrets.token_hex(4)}"
        self._files = 0
        self._rows = 0
        self._batches: list[pa.RecordBatch] = []

    def write(self, blocks: Sequence[TraceBlock]) -> None:
        """See Sink."""
        for block in blocks:
            self._batches.append(to_arrow(block))
            self._rows += block.count
        if self._rows >= ROWS_PER_FILE:
            self.close()

    def close(self) -> None:
        """See Sink."""
        if not self._batches:
            return
        name = f"{self._stem}-{self._files}.parquet"
        hidden = self._directory / f".{name}"  # Readers leave out names that begin with a dot.
        pq.write_table(pa.Table.from_batches(self._batches), hidden, compression="zstd")
        hidden.rename(self._directory / name)
        self._files += 1
        self._rows = 0
        self._batches = []
