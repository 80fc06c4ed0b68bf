"""What Spark leaves in files: which ones are a table's, how many rows they have, where flows are.

Spark appends to a table by writing files and then a line for each to the table's log. A file that
no line names was left by a run that did not finish, and is no part of the table.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from pyarrow import parquet

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = "_spark_metadata"

#: What Java writes as `%20` and the like when it makes a URL of a path.
_ODD = re.compile(r'[\s"#%<>?\[\\\]^`{|}]')


class TableFiles(NamedTuple):
    """What a table holds."""

    rows: int
    files: int
    nbytes: int


def spark_path(path: Path) -> str:
    """A path as Spark reads one: `%C3` would be those three letters to it, and not one of ours.

    There is no way to write some letters: Spark looks for checkpoints in another directory then.
    """
    found = str(path.absolute())
    if odd := _ODD.search(found):
        raise InvalidArgument(
            f"The path {found} has {odd[0]!r} in it, and Spark would keep the checkpoints of a "
            "pipeline elsewhere then: choose another directory."
        )
    return f"file://{found}"


def logged_files(table: Path) -> list[Path]:
    """The files of a table that is appended to; none if it has no log."""
    found: list[Path] = []
    for entry in _numbered(table / _LOG):
        try:
            lines = entry.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # Spark removes entries that a later one has put together.
        adds = [json.loads(line) for line in lines]
        named = [
            Path(unquote(urlsplit(add["path"]).path)) for add in adds if add["action"] == "add"
        ]
        found = named if entry.suffix == ".compact" else found + named
    return found


def table_files(table: Path) -> TableFiles:
    """What a table holds, by its log or, if it is computed anew each time, by what is there."""
    logged = (table / _LOG).exists()
    rows = count = nbytes = 0
    for path in logged_files(table) if logged else sorted(table.glob("*.parquet")):
        with suppress(FileNotFoundError):  # A view is being computed anew.
            rows += parquet.read_metadata(path).num_rows
            nbytes += path.stat().st_size
            count += 1
    return TableFiles(rows, count, nbytes)


def position(checkpoint: Path) -> dict[str, int] | None:
    """How far a flow has read a queue: what its last finished step says; None before the first."""
    done = {entry.name for entry in _numbered(checkpoint / "commits")}
    steps = [entry for entry in _numbered(checkpoint / "offsets") if entry.name in done]
    if not steps:
        return None
    found: dict[str, int] = json.loads(steps[-1].read_text().splitlines()[-1])
    return found


def _numbered(directory: Path) -> Iterator[Path]:
    """The entries of a log of Spark in their order."""
    if not directory.exists():
        return
    entries = [e for e in directory.iterdir() if e.name.removesuffix(".compact").isdecimal()]
    yield from sorted(entries, key=lambda entry: int(entry.name.removesuffix(".compact")))
