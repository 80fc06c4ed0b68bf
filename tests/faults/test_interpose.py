"""Tests of the power-cut simulator and of the fault injection, with hand-made and real writes."""

import ctypes
import errno
import json
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest

from faults import interpose
from faults.interpose import (
    Faults,
    Mark,
    Sync,
    Truncate,
    UnsupportedError,
    Write,
    WriteLog,
    failing,
    recording,
)

A, B = Path("a.db"), Path("below", "b.db")
MAP_SIZE = 1 << 28

# A damaged environment may kill the process that reads it, so a child does the reading.  Every
# value is its version, then a filling that depends on the key, the version and the size.
CHECK = """
import json, lmdb, sys
for line in sys.stdin:
    path, expected = json.loads(line)
    trouble = ""
    try:
        with lmdb.open(path, map_size=1 << 28) as env, env.begin() as txn:
            for key, version in expected.items():
                value = txn.get(key.encode()) or b"-1,0,"
                found, size, filling = value.split(b",", 2)
                if int(found) < version:
                    trouble += f"{key} has version {found}, not {version}; "
                elif filling != (key.encode() + found) * int(size):
                    trouble += f"{key} is damaged; "
            sum(len(value) for _, value in txn.cursor())
        with lmdb.open(path, map_size=1 << 28) as env, env.begin(write=True) as txn:
            txn.put(b"again", b"x" * 5000)
    except (lmdb.Error, ValueError) as error:
        trouble += repr(error)
    print(json.dumps(trouble), flush=True)
"""


def value(key: str, version: int, size: int) -> bytes:
    """Make a value that CHECK can verify."""
    return f"{version},{size},".encode() + (key + str(version)).encode() * size


def put(env: lmdb.Environment, log: WriteLog, key: str, version: int, size: int) -> None:
    """Commit one value, and mark it once it is committed."""
    with env.begin(write=True) as txn:
        txn.put(key.encode(), value(key, version, size))
    log.mark((key, version))


def acknowledged(log: WriteLog, at: int) -> dict[str, int]:
    """Return the version of each key that was marked by the time of a cut."""
    labels = (event.label for event in log.events[: at + 1] if isinstance(event, Mark))
    return dict(label for label in labels if isinstance(label, tuple))


def check(log: WriteLog, cuts: list[int], into: Path, rng: random.Random) -> list[str]:
    """Rebuild each cut and return what is wrong with it, or that the reader died of it."""
    lines = []
    for number, at in enumerate(cuts):
        target = into / str(number)
        log.rebuild(at, target, rng)
        lines.append(json.dumps([str(target), acknowledged(log, at)]))
    troubles: list[str] = []
    while len(troubles) < len(cuts):
        todo = "\n".join(lines[len(troubles) :])
        command = [sys.executable, "-c", CHECK]
        child = subprocess.run(command, input=todo, capture_output=True, text=True, check=False)
        troubles += [json.loads(line) for line in child.stdout.splitlines()]
        if child.returncode:
            troubles.append(f"the reader ended with {child.returncode}: {child.stderr}")
    return troubles


def workload(path: Path, rng: random.Random, *, sync: bool) -> WriteLog:
    """Commit values of all sizes, many of them replacing others, in a fresh environment."""
    lmdb.open(str(path), map_size=MAP_SIZE).close()
    with (
        recording(path) as log,
        lmdb.open(str(path), map_size=MAP_SIZE, sync=sync, metasync=sync) as env,
    ):
        for version in range(120):
            size = rng.choice((1, 10, 300, 1500, 100_000 // 5))
            put(env, log, f"k{rng.randrange(25)}", version, size)
    return log


def random_cuts(log: WriteLog, rng: random.Random, number: int) -> list[int]:
    """Choose moments of a log, the very beginning included."""
    return [rng.randrange(-1, len(log.events)) for _ in range(number)]


@pytest.mark.parametrize("seed", range(3))
def test_synced_commits_survive_every_cut(tmp_path: Path, seed: int) -> None:
    """What LMDB has committed with syncs is there, whole, after any power cut."""
    rng = random.Random(seed)
    log = workload(tmp_path / "db", rng, sync=True)
    assert sum(isinstance(event, Sync) for event in log.events) >= 120
    assert sum(isinstance(event, Write) and event.synced for event in log.events) == 120
    assert max(len(event.data) for event in log.events if isinstance(event, Write)) > 100_000
    troubles = check(log, random_cuts(log, rng, 100), tmp_path / "cuts", rng)
    assert [trouble for trouble in troubles if trouble] == []


def test_a_missing_sync_is_seen(tmp_path: Path) -> None:
    """Without syncs some cut loses a committed value, or the whole environment."""
    rng = random.Random(7)
    log = workload(tmp_path / "db", rng, sync=False)
    assert not any(isinstance(event, Write) and event.synced for event in log.events)
    troubles = check(log, random_cuts(log, rng, 20), tmp_path / "cuts", rng)
    assert any(troubles)
    assert not any("Traceback" in trouble for trouble in troubles)


def test_commits_of_many_threads(tmp_path: Path) -> None:
    """Marks and writes of several threads are in order, in two environments at once."""
    rng = random.Random(11)
    roots = [tmp_path / "db" / name for name in ("one", "two")]
    for root in roots:
        root.mkdir(parents=True)
        lmdb.open(str(root), map_size=MAP_SIZE).close()

    def work(env: lmdb.Environment, log: WriteLog, name: str) -> None:
        for version in range(25):
            put(env, log, name, version, 20_000 if version % 5 == 0 else 50)

    with (
        recording(roots[0]) as log,
        recording(roots[1]) as other,
        lmdb.open(str(roots[0]), map_size=MAP_SIZE) as env,
        lmdb.open(str(roots[1]), map_size=MAP_SIZE) as env2,
    ):
        pairs = [(env, log), (env2, other)]
        threads = [threading.Thread(target=work, args=(*pairs[n % 2], f"t{n}")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for each in (log, other):
        assert acknowledged(each, len(each.events) - 1).keys() <= {f"t{n}" for n in range(8)}
        assert len(acknowledged(each, len(each.events) - 1)) == 4
        into = tmp_path / f"cuts of {each.root.name}"
        assert not any(check(each, random_cuts(each, rng, 50), into, rng))


def test_pages_written_together_have_their_position(tmp_path: Path) -> None:
    """After a gathered write, which goes where the descriptor points, the log has the file."""
    with (
        recording(tmp_path) as log,
        lmdb.open(str(tmp_path), map_size=MAP_SIZE) as env,
        env.begin(write=True) as txn,
    ):
        for number in range(3000):
            txn.put(b"%d" % number, b"x" * 300)
    assert any(isinstance(event, Write) and len(event.data) > 8192 for event in log.events)
    log.rebuild(len(log.events) - 1, tmp_path / "cut", random.Random(1))
    assert (tmp_path / "cut" / "data.mdb").read_bytes() == (tmp_path / "data.mdb").read_bytes()


def test_only_files_below_the_root_are_recorded(tmp_path: Path) -> None:
    """The files of a neighbour are written to as ever, and are not in the log."""
    (tmp_path / "in").mkdir()
    (tmp_path / "inside out").mkdir()
    with recording(tmp_path / "in") as log, failing(tmp_path / "in") as faults:
        with lmdb.open(str(tmp_path / "inside out")) as env, env.begin(write=True) as txn:
            txn.put(b"key", b"value")
        with lmdb.open(str(tmp_path / "inside out")) as env, env.begin() as txn:
            assert txn.get(b"key") == b"value"
    assert (log.events, faults.count) == ([], 0)


def test_a_full_disk(tmp_path: Path) -> None:
    """A commit that cannot write fails, changes nothing, and can be repeated later."""
    with lmdb.open(str(tmp_path), map_size=MAP_SIZE) as env, recording(tmp_path) as log:
        put(env, log, "before", 0, 20_000)
        with failing(tmp_path) as faults:
            recorded = len(log.events)
            for count in (1, 2):
                with pytest.raises(lmdb.Error, match="No space left on device"):
                    put(env, log, "during", 0, 20_000)
                assert faults.count == count
            assert len(log.events) == recorded
            faults.active = False
            put(env, log, "after", 0, 20_000)
            assert faults.count == 2
        put(env, log, "last", 0, 20_000)
        with env.begin() as txn:
            assert [key for key, _ in txn.cursor()] == [b"after", b"before", b"last"]
    assert not any(check(log, [len(log.events) - 1], tmp_path / "cuts", random.Random(2)))


def test_the_error_reaches_every_thread(tmp_path: Path) -> None:
    """Each thread gets the number of the error that was asked for, whatever others do."""
    found: list[str] = []

    def work(env: lmdb.Environment, number: int) -> None:
        for attempt in range(20):
            try:
                with env.begin(write=True) as txn:
                    txn.put(f"{number} {attempt}".encode(), b"x" * 9000)
            except lmdb.Error as error:
                found.append(str(error))

    with (
        lmdb.open(str(tmp_path), map_size=MAP_SIZE) as env,
        failing(tmp_path, errno.EDQUOT) as faults,
    ):
        threads = [threading.Thread(target=work, args=(env, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults.count == 120
    assert len(found) == 120
    assert {text.split(": ")[1] for text in found} == {"Disk quota exceeded"}


def test_a_short_write(tmp_path: Path) -> None:
    """A short write does reach the file, by half, and the commit fails."""
    with (
        lmdb.open(str(tmp_path), map_size=MAP_SIZE) as env,
        recording(tmp_path) as log,
        failing(tmp_path, when=lambda path, offset, length: length > 4096, short=True) as faults,
    ):
        with pytest.raises(lmdb.Error):
            put(env, log, "half", 0, 20_000)
        written = [event for event in log.events if isinstance(event, Write)]
        assert (faults.count, len(written)) == (1, 1)
        assert value("half", 0, 20_000)[:40_000] in written[0].data
        assert written[0].data in (tmp_path / "data.mdb").read_bytes()
        put(env, log, "small", 0, 1)
        with env.begin() as txn:
            assert [key for key, _ in txn.cursor()] == [b"small"]


def test_a_chosen_write_fails(tmp_path: Path) -> None:
    """The choice sees the relative path, and the meta page can be what fails."""
    seen: list[tuple[Path, int, int]] = []

    def meta(path: Path, offset: int, length: int) -> bool:
        seen.append((path, offset, length))
        return offset < 8192

    (tmp_path / "db").mkdir()
    with lmdb.open(str(tmp_path / "db")) as env, failing(tmp_path, errno.EIO, meta):
        with pytest.raises(lmdb.Error, match="Input/output error"):
            put(env, WriteLog(), "key", 0, 1)
        with pytest.raises(lmdb.PanicError):
            env.begin()
    assert {path for path, _, _ in seen} == {Path("db/data.mdb")}
    with lmdb.open(str(tmp_path / "db")) as env:
        put(env, WriteLog(), "key", 0, 1)


def test_an_exception_in_the_choice_is_not_lost(tmp_path: Path) -> None:
    """LMDB sees an input/output error, and the test sees the exception."""

    def broken(path: Path, offset: int, length: int) -> bool:
        raise KeyError(length)

    with (
        lmdb.open(str(tmp_path)) as env,
        pytest.raises(RuntimeError, match="hook") as caught,
        failing(tmp_path, when=broken),
        pytest.raises(lmdb.Error, match="Input/output error"),
    ):
        put(env, WriteLog(), "key", 0, 1)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_written_memory_map_is_refused(tmp_path: Path) -> None:
    """An environment with WRITEMAP changes its file unseen, so it is not recorded."""
    with (
        pytest.raises(RuntimeError) as caught,
        recording(tmp_path) as log,
        lmdb.open(str(tmp_path), map_size=1 << 20, writemap=True) as env,
    ):
        put(env, log, "key", 0, 1)
    assert isinstance(caught.value.__cause__, UnsupportedError)


def pointers() -> dict[int, int]:
    """Read the slots that may be hooked."""
    slots = interpose.lmdb_slots()
    return {place: ctypes.c_uint64.from_address(place).value for place in slots}


def access() -> list[tuple[int, int, str]]:
    """Return the extents and the protection of all the memory of the extension."""
    return [m[:3] for m in interpose._mappings() if "lmdb" in m[3] and m[3].endswith(".so")]


def test_hooks_are_removed(tmp_path: Path) -> None:
    """The pointers and the protection of their pages are as before, also after an exception."""
    before = pointers(), access()
    with recording(tmp_path), pytest.raises(ValueError, match="invalid"), failing(tmp_path):
        int("invalid")
    assert pointers() == before[0]
    with recording(tmp_path), failing(tmp_path):
        inside = pointers()
    names = interpose.lmdb_slots()
    changed = {names[place] for place in inside if inside[place] != before[0][place]}
    assert changed >= {"pwrite", "fdatasync"}
    assert (pointers(), access()) == before
    with recording(tmp_path) as log:
        pass
    with lmdb.open(str(tmp_path)) as env:
        put(env, WriteLog(), "key", 0, 1)
    assert log.events == []


def test_a_slot_on_a_read_only_page() -> None:
    """A slot that is write-protected after relocation can be changed, and stays protected."""
    spans = [m[:2] for m in interpose._mappings() if m[2].startswith("r--")]
    slots = [s for s in interpose.lmdb_slots() if any(low <= s < high for low, high in spans)]
    if not slots:
        pytest.skip("this build of py-lmdb has no slot on a read-only page")
    before, old = access(), ctypes.c_uint64.from_address(slots[0]).value
    assert interpose._store(slots[0], old) == old
    assert access() == before


def test_a_call_may_outlast_the_hooks(tmp_path: Path) -> None:
    """A thread that is inside a hook when it is removed comes back safely."""
    inside, leave = threading.Event(), threading.Event()

    def wait(path: Path, offset: int, length: int) -> bool:
        inside.set()
        return leave.wait(10) and False

    with lmdb.open(str(tmp_path)) as env:
        thread = threading.Thread(target=put, args=(env, WriteLog(), "key", 0, 1))
        with failing(tmp_path, when=wait):
            thread.start()
            assert inside.wait(10)
        leave.set()
        thread.join()
        with env.begin() as txn:
            assert txn.get(b"key") == value("key", 0, 1)


def rebuilt(
    tmp_path: Path, log: WriteLog, at: int, baseline: dict[Path, bytes] | None = None
) -> list[dict[Path, bytes]]:
    """Return many results of the same cut, by relative path."""
    results = []
    for seed in range(300):
        into = tmp_path / f"{at} {seed}"
        log.rebuild(at, into, random.Random(seed), baseline)
        files = (path for path in into.rglob("*") if path.is_file())
        results.append({path.relative_to(into): path.read_bytes() for path in files})
    return results


def test_rebuild_keeps_what_is_synced(tmp_path: Path) -> None:
    """A sync covers its own file only; a self-synced write covers itself only."""
    log = WriteLog()
    log.events += [
        Write(A, 0, b"a" * 512),
        Write(B, 0, b"b" * 512),
        Write(A, 512, b"A" * 512, True),
    ]
    log.mark("not synced")
    log.events += [Sync(A)]
    assert {result[A][512:] for result in rebuilt(tmp_path, log, 3)} == {b"A" * 512}
    assert {result[A][:512] for result in rebuilt(tmp_path, log, 2)} == {b"a" * 512, bytes(512)}
    assert {result[A] for result in rebuilt(tmp_path, log, 4)} == {b"a" * 512 + b"A" * 512}
    found = {result[B] for result in rebuilt(tmp_path / "again", log, 4)}
    assert found == {b"", bytes(512), b"b" * 512}
    assert rebuilt(tmp_path, log, -1) == [{}] * 300


def test_a_sync_covers_what_was_written_before_it_began(tmp_path: Path) -> None:
    """A write that another thread made during the sync may be lost."""
    log = WriteLog(baseline={A: bytes(1024)})
    log.events += [Write(A, 0, b"a" * 512), Write(A, 512, b"b" * 512), Sync(A, 1), Sync(A, 0)]
    results = {result[A] for result in rebuilt(tmp_path, log, 3)}
    assert results == {b"a" * 512 + bytes(512), b"a" * 512 + b"b" * 512}


def test_unsynced_writes_are_lost_on_their_own_and_torn(tmp_path: Path) -> None:
    """Each of two writes may be there without the other, and each may be cut at any sector."""
    log = WriteLog()
    log.events += [Write(A, 100, b"x" * 1436), Write(A, 2048, b"y" * 1024)]
    results = {result[A] for result in rebuilt(tmp_path, log, 1, {A: b"-" * 3072})}
    sectors = {tuple(result[n : n + 512] for n in range(0, 3072, 512)) for result in results}
    whole = b"-" * 100 + b"x" * 412
    assert {found[0] for found in sectors} == {b"-" * 512, whole}
    states = {tuple(b"-" not in part[100:] for part in found) for found in sectors}
    xs = {(1, 1, 1), (0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 1), (0, 0, 1)}
    ys = {(0, 1, 1), (0, 0, 0), (0, 1, 0), (0, 0, 1)}
    assert {state[:3] for state in states} == xs
    assert {state[3:] for state in states} == ys
    assert len(states) == len(xs) * len(ys)


def test_a_sector_is_all_or_nothing(tmp_path: Path) -> None:
    """The disk never has the later of two writes to one sector without the earlier."""
    log = WriteLog(baseline={A: b"--"})
    log.events += [Write(A, 0, b"1"), Write(A, 1, b"2")]
    assert {result[A] for result in rebuilt(tmp_path, log, 1)} == {b"--", b"1-", b"12"}


def test_sizes(tmp_path: Path) -> None:
    """A file may or may not have changed its size, until a sync."""
    log = WriteLog()
    log.events += [Truncate(A, 3), Sync(A), Truncate(A, 2000), Write(A, 1000, b"x"), Truncate(A, 1)]
    assert {result[A] for result in rebuilt(tmp_path, log, 1, {A: b"12345"})} == {b"123"}
    sizes = {len(result[A]) for result in rebuilt(tmp_path, log, 2, {A: b"12345"})}
    assert sizes == {3, 2000}
    for result in rebuilt(tmp_path, log, 3, {A: b"12345"}):
        assert result[A][:3] == b"123"
        assert result[A][3:].strip(b"\0") in (b"", b"x")
    assert {result[A] for result in rebuilt(tmp_path, log, 4, {A: b"12345"})} >= {b"1", b"123"}
    log.events.append(Sync(A))
    assert {result[A] for result in rebuilt(tmp_path, log, 5, {A: b"12345"})} == {b"1"}


def test_rebuild_refuses_nonsense(tmp_path: Path) -> None:
    """A cut must be in the log, and the directory must not hold other files."""
    log = WriteLog()
    log.mark("only")
    for at in (-2, 1):
        with pytest.raises(IndexError, match="the log has 1"):
            log.rebuild(at, tmp_path, random.Random(1))
    log.rebuild(0, tmp_path, random.Random(1))
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        log.rebuild(0, tmp_path, random.Random(1))


def test_rebuild_is_repeatable(tmp_path: Path) -> None:
    """The same seed gives the same files."""
    log = WriteLog(events=[Write(A, 0, b"x" * 5000)])
    assert rebuilt(tmp_path / "1", log, 0) == rebuilt(tmp_path / "2", log, 0)


def tiny_object(machine: int, kind: int) -> bytes:
    """Make a shared object that imports one function, with its two relocations."""
    names = b"\0other\0pwrite\0"
    symbols = bytes(24) + struct.pack("<I20x", 1) + struct.pack("<I20x", 7)
    relocations = struct.pack("<QQq", 0x500, 2 << 32 | kind, 0)
    relocations += struct.pack("<QQq", 0x508, 1 << 32 | 999, 0)
    places = {5: 0x200, 6: 0x220, 7: 0x280, 8: 48, 23: 0x280, 2: 24, 0: 0}
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in places.items())
    header = struct.pack("<6s12xH12xQ14xHH", b"\x7fELF\2\1", machine, 64, 56, 2)
    segments = struct.pack("<IIQQQQ16x", 1, 5, 0, 0, 0, 0x600)
    segments += struct.pack("<IIQQQQ16x", 2, 6, 0x300, 0x300, 0, len(dynamic))
    content = bytearray(0x600)
    for place, part in (
        (0, header),
        (64, segments),
        (0x200, names),
        (0x220, symbols),
        (0x280, relocations),
        (0x300, dynamic),
    ):
        content[place : place + len(part)] = part
    return bytes(content)


@pytest.mark.parametrize(("machine", "kinds"), [(62, (6, 7)), (183, (1025, 1026))])
def test_relocations_of_both_machines(machine: int, kinds: tuple[int, int]) -> None:
    """The slot is found for both kinds of relocation, and other relocations are not."""
    for kind in kinds:
        memory = ctypes.create_string_buffer(tiny_object(machine, kind))
        base = ctypes.addressof(memory)
        assert interpose.imported_slots(base) == {base + 0x500: "pwrite"}


def test_other_machines_are_refused() -> None:
    """An object for a machine that is not known, or that is not ELF64, is named as such."""
    for content in (tiny_object(8, 7), b"\x7fELF\1\1" + tiny_object(62, 7)[6:]):
        memory = ctypes.create_string_buffer(content)
        with pytest.raises(NotImplementedError, match="ELF64"):
            interpose.imported_slots(ctypes.addressof(memory))


@pytest.mark.parametrize(
    ("imported", "missing"), [(["pwrite"], "fdatasync, fsync"), (["fsync"], "pwrite, pwrite64")]
)
def test_missing_symbols_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: list[str], missing: str
) -> None:
    """If LMDB is not in the extension, the error says what is not imported."""
    monkeypatch.setattr(interpose, "lmdb_slots", lambda: dict(enumerate(imported)))
    with pytest.raises(UnsupportedError, match=missing), recording(tmp_path):
        pytest.fail("this must not be reached")
    with pytest.raises(UnsupportedError, match=missing), failing(tmp_path):
        pytest.fail("this must not be reached")


def test_faults_start_active(tmp_path: Path) -> None:
    """The faults count from nothing and are active from the start."""
    with failing(tmp_path) as faults:
        assert isinstance(faults, Faults)
        assert (faults.active, faults.count, faults.error) == (True, 0, errno.ENOSPC)
