"""A process that works on an embedded store is killed again and again; no promise is broken (M3).

The moment of each kill is drawn as a number of bytes that the process writes into its history
first: so a slow machine is tested as thoroughly as a fast one. 50 kills by default; 1,000 with
`RINGDOVE_KILLS=1000` for torture. The few steps of openings, closings and compactions, which random
kills rarely hit, are tried one by one.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from faults.events import Crash, Diary, Sending, read_events
from faults.history import Ledger, check, present
from faults.steps import ACTIONS
from faults.victim import Order
from faults.workload import ORDERS, SUBSCRIPTIONS
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck

KILLS = int(os.environ.get("RINGDOVE_KILLS", "50"))

#: Bytes of history after which a child is killed, times 1 to 3. With 0 it is killed while it opens
#: the store, with 1 as soon as it has.
PROGRESS = (0, 1, 500, 10_000, 30_000)

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="kills by pidfd, on Linux")

#: Seconds in which a child must have written something; far more than it ever needs.
PATIENCE_S = 60


@contextmanager
def forge() -> Iterator["subprocess.Popen[bytes]"]:
    """The prepared process that forks the victims."""
    process = subprocess.Popen(
        [sys.executable, "-m", "faults.victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


class Lives:
    """The successive processes on one data directory, and what they wrote down."""

    def __init__(self, path: Path, rng: Random) -> None:
        self.data = path / "data"
        self.diary = path / "history"
        self.ledger = Ledger(SUBSCRIPTIONS, ORDERS)
        self.sequences: dict[str, int] = {}
        self.interrupted = 0
        self.retried = 0
        self._rng = rng
        self._read = 0
        self.diary.touch()

    def one_more(self, forge: "subprocess.Popen[bytes]", life: int) -> None:
        """Let a child work until it has written enough, and kill it."""
        assert forge.stdin is not None
        assert forge.stdout is not None
        retries = [sending for sending in self.ledger.open.values() if sending.producer]
        self.retried += len(retries)
        loaded_max = self._rng.choice((4, 10_000))
        paths = str(self.data), str(self.diary)
        order = Order(*paths, life, self.sequences, retries, loaded_max)
        forge.stdin.write(msgspec.json.encode(order) + b"\n")
        forge.stdin.flush()
        victim = os.pidfd_open(int(forge.stdout.readline()))
        enough = self._read + self._rng.choice(PROGRESS) * self._rng.randrange(1, 4)
        ends_s = time.monotonic() + PATIENCE_S
        while self.diary.stat().st_size < enough and time.monotonic() < ends_s:
            if select.select([victim], [], [], 0.001)[0]:
                break  # It went by itself, which it must not.
        time.sleep(self._rng.random() * 0.005)
        signal.pidfd_send_signal(victim, signal.SIGKILL)
        os.close(victim)
        forge.stdin.write(b"\n")
        forge.stdin.flush()
        assert int(forge.stdout.readline()) == -signal.SIGKILL, self.diary.read_text()[-3_000:]
        self._follow()

    def _follow(self) -> None:
        diary = Diary(self.diary)
        diary(Crash())
        diary.close()
        events, self._read = read_events(self.diary, self._read)
        self.ledger.follow(events)
        self.interrupted += bool(self.ledger.open)
        for event in events:
            if isinstance(event, Sending) and event.producer:
                self.sequences[event.producer] = event.sequence + len(event.sizes[0])

    def check(self) -> list[str]:
        """Reopen the store in this process and hold it against the history."""
        if not self.ledger.counts.get("Opened"):
            return []
        faults = [f"fsck: {fault}" for fault in fsck(self.data).faults]
        store = EmbeddedStore(self.data, clock=present())
        try:
            return faults + check(self.ledger, store)
        finally:
            run(store.close())
            # Nobody but the producers with a sequence tries again what was left open.
            self.ledger.open = {op: s for op, s in self.ledger.open.items() if s.producer}


def test_a_killed_process_breaks_no_promise(tmp_path: Path) -> None:
    """I1, I2, I3, I4, I6, I7 and M2 hold over any number of kills on one directory."""
    lives = Lives(tmp_path, Random(20))
    with forge() as prepared:
        for life in range(1, KILLS + 1):
            lives.one_more(prepared, life)
            assert lives.check() == [], f"after kill {life}"
    counts = lives.ledger.counts
    assert min(counts[kind] for kind in ("Sent", "Leased", "Acknowledged", "Releasing")) > KILLS
    assert lives.interrupted > KILLS // 10, "the kills hardly ever hit an append"
    assert lives.retried > KILLS // 10, "there was hardly anything to repeat"
    assert all(log.head > 0 for log in lives.ledger.logs.values()), "nothing was trimmed"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_kill_at_any_step_of_an_action_loses_nothing(tmp_path: Path, action: str) -> None:
    """Before whichever system call it dies, the store opens and everything is there (I1)."""
    child = subprocess.run(
        [sys.executable, "-m", "faults.steps", str(tmp_path), action],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    steps = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(steps) > 5
    assert [step for step in steps if step[1]] == []
