"""`ringdove bench spark`: from a running server into Spark, and back (S1).

Ringdove's source over TCP beside one that hands a batch over out of memory, which no source in
Python can beat, beside one that hands over the same messages as tuples, and beside Spark's own
source on a Kafka broker of this machine where that can be had; then the sinks.
Batch jobs read a range; streams read the same in four micro-batches. Rates are those of the steady
state: the same job is run over half of the rows and over all of them, after one run to warm up,
and what counts is the difference. Each session has a Java of its own. What Spark's Java, its
Python workers and the server use of the processor is given in microseconds per row.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ringdove.bench import kafka
from ringdove.bench.measure import place
from ringdove.bench.processes import ServerProcess, Worker, serving
from ringdove.bench.spark_jobs import Case, cases, measure
from ringdove.cli.output import watched
from ringdove.client.sync import connect
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FILL_MESSAGES = 10_000
_WORKER_SECONDS_MAX = 3600


def run(
    directory: Path | None,
    messages: int,
    sizes: Sequence[int],
    cores: Sequence[int],
    rounds: int = 1,
    chosen: Sequence[str] = (),
    *,
    with_kafka: bool = True,
) -> dict[str, Any]:
    """All combinations, of the cases chosen or of all; see the module."""
    wanted = [Case.named(name) for name in chosen] or cases()
    with_kafka = with_kafka and any(case.way == "kafka" for case in wanted)
    rows: list[dict[str, Any]] = []
    with place(directory) as data, serving(data / "queues") as server, ExitStack() as stack:
        broker, reason = _broker(data, stack) if with_kafka else (None, "not asked for")
        names = [case.name for case in wanted if broker or case.way != "kafka"]
        for size in sizes:
            # The same bytes for every size.
            count = messages * 100 // max(size, 100)
            _fill(server.url, f"readings-{size}", count, size)
            for each in watched(cores, f"Spark with messages of {size} bytes"):
                rows += _in_a_session(data, server, broker, names, each, size, count, rounds)
    found: dict[str, Any] = {"spark": rows, **summary(rows, sizes[0])}
    return found if broker else {**found, "kafka_left_out": reason}


def _broker(data: Path, stack: ExitStack) -> tuple[kafka.Broker | None, str]:
    try:
        return stack.enter_context(kafka.running(data / "kafka")), ""
    except StoreUnavailable as error:
        return None, str(error)


def _fill(url: str, name: str, messages: int, size: int) -> None:
    bodies = [b"%0*d" % (size, number) for number in range(min(messages, _FILL_MESSAGES))]
    with connect(url) as connection:
        queue = connection.create_queue(name)
        for first in range(0, messages, len(bodies)):
            queue.send_many(bodies[: messages - first])


def _in_a_session(
    data: Path,
    server: ServerProcess,
    broker: kafka.Broker | None,
    chosen: list[str],
    cores: int,
    size: int,
    messages: int,
    rounds: int,
) -> list[dict[str, Any]]:
    worker = Worker(
        measure.__module__,
        measure.__name__,
        directory=str(data),
        url=server.url,
        pid=server.pid,
        broker=broker and broker._asdict(),
        chosen=chosen,
        cores=cores,
        size=size,
        messages=messages,
        rounds=rounds,
    )
    try:
        found: list[dict[str, Any]] = worker.result(_WORKER_SECONDS_MAX)
    finally:
        worker.end()
    return found


def summary(rows: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The figures of one core and short messages, and ratios within the run."""
    rates = {
        (row["way"], row["mode"], row["into"]): row["rows_per_s"]
        for row in rows
        if row["cores"] == 1 and row["size"] == size and row["rows_per_s"]
    }
    found: dict[str, Any] = {}
    for name, into in (("source", "noop"), ("sink", "queue")):
        ours = rates.get(("ringdove", "batch", into))
        if ours is None:
            continue
        found[f"{name}_rows_per_s_per_core"] = ours
        for way in ("memory", "tuples", "kafka"):
            theirs = rates.get((way, "batch", into))
            if theirs:
                found[f"{name}_over_{way}"] = round(ours / theirs, 2)
    return found
