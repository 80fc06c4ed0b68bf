"""The journal of the embedded store: what it takes, what is read of it, and what may go wrong."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ringdove import limits
from ringdove.clock import ManualClock
from ringdove.core.dedup import Appended, Segment
from ringdove.errors import StoreFull
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore, journal
from ringdove.stores.embedded.check import backup, fsck
from ringdove.stores.embedded.journal import MAGIC, Journal, NeedsTree, entries_of
from stores.driver import Driver, block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringdove.core.settings import Durability
    from ringdove.stores.embedded.commit import GroupCommit
    from ringdove.stores.embedded.writer import Writer

#: Where the length of a record stands in its header, and how long that is with its check.
LENGTH_AT, HEADER_BYTES = 4, 32


@pytest.fixture(params=["disk", "memory"])
def durability(request: pytest.FixtureRequest) -> Durability:
    durability: Durability = request.param
    return durability


@pytest.fixture
def driver(tmp_path: Path, durability: Durability) -> Iterator[Driver]:
    clock = ManualClock()
    store = EmbeddedStore(tmp_path / "data", clock, seed=1)
    yield Driver(store, clock, durability).make()
    run(store.close())


@pytest.fixture
def killed(driver: Driver) -> Iterator[Any]:
    """Opens what a process killed at this moment would leave, as another driver."""
    stores: list[EmbeddedStore] = []

    def kill() -> Driver:
        stores.append(opened_copy(driver, f"killed-{len(stores)}"))
        other = Driver(stores[-1], driver.clock, driver.durability)
        other.settings, other.version = driver.settings, driver.version
        return other

    yield kill
    for store in stores:
        run(store.close())


def store_of(driver: Driver) -> EmbeddedStore:
    assert isinstance(driver.store, EmbeddedStore)
    return driver.store


def writer_of(driver: Driver) -> Writer:
    return store_of(driver)._writers[driver.durability]  # type: ignore[index]


def copied(driver: Driver, name: str) -> Path:
    """The files as they are between two commits."""
    store = store_of(driver)
    with ExitStack() as turns:
        for writer in store._writers.values():
            turns.enter_context(writer._turn)
        return shutil.copytree(store.path, store.path.with_name(name))


def opened_copy(driver: Driver, name: str) -> EmbeddedStore:
    return EmbeddedStore(copied(driver, name), driver.clock, seed=1)


def in_the_tree(driver: Driver) -> int:
    """How many blocks are there."""
    env = writer_of(driver).env
    with env.lmdb.begin() as txn:
        count: int = txn.stat(env.db["log"])["entries"]
    return count


def catch_up(driver: Driver) -> None:
    with writer_of(driver).paused():
        pass


def journal_file(path: Path, durability: str) -> Path:
    return path / durability / "journal"


def records(data: bytes) -> list[tuple[int, int]]:
    """Where the records of a journal begin and end."""
    found = []
    at = 0
    while data[at : at + 4] == MAGIC:
        end = at + HEADER_BYTES + int.from_bytes(data[at + LENGTH_AT : at + 8], "little")
        found.append((at, end))
        at = end
    return found


# -- what it has, and the tree has not ---------------------------------------------------------------


def test_small_commits_are_in_the_journal_until_the_tree_catches_up(driver: Driver) -> None:
    driver.count(0, 3)
    driver.count(3, 5)
    assert in_the_tree(driver) == 0
    catch_up(driver)
    assert in_the_tree(driver) == 2
    driver.count(5, 6)
    assert in_the_tree(driver) == 2
    assert driver.receive() == [b"%d" % n for n in range(6)]


def test_the_tree_catches_up_by_itself(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_MS", 1)
    driver.count(0, 3)
    while not in_the_tree(driver):
        assert writer_of(driver)._thread.is_alive()


def test_what_is_done_with_soon_never_comes_into_the_tree(driver: Driver) -> None:
    for number in range(20):
        driver.send(b"%d" % number)
        driver.ack(driver.take(1))
    assert driver.stats().nbytes == 0
    catch_up(driver)
    assert in_the_tree(driver) == 0
    assert fsck(copied(driver, "copy")).faults == []


def test_large_commits_go_to_the_tree_with_all_before_them(driver: Driver) -> None:
    driver.send(b"small")
    driver.send(b"x" * (limits.JOURNAL_COMMIT_BYTES_MAX + 1))
    assert in_the_tree(driver) == 2


def test_what_has_an_id_goes_to_the_tree(driver: Driver) -> None:
    driver.send(b"x", message_id=b"1")
    assert in_the_tree(driver) == 1
    assert driver.send(b"x", message_id=b"1").duplicate


def test_a_process_that_does_one_thing_leaves_the_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    driver = Driver(EmbeddedStore(tmp_path, ManualClock()), ManualClock(), "disk").make()
    driver.count(0, 1)
    assert not journal_file(tmp_path, "disk").exists()
    for number in range(limits.JOURNAL_AFTER):
        driver.count(number, number + 1)
    assert journal_file(tmp_path, "disk").exists()
    run(driver.store.close())


def test_blocks_are_found_in_the_journal_when_nothing_else_has_them(driver: Driver) -> None:
    for number in range(50):
        driver.count(2 * number, 2 * number + 2)
    state = store_of(driver)._state(driver.stripe)
    for offset in (99, 0, 50, 51, 98):
        state._hot = state.newest = None
        store_of(driver)._cache._blocks.clear()
        assert state.in_memory(offset)
        assert state.block_at(offset).bodies()[offset % 2] == b"%d" % offset
    catch_up(driver)
    driver.count(100, 102)
    state._hot = state.newest = None
    store_of(driver)._cache._blocks.clear()
    assert driver.replay(0) == [b"%d" % n for n in range(102)]


def test_a_stripe_that_the_tree_does_not_know_all_of_stays_in_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRIPES_LOADED_MAX", 2)
    driver.count(0, 3)
    driver.ack(driver.take(1))
    for queue in range(2, 12):
        Driver(driver.store, driver.clock, driver.durability, queue).make()
        driver_of = Driver(driver.store, driver.clock, driver.durability, queue)
        driver_of.count(0, 1)
    assert driver.receive() == [b"1", b"2"]


# -- after a kill ---------------------------------------------------------------------------------------


def test_what_was_acknowledged_survives_a_kill(driver: Driver, killed: Any) -> None:
    driver.count(0, 10)
    leased = driver.take(4)
    driver.ack(leased, 0, 2)
    other = killed()
    assert other.receive() == [b"%d" % n for n in range(4, 10)]
    other.clock.sleep_ms(other.settings.lease_ms)
    assert other.receive(2) == [b"2", b"3"]
    assert fsck(copied(other, "copy")).faults == []


def test_a_journal_is_read_once(driver: Driver, killed: Any) -> None:
    """Killed again and again, before and after the tree has caught up."""
    for number in range(6):
        driver.send(b"%d" % number)
        if number % 2:
            catch_up(driver)
        other = killed()
        assert other.replay(0) == [b"%d" % n for n in range(number + 1)]
        assert writer_of(other).journal.number == writer_of(driver).journal.number


def test_what_is_left_of_a_longer_journal_is_not_read(driver: Driver, killed: Any) -> None:
    driver.send(b"x" * 1000)
    for number in range(10):
        driver.send(b"%d" % number)
    catch_up(driver)
    driver.send(b"y")
    other = killed()
    assert len(other.replay(0)) == 12
    assert fsck(copied(other, "copy")).faults == []


def test_repetition_is_known_after_a_kill(driver: Driver, killed: Any) -> None:
    driver.send(b"a", producer=b"p", sequence=0)  # The first of a producer goes to the tree.
    driver.send(b"b", producer=b"p", sequence=1)
    driver.send(b"c", producer=b"p", sequence=2)
    other = killed()
    assert other.send(b"c", producer=b"p", sequence=2).duplicate
    assert not other.send(b"d", producer=b"p", sequence=3).duplicate


def test_a_producer_may_send_twice_in_one_commit(driver: Driver) -> None:
    driver.send(b"0", producer=b"p", sequence=0)
    pendings = [
        store_of(driver).submit_append(driver.stripe, [Segment(block(b"%d" % n), b"p", n)], 0)
        for n in range(1, 4)
    ]
    assert pendings[-1].block()
    assert [pending.result() for pending in pendings] == [[Appended(n)] for n in range(1, 4)]


def test_the_clock_does_not_go_back(driver: Driver, tmp_path: Path) -> None:
    driver.clock.sleep_ms(5_000)
    driver.count(0, 1)
    copy = copied(driver, "copy")
    again = ManualClock()
    store = EmbeddedStore(copy, again)
    assert again.now_ms() >= driver.clock.now_ms()
    run(store.close())


@pytest.mark.parametrize("place", ["magic", "length", "number", "time", "check", "edits"])
def test_a_damaged_record_ends_a_journal(
    driver: Driver, durability: Durability, place: str
) -> None:
    for number in range(5):
        driver.send(b"%d" % number)
    copy = copied(driver, "copy")
    file = journal_file(copy, durability)
    data = bytearray(file.read_bytes())
    at = {"magic": 0, "length": 4, "number": 8, "time": 16, "check": 24, "edits": 32}[place]
    data[records(bytes(data))[3][0] + at] ^= 1
    file.write_bytes(data)
    other = Driver(EmbeddedStore(copy, driver.clock), driver.clock, durability)
    assert other.replay(0) == [b"0", b"1", b"2"]
    other.send(b"goes on")
    assert other.replay(0) == [b"0", b"1", b"2", b"goes on"]
    run(other.store.close())
    assert fsck(copy).faults == []


def test_a_journal_cut_anywhere_has_what_is_whole(driver: Driver, durability: Durability) -> None:
    for number in range(3):
        driver.send(b"%d" % number)
    data = journal_file(copied(driver, "copy"), durability).read_bytes()
    whole = records(data)
    for end in range(whole[-1][1] + 1):
        count = sum(stop <= end for _, stop in whole)
        assert len(entries_of(data[:end], 0)) == count
        assert len(entries_of(data[:end].ljust(len(data), b"\xff"), 0)) == count


# -- room, and what goes wrong ----------------------------------------------------------------------------


def test_a_full_journal_has_the_tree_take_over(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_BYTES", 4_000)
    monkeypatch.setattr(limits, "JOURNAL_BYTES_MAX", 4_000)
    monkeypatch.setattr(journal, "_OTHER_BYTES", 0)
    for number in range(100):
        driver.send(b"%d" % number)
    assert in_the_tree(driver) > 0
    assert driver.receive() == [b"%d" % n for n in range(100)]


def test_a_journal_that_fills_up_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_BYTES", 8_000)
    monkeypatch.setattr(journal, "_OTHER_BYTES", 0)
    clock = ManualClock()
    driver = Driver(EmbeddedStore(tmp_path / "data", clock), clock, "disk").make()
    sizes = set()
    for number in range(200):
        driver.send(b"%d" % number)
        if writer_of(driver).journal.crowded:
            catch_up(driver)
        sizes.add(journal_file(tmp_path / "data", "disk").stat().st_size)
    assert len(sizes) > 2
    assert max(sizes) <= limits.JOURNAL_BYTES_MAX
    copy = Driver(opened_copy(driver, "copy"), clock, "disk")
    assert copy.replay(0) == [b"%d" % n for n in range(200)]
    run(copy.store.close())
    run(driver.store.close())


@pytest.mark.parametrize("how", ["error", "short"])
def test_a_journal_that_cannot_be_written_is_done_without(
    driver: Driver, killed: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    driver.count(0, 2)
    really = journal.pwrite

    def failing(fd: int, data: bytes, offset: int) -> int:
        if how == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return really(fd, data[: len(data) // 2], offset)

    monkeypatch.setattr(journal, "pwrite", failing)
    driver.count(2, 4)
    assert in_the_tree(driver) == 2
    driver.count(4, 6)
    assert killed().replay(0) == [b"%d" % n for n in range(6)]
    monkeypatch.setattr(journal, "pwrite", really)
    driver.count(6, 8)
    assert killed().replay(0) == [b"%d" % n for n in range(8)]


def test_a_write_that_failed_does_not_count_even_if_the_disk_has_it(
    driver: Driver, killed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.count(0, 2)
    really = journal.pwrite

    def written_and_failed(fd: int, data: bytes, offset: int) -> int:
        really(fd, data, offset)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(journal, "pwrite", written_and_failed)
    driver.send(b"once")
    monkeypatch.setattr(journal, "pwrite", really)
    assert killed().replay(0) == [b"0", b"1", b"once"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_within_a_write_leaves_a_whole_journal(
    driver: Driver, killed: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    really = journal.pwrite

    def interrupted(fd: int, data: bytes, offset: int) -> int:
        monkeypatch.setattr(journal, "pwrite", really)
        if when == "after":
            really(fd, data, offset)
        raise KeyboardInterrupt

    driver.send(b"before")
    monkeypatch.setattr(journal, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.send(b"interrupted, and longer than what follows")
    driver.send(b"after")
    expected = [b"before", b"interrupted, and longer than what follows", b"after"]
    assert driver.replay(0) == expected
    assert killed().replay(0) == expected


def test_ctrl_c_after_a_write_that_failed_does_not_make_it_count(
    driver: Driver, killed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may be told that it is stored before the tree has it."""
    writer = writer_of(driver)
    really = writer._settle
    settled: list[bool] = []

    def failing(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def interrupted(commit: GroupCommit) -> None:
        monkeypatch.setattr(writer, "_settle", noted)
        raise KeyboardInterrupt

    def noted(commit: GroupCommit) -> None:
        settled.append(commit.committed)
        really(commit)

    driver.send(b"before")
    monkeypatch.setattr(journal, "pwrite", failing)
    monkeypatch.setattr(writer, "_settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.send(b"interrupted")
    driver.send(b"after")
    assert settled[:2] == [False, True]
    assert killed().replay(0) == [b"before", b"interrupted", b"after"]


def test_a_nearly_full_disk_is_not_promised_what_the_tree_has_no_room_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.count(0, 1)
    catch_up(driver)
    monkeypatch.setattr(store_of(driver)._directory, "is_roomy", lambda: False)
    driver.count(1, 2)
    assert in_the_tree(driver) == 2
    leased = driver.take(2)
    before = writer_of(driver).journal.number
    driver.ack(leased)
    assert writer_of(driver).journal.number > before


def test_a_commit_that_is_too_large_with_its_edits_goes_to_the_tree(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_RECORD_BYTES_MAX", 1_000)
    for number in range(30):
        driver.send(b"%d" % number)
    tokens = [driver.take(1) for _ in range(30)]
    before = writer_of(driver).journal.number
    assert run(store_of(driver).acknowledge(driver.stripe, "default", [], 0)) == []
    assert writer_of(driver).journal.number == before
    assert len({run.token for run in tokens}) == 30


def test_the_tree_says_so_when_it_cannot_catch_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.count(0, 2)
    writer = writer_of(driver)

    def full(*_: object) -> None:
        raise StoreFull("The disk is full.")

    with monkeypatch.context() as failing:
        failing.setattr(writer, "_write", full)
        with pytest.raises(StoreFull), writer.paused():
            pass
    assert driver.receive() == [b"0", b"1"]


# -- other directories ----------------------------------------------------------------------------------------


def test_closing_leaves_nothing_to_be_read(driver: Driver, durability: Durability) -> None:
    driver.count(0, 5)
    run(driver.store.close())
    path = store_of(driver).path
    assert journal_file(path, durability).read_bytes()[:HEADER_BYTES] == bytes(HEADER_BYTES)
    driver.store = EmbeddedStore(path, driver.clock)
    assert driver.receive() == [b"%d" % n for n in range(5)]


def test_a_store_that_could_not_catch_up_when_it_was_closed_does_when_it_is_opened(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.count(0, 5)

    def full(*_: object) -> None:
        raise StoreFull("The disk is full.")

    with monkeypatch.context() as failing:
        failing.setattr(writer_of(driver), "_write", full)
        run(driver.store.close())
    driver.store = EmbeddedStore(store_of(driver).path, driver.clock)
    assert driver.receive() == [b"%d" % n for n in range(5)]


def test_a_backup_has_what_only_the_journal_has(driver: Driver, tmp_path: Path) -> None:
    driver.count(0, 3)
    driver.ack(driver.take(1))
    catch_up(driver)
    driver.count(3, 5)
    assert backup(copied(driver, "copy"), tmp_path / "backup") > 0
    assert not journal_file(tmp_path / "backup", driver.durability).exists()
    assert fsck(tmp_path / "backup").faults == []
    other = Driver(EmbeddedStore(tmp_path / "backup", driver.clock), driver.clock)
    assert other.receive() == [b"%d" % n for n in range(1, 5)]
    run(other.store.close())


def test_fsck_counts_and_verifies_what_only_the_journal_has(
    driver: Driver, durability: Durability
) -> None:
    driver.count(0, 3)
    catch_up(driver)
    driver.count(3, 5)
    report = fsck(copied(driver, "copy"))
    assert (report.blocks, report.messages, report.faults) == (2, 5, [])
    assert report.nbytes == driver.stats().nbytes


def test_a_compaction_begins_a_new_journal(driver: Driver, killed: Any) -> None:
    driver.count(0, 3)
    run(store_of(driver).compact())
    driver.count(3, 5)
    assert killed().replay(0) == [b"%d" % n for n in range(5)]


def test_a_journal_takes_nothing_beyond_its_size(tmp_path: Path) -> None:
    small = Journal(tmp_path / "journal", synced=True, number=7)
    with pytest.raises(NeedsTree):
        small.append({(0, b"key"): bytes(limits.JOURNAL_RECORD_BYTES_MAX)}, 1)
    assert small.number == 7
    small.append({(0, b"key"): b"value", (1, b"gone"): None}, 5)
    [entry] = entries_of((tmp_path / "journal").read_bytes(), 7)
    assert entry == (8, 5, [(0, b"key", b"value"), (1, b"gone", None)])
    assert entries_of((tmp_path / "journal").read_bytes(), 6) == []
    small.close()
