"""`ringdove bench traces`: from traces in Parquet to all figures, on Spark (S2).

The traces are made up: sixteen producers and eight receivers for each queue, one message in a
thousand lost, one in a thousand received twice, a few from nowhere, and latencies that put most of
the others out of order, which is what costs most. What was lost, repeated and unexpected is known,
and must come out.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringdove.bench.measure import place
from ringdove.bench.processes import tree_cpu_s
from ringdove.spark import trace_sources
from ringdove.spark.session import session
from ringdove.spark.traces import analyse
from ringdove.tracing.parquet import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_PRODUCERS, _RECEIVERS = 16, 8
_STRANGERS = 20
_START_US = 1_700_000_000_000_000

#: Microseconds between two sends of a queue; times are written in steps of a millisecond.
_EVERY_US, _STEP_US = 40, 1_000
_LATENCY_US = 3_000
_ROWS_PER_GROUP = 500_000


def run(directory: Path | None, rows: int, queues: int, master: str) -> dict[str, Any]:
    """Make traces up, analyse them, and check what came out."""
    each = max(1_000, rows // 2 // queues)
    with place(directory) as data:
        made = [_make_up(data, number, each) for number in range(queues)]
        began_s = time.perf_counter()
        spark = session(master)
        session_s = time.perf_counter() - began_s
        used_s = tree_cpu_s(os.getpid())
        began_s = time.perf_counter()
        traces = trace_sources.from_parquet(spark, data)
        report = analyse(traces)
        seconds = time.perf_counter() - began_s
        used_s = tree_cpu_s(os.getpid()) - used_s
    found = [
        {name: row[name] for name in ("sent", "received", "lost", "duplicated", "unexpected")}
        for row in report.queues
    ]
    return {
        "rows": traces.rows_about,
        "queues": queues,
        "producers": len(report.producers),
        "windows": len(report.windows),
        "session_s": round(session_s, 2),
        "seconds": round(seconds, 2),
        "cpu_s": round(used_s, 2),
        "rows_per_s": round(traces.rows_about / seconds),
        "out_of_order_rate": round(report.queues[0]["out_of_order_rate"], 4),
        "figures": "as made up" if found == made else f"wrong: {found} instead of {made}",
    }


def _make_up(directory: Path, queue: int, messages: int) -> dict[str, int]:
    """Write the sends and receives of a queue; answers what is to be found in them."""
    draw = np.random.default_rng(queue)
    numbers = np.arange(messages)
    sent = _START_US + numbers * _EVERY_US
    sent -= sent % _STEP_US
    producer = draw.integers(0, _PRODUCERS, messages)
    _write(directory, queue, numbers, producer, sent, "producer")

    kept = numbers[draw.random(messages) >= 0.001]
    again = draw.choice(kept, len(kept) // 1_000, replace=False)
    strangers = np.arange(messages, messages + _STRANGERS)
    arrived = np.concatenate([kept, again, strangers])
    times = np.concatenate([sent, np.full(_STRANGERS, sent[-1])])[arrived]
    times += draw.exponential(_LATENCY_US, len(arrived)).astype(np.int64)
    order = np.argsort(times, kind="stable")
    receiver = draw.integers(0, _RECEIVERS, len(arrived))
    _write(directory, queue, arrived[order], receiver, times[order], "receiver")
    return {
        "sent": messages,
        "received": len(arrived),
        "lost": messages - len(kept),
        "duplicated": len(again),
        "unexpected": _STRANGERS,
    }


def _write(directory: Path, queue: int, numbers: Ints, party: Ints, times: Ints, role: str) -> None:
    """A file of sends or receives."""
    count = len(numbers)
    names = pa.array([f"{role}-{number}" for number in range(party.max() + 1)])
    sequence = np.empty(count, np.int64)
    for one in range(len(names)):
        own = party == one
        sequence[own] = np.arange(own.sum())
    told = [names.take(pa.array(party)), pa.array(sequence), pa.array(times)]
    columns: dict[str, Any] = {
        "queue": pa.repeat(f"queue-{queue}", count),
        "message": _ids(numbers),
    }
    if role == "producer":
        columns |= dict(zip(("producer", "sequence", "sent"), told, strict=True))
    else:
        columns |= dict(zip(("receiver", "arrival", "received"), told, strict=True))
        columns["intact"] = pa.repeat(pa.scalar(value=True), count)
    table = pa.table(
        [columns.get(f.name, pa.nulls(count, f.type)) for f in SCHEMA], names=SCHEMA.names
    )
    pq.write_table(
        table.cast(SCHEMA),
        directory / f"{role}s-{queue}.parquet",
        row_group_size=_ROWS_PER_GROUP,
        compression="zstd",
    )


def _ids(numbers: Ints) -> pa.Array:
    """Ids as long as those of Ringdove."""
    ids = np.zeros((len(numbers), 19), np.uint8)
    ids[:, 11:] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 19
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(ids.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)
