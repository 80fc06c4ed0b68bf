"""What may be wrong with a data directory as a whole: whose it is, who has it, what it allows."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import lmdb
import pytest

from faults.history import present
from ringdove import limits
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import (
    FormatUnknown,
    RingdoveError,
    StoreCorrupted,
    StoreLocked,
    StoreUnavailable,
)
from ringdove.pending import run
from ringdove.stores.base import Record, Start, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import backup, fsck

Q = StripeId(1, 0, 0)

#: A user who owns nothing, as whom root tries what others may not.
NOBODY = 65_534

#: Opens a directory in another process, as another user if it can, and tells how that went.
OPEN = """
import os, sys
from ringdove.errors import RingdoveError
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore
if os.getuid() == 0 and len(sys.argv) > 2:
    os.setgroups([])
    os.setresgid(*3 * [int(sys.argv[2])])
    os.setresuid(*3 * [int(sys.argv[2])])
try:
    store = EmbeddedStore(sys.argv[1])
except RingdoveError as error:
    print(type(error).__name__, error, flush=True)
else:
    print("open", flush=True)
    sys.stdin.read()
    run(store.close())
"""

#: Reads an environment as fsck and a backup do, and never comes to an end.
READ = """
import sys, time
from pathlib import Path
from ringdove.stores.embedded.environment import Environment
env = Environment(Path(sys.argv[1]), "disk", readonly=True)
txn = env.lmdb.begin()
txn.get(b"clock", db=env.db["meta"])
print("reading", flush=True)
time.sleep(600)
"""


def environment() -> dict[str, str]:
    """What makes another process import the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def opened(path: Path, *user: int) -> str:
    """What another process says when it opens a directory."""
    command = [sys.executable, "-c", OPEN, str(path), *map(str, user)]
    child = subprocess.run(
        command, input="", capture_output=True, text=True, check=False, env=environment()
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


@contextmanager
def held(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the directory open."""
    command = [sys.executable, "-c", OPEN, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield holder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with one message, closed."""
    path = tmp_path / "data"
    fill(path)
    return path


def fill(path: Path) -> None:
    store = EmbeddedStore(path, clock=present())
    run(store.create(Q, QueueSettings.make(), 1))
    run(store.append(Q, [Segment(Block.build([b"kept"], sent_ms=1))], 1))
    run(store.close())


def messages(path: Path) -> list[bytes]:
    store = EmbeddedStore(path, clock=present())
    bodies = [content for b in run(store.read(Q, 0, 9, 999)) for content in b.bodies()]
    run(store.close())
    return bodies


# -- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b"ringdove 3\n", b"ringdove 10\n", b"ringdove\n", b"\xff\x00\x89PNG", b"mongrel 1\n"]
)
def test_an_unknown_format_is_refused_and_left_alone(data: Path, text: bytes) -> None:
    """The message names both formats; nothing is changed."""
    (data / "format").write_bytes(text)
    before = (data / "disk" / "data.mdb").read_bytes()
    with pytest.raises(FormatUnknown, match="this program knows 'ringdove 2'"):
        EmbeddedStore(data)
    with pytest.raises(FormatUnknown):
        fsck(data)
    with pytest.raises(FormatUnknown):
        backup(data, data.parent / "backup")
    assert (data / "disk" / "data.mdb").read_bytes() == before
    assert (data / "format").read_bytes() == text
    (data / "format").write_bytes(b"ringdove 2\n")
    assert messages(data) == [b"kept"]


def test_an_older_format_is_read_and_becomes_this_one(data: Path) -> None:
    """Who wrote it does not know of the journal, and must not open it any more."""
    (data / "format").write_bytes(b"ringdove 1\n")
    assert fsck(data).faults == []
    assert messages(data) == [b"kept"]
    assert (data / "format").read_bytes() == b"ringdove 2\n"


def test_data_without_a_format_is_refused(data: Path) -> None:
    """Whoever removed the file may have removed more."""
    (data / "format").unlink()
    with pytest.raises(FormatUnknown, match="no file 'format'"):
        EmbeddedStore(data)
    with pytest.raises(RingdoveError, match="no file 'format'"):
        fsck(data)
    assert not (data / "format").exists()


@pytest.mark.parametrize("name", ["notes.txt", "disk/notes.txt", "format/notes.txt"])
def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    """Somebody's files are no place for a store: a mistyped path must not litter them."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RingdoveError, match="Ringdove"):
        run(EmbeddedStore(tmp_path).close())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_of_its_own_is_no_foreign_directory(tmp_path: Path) -> None:
    """A new file system has one directory in it, which belongs to its own fsck."""
    (tmp_path / "lost+found").mkdir()
    run(EmbeddedStore(tmp_path).close())


def test_an_environment_that_is_a_file_is_an_error(data: Path) -> None:
    """The directory is Ringdove's, but something else took the place of its data."""
    shutil.rmtree(data / "disk")
    (data / "disk").write_text("mine")
    with pytest.raises(RingdoveError, match="disk"):
        EmbeddedStore(data)
    assert (data / "disk").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds names by number in /proc")
def test_names_and_contents_are_synced_before_they_are_relied_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3: an empty `format`, or no `memory.boot`, would be found after a power cut otherwise."""
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), tmp_path / "data"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    store = EmbeddedStore(tmp_path / "data")
    run(store.create(Q, QueueSettings.make(durability="memory"), 1))
    run(store.close())
    for name in ("format", "memory.boot"):
        # Under whatever name it is written first.
        assert any(path.startswith(name) for path in synced), f"{name} is not among {synced}"


# -- who has it -----------------------------------------------------------------------------------


def test_a_second_process_is_told_who_has_the_directory(data: Path) -> None:
    """One process writes at a time; its number is in the message, and it goes with it."""
    with held(data) as holder:
        with pytest.raises(StoreLocked, match=f"in use by process {holder.pid}[^0-9]"):
            EmbeddedStore(data)
        assert (data / "lock").read_text() == f"{holder.pid}\n"
        holder.kill()
    assert messages(data) == [b"kept"]


def test_a_second_store_in_one_process_is_refused(data: Path) -> None:
    """The same message, and the first store is not disturbed."""
    store = EmbeddedStore(data)
    with pytest.raises(StoreLocked, match="is open in this process"):
        EmbeddedStore(data)
    assert opened(data).startswith("StoreLocked ")
    assert run(store.stats(Q)).tail == 1
    run(store.close())
    assert opened(data) == "open"


def test_fsck_and_backup_work_beside_the_process_that_writes(data: Path) -> None:
    """They read one consistent state, without the lock."""
    with held(data):
        report = fsck(data)
        assert (report.faults, report.blocks, report.messages) == ([], 1, 1)
        assert backup(data, data.parent / "backup") > 0
    assert messages(data.parent / "backup") == [b"kept"]
    assert fsck(data.parent / "backup").faults == []


def test_what_a_killed_reader_has_pinned_is_let_go(data: Path) -> None:
    """Else nothing that is freed from then on could be used again, and the file would grow."""
    store = EmbeddedStore(data, clock=present())
    writer = store._writers["disk"]
    command = [sys.executable, "-c", READ, str(writer.env.path)]
    with subprocess.Popen(command, stdout=-1, text=True, env=environment()) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        reader.kill()
    assert str(reader.pid) in writer.env.lmdb.readers()
    for _ in range(limits.SWEEPS_PER_READER_CHECK):
        writer.on_sweep()
    assert str(reader.pid) not in writer.env.lmdb.readers()
    run(store.close())


def test_fsck_calls_a_copy_sound_that_begins_where_its_origin_did(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, clock=present())
    run(store.create(Q, QueueSettings.make(relayed=True), 1))
    late = Block.build([b"late"], sent_ms=1).stamp(100, 5)
    run(store.append(Q, [Segment(late, placed=True, sequence=0)], 0))
    run(store.close())
    assert fsck(tmp_path).faults == []


def test_fsck_calls_a_queue_sound_that_was_a_copy_with_gaps(tmp_path: Path) -> None:
    """Its origin was lost, and it is a queue of its own by now."""
    store = EmbeddedStore(tmp_path, clock=present())
    run(store.create(Q, QueueSettings.make(relayed=True), 1))
    for at, base in ((0, 100), (101, 200)):
        block = Block.build([b"x"], sent_ms=1).stamp(base, store.clock.now_ms())
        run(store.append(Q, [Segment(block, placed=True, sequence=at)], 0))
    for version in (2, 3):
        run(store.configure(Q, QueueSettings.make(lease_ms=version), version))
    run(store.append(Q, [Segment(Block.build([b"own"], sent_ms=1))], 0))
    run(store.close())
    assert fsck(tmp_path).faults == []


def test_what_waits_while_the_store_is_compacted_finds_the_new_file(data: Path) -> None:
    store = EmbeddedStore(data, clock=present())
    writer, new = store._writers["disk"], StripeId(2, 0, 0)
    calls = [
        store.create(new, QueueSettings.make(), 1),
        store.subscribe(Q, "s", Start("earliest")),
        store.configure(Q, QueueSettings.make(lease_ms=5), 2),
        store.claim(Q, "default", b"me", 1000),
        store.put("key", b"value"),
    ]
    with writer.paused():
        pendings = [call.send(None)[0] for call in calls]
        writer.env.compact()
    assert all(pending.block() for pending in pendings)
    assert [run(call) for call in calls][-1] == Record("key", b"value", 1, 0)
    assert run(store.stats(new)).tail == 0
    assert run(store.lease(Q, "s", 9, 1000, 1, 2)).runs
    run(store.close())


def test_fsck_and_backup_see_what_an_interrupted_compaction_set_aside(data: Path) -> None:
    """They must not call a directory sound, or saved, in which they found nothing."""
    (data / "disk").rename(data / "disk.old")
    report = fsck(data)
    assert report.messages == 1 or report.faults
    try:
        backup(data, data.parent / "backup")
    except RingdoveError:
        pass
    else:
        assert messages(data.parent / "backup") == [b"kept"]
    assert messages(data) == [b"kept"]


# -- what it allows -------------------------------------------------------------------------------


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that any user can reach, unlike those of pytest."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def give_to_nobody(path: Path, mode: int) -> None:
    """Make files and directories those of the user who tries, with the rights of `mode`."""
    for each in (path, *path.rglob("*")):
        if os.getuid() == 0:
            os.chown(each, NOBODY, NOBODY)
    path.chmod(mode)


def test_a_directory_that_may_not_be_written_is_refused(public: Path) -> None:
    """Neither an empty one nor one with data; the message names the path."""
    (public / "empty").mkdir()
    give_to_nobody(public / "empty", 0o555)
    answer = opened(public / "empty", NOBODY)
    assert answer.startswith(f"StoreUnavailable Cannot use {public / 'empty'} as data directory")
    assert "Permission denied" in answer
    assert list((public / "empty").iterdir()) == []
    answer = opened(public / "empty" / "below", NOBODY)
    assert answer.startswith(f"StoreUnavailable Cannot use {public / 'empty' / 'below'}")


def test_data_in_a_directory_that_may_not_be_written_is_refused(public: Path) -> None:
    """Its files could be written, but no file could be added to them."""
    fill(public / "data")
    give_to_nobody(public / "data", 0o555)
    answer = opened(public / "data", NOBODY)
    assert answer.startswith(f"StoreUnavailable Cannot use {public / 'data'} as data directory")
    (public / "data").chmod(0o755)
    assert messages(public / "data") == [b"kept"]


def test_data_of_another_user_is_refused(public: Path) -> None:
    """The lock cannot be taken, so nothing is touched."""
    fill(public / "data")
    if os.getuid() != 0:
        pytest.skip("needs root, to be two users")
    answer = opened(public / "data", NOBODY)
    assert answer.startswith(f"StoreUnavailable Cannot use {public / 'data'} as data directory")
    assert messages(public / "data") == [b"kept"]


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The file stays as it is, also when it is above the path."""
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(StoreUnavailable, match=f"Cannot use {path} as data directory"):
            EmbeddedStore(path)
    assert file.read_text() == "mine"


def test_a_store_that_could_not_be_opened_holds_nothing(data: Path) -> None:
    """After the cause is gone, the same process can open the directory."""
    (data / "format").rename(data / "away")
    for _ in range(3):
        with pytest.raises(FormatUnknown):
            EmbeddedStore(data)
    (data / "away").rename(data / "format")
    assert messages(data) == [b"kept"]


@pytest.mark.parametrize("why", ["no memory", "clock"])
def test_a_store_that_could_be_opened_in_part_holds_nothing(data: Path, why: str) -> None:
    """Neither a lock, nor a thread that would write beside whoever opens the directory next."""
    store = EmbeddedStore(data, clock=present())
    run(store.create(StripeId(2, 0, 0), QueueSettings.make(durability="memory"), 1))
    run(store.close())
    if why == "clock":
        env = lmdb.open(os.fspath(data / "disk"), max_dbs=20, map_size=limits.MAP_BYTES)
        with env.begin(write=True, db=env.open_db(b"meta", create=False)) as txn:
            txn.put(b"clock", (2**62).to_bytes(8, "big"))
        env.close()
    else:
        (data / "memory" / "data.mdb").write_bytes(b"")
    threads = threading.active_count()
    for _ in range(2):
        with pytest.raises(StoreCorrupted):
            EmbeddedStore(data, clock=present())
    assert threading.active_count() == threads


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_lock_that_cannot_be_signed_keeps_nobody_out(
    data: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the store opens, so that messages can be received; or it holds nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Mock(side_effect=OSError(number, os.strerror(number))))
        if number == errno.ENOSPC:
            run(EmbeddedStore(data, clock=present()).close())
        else:
            with pytest.raises(StoreUnavailable):
                EmbeddedStore(data, clock=present())
    run(EmbeddedStore(data, clock=present()).close())


def test_a_new_directory_and_its_backup_are_for_their_owner_alone(tmp_path):
    data, copy, ours = tmp_path / "data", tmp_path / "copy", tmp_path / "ours"
    run(EmbeddedStore(data).close())
    backup(data, copy)
    assert [path.stat().st_mode & 0o777 for path in (data, copy)] == [0o700, 0o700]
    ours.mkdir(mode=0o750)
    run(EmbeddedStore(ours).close())
    assert ours.stat().st_mode & 0o777 == 0o750
