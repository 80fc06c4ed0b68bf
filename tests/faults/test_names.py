"""Names on the disk: a power cut leaves a directory that opens, whatever was being renamed (M3).

The simulation of cuts (interpose.py) does not follow names. Here the calls that change them are
noted among LMDB's writes and syncs, and held against three rules. What is given a name of its own
has been synced, with all that is in it. What something else takes the place of is removed when the
new name is synced. In the end every name is.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.history import present
from faults.interpose import Mark, Sync, Write, WriteLog, recording
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import EmbeddedStore, environment
from ringdove.stores.embedded.check import backup
from ringdove.stores.embedded.replica import Member, Replica
from ringdove.stores.embedded.shipping import START, read_on

DISK, MEMORY = StripeId(1, 0, 0), StripeId(2, 0, 0)

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="finds names by number in /proc"
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteLog]:
    """What LMDB writes and syncs, with a mark for every change of a name and sync by Python."""
    really = {name: getattr(os, name) for name in ("fsync", "rename", "unlink", "mkdir")}
    really["rmtree"] = shutil.rmtree

    def noting(name: str, names: Callable[..., tuple[Path, ...]]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            # Before what removes something, as it must be safe by then; after all others.
            removing = name in ("unlink", "rmtree")
            files = [path for path in names(*args) if path.is_relative_to(tmp_path)]
            inside = sorted(files[0].rglob("*.mdb")) if name == "rename" and files else []
            if removing and files and files[0].exists():
                log.mark((name, files, inside))
            answer = really[name](*args, **options)
            if not removing and files:
                log.mark((name, files, inside))
            return answer

        return call

    def by_number(fd: int) -> tuple[Path, ...]:
        return (Path(f"/proc/self/fd/{fd}").readlink(),)

    def by_name(*args: Any) -> tuple[Path, ...]:
        return tuple(Path(name) for name in args if isinstance(name, str | Path))

    with recording(tmp_path) as log:
        for name in ("rename", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, noting(name, by_name))
        monkeypatch.setattr(os, "fsync", noting("fsync", by_number))
        monkeypatch.setattr(shutil, "rmtree", noting("rmtree", by_name))
        yield log
        monkeypatch.undo()


def faults_of(log: WriteLog) -> list[str]:
    """Which rules were broken, and where."""
    faults: list[str] = []
    written: set[Path] = set()
    synced: set[Path] = set()
    unsynced: dict[Path, Path] = {}

    def sync(path: Path) -> None:
        written.discard(path)
        synced.add(path)
        for name in [name for name, parent in unsynced.items() if parent == path]:
            del unsynced[name]

    for event in log.events:
        match event:
            case Write():
                written.add(log.root / event.path)
            case Sync():
                sync(log.root / event.path)
            case Mark(("fsync", [path], _)):
                sync(path)
            case Mark(("mkdir", [path, *_], _)):
                unsynced[path] = path.parent
            case Mark(("rename", [before, after], inside)):
                unsynced.pop(before, None)
                unsynced[after] = after.parent
                if before.name.endswith(".new"):
                    needed = {before, *(path for path in inside if path.name == "data.mdb")}
                    faults += [f"{path} became {after} unsynced" for path in needed - synced]
                    faults += [f"{path} was written to later" for path in needed & written]
            case Mark(("unlink", [path], _)):
                if path.name == "memory.boot":
                    faults += [f"{path} went before {w}" for w in written if "memory" in w.parts]
            case Mark(("rmtree", [path], _)):
                faults += [f"{path} went before {name} was safe" for name in unsynced]
    return faults + [f"{name} is not safe in the end" for name in unsynced]


def fill(path: Path) -> EmbeddedStore:
    """Open a store and have both its environments written to."""
    store = EmbeddedStore(path, clock=present())
    for stripe, durability in ((DISK, "disk"), (MEMORY, "memory")):
        run(store.create(stripe, QueueSettings.make(durability=durability), 1))
        run(store.append(stripe, [Segment(Block.build([b"kept"], sent_ms=1))], 1))
    return store


def opening(path: Path) -> None:
    run(fill(path / "new" / "data").close())


def compaction(path: Path) -> None:
    store = fill(path / "data")
    run(store.compact())
    run(store.close())


def backing_up(path: Path) -> None:
    run(fill(path / "data").close())
    backup(path / "data", path / "new" / "copy")


def following(path: Path) -> None:
    run(fill(path / "data").close())
    replica = Replica(path / "replica")
    replica.begin(Member("core"))
    origin = environment.Environment(path / "data" / "disk", "disk", readonly=True)
    replica.apply("disk", read_on(origin, START, 1 << 20)[0])
    origin.lmdb.close()
    replica.complete()
    replica.close()


@pytest.mark.parametrize("action", [opening, compaction, backing_up, following])
def test_names_are_relied_upon_only_when_they_are_safe(
    tmp_path: Path, log: WriteLog, action: Callable[[Path], None]
) -> None:
    action(tmp_path)
    assert sum(isinstance(event, Mark) for event in log.events) > 10
    assert faults_of(log) == []


@pytest.mark.parametrize(
    ("action", "forgotten"),
    [(opening, "data/disk.new"), (opening, "data/format.new"), (compaction, "disk.new/data.mdb"),
     (compaction, "data/memory.new"), (compaction, "data"), (opening, "new/data"), (opening, "/new"),
     (backing_up, "new/copy")],
)  # fmt: skip
def test_a_sync_that_is_missing_is_seen(
    tmp_path: Path, log: WriteLog, action: Callable[[Path], None], forgotten: str
) -> None:
    """Without any one of the syncs the rules are broken, so the test above can fail."""
    action(tmp_path)
    kept = [
        event
        for event in log.events
        if not (
            isinstance(event, Mark)
            and event.label[0] == "fsync"
            and event.label[1][0].is_relative_to(tmp_path)
            and str(event.label[1][0]).endswith(forgotten)
        )
    ]
    assert len(kept) < len(log.events)
    assert faults_of(WriteLog(log.root, {}, kept)) != []
