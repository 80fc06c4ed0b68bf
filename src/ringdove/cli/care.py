"""Commands that look after the data: stats, fsck, backup, compact."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, human_age, human_bytes, progress, say, table
from ringdove.cli.queues import NO_QUEUES, all_stats
from ringdove.cli.session import connected, directory
from ringdove.errors import InvalidArgument, StoreLocked

if TYPE_CHECKING:
    from ringdove.controllers.broker import QueueStats


def stats(
    queue: str | None = None,
    *,
    watch: Flag = False,
    every: float = 1.0,
    count: int | None = None,
    json: JsonFlag = False,
) -> None:
    """Show what queues hold; with --watch again and again, with rates.

    Parameters
    ----------
    queue
        Only this queue.
    watch
        Go on until Ctrl-C.
    every
        Seconds between two looks.
    count
        With --watch: stop after so many looks.
    json
        Print one JSON object per queue and look.
    """
    if not 0 <= every <= threading.TIMEOUT_MAX:
        raise InvalidArgument(f"--every is {every}; it must be 0 seconds or more.")
    looks = 0
    before: dict[str, tuple[float, int, int]] = {}
    with connected() as connection:
        while True:
            found = [connection.queue(queue).stats()] if queue else all_stats(connection)
            rows = [_row(item, before) for item in found]
            if json:
                for row in rows:
                    emit_json(row)
            elif rows:
                shown = [_legible(row) for row in rows]
                table(None, list(shown[0]), [row.values() for row in shown])
            else:
                say(NO_QUEUES)
            looks += 1
            if not watch or (count is not None and looks >= count):
                return
            sys.stdout.flush()  # Whoever reads a pipe should not wait until it is full.
            time.sleep(every)


def fsck(*, json: JsonFlag = False) -> int:
    """Verify every checksum and invariant of a data directory, also while it is in use.

    Leaves with exit code 3 when something is wrong.

    Parameters
    ----------
    json
        Print the report as JSON.
    """
    from dataclasses import asdict

    from ringdove.cli import EXIT_OK, EXIT_STORE
    from ringdove.stores.embedded.check import fsck as check

    with progress("checking blocks") as show:
        report = check(directory(), lambda so_far: show(so_far.blocks))
    if json:
        emit_json(asdict(report))
    else:
        print(
            f"{report.queues:,} queues, {report.stripes:,} stripes, {report.blocks:,} blocks, "
            f"{report.messages:,} messages, {human_bytes(report.nbytes)}"
        )
        for remark in report.remarks:
            print(f"note: {remark}")
        for fault in report.faults:
            print(f"FAULT: {fault}")
        print("Something is wrong." if report.faults else "All is well.")
    return EXIT_STORE if report.faults else EXIT_OK


def backup(target: Path, *, json: JsonFlag = False) -> None:
    """Copy the data directory to a new directory, also while it is in use.

    Parameters
    ----------
    target
        A directory that does not exist yet, or is empty.
    json
        Print a summary as JSON.
    """
    from ringdove.stores.embedded.check import backup as copy

    with progress("copying"):
        nbytes = copy(directory(), target)
    if json:
        emit_json({"target": str(target), "bytes": nbytes})
    else:
        say(f"Copied {human_bytes(nbytes)} to {target}.")


def compact(*, json: JsonFlag = False) -> None:
    """Give free space inside the data directory back to the disk.

    Parameters
    ----------
    json
        Print a summary as JSON.
    """
    from ringdove.controllers.broker import Broker
    from ringdove.pending import run
    from ringdove.stores.embedded import EmbeddedStore

    directory()  # A URL that names none is refused here.
    with connected() as connection, progress("compacting"):
        backend = connection.backend
        if not isinstance(backend, Broker) or not isinstance(backend.store, EmbeddedStore):
            raise StoreLocked(
                f"A server has {directory()} open: end it, then compact. Meanwhile it uses free "
                "space for new messages."
            )
        before, after = run(backend.store.compact())
    if json:
        emit_json({"bytes_before": before, "bytes_after": after})
    else:
        say(f"Compacted {human_bytes(before)} to {human_bytes(after)}.")


def _row(stats: QueueStats, before: dict[str, tuple[float, int, int]]) -> dict[str, Any]:
    """One look at a queue; with rates when there was one before."""
    now_s = time.monotonic()
    tail = sum(stripe.tail for stripe in stats.stripes.values())
    waiting = sum(counts[0] for counts in stats.subscriptions.values())
    leased = sum(counts[1] for counts in stats.subscriptions.values())
    delayed = sum(counts[2] for counts in stats.subscriptions.values())
    done = tail * max(len(stats.subscriptions), 1) - waiting - leased - delayed
    row: dict[str, Any] = {
        "queue": stats.name,
        "waiting": waiting,
        "leased": leased,
        "delayed": delayed,
        "stored": stats.messages,
        "bytes": stats.nbytes,
        "oldest_ms": stats.oldest_ms,
        "sent_per_s": None,
        "done_per_s": None,
    }
    if stats.name in before:
        then_s, tail_before, done_before = before[stats.name]
        row["sent_per_s"] = round((tail - tail_before) / (now_s - then_s))
        row["done_per_s"] = round((done - done_before) / (now_s - then_s))
    before[stats.name] = (now_s, tail, done)
    return row


def _legible(row: dict[str, Any]) -> dict[str, Any]:
    """A row as people read it."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name == "bytes":
            shown["size"] = human_bytes(value)
        elif name == "oldest_ms":
            shown["oldest"] = human_age(value)
        else:
            shown[name] = value
    return shown
