"""The commands `trace record` and `trace report`: what became of every message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from ringdove.cli import session
from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, progress, say, table
from ringdove.cli.values import duration_ms
from ringdove.errors import InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from ringdove.client.sync import Connection, Queue
    from ringdove.spark.trace_sources import Traces

app = App(name="trace", help="Traces: what was sent, what came, when, and in which order.")

#: Rows of a table on the terminal; --json and --html have all or more.
_ROWS_MAX = 20

#: Lease of a queue that is made for a recording: what a crash left behind comes again soon.
_LEASE_MS = 2_000


@app.command
def record(
    queue: str = "traced",
    *,
    to: Path | None = None,
    trace_queue: str | None = None,
    messages: int = 200_000,
    producers: int = 2,
    receivers: int = 2,
    size: int = 100,
    rate: int = 20_000,
    crash: float = 0.0,
    json: JsonFlag = False,
) -> None:
    """Send and receive through a queue for a while, and trace it.

    Example: `ringdove trace record --to traces --crash 0.01`

    Parameters
    ----------
    queue
        The queue; made if there is none.
    to
        Directory for the traces, as Parquet.
    trace_queue
        Queue for the traces; made if there is none.
    messages
        How many.
    producers
        Threads that send.
    receivers
        Threads that receive.
    size
        Bytes of a message.
    rate
        Messages per second; 0: as fast as they are taken.
    crash
        Share of receives in which the receiver crashes; what it holds comes again, late or twice.
    """
    from ringdove.tracing.recording import Plan, Recording

    if (to is None) == (trace_queue is None):
        raise InvalidArgument("Say where the traces go: --to DIRECTORY or --trace-queue NAME.")
    plan = Plan(messages, producers, receivers, size, rate, crash)
    with session.connected(create=True) as connection:
        place = to if trace_queue is None else _found(connection, trace_queue)
        assert place is not None
        recording = Recording(_found(connection, queue, lease_ms=_LEASE_MS), place, plan)
        with progress("messages", messages) as show:
            done = recording.run(show)
    if json:
        emit_json(done)
        return
    where = str(to) if to is not None else f"--queue {trace_queue}"
    say(f"{done['messages']:,} messages in {done['seconds']} s. Now: ringdove trace report {where}")


@app.command
def report(
    path: str | None = None,
    *,
    queue: str | None = None,
    window: str = "10s",
    html: Path | None = None,
    master: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Loss, duplication, order, displacement and latency, by queue, producer and window.

    Example: `ringdove trace report traces --window 1s --html report.html`

    Parameters
    ----------
    path
        File or directory of traces in Parquet.
    queue
        Trace queue to read instead.
    window
        Length of a window of time.
    html
        Write a page with plots into this file.
    master
        Where Spark runs; by default on all cores of this machine.
    """
    if (path is None) == (queue is None):
        raise InvalidArgument("Name a file or directory of traces, or a trace queue by --queue.")
    window_ms = duration_ms(window)
    if window_ms < 1:
        raise InvalidArgument(f"--window is {window!r}; it must be 1ms or more.")
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise InvalidArgument(f"The page cannot be written to {html}: name a file in a directory.")
    with progress("starting Spark"):
        spark = _spark(master)
    from ringdove.spark import traces

    with progress("tasks") as show:
        found = traces.analyse(_source(spark, path, queue), window_ms, show).as_dict()
    if html is not None:
        from ringdove.tracing.page import render

        html.write_text(render(found, f"Trace report: {path or queue}"))
        say(f"The page is in {html}.")
    if json:
        emit_json(found)
    else:
        _show(found)


def _found(connection: Connection, name: str, **settings: Any) -> Queue:
    """A queue, made if it is missing."""
    queue = connection.queue(name)
    try:
        queue.info()
    except QueueNotFound:
        return connection.create_queue(name, **settings)
    return queue


def _spark(master: str | None) -> SparkSession:
    try:
        from ringdove.spark.session import session as make
    except ImportError as error:
        raise InvalidArgument(
            f"Reports need Spark: pip install 'ringdove[spark]' ({error})."
        ) from error
    return make(master)


def _source(spark: SparkSession, path: str | None, queue: str | None) -> Traces:
    from ringdove.spark import trace_sources

    if path is not None:
        return trace_sources.from_parquet(spark, path)
    assert queue is not None
    return trace_sources.from_queue(spark, session.url.get(), queue)


def _show(found: dict[str, Any]) -> None:
    from ringdove.tracing.page import cells, columns, worst_first

    for title, keys, rows in (
        ("queues", ["queue"], found["queues"]),
        ("producers", ["queue", "producer"], worst_first(found["producers"])),
        ("windows", ["queue", "window_us"], found["windows"]),
    ):
        named = [_named(row, keys) + cells(row) for row in rows[:_ROWS_MAX]]
        names = [key.removesuffix("_us") for key in keys]
        table(title, [*names, *columns()], named)
        if len(rows) > _ROWS_MAX:
            say(f"{len(rows) - _ROWS_MAX:,} more {title}; --json shows all.")


def _named(row: Mapping[str, Any], keys: list[str]) -> list[str]:
    from ringdove.tracing.page import moment

    return [moment(row[key]) if key == "window_us" else row[key] or "(not known)" for key in keys]
