"""The data directory and the LMDB environments in it.

    DIR/format       what wrote the directory: "ringdove 1"
    DIR/lock         held by the one process that writes, with its process id
    DIR/reserve      bytes set aside, so that acknowledgements can be written when the disk is full
    DIR/disk/        LMDB environment of queues with durability disk, and of all records
    DIR/memory/      LMDB environment of queues with durability memory; never synced

Two environments, because a commit that is not synced could, in a shared one, cost synced data after
a power cut. For the same reason the memory environment is thrown away when the machine has been
restarted without closing it: its pages may have reached the disk in any order.

Keys of the databases inside an environment, all starting with the stripe's eleven bytes:

    stripes    stripe                       settings, version, epoch
    tails      stripe                       next offset, bytes stored
    log        stripe, last offset          the block that ends there: a seek finds any offset
    subs       stripe, name                 number, floor
    done       stripe, number, first        end of a run that is done above the floor
    leases     stripe, number, token        the runs of a lease
    producers  stripe, producer             its sequence
    ids        stripe, message id           offset and time
    id_times   stripe, time, message id     nothing; the order in which ids are forgotten
    graves     stripe                       nothing; a deleted stripe, rest to be removed
    records    key                          version, expiry, value
    meta       "clock"                      the latest time anything was written
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ringdove.core.settings import Durability

#: The version of the directory layout and of the keys described above.
FORMAT_VERSION = 1

DATABASES = (
    "stripes", "tails", "log", "subs", "done", "leases",
    "producers", "ids", "id_times", "graves", "records", "meta",
)  # fmt: skip

#: Bytes of DIR/reserve: room for the pages that a few acknowledgements rewrite.
RESERVE_BYTES = 4 * 1024 * 1024

_READERS_MAX = 512
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Directory:
    """A data directory opened for writing: checked, locked, with its reserve."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = self._lock()
        except OSError as error:
            raise StoreUnavailable(f"Cannot use {path} as data directory: {error}.") from error
        try:
            self._check_format()
            self._drop_torn_memory()
        except BaseException:
            os.close(self._lock_fd)
            raise
        self.hold_reserve()

    def close(self, *, clean: bool) -> None:
        """Let another process in; `clean` says that the memory environment has been synced."""
        boot = self.path / "memory.boot"
        if clean:
            boot.unlink(missing_ok=True)
        os.close(self._lock_fd)

    def hold_reserve(self) -> None:
        """Set the reserve aside, if there is room for it and as much again."""
        reserve = self.path / "reserve"
        try:
            space = os.statvfs(self.path)
            if space.f_bavail * space.f_frsize < 2 * RESERVE_BYTES or (
                reserve.exists() and reserve.stat().st_size == RESERVE_BYTES
            ):
                return
            with reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            reserve.unlink(missing_ok=True)

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
            os.close(fd)
            raise StoreLocked(
                f"The data directory {self.path} is in use by process {holder}. One process writes "
                "to it at a time: stop that one, or go through it instead of the directory."
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def _check_format(self) -> None:
        file = self.path / "format"
        if not file.exists():
            if (self.path / "disk").exists():
                raise FormatUnknown(f"{self.path} holds data but no file 'format': not Ringdove's?")
            file.write_text(f"ringdove {FORMAT_VERSION}\n")
            sync_directory(self.path)
            return
        check_format_text(self.path, file.read_text(errors="replace"))

    def _drop_torn_memory(self) -> None:
        """Throw the memory environment away if the machine went down while it was open."""
        boot = self.path / "memory.boot"
        current = _BOOT_ID.read_text() if _BOOT_ID.exists() else "unknown"
        if boot.exists() and boot.read_text() != current:
            shutil.rmtree(self.path / "memory", ignore_errors=True)
        boot.write_text(current)


class Environment:
    """One LMDB environment with its databases."""

    def __init__(self, path: Path, durability: Durability, *, readonly: bool = False) -> None:
        self.path = path
        self.durability: Durability = durability
        self._readonly = readonly
        if not path.exists() and not readonly:
            _restore_or_create(path)
        self._open()

    def _open(self) -> None:
        synced = self.durability == "disk"
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
        """Touching a page beyond the end of the file would kill the process: look before."""
        expected = (self.lmdb.info()["last_pgno"] + 1) * self.lmdb.stat()["psize"]
        actual = (self.path / "data.mdb").stat().st_size
        if actual < expected:
            self.lmdb.close()
            raise StoreCorrupted(
                f"{self.path} is cut off: {actual} of {expected} bytes are there. Restore a backup."
            )

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
        self.copy_to(draft, compact=True)
        self.lmdb.close()
        self.path.rename(old)
        draft.rename(self.path)
        sync_directory(self.path.parent)
        self._open()
        shutil.rmtree(old)

    def close(self) -> None:
        """Sync whatever was not, and close."""
        try:
            self.lmdb.sync(True)  # noqa: FBT003  py-lmdb takes no keyword
        finally:
            self.lmdb.close()


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _restore_or_create(path: Path) -> None:
    """Take back the file that an interrupted `compact` set aside, or make a new one."""
    if _old(path).exists():
        _old(path).rename(path)
    else:
        _create(path)


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
    if text.strip() != f"ringdove {FORMAT_VERSION}":
        raise FormatUnknown(
            f"{path} has format {text.strip()!r}; this program knows 'ringdove {FORMAT_VERSION}'. "
            "Use the version of Ringdove that wrote it, or upgrade this one."
        )


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
    if isinstance(error, lmdb.VersionMismatchError):
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
