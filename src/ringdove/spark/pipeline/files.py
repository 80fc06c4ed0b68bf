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
_DELTA_LOG = "_delta_log"

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


def delta_files(table: Path) -> list[Path]:
    """The files of a Delta table: of others, its log says that they belong to it no more."""
    log = table / _DELTA_LOG
    entries = sorted(log.glob("[0-9]*.json"))
    found: dict[str, None] = {}
    with suppress(FileNotFoundError):  # There is none in a young table.
        version = json.loads((log / "_last_checkpoint").read_text())["version"]
        for part in sorted(log.glob(f"{version:020}.checkpoint*.parquet")):
            adds = parquet.read_table(part, columns=["add"])["add"].to_pylist()
            found.update((add["path"], None) for add in adds if add is not None)
        entries = [entry for entry in entries if int(entry.stem) > version]
    for entry in entries:
        for action in map(json.loads, entry.read_text().splitlines()):
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
            if "add" in action:
                found[action["add"]["path"]] = None
    return [table / unquote(name) for name in found]


def table_files(table: Path) -> TableFiles:
    """What a table holds, by its log or, if it is computed anew each time, by what is there."""
    if (table / _DELTA_LOG).exists():
        files = delta_files(table)
    elif (table / _LOG).exists():
        files = logged_files(table)
    else:
        files = sorted(table.glob("*.parquet"))
    rows = count = nbytes = 0
    for path in files:
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
