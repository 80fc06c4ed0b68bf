"""The power goes out; what was acknowledged is on the disk, what was done stays done (M3).

A killed process cannot show this, because the operating system goes on and writes what nobody
synced. Here every write and sync of LMDB is recorded while threads work on a store; then the files
are put together as a power cut at a random moment could have left them, opened, and held against
what had been promised by that moment. 60 cuts by default; `RINGDOVE_CUTS=1000` for torture.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest

from faults.events import Acknowledged, Diary, Event, Put, Sent
from faults.history import present
from faults.inspector import Inspector
from faults.interpose import Mark, Sync, Write, WriteLog, recording
from faults.workload import MEMORY, SYNCED, Producer, Workload, create_queues
from ringdove import limits
from ringdove.errors import QueueNotFound
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.append import Append
from ringdove.stores.embedded.commit import GroupCommit
from ringdove.stores.embedded.journal import Journal

CUTS = int(os.environ.get("RINGDOVE_CUTS", "60"))

#: Cuts of one recording, so that a long run has many recordings.
CUTS_PER_LOG = 30

#: Who works at the same time. A thread that waits leads commits itself; tasks on an event loop are
#: answered while one is under way, so an answer that is too early shows with them.
THREADS = 3
TASKS = 3
STEPS = 60


@pytest.fixture
def inspector() -> Iterator[Inspector]:
    """Opens what a cut leaves, in a process that may die of it."""
    inspector = Inspector()
    yield inspector
    inspector.close()


def record(path: Path, seed: int) -> WriteLog:
    """Work on a new store with threads and tasks, with a mark for each event of the history."""
    store = EmbeddedStore(path)
    create_queues(store)
    run(store.close())
    with recording(path) as log:
        store = EmbeddedStore(path)
        # A compaction renames files, which the simulation of cuts does not follow.
        workload = Workload(store, log.mark, life=1, large_bytes=40_000, compacts=False)
        failures: list[BaseException] = []

        async def work(number: int) -> None:
            rng = Random(f"{seed} {number}")
            producers = [Producer(stripe, f"p{number}") for stripe in SYNCED]
            try:
                for _ in range(STEPS):
                    await workload.step(rng, producers, [*SYNCED, MEMORY])
            except BaseException as error:
                failures.append(error)

        async def work_together() -> None:
            await asyncio.gather(*(work(THREADS + number) for number in range(TASKS)))

        threads = [threading.Thread(target=run, args=(work(number),)) for number in range(THREADS)]
        threads.append(threading.Thread(target=asyncio.run, args=(work_together(),)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    run(store.close())
    assert failures == []
    return log


def rebuild(log: WriteLog, at: int, into: Path, rng: Random) -> None:
    """The directory after the cut: as on the disk, found by a machine that has started again."""
    baseline = {path: data for path, data in log.baseline.items() if path.name != "reserve"}
    log.rebuild(at, into, rng, baseline)
    (into / "memory.boot").write_text("an earlier start of the machine\n")


def promised(log: WriteLog, at: int, path: Path) -> Path:
    """Write down what had happened by the moment of the cut."""
    path.unlink(missing_ok=True)
    diary = Diary(path)
    for event in log.events[: at + 1]:
        if isinstance(event, Mark):
            assert isinstance(event.label, Event)
            diary(event.label)
    diary.close()
    return path


def _is_promise(event: object) -> bool:
    return isinstance(event, Mark) and isinstance(event.label, Sent | Acknowledged | Put)


def _is_journaled(event: object) -> bool:
    return isinstance(event, Write) and event.synced and event.path == Path("disk/journal")


def cut(log: WriteLog, cuts: int, path: Path, inspector: Inspector, rng: Random) -> list[str]:
    """Cut the power at random moments, up to the first cut that breaks something; tell what.

    Every other cut comes right after a promise, when a sync that is late would show.
    """
    promises = [number for number, event in enumerate(log.events) if _is_promise(event)]
    for number in range(cuts):
        at = rng.choice(promises) if number % 2 else rng.randrange(-1, len(log.events))
        rebuild(log, at, path / "cut", rng)
        faults = inspector(path / "cut", promised(log, at, path / "history"))
        if faults:
            return [f"cut at {at} of {len(log.events)}", *faults]
        shutil.rmtree(path / "cut")
    return []


@pytest.mark.parametrize("seed", range(-(-CUTS // CUTS_PER_LOG)))
def test_a_power_cut_breaks_no_promise(tmp_path: Path, inspector: Inspector, seed: int) -> None:
    """After any cut the store opens; I1, I2, I4, I6, I7 and M2 hold for durability disk."""
    log = record(tmp_path / "data", seed)
    assert sum(isinstance(event, Sync) for event in log.events) > 10
    assert sum(_is_journaled(event) for event in log.events) > 50
    kinds = {type(event.label).__name__ for event in log.events if isinstance(event, Mark)}
    assert kinds >= {"Sent", "Leased", "Acknowledged", "Releasing", "Put"}
    cuts = min(CUTS_PER_LOG, CUTS - seed * CUTS_PER_LOG)
    assert cut(log, cuts, tmp_path, inspector, Random(seed)) == []


@pytest.mark.parametrize(("without", "fault"), [(["sync", "metasync"], ""), (["metasync"], "(I")])
def test_a_missing_sync_is_seen(
    tmp_path: Path,
    inspector: Inspector,
    monkeypatch: pytest.MonkeyPatch,
    without: list[str],
    fault: str,
) -> None:
    """The same work with syncing switched off breaks promises, so the tests above can fail."""
    monkeypatch.setattr(limits, "JOURNAL_AFTER", 1 << 30)
    really_open = lmdb.open

    def open_unsynced(*args: object, **options: object) -> lmdb.Environment:
        return really_open(*args, **{**options, **dict.fromkeys(without, False)})

    monkeypatch.setattr(lmdb, "open", open_unsynced)
    log = record(tmp_path / "data", seed=0)
    faults = cut(log, 40, tmp_path, inspector, Random(0))
    assert any(fault in found for found in faults), faults


def test_a_journal_that_is_not_synced_is_seen(
    tmp_path: Path, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same work with a journal that trusts the operating system breaks promises, too."""
    really_make = Journal.__init__

    def make_unsynced(journal: Journal, path: Path, *, synced: bool, number: int) -> None:
        really_make(journal, path, synced=False, number=number)

    monkeypatch.setattr(Journal, "__init__", make_unsynced)
    log = record(tmp_path / "data", seed=0)
    faults = cut(log, 40, tmp_path, inspector, Random(0))
    assert any("(I" in found for found in faults), faults


def test_an_answer_before_its_commit_is_seen(
    tmp_path: Path, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same work with answers that come too early breaks promises, too."""
    really_write = GroupCommit.write

    def write_and_answer(commit: GroupCommit, txn: Any) -> None:
        really_write(commit, txn)
        for operation in commit._operations:
            if isinstance(operation, Append) and operation.answers:
                commit._answer(operation)

    monkeypatch.setattr(GroupCommit, "write", write_and_answer)
    log = record(tmp_path / "data", seed=0)
    faults = cut(log, 200, tmp_path, inspector, Random(0))
    assert any("(I1)" in fault for fault in faults), faults


def test_queues_in_memory_are_gone_after_a_power_cut(tmp_path: Path) -> None:
    """Their pages may have reached the disk in any order, so they are not even looked at."""
    log = record(tmp_path / "data", seed=1)
    rebuild(log, len(log.events) // 2, tmp_path / "cut", Random(1))
    assert (tmp_path / "cut" / "memory" / "data.mdb").exists()
    store = EmbeddedStore(tmp_path / "cut", clock=present())
    with pytest.raises(QueueNotFound):
        run(store.stats(StripeId(*MEMORY)))
    create_queues(store)
    assert run(store.stats(StripeId(*MEMORY))).tail == 0
    run(store.close())
