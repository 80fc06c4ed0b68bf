"""A data directory that follows another one: locked, filled from edits, opened as a store later.

    DIR/member     which broker the directory belongs to, and the id of what is in it

The id names the *content*: everything in the directory since its last full copy began. Whoever
remembers that a directory is in sync remembers this id, so that a directory whose copy was begun
again can never be taken for what it was. While a copy is not complete, DIR/format says so, and no
store opens the directory.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING

import msgspec

from ringdove.errors import StoreCorrupted
from ringdove.stores.embedded.environment import (
    FORMAT_VERSION,
    UNFINISHED,
    Directory,
    Environment,
    write_synced,
)
from ringdove.stores.embedded.shipping import apply_edits

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.core.settings import Durability
    from ringdove.stores.embedded.shipping import Edit


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a directory is part of."""

    #: The broker's name, which both of its directories have.
    name: str
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))
    #: Whether it may be its broker's first one: it has never been granted to serve.
    first: bool = False


class Replica:
    """The directory, kept from others; a store may open it once it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._environments: dict[Durability, Environment] = {}
        self._directory = _CopyDirectory(path)
        self.member = self._read_member()
        #: Whether it holds queues.
        self.filled = (path / "disk").exists()

    def join(self, member: Member) -> None:
        """Note what the directory is part of."""
        write_synced(self.path / "member", msgspec.json.encode(member).decode())
        self.member = member

    def leave(self) -> None:
        """Forget it again."""
        (self.path / "member").unlink()
        self.member = None

    def begin(self, member: Member) -> None:
        """Throw away what is there: a copy begins, under an id of its own."""
        self.join(member)
        write_synced(self.path / "format", UNFINISHED)
        self._close_environments()
        _clear(self.path)

    def apply(self, durability: Durability, edits: list[Edit]) -> None:
        """Do what a commit did elsewhere; as durable, when it returns, as it is there."""
        env = self._environments.get(durability)
        if env is None:
            env = Environment(self.path / durability, durability)
            self._environments[durability] = env
        apply_edits(env, edits)

    def complete(self) -> None:
        """The copy is whole: a store may open it from now on."""
        _finish(self.path)

    def close(self) -> None:
        """Let go of the directory."""
        self._close_environments()
        self._directory.close(clean=True)

    def _read_member(self) -> Member | None:
        file = self.path / "member"
        if not file.exists():
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=Member)
        except msgspec.MsgspecError as error:
            raise StoreCorrupted(
                f"{file} is damaged: {error} Give an empty directory instead: it will be filled."
            ) from error

    def _close_environments(self) -> None:
        while self._environments:
            self._environments.popitem()[1].close()


class _CopyDirectory(Directory):
    """Takes a directory also if a copy in it was not finished, and empties it then."""

    def _check_format(self) -> None:
        file = self.path / "format"
        if file.exists() and file.read_text(errors="replace") == UNFINISHED:
            _clear(self.path)
            _finish(self.path)
        super()._check_format()


def _clear(path: Path) -> None:
    """Remove what a copy replaces; what cannot be removed must not be mixed with it."""
    for name in ("disk", "memory"):
        for leftover in ("", ".old", ".new"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path / f"{name}{leftover}")


def _finish(path: Path) -> None:
    write_synced(path / "format", f"ringdove {FORMAT_VERSION}\n")
