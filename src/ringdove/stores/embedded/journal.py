"""The journal: small commits on the disk in one step, before the tree of LMDB has them.

LMDB syncs twice for every transaction and writes a page of every database that it changes. A small
commit is therefore appended to one file, as the list of its edits, and that is synced once; it
counts as committed then. The tree gets the sum of many such commits in one transaction, about once
a second, by which all of the journal is done with and begins anew at its start. Until then `Draft`
and the writer know what the tree does not have.

    record    magic "RDJ1" | length u32 | number u64 | time ms u64 | check u64 | edits (MessagePack)

Little-endian; `check` is xxh3-64 of the header before it and the edits. Numbers grow by one from
commit to commit for ever, and the tree says which is the last that it has (`meta`, "journal"). So
whoever opens the directory reads records from the start of the file as long as they are whole and
follow that number: what comes after is torn, or left from before the journal began anew.

The file has its size from the start, filled with zeros: what is synced later is data, and never
where it is.
"""

from __future__ import annotations

import contextlib
import os
import struct
from os import fsync, pwrite
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb
import msgspec
import xxhash

from ringdove import limits
from ringdove.errors import StoreCorrupted
from ringdove.stores.embedded.environment import DATABASES, sync_directory, translated
from ringdove.stores.embedded.state import OFFSET, encode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ringdove.stores.embedded.environment import Environment

MAGIC = b"RDJ1"
_HEAD = struct.Struct("<4sIQQ")
_CHECK = struct.Struct("<Q")
_HEADER_BYTES = _HEAD.size + _CHECK.size

#: Numbers of the databases by name, as edits have them.
NUMBERS = {name: number for number, name in enumerate(DATABASES)}

#: Bytes of a usual commit besides its blocks.
_OTHER_BYTES = 4 * 1024

#: Where the tree says which commits it has.
_APPLIED = b"journal"

_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes, bytes | None]]).decode


class NeedsTree(Exception):
    """A commit cannot go to the journal: it is too large, or has to look around in the tree."""


class Draft:
    """The edits of a commit for the journal; has what commits use of an LMDB transaction."""

    __slots__ = ("_backlog", "_env", "edits")

    def __init__(self, env: Environment, backlog: dict[tuple[int, bytes], Any]) -> None:
        #: What there will be, by database and key; None for nothing.
        self.edits: dict[tuple[int, bytes], Any] = {}
        self._env = env
        self._backlog = backlog

    def put(self, key: bytes, value: Any, db: int) -> None:
        """See lmdb.Transaction."""
        self.edits[db, key] = value

    def delete(self, key: bytes, db: int) -> None:
        """See lmdb.Transaction."""
        self.edits[db, key] = None

    def get(self, key: bytes, db: int) -> Any:
        """See lmdb.Transaction: what this or earlier commits have put, wherever it is."""
        for known in (self.edits, self._backlog):
            if (db, key) in known:
                return known[db, key]
        with self._env.lmdb.begin(db=self._env.db[DATABASES[db]]) as txn:
            return txn.get(key)

    def cursor(self, db: int) -> Any:
        """Nobody goes through a draft."""
        raise NeedsTree(f"A journal cannot go through {DATABASES[db]}.")


class Entry(NamedTuple):
    """One commit of a journal."""

    number: int
    now_ms: int
    edits: list[tuple[int, bytes, bytes | None]]


class Journal:
    """The journal of one environment, for whoever leads its commits."""

    def __init__(self, path: Path, *, synced: bool, number: int) -> None:
        self.path = path
        #: The number of the last commit, of the last that is whole, and where the next one goes.
        #: They change together: Ctrl-C may strike between any two steps.
        self._end = (number, number, 0)
        self._synced = synced
        self._fd = -1
        self._size = 0
        #: Whether something went wrong: then the tree takes everything, and the rest of this.
        self._broken = False
        #: Commits that came before the file was opened.
        self._asked = 0

    @property
    def number(self) -> int:
        """The last commit, here or in the tree, or that could not be written."""
        return self._end[0]

    def has(self, number: int) -> bool:
        """Whether the last commit that was tried here is whole."""
        return 0 < number <= self._end[1]

    @property
    def crowded(self) -> bool:
        """Whether it is time to begin anew."""
        return self._end[2] > self._size // 2

    def takes(self, nbytes: int) -> bool:
        """Whether a commit with blocks of so many bytes belongs here, and probably fits."""
        if self._broken or nbytes > limits.JOURNAL_COMMIT_BYTES_MAX:
            return False
        if self._fd >= 0:
            return self._end[2] + nbytes + _OTHER_BYTES <= self._size
        self._asked += 1
        return self._asked > limits.JOURNAL_AFTER

    def append(self, edits: dict[tuple[int, bytes], Any], now_ms: int) -> None:
        """Make a commit as durable as the environment is; NeedsTree if that cannot be done here."""
        number, whole, at = self._end
        payload = encode([(*place, value) for place, value in edits.items()])
        head = _HEAD.pack(MAGIC, len(payload), number + 1, now_ms)
        check = _CHECK.pack(xxhash.xxh3_64_intdigest(head + payload))
        record = b"".join((head, check, payload))
        end = at + len(record)
        if self._broken or len(record) > limits.JOURNAL_RECORD_BYTES_MAX:
            raise NeedsTree("The commit is too large for a journal.")
        try:
            if self._fd < 0:
                self._open()
            if end > self._size:
                raise NeedsTree("The journal is full.")
            written = pwrite(self._fd, record, at)
        except OSError:
            written = 0
        if written < len(record):
            # Nobody knows what of it the disk has; under its number, nothing will count.
            self._broken = True
            self._end = (number + 1, whole, at)
            raise NeedsTree("The journal cannot be written.")
        self._end = (number + 1, number + 1, end)

    def begin_anew(self) -> None:
        """The tree has everything; a journal that was nearly full gets more room."""
        self._broken = False
        if self._synced and self.crowded and self._size < limits.JOURNAL_BYTES_MAX:
            with contextlib.suppress(OSError):
                self._fill(min(2 * self._size, limits.JOURNAL_BYTES_MAX))
        number, whole, _ = self._end
        self._end = (number, whole, 0)

    def close(self) -> None:
        """Let go of the file; if the tree has everything, leave nothing in it to be read."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with contextlib.suppress(OSError):
            if not self._end[2]:
                pwrite(fd, bytes(_HEADER_BYTES), 0)
                if not self._synced:
                    fsync(fd)
        os.close(fd)

    def renew(self) -> None:
        """Let go of the file, and open another the next time: it is about to be replaced."""
        self.close()
        self._size = 0

    def _open(self) -> None:
        if self._synced:
            self._size = self.path.stat().st_size if self.path.exists() else 0
            if self._size < limits.JOURNAL_BYTES:
                self._fill(limits.JOURNAL_BYTES)
                sync_directory(self.path.parent)
        else:
            self._size = limits.JOURNAL_BYTES_MAX
        sync = os.O_DSYNC if self._synced else 0
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | sync, 0o644)

    def _fill(self, size: int) -> None:
        """Bring the file to its size; what is in it stays."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if pwrite(fd, bytes(size - self._size), self._size) < size - self._size:
                raise OSError(f"{self.path} could not be filled.")
            fsync(fd)
        finally:
            os.close(fd)
        self._size = size


def applied_by(env: Environment) -> int:
    """The last commit of the journal that the tree has."""
    with env.lmdb.begin(db=env.db["meta"]) as txn:
        written = txn.get(_APPLIED)
    if written is None:
        return 0
    if len(written) != OFFSET.size:
        raise StoreCorrupted(f"{env.path} does not know what it has of its journal.")
    return int(OFFSET.unpack(written)[0])


def note_applied(txn: Any, env: Environment, number: int) -> None:
    """Have the tree say which commits it has."""
    txn.put(_APPLIED, OFFSET.pack(number), db=env.db["meta"])


def contents(path: Path) -> bytes:
    """What is in a journal; nothing if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def entries_of(data: bytes, after: int) -> list[Entry]:
    """The commits of a journal that follow `after`, as far as they are whole."""
    entries: list[Entry] = []
    at = 0
    while len(data) - at >= _HEADER_BYTES:
        magic, length, number, now_ms = _HEAD.unpack_from(data, at)
        start = at + _HEADER_BYTES
        if magic != MAGIC or number != after + 1 or length > len(data) - start:
            break
        payload = data[start : start + length]
        [check] = _CHECK.unpack_from(data, at + _HEAD.size)
        if check != xxhash.xxh3_64_intdigest(data[at : at + _HEAD.size] + payload):
            break
        entries.append(Entry(number, now_ms, _decode(payload)))
        at, after = start + length, number
    return entries


def net(entries: list[Entry]) -> dict[tuple[int, bytes], bytes | None]:
    """What commits come to, by database and key; None for nothing."""
    return {(db, key): value for entry in entries for db, key, value in entry.edits}


def recover(env: Environment, data: bytes) -> int:
    """Give the tree what only the journal has; answers the number of the last commit."""
    applied = applied_by(env)
    entries = entries_of(data, applied)
    if not entries:
        return applied
    try:
        with env.lmdb.begin(write=True) as txn:
            write_edits(txn, env, net(entries))
            clock = txn.get(b"clock", db=env.db["meta"])
            latest_ms = max(entry.now_ms for entry in entries)
            if clock is None or len(clock) != OFFSET.size or OFFSET.unpack(clock)[0] < latest_ms:
                txn.put(b"clock", OFFSET.pack(latest_ms), db=env.db["meta"])
            note_applied(txn, env, entries[-1].number)
    except lmdb.Error as error:
        raise translated(error, env.path) from error
    return entries[-1].number


def write_edits(txn: Any, env: Environment, edits: Mapping[tuple[int, bytes], Any]) -> None:
    """Do in the tree what commits come to."""
    databases = [env.db[name] for name in DATABASES]
    for (number, key), value in edits.items():
        if value is None:
            txn.delete(key, db=databases[number])
        else:
            txn.put(key, value, db=databases[number])
