"""What a command needs to begin: the connection that the shared options name."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ringdove.config import DATA_DEFAULT, directory_of
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringdove.client.sync import Connection

#: The URL of the running command; set by the shared options.
url: ContextVar[str] = ContextVar("url", default=f"file:{DATA_DEFAULT}")
#: Whether a flag or the environment names that URL, and not a file or nobody.
told: ContextVar[bool] = ContextVar("told", default=False)

#: The words of the running command.
words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


@contextmanager
def connected(*, create: bool = False) -> Iterator[Connection]:
    """A connection for the length of one command.

    Only commands that make something may make the data directory; a typo must not.
    """
    from ringdove.client.sync import connect

    if not create and url.get().startswith("file:") and not (directory() / "format").exists():
        raise StoreUnavailable(
            f"There is no data directory at {directory()}. Make a queue in it first "
            "('ringdove queue create NAME'), or name another with --data."
        )
    with connect(url.get()) as connection:
        yield connection


def directory() -> Path:
    """The data directory of the command, for those that work on files."""
    return directory_of(url.get())
