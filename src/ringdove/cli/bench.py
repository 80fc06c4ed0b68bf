"""The command `bench`: measures this machine, side by side with what limits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from ringdove.cli.output import emit_json, table
from ringdove.cli.queues import JsonFlag

app = App(name="bench", help="Measure Ringdove on this machine; ratios matter more than absolutes.")

Quick = Annotated[bool, Parameter(negative="")]


@app.command
def engine(*, dir: Path | None = None, quick: Quick = False, json: JsonFlag = False) -> None:
    """Append, lease+acknowledge and end to end, synced and not, beside the raw disk.

    Parameters
    ----------
    dir
        Where to put the test data; by default a temporary directory beside the working directory.
    quick
        A short run.
    json
        Print one JSON object.
    """
    from ringdove.bench import engine as bench

    _report(bench.run(dir, quick=quick), json)


@app.command
def backlog(*, messages: int = 10_000_000, dir: Path | None = None, json: JsonFlag = False) -> None:
    """Cost of lease+acknowledge at a small and at a huge backlog.

    Parameters
    ----------
    messages
        The huge backlog.
    dir
        Where to put the test data.
    json
        Print one JSON object.
    """
    from ringdove.bench import backlog as bench

    _report(bench.run(dir, messages), json)


@app.command
def leases(*, count: int = 100_000, dir: Path | None = None, json: JsonFlag = False) -> None:
    """Cost of lease, acknowledge and expiry with many single-message leases outstanding.

    Parameters
    ----------
    count
        Leases outstanding at the end.
    dir
        Where to put the test data.
    json
        Print one JSON object.
    """
    from ringdove.bench import leases as bench

    _report(bench.run(dir, count), json)


@app.command
def groups(
    *,
    messages: int = 200_000,
    groups: int = 20_000,
    dir: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Receive+acknowledge in batches of 10 from a key-ordered queue with many groups.

    Parameters
    ----------
    messages
        Messages waiting at the start.
    groups
        Keys among which they are spread.
    dir
        Where to put the test data.
    json
        Print one JSON object.
    """
    from ringdove.bench import groups as bench

    _report(bench.run(dir, messages, groups), json)


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(result)
        return
    for name, rows in result.items():
        if isinstance(rows, list) and rows:
            table(name.replace("_", " "), list(rows[0]), [list(row.values()) for row in rows])
    rest = [[name, value] for name, value in result.items() if not isinstance(value, list)]
    if rest:
        table("summary", ["figure", "value"], rest)
