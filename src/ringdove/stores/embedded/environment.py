"""The data directory and the LMDB environments in it.

    DIR/format       what wrote the directory: "ringdove 2"
    DIR/lock         held by the one process that writes, with its process id
    DIR/reserve      bytes set aside, so that acknowledgements can be written when the disk is full
    DIR/disk/        LMDB environment of queues with durability disk, and of all records
    DIR/memory/      LMDB environment of queues with durability memory; never synced
    DIR/*/journal    small commits that the environment does not have yet: see journal.py
    DIR/memory.boot  which start of the machine has the memory environment open
    DIR/member       of a broker with a standby: see replica.py
    DIR/server.json  where the server is that has the directory open: see serving.py

Two environments, because a commit that is not synced could, in a shared one, cost synced data after
a power cut. For the same reason the memory environment is thrown away when the machine has been
restarted without closing it: its pages may have reached the disk in any order.

Keys of the databases inside an environment, all starting with the stripe's eleven bytes:

    stripes    stripe                       settings, version, epoch, once a copy
    tails      stripe                       next offset, bytes stored, first offset
    log        stripe, last offset          the block that ends there: a seek finds any offset
    subs       stripe, name                 number, floor, fence
    done       stripe, number, first        end of a run that is done above the floor
    leases     stripe, number, token        the runs of a lease
    producers  stripe, producer             its sequence
    ids        stripe, message id           offset and time
    id_times   stripe, time, message id     nothing; the order in which ids are forgotten
    graves     stripe                       nothing; a deleted stripe, rest to be removed
    records    key                          version, expiry, value
    meta       "clock"                      the latest time anything was written
               "journal"                    the last commit of the journal that is in here
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import lmdb

from ringdove import limits
from ringdove.errors import (
    FormatUnknown,
    RingdoveError,
    StoreCorrupted,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from ringdove.stores.embedded.freelist import missing_pages_are_free

if TYPE_CHECKING:
    from ringdove.core.settings import Durability

#: The version of the directory layout and of the keys described above, and those that are read.
#: Version 1 had no journal: who does not know of it would miss what only the journal has.
FORMAT_VERSION = 2
_FORMATS = (f"ringdove {FORMAT_VERSION}", "ringdove 1")

#: What DIR/format says while a copy of another directory is made (replica.py).
UNFINISHED = "ringdove unfinished copy\n"

DATABASES = (
    "stripes", "tails", "log", "subs", "done", "leases",
    "producers", "ids", "id_times", "graves", "records", "meta",
)  # fmt: skip

#: Mode of a new data directory: access keys and messages are the owner's affair.
PRIVATE = 0o700

#: Bytes of DIR/reserve: room for the pages that a few acknowledgements rewrite.
RESERVE_BYTES = 4 * 1024 * 1024

#: Bytes left free beside a reserve that takes what there is.
_RESERVE_SLACK_BYTES = 128 * 1024

_READERS_MAX = 512
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


#: Directories that this process has open.
_opened: WeakSet[Directory] = WeakSet()


def _leave() -> None:
    """After a fork, in the new process: the lock is the other's, and must not outlive it here."""
    for directory in list(_opened):
        os.close(directory.take_lock())


os.register_at_fork(after_in_child=_leave)


class Directory:
    """A data directory opened for writing: checked, locked, with its reserve."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_directory(path)
            self._refuse_foreign()
            self.lock_fd = self._lock()
            _opened.add(self)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._prepare()
        except OSError as error:
            self.let_go()
            raise self._unusable(error) from error
        except BaseException:
            self.let_go()
            raise
        self.hold_reserve()

    def _prepare(self) -> None:
        try:
            self._check_format()
            self._drop_torn_memory()
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.free_reserve():
                raise
            self._check_format()
            self._drop_torn_memory()

    def _unusable(self, error: OSError) -> StoreUnavailable:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreFull(f"The disk that holds {self.path} is full: make room to open it.")
        return StoreUnavailable(
            f"Cannot use {self.path} as data directory of Ringdove: {error.strerror or error}."
        )

    def _refuse_foreign(self) -> None:
        """Leave a directory alone that holds something and is not ours."""
        present = {entry.name for entry in self.path.iterdir()} - {
            "lock", "format.new", "lost+found",
        }  # fmt: skip
        if present and not (self.path / "format").is_file():
            raise FormatUnknown(
                f"{self.path} is not empty and has no file 'format': not Ringdove's? "
                "Name another directory."
            )

    def close(self, *, clean: bool) -> None:
        """Let another process in; `clean` says that the memory environment has been synced."""
        boot = self.path / "memory.boot"
        if clean:
            boot.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Give the lock up, for processes forked from this one too, which may not have run yet."""
        fd = self.take_lock()
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def take_lock(self) -> int:
        """Hand the descriptor of the lock over; -1 if it is gone."""
        _opened.discard(self)
        fd, self.lock_fd = self.lock_fd, -1
        return fd

    def hold_reserve(self) -> None:
        """Set the reserve aside, or on a disk that is nearly full whatever is left of it."""
        reserve = self.path / "reserve"
        try:
            held = reserve.stat().st_size if reserve.exists() else 0
            free = self._free_bytes()
            size = min(RESERVE_BYTES, held + free - _RESERVE_SLACK_BYTES)
            if size <= held or (held and free < 2 * RESERVE_BYTES):
                return
            with reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            reserve.unlink(missing_ok=True)

    def is_roomy(self) -> bool:
        """Whether the disk has more free space than what is set aside, twice."""
        try:
            return self._free_bytes() > 2 * RESERVE_BYTES
        except OSError:
            return False

    def _free_bytes(self) -> int:
        space = os.statvfs(self.path)
        return space.f_bavail * space.f_frsize

    def free_reserve(self) -> bool:
        """Give the reserve up; answers whether there was one."""
        reserve = self.path / "reserve"
        if not reserve.exists():
            return False
        reserve.unlink(missing_ok=True)
        return True

    def _lock(self) -> int:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "another process"
            own = any(os.path.sameopenfile(fd, other.lock_fd) for other in _opened)
            os.close(fd)
            raise StoreLocked(
                f"The data directory {self.path} {_in_use(None if own else holder)}"
            ) from None
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            # Whose it is, is said for others: a full disk is no reason not to open.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                os.close(fd)
                raise
        return fd

    def _check_format(self) -> None:
        file = self.path / "format"
        if not file.exists():
            write_synced(file, f"{_FORMATS[0]}\n")
            return
        text = file.read_text(errors="replace")
        check_format_text(self.path, text)
        if text.strip() != _FORMATS[0]:
            write_synced(file, f"{_FORMATS[0]}\n")

    def _drop_torn_memory(self) -> None:
        """Throw the memory environment away if the machine went down while it was open."""
        boot, current = self.path / "memory.boot", _boot_id()
        if memory_is_torn(self.path):
            shutil.rmtree(self.path / "memory", ignore_errors=True)
            shutil.rmtree(_old(self.path / "memory"), ignore_errors=True)
        if not boot.exists() or boot.read_text() != current:
            write_synced(boot, current)


def _in_use(holder: str | None) -> str:
    """Who has a directory open, None for this process; and what to do."""
    if holder is None:
        return "is open in this process: use that connection, which threads may share, or close it."
    return (
        f"is in use by process {holder}. One process writes to it at a time: stop that one or, if "
        "it is a server, use its URL: --url ringdove://HOST:PORT, or "
        'ringdove.connect("ringdove://HOST:PORT").'
    )


class Environment:
    """One LMDB environment with its databases."""

    def __init__(self, path: Path, durability: Durability, *, readonly: bool = False) -> None:
        self.path = path
        self.durability: Durability = durability
        self._readonly = readonly
        if not readonly:
            _settle_compaction(path)
            if not path.exists():
                _create(path)
        self._open()

    def _open(self) -> None:
        self._closed = False
        synced = self.durability == "disk"
        data = self.path / "data.mdb"
        if not data.is_file() or not data.stat().st_size:
            raise StoreCorrupted(f"{self.path} has lost its file data.mdb. Restore a backup.")
        try:
            self.lmdb: Any = lmdb.open(
                os.fspath(self.path),
                map_size=limits.MAP_BYTES,
                max_dbs=len(DATABASES),
                max_readers=_READERS_MAX,
                sync=synced,
                metasync=synced,
                readahead=False,
                readonly=self._readonly,
                create=not self._readonly,
            )
            self._refuse_truncated()
            create = not self._readonly
            self.db = {name: self.lmdb.open_db(name.encode(), create=create) for name in DATABASES}
        except lmdb.Error as error:
            raise translated(error, self.path) from error

    def _refuse_truncated(self) -> None:
        """Touching a page beyond the end of the file would kill the process: look before.

        Pages that LMDB counts as free may be missing at the end; any other was cut off.
        """
        psize = self.lmdb.stat()["psize"]
        expected = (self.lmdb.info()["last_pgno"] + 1) * psize
        data = self.path / "data.mdb"
        size = data.stat().st_size
        if size >= expected or missing_pages_are_free(data, psize):
            return
        self.lmdb.close()
        raise StoreCorrupted(
            f"{self.path} is cut off: {size} of {expected} bytes are there. Restore a backup."
        )

    @property
    def journal(self) -> Path:
        """Where small commits are first (journal.py)."""
        return self.path / "journal"

    def copy_to(self, target: Path, *, compact: bool) -> None:
        """Write a consistent copy into the new directory `target`, synced."""
        target.mkdir(parents=True)
        try:
            self.lmdb.copy(os.fspath(target), compact=compact)
        except lmdb.Error as error:
            raise translated(error, target) from error
        fd = os.open(target / "data.mdb", os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(target)

    def compact(self) -> None:
        """Replace the file by a copy without free pages, while nobody uses the environment."""
        draft, old = self.path.with_name(f"{self.path.name}.new"), _old(self.path)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self.copy_to(draft, compact=True)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self.lmdb.close()
        self.path.rename(old)
        draft.rename(self.path)
        sync_directory(self.path.parent)
        self._open()
        shutil.rmtree(old)

    def close(self) -> None:
        """Sync whatever was not, and close. Idempotent."""
        if self._closed:
            return
        try:
            self.lmdb.sync(True)  # noqa: FBT003  py-lmdb takes no keyword
        finally:
            self._closed = True
            self.lmdb.close()


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _boot_id() -> str:
    return _BOOT_ID.read_text() if _BOOT_ID.exists() else "unknown"


def memory_is_torn(path: Path) -> bool:
    """Whether the machine went down while the memory environment of a directory was open."""
    boot = path / "memory.boot"
    return boot.exists() and boot.read_text() != _boot_id()


def maybe_find(path: Path) -> Path | None:
    """Where the environment that belongs at `path` is: an interrupted `compact` sets it aside."""
    return next((place for place in (path, _old(path)) if place.exists()), None)


def _settle_compaction(path: Path) -> None:
    """Finish a `compact` that was interrupted, or take back the file that it had set aside."""
    if not _old(path).exists():
        return
    if path.exists():
        shutil.rmtree(_old(path))
    else:
        _old(path).rename(path)
    sync_directory(path.parent)


def _create(path: Path) -> None:
    """Make an empty environment that a power cut cannot leave half made.

    LMDB does not sync the first pages of a new file, so it is made beside its place, synced, and
    moved there whole.
    """
    draft = path.with_name(f"{path.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        made = lmdb.open(os.fspath(draft), map_size=limits.MAP_BYTES, max_dbs=len(DATABASES))
        for name in DATABASES:
            made.open_db(name.encode())
        made.sync(True)  # noqa: FBT003  py-lmdb takes no keyword
        made.close()
        sync_directory(draft)
        draft.rename(path)
        sync_directory(path.parent)
    except (lmdb.Error, OSError) as error:
        raise translated(error, path.parent) from error


def check_format_text(path: Path, text: str) -> None:
    """Refuse a directory whose format this program does not know."""
    if text == UNFINISHED:
        raise FormatUnknown(
            f"{path} holds a part of another directory. Start the standby that was copying again: "
            "it begins anew."
        )
    if text.strip() not in _FORMATS:
        raise FormatUnknown(
            f"{path} has format {text.strip()!r}; this program knows 'ringdove {FORMAT_VERSION}'. "
            "Use the version of Ringdove that wrote it, or upgrade this one."
        )


def write_synced(file: Path, text: str) -> None:
    """Write a small file so that a power cut leaves all of it or none."""
    draft = file.with_name(f"{file.name}.new")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(file)
    sync_directory(file.parent)


def make_directory(path: Path) -> None:
    """Make a directory, if it is not there, so that a power cut does not take it back."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    for made in missing:
        with contextlib.suppress(PermissionError):  # One that may be entered and not read.
            sync_directory(made.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def translated(error: Exception, path: Path) -> RingdoveError:
    """An LMDB error in our words. LMDB reports a full disk as ENOSPC or, on a short write, EIO."""
    text = str(error)
    if isinstance(error, lmdb.MapFullError | lmdb.TxnFullError) or _disk_is_full(text, path):
        return StoreFull(
            f"The disk that holds {path} is full: nothing was stored. "
            "Receive and acknowledge messages, or make room; sends work again by themselves."
        )
    if isinstance(error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.PageNotFoundError):
        return StoreCorrupted(
            f"{path} is damaged: {text}. Run 'ringdove fsck', or restore a backup."
        )
    if isinstance(error, lmdb.VersionMismatchError) or "not supported by this build" in text:
        return FormatUnknown(f"{path} was written by another LMDB version: {text}.")
    return StoreUnavailable(f"The store in {path} failed: {text}.")


def _disk_is_full(text: str, path: Path) -> bool:
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return True
    if os.strerror(errno.EIO) not in text:
        return False
    try:
        space = os.statvfs(path)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < RESERVE_BYTES
