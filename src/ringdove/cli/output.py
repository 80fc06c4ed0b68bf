"""How commands speak: tables for people, JSON for programs, progress on standard error."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ringdove.client.delivery import BaseMessage

T = TypeVar("T")

#: Width of tables that no terminal limits.
_PIPE_COLUMNS = 160
_AGES = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))
#: A number, perhaps with its unit or units; or none. Names of queues may begin with digits, too.
_NUMBER = re.compile(r"(\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?[\w%/]+)?( \d+[a-z])?)?")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def emit_json(value: Any) -> None:
    """Print one JSON value on one line."""
    print(json.dumps(value, default=_plain, ensure_ascii=False))


def table(title: str | None, columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table; numbers are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    body = [[_cell(value) for value in row] for row in rows]
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        numeric = body and all(_NUMBER.fullmatch(row[position]) for row in body)
        last = position == len(columns) - 1
        grid.add_column(
            column.replace("_", " "), justify="right" if numeric else "left", no_wrap=not last
        )
    for row in body:
        grid.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    if title is not None:  # Above the table: as a part of it, it would be broken at its width.
        console.print(Text(title, style="table.title"))
    console.print(grid)


def tables(result: dict[str, Any]) -> None:
    """Print what was measured: a table for each list of rows, and one of single figures."""
    for name, rows in result.items():
        if isinstance(rows, list) and rows:
            table(name.replace("_", " "), list(rows[0]), [list(row.values()) for row in rows])
    rest = [[name, value] for name, value in result.items() if not isinstance(value, list)]
    if rest:
        table("summary", ["figure", "value"], rest)


def say(text: str) -> None:
    """Tell people something that programs should not read."""
    print(text, file=sys.stderr)


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show progress on standard error.

    The function given takes what is done so far, and the total where that becomes known later.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    with Progress(
        *columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task(label, total=total)
        yield lambda done, known=total: bar.update(task, completed=done, total=known)


def watched(items: Sequence[T], label: str) -> Iterator[T]:
    """The items one by one, with progress on standard error."""
    with progress(label, len(items)) as show:
        for done, item in enumerate(items):
            show(done)
            yield item


def human_bytes(nbytes: float) -> str:
    """A size that people can read."""
    for unit in _UNITS:
        if nbytes < 1024 or unit == _UNITS[-1]:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def human_age(ms: int) -> str:
    """How long ago a moment was; empty for none."""
    if not ms:
        return ""
    seconds = max(0, int(time.time() - ms / 1000))
    for size, unit, smaller, smaller_unit in _AGES:
        if seconds >= size:
            return f"{seconds // size}{unit} {seconds % size // smaller}{smaller_unit}"
    return f"{seconds}s"


def human_time(ms: int) -> str:
    """A moment that people can read; empty for none, and for one that no calendar has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else ""
    except (ValueError, OverflowError, OSError):
        return ""


def message_dict(message: BaseMessage, *, receipt: bool = True) -> dict[str, Any]:
    """A message as JSON gives it; a body or key that is no text goes as base64."""
    found = _text("body", message.body)
    if message.key:
        found |= _text("key", message.key)
    if message.attributes:
        found["attributes"] = message.attributes
    found |= {
        "stripe": message.id.stripe.number,
        "offset": message.offset,
        "sent_ms": message.sent_ms,
    }
    if receipt:
        found["receives"] = message.receives
        found["receipt"] = base64.urlsafe_b64encode(message.receipt).decode()
    return found


def _text(name: str, value: bytes) -> dict[str, Any]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value)
