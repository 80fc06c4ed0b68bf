"""Kill a process before each of the system calls that an action makes, one after the other.

A random kill hardly ever hits the few microseconds between two steps of an opening or a
compaction; this module hits them all. An action runs in a forked child under a profile function,
which Python calls before each call of a C function; the child kills itself before call number n.
Calls inside LMDB are not seen. Run as a program with a directory and the name of an action, it
prints one line of JSON per step: the call that was not made, and what was wrong with the directory
afterwards.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faults.events import Crash, Diary, read_events
from faults.history import Ledger, check
from faults.workload import (
    MEMORY,
    ORDERS,
    QUEUES,
    SUBSCRIPTIONS,
    Producer,
    Workload,
    create_queues,
)
from ringdove.clock import ManualClock
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import EmbeddedStore

#: The names of functions that change something outside the process.
CHANGING = {
    "mkdir", "rmdir", "unlink", "rename", "replace", "open", "write", "pwrite", "ftruncate",
    "truncate", "posix_fallocate", "fsync", "fdatasync", "flock", "close", "__exit__", "copy",
    "sync", "put", "delete", "commit",
}  # fmt: skip

#: More steps than any action has.
STEPS_MAX = 1_000


def kill_before(step: int, report: Callable[[str], None]) -> None:
    """Have this thread killed before the call number `step` that changes something."""
    count = 0

    def profile(_frame: Any, event: str, function: Any) -> None:
        nonlocal count
        if event == "c_call" and function.__name__ in CHANGING:
            count += 1
            if count > step:
                report(function.__name__)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)


def prepare(root: Path) -> None:
    """Make a store as a killed process leaves it, and the same after a clean closing."""
    diary = Diary(root / "history")
    store = EmbeddedStore(root / "killed", clock=ManualClock())
    create_queues(store)
    workload = Workload(store, diary, life=1, large_bytes=20_000)
    rng = Random(3)
    producers = [Producer(stripe, "p") for stripe, s in QUEUES.items() if s.exactly_once]
    for _ in range(60):
        run(workload.step(rng, producers, list(QUEUES)))
    # The writer has synced all that was acknowledged; what else it may hold are leases.
    shutil.copytree(root / "killed", root / "closed")
    (root / "closed" / "lock").unlink()
    run(store.close())
    shutil.rmtree(root / "killed")
    (root / "closed").rename(root / "killed")
    shutil.copytree(root / "killed", root / "closed")
    run(EmbeddedStore(root / "closed", clock=ManualClock()).close())
    diary(Crash())
    diary.close()


def opening(path: Path) -> Callable[[], None]:
    """Open the store, whatever state it is in, and have both its environments made."""

    def act() -> None:
        store = EmbeddedStore(path, clock=ManualClock())
        run(store.create(StripeId(*MEMORY), QUEUES[MEMORY], 1))

    return act


def closing(path: Path) -> Callable[[], None]:
    """Close the store."""
    store = EmbeddedStore(path, clock=ManualClock())
    return lambda: run(store.close())


def compacting(path: Path) -> Callable[[], None]:
    """Compact the store."""
    store = EmbeddedStore(path, clock=ManualClock())

    def act() -> None:
        run(store.compact())

    return act


#: What is done, and to which of the prepared directories.
ACTIONS: dict[str, tuple[Callable[[Path], Callable[[], None]], str]] = {
    "first opening": (opening, ""),
    "opening": (opening, "closed"),
    "opening after a kill": (opening, "killed"),
    "closing": (closing, "killed"),
    "compaction": (compacting, "killed"),
}


def faults_of(root: Path, path: Path, action: str) -> list[str]:
    """What is wrong after the kill, and what keeps the same action from being done now."""
    faults = []
    try:
        store = EmbeddedStore(path, clock=ManualClock())
        if action == "first opening":
            create_queues(store)
        else:
            ledger = Ledger(SUBSCRIPTIONS, ORDERS)
            ledger.follow(read_events(root / "history")[0])
            faults += check(ledger, store)
        if action == "compaction":
            run(store.compact())
            faults += check(ledger, store)
        run(store.close())
    except Exception as error:
        faults.append(f"it does not go on: {error!r}")
    return faults


def killed_at(step: int, action: str, root: Path) -> tuple[str, list[str]] | None:
    """Kill the action at a step; answers the call that was not made, or None when there is none."""
    make, source = ACTIONS[action]
    path = root / "copy"
    shutil.rmtree(path, ignore_errors=True)
    if source:
        shutil.copytree(root / source, path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        act = make(path)
        kill_before(step, lambda name: os.write(write, name.encode()) and None)
        act()
        os._exit(0)
    os.close(write)
    exitcode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(read) as pipe:
        name = pipe.read()
    if exitcode == 0:
        return None
    return name, faults_of(root, path, action)


def main(root: Path, action: str) -> None:
    """Kill an action at each of its steps."""
    if ACTIONS[action][1]:
        prepare(root)
    for step in range(STEPS_MAX):
        found = killed_at(step, action, root)
        if found is None:
            return
        print(json.dumps([f"{step}: {found[0]}", found[1]]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
