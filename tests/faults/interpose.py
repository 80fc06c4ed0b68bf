"""Simulate power cuts and failing writes below py-lmdb, inside the running process.

A shared object calls the C library through pointers in its global offset table.  This module finds
the loaded py-lmdb extension, which has LMDB linked into it, reads its ELF relocations, and stores
pointers to Python callbacks in the slots of the functions that write, truncate and sync.  The
journal's own names for such functions are diverted likewise.  Nobody else is: a test may use
Python's file functions without being seen.

A write changes the page cache.  The disk holds it for certain only after a sync of the file that
began after the write ended, or at once if the descriptor has O_DSYNC or O_SYNC, which promises
that one write and no other.  Until then each sector of 512 bytes may or may not have been copied
from the cache to the disk, in any order, and the file may have grown without its new bytes.
Sectors are all or nothing, so whatever else the cache held in a sector reaches the disk with it.

Not simulated: the creation, renaming and removal of files (every file written to exists after the
cut), a self-synced write that the cut interrupts, and environments with WRITEMAP, which are
refused.  ``sync_file_range`` is not hooked because it promises nothing that matters here.
"""

import ctypes
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import lmdb

from ringdove.stores.embedded import journal

SECTOR = 512
Files = dict[Path, bytes]
When = Callable[[Path, int, int], bool]
_lock = threading.RLock()  # Orders the events; held during a write, but never during a sync.


class UnsupportedError(NotImplementedError):
    """Raised when this platform, or this use of py-lmdb, cannot be hooked or simulated."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that were written; ``synced`` means that the descriptor had O_DSYNC or O_SYNC."""

    path: Path
    offset: int
    data: bytes = field(repr=False)
    synced: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """A completed sync, which covers the first ``covers`` events (None: all those before it)."""

    path: Path
    covers: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """A change of the size of a file, in either direction."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that the test wants to find again among the writes."""

    label: object


@dataclass(eq=False)
class WriteLog:
    """The ordered events below ``root``, to which every path in the log is relative."""

    root: Path = Path("/")
    baseline: Files = field(default_factory=dict, repr=False)
    events: list[Write | Sync | Truncate | Mark] = field(default_factory=list, repr=False)

    def mark(self, label: object) -> None:
        """Append a mark; any write that has returned to its caller is before it."""
        with _lock:
            self.events.append(Mark(label))

    def rebuild(self, at: int, into: Path, rng: Random, baseline: Files | None = None) -> None:
        """Write the files as a power cut just after ``events[at]`` could leave them.

        The files go into the empty or missing directory ``into``, and start from ``baseline`` (by
        default, from what was there when the recording began); an ``at`` of -1 gives just that.
        Each event that no sync covers is lost or torn with a probability drawn once per call.
        """
        if not -1 <= at < len(self.events):
            raise IndexError(f"there is no event {at}: the log has {len(self.events)}")
        into.mkdir(parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise FileExistsError(f"{into} is not empty")
        baseline = self.baseline if baseline is None else baseline
        files = {path: [bytearray(data), bytearray(data)] for path, data in baseline.items()}
        events = tuple(enumerate(self.events[: at + 1]))
        syncs = [(i if e.covers is None else e.covers, e) for i, e in events if isinstance(e, Sync)]
        covered = {e.path: begun for begun, e in sorted(syncs, key=lambda sync: sync[0])}
        loss = rng.random()
        for index, event in events:
            if isinstance(event, Write | Truncate):
                file = files.setdefault(event.path, [bytearray(), bytearray()])
                _replay(event, file, 0 if index < covered.get(event.path, 0) else loss, rng)
        for path, (_, disk) in files.items():
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_bytes(disk)


def _replay(event: Write | Truncate, file: list[bytearray], loss: float, rng: Random) -> None:
    """Change the page cache, and also the disk unless the event is lost."""
    cache, disk = file
    lost = rng.random() < loss
    if isinstance(event, Truncate):
        for content in (cache,) if lost else (cache, disk):
            content[:] = content[: event.size].ljust(event.size, b"\0")
        return
    start, stop = event.offset, event.offset + len(event.data)
    cache.extend(bytes(max(0, stop - len(cache))))
    cache[start:stop] = event.data
    if lost and not event.synced:
        if rng.random() < 0.5:
            disk.extend(bytes(max(0, stop - len(disk))))
        cuts = range(start - start % SECTOR + SECTOR, stop, SECTOR)
        if not cuts or rng.random() < 0.5:
            return
        cut = rng.choice(cuts)
        start, stop = rng.choice(((start, cut), (cut, stop)))
    start, stop = start - start % SECTOR, min(stop + -stop % SECTOR, len(cache))
    disk.extend(bytes(max(0, start - len(disk))))
    disk[start:stop] = cache[start:stop]


def always(path: Path, offset: int, length: int) -> bool:
    """Choose every write."""
    return True


@dataclass(eq=False)
class Faults:
    """The faults below ``root``, which happen while ``active`` is true, and their ``count``."""

    root: Path
    error: int
    when: When
    short: bool
    active: bool = True
    count: int = 0


@contextmanager
def recording(root: Path) -> Iterator[WriteLog]:
    """Record what py-lmdb does to files below ``root``, starting from the files found there."""
    root = root.resolve()
    # Lock files are skipped because to close one would drop the locks of this process on it.
    files = (p for p in root.rglob("*") if not p.name.endswith(("lock.mdb", "-lock")))
    baseline = {p.relative_to(root): p.read_bytes() for p in files if p.is_file()}
    yield from _watching(WriteLog(root, baseline))


@contextmanager
def failing(
    root: Path, error: int = errno.ENOSPC, when: When = always, short: bool = False
) -> Iterator[Faults]:
    """Make writes below ``root`` fail with ``error``, or write only half when ``short`` is true.

    The writes are chosen by ``when(path relative to root, offset, length)``, which may block.
    """
    yield from _watching(Faults(root.resolve(), error, when, short))


_Watcher = TypeVar("_Watcher", WriteLog, Faults)
_watchers: list[WriteLog | Faults] = []
_originals: dict[int, int] = {}
_errors: list[BaseException] = []


def _watching(watcher: _Watcher) -> Iterator[_Watcher]:
    with _lock:
        if not _watchers:
            _install()
        _watchers.append(watcher)
    try:
        yield watcher
    finally:
        with _lock:
            _watchers.remove(watcher)
            while _originals and not _watchers:
                _store(*_originals.popitem())
                journal.pwrite, journal.fsync = os.pwrite, os.fsync
        if _errors:
            raise RuntimeError("a hook failed, so LMDB was told EIO") from _errors.pop()


def _concerned(file: str) -> tuple[list[tuple[WriteLog, Path]], list[tuple[Faults, Path]]]:
    """Return the logs and the faults that a file concerns, with its path below their roots."""
    path = Path(os.path.realpath(file))
    own = [w for w in _watchers if path.is_relative_to(w.root) and path.exists()]
    logs = [(w, path.relative_to(w.root)) for w in own if isinstance(w, WriteLog)]
    return logs, [(w, path.relative_to(w.root)) for w in own if isinstance(w, Faults)]


def _write(name: str, real: Any, fd: int, buffer: int, count: int, *position: int) -> int:
    """Stand in for every function that writes: spoil the call, or make it and log it."""
    logs, faults = _concerned(f"/proc/self/fd/{fd}")
    if not (logs or faults):
        return int(real(fd, buffer, count, *position))
    vector = ctypes.string_at(buffer, 16 * count) if name.endswith(("v", "v64")) else b""
    parts = struct.iter_unpack("=QQ", vector or struct.pack("=QQ", buffer, count))
    data = b"".join(ctypes.string_at(base, length) for base, length in parts if length)
    synced = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC)  # O_SYNC includes this bit.
    offset = position[0] if position else os.lseek(fd, 0, os.SEEK_CUR)
    chosen = [f for f, path in faults if f.active and f.when(path, offset, len(data))]
    with _lock:
        for fault in chosen:
            fault.count += 1
            if not fault.short:
                ctypes.set_errno(fault.error)
                return -1
        if chosen:
            half = data[: len(data) // 2]
            done = os.pwrite(fd, half, *position) if position else os.write(fd, half)
        else:
            done = int(real(fd, buffer, count, *position))
        for log, path in logs if done > 0 else ():
            log.events.append(Write(path, offset, data[:done], synced))
    return done


def _sync(name: str, real: Any, fd: int, *size: int) -> int:
    """Stand in for the functions that sync or truncate, and log what the call has covered."""
    begun = [(log, path, len(log.events)) for log, path in _concerned(f"/proc/self/fd/{fd}")[0]]
    result = int(real(fd, *size))
    with _lock:
        for log, path, covers in begun if result == 0 else ():
            log.events.append(Truncate(path, *size) if size else Sync(path, covers))
    return result


def _msync(name: str, real: Any, address: int, length: int, flags: int) -> int:
    """Refuse to sync a memory map of a recorded file, because its changes were not seen."""
    for start, end, _, path in _mappings():
        if start <= address < end and _concerned(path)[0]:
            raise UnsupportedError("an environment opened with WRITEMAP cannot be recorded")
    return int(real(address, length, flags))


_INT, _SIZE, _SSIZE = ctypes.c_int, ctypes.c_size_t, ctypes.c_ssize_t
_PTR, _OFF = ctypes.c_void_p, ctypes.c_int64
_STAND_INS: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "write": (_write, (_SSIZE, _INT, _PTR, _SIZE)),
    "writev": (_write, (_SSIZE, _INT, _PTR, _INT)),
    **dict.fromkeys(("pwrite", "pwrite64"), (_write, (_SSIZE, _INT, _PTR, _SIZE, _OFF))),
    **dict.fromkeys(("pwritev", "pwritev64"), (_write, (_SSIZE, _INT, _PTR, _INT, _OFF))),
    **dict.fromkeys(("fsync", "fdatasync"), (_sync, (_INT, _INT))),
    **dict.fromkeys(("ftruncate", "ftruncate64"), (_sync, (_INT, _INT, _OFF))),
    "msync": (_msync, (_INT, _PTR, _SIZE, _INT)),
}


def _install() -> None:
    """Divert every function that has a stand-in and that py-lmdb, or the journal, imports."""
    slots = {place: name for place, name in lmdb_slots().items() if name in _STAND_INS}
    for needed in ({"pwrite", "pwrite64"}, {"fdatasync", "fsync"}):
        if not needed & set(slots.values()):
            raise UnsupportedError(f"py-lmdb imports none of {', '.join(sorted(needed))}")
    for place, name in slots.items():
        _originals[place] = _store(place, ctypes.cast(_callback(name), _PTR).value or 0)
    journal.pwrite, journal.fsync = _journal_pwrite, _journal_fsync


def _journal_pwrite(fd: int, data: bytes, offset: int) -> int:
    """Stand in for the journal's `pwrite`."""
    buffer = ctypes.create_string_buffer(data, len(data))

    def real(fd: int, _: int, count: int, offset: int) -> int:
        return os.pwrite(fd, data[:count], offset)

    done = _write("pwrite", real, fd, ctypes.addressof(buffer), len(data), offset)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def _journal_fsync(fd: int) -> None:
    """Stand in for the journal's `fsync`."""

    def real(fd: int) -> int:
        os.fsync(fd)
        return 0

    _sync("fsync", real, fd)


@cache  # So that no callback is ever freed, because a thread may still be inside it.
def _callback(name: str) -> Any:
    stand_in, prototype = _STAND_INS[name]
    function = ctypes.CFUNCTYPE(*prototype, use_errno=True)
    real = function((name, ctypes.CDLL(None)))

    def call(*arguments: Any) -> int:
        try:
            return stand_in(name, real, *arguments)
        except BaseException as error:  # The C caller cannot pass it on, but _watching can.
            _errors[:] = [error]
            ctypes.set_errno(errno.EIO)
            return -1

    return function(call)


def _mappings() -> Iterator[tuple[int, int, str, str]]:
    """Read the start, end, access and path of each mapping of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, _, *path = line.split(maxsplit=5)
        start, end = span.split("-")
        yield int(start, 16), int(end, 16), access, "".join(path)


def _store(place: int, value: int) -> int:
    """Replace the pointer in a slot, which may be on a read-only page, and return the old one."""
    size = os.sysconf("SC_PAGE_SIZE")
    access = next(access for start, end, access, _ in _mappings() if start <= place < end)
    before = sum(1 << bit for bit, letter in enumerate("rwx") if letter in access)
    mprotect = ctypes.CFUNCTYPE(_INT, _PTR, _SIZE, _INT)(("mprotect", ctypes.CDLL(None)))
    if mprotect(place - place % size, size, before | 2):
        raise UnsupportedError("the global offset table cannot be made writable")
    slot = ctypes.c_uint64.from_address(place)
    old, slot.value = slot.value, value
    mprotect(place - place % size, size, before)
    return old


def lmdb_slots() -> dict[int, str]:
    """Return the addresses where the loaded py-lmdb extension points to imported functions."""
    if not Path("/proc/self/maps").exists():
        raise UnsupportedError("hooks need Linux, with /proc/self/maps")
    file = os.path.realpath(getattr(getattr(lmdb, "cpython", None), "__file__", ""))
    starts = [start for start, _, _, path in _mappings() if path == file]
    if not starts:
        raise UnsupportedError("hooks need the C extension of py-lmdb, lmdb.cpython")
    return imported_slots(min(starts))


def imported_slots(base: int) -> dict[int, str]:
    """Return the slots of the object loaded at ``base``, with the symbol that each stands for."""
    magic, machine, table, size, n = struct.unpack("<6s12xH12xQ14xHH", ctypes.string_at(base, 58))
    kinds = {62: (6, 7), 183: (1025, 1026)}.get(machine)  # R_*_GLOB_DAT and R_*_JUMP_SLOT.
    if kinds is None or magic != b"\x7fELF\2\1":
        raise UnsupportedError("hooks need a little-endian ELF64 object for x86-64 or AArch64")
    tags: dict[int, int] = {}
    for place in range(base + table, base + table + size * n, size):
        kind, address, length = struct.unpack("<I12xQ8xQ", ctypes.string_at(place, 40))
        if kind == 2:  # PT_DYNAMIC.
            tags.update(struct.iter_unpack("<QQ", ctypes.string_at(base + address, length)))
    # The dynamic linker may or may not have made these addresses absolute.
    where = {tag: value if value >= base else base + value for tag, value in tags.items()}
    slots: dict[int, str] = {}
    for start, size in ((7, 8), (23, 2)):  # DT_RELA and DT_RELASZ, DT_JMPREL and DT_PLTRELSZ.
        found = ctypes.string_at(where.get(start, 0), tags.get(size, 0))
        for place, info, _ in struct.iter_unpack("<QQq", found):
            if info & 0xFFFFFFFF in kinds:  # The names are found by DT_SYMTAB and DT_STRTAB.
                name = ctypes.c_uint32.from_address(where[6] + 24 * (info >> 32)).value
                slots[base + place] = ctypes.string_at(where[5] + name).decode()
    return slots
