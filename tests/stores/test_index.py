"""The pure index: loose, strict and key, what it hands to the disk, and what it costs (B2, B3)."""

from __future__ import annotations

import heapq
import random
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ringdove import limits
from ringdove.core import groups as groups_module
from ringdove.core import index as index_module
from ringdove.core.block import Block
from ringdove.core.groups import KeyIndex
from ringdove.core.index import Index
from ringdove.core.settings import QueueSettings
from ringdove.errors import ReceiptStale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringdove.core.runs import IndexChanges, Leased, LeasedRun

NOW_MS = 1_000_000
LEASE_MS = 1000


class Log:
    """Blocks of equal size, made when they are looked at; keys by offset when the index asks."""

    def __init__(self, size: int = 100, key_of: Callable[[int], bytes] | None = None) -> None:
        self.size = size
        self.key_of = key_of or (lambda offset: b"%d" % offset)
        self.fetched: list[int] = []
        self._blocks: dict[int, Block] = {}

    def block_at(self, offset: int) -> Block:
        base = offset - offset % self.size
        self.fetched.append(base)
        if base not in self._blocks:
            keys = [self.key_of(base + n) for n in range(self.size)]
            bodies = [b"x"] * self.size
            self._blocks[base] = Block.build(bodies, sent_ms=1, keys=keys).stamp(base, NOW_MS)
        return self._blocks[base]


class Bench:
    """An index over a log, driven with as few words as possible."""

    def __init__(self, order: str = "loose", log: Log | None = None, **chosen: Any) -> None:
        self.settings = QueueSettings.make(order=order, **chosen)
        self.log = log or Log()
        self.tokens = count(1)
        self.index = self.fresh()
        self.tail = 1_000_000

    def fresh(self, floor: int = 0) -> Index:
        kind = KeyIndex if self.settings.order == "key" else Index
        return kind(self.settings, lambda: next(self.tokens), random.Random(1), floor)

    def lease(self, want: int = 1, now_ms: int = NOW_MS, spread: int = 1) -> Leased:
        return self.index.lease(want, now_ms, LEASE_MS, self.log, self.tail, spread)

    def take(self, want: int = 1, now_ms: int = NOW_MS) -> LeasedRun:
        [leased] = self.lease(want, now_ms).runs
        return leased

    def ack(self, leased: LeasedRun, now_ms: int = NOW_MS) -> int:
        return self.index.acknowledge(leased.token, leased.lo, leased.hi, now_ms)

    def clean(self) -> bool:
        return self.index.audit(self.tail) == []


# -- what is recorded -----------------------------------------------------------------------------


def test_a_backlog_is_one_implicit_entry() -> None:
    bench = Bench()
    assert bench.index.waiting(bench.tail) == 1_000_000
    assert bench.index.changes() is not None
    assert bench.index.changes() is None
    bench.take(10)
    assert (bench.index.scan, bench.index.leased, bench.index.waiting(bench.tail)) == (
        10,
        10,
        999_990,
    )


def test_neighbours_are_one_run_and_one_token_however_many_blocks() -> None:
    bench = Bench()
    leased = bench.take(5000)
    assert (leased.lo, leased.hi) == (0, 5000)
    changes = bench.index.changes()
    assert changes is not None
    assert {token: len(runs or ()) for token, runs in changes.leases.items()} == {leased.token: 1}


def test_acknowledging_from_the_front_keeps_one_run() -> None:
    bench = Bench()
    leased = bench.take(100)
    for offset in range(99):
        assert bench.index.acknowledge(leased.token, offset, offset + 1, NOW_MS) == 1
    changes = bench.index.changes()
    assert changes is not None
    [(token, runs)] = changes.leases.items()
    assert (token, [r[:2] for r in runs or ()], changes.floor) == (leased.token, [(99, 100)], 99)
    assert changes.done == {}


def test_done_runs_merge_with_their_neighbours() -> None:
    bench = Bench()
    leased = bench.take(10)
    for offset in (1, 3, 5, 7, 4, 2, 8, 6):
        bench.index.acknowledge(leased.token, offset, offset + 1, NOW_MS)
    assert bench.index.done.runs() == [(1, 9)]
    bench.index.acknowledge(leased.token, 0, 1, NOW_MS)
    assert (bench.index.done.runs(), bench.index.done.floor, bench.index.done.above) == ([], 9, 0)


def test_the_audit_finds_what_overlaps() -> None:
    bench = Bench()
    leased = bench.take(10)
    assert bench.clean()
    bench.index.done.add(4, 6)
    assert not bench.clean()
    bench = Bench()
    bench.take(10)
    assert bench.index.audit(tail=9) != []
    assert leased.token


# -- what is stored -------------------------------------------------------------------------------


def stored(history: list[IndexChanges]) -> tuple[int, dict[int, int], dict[int, Any]]:
    """What a store would hold after writing these changes."""
    floor, done, leases = 0, {}, {}
    for changes in history:
        floor = changes.floor
        for lo, hi in changes.done.items():
            done.pop(lo, None)
            if hi is not None:
                done[lo] = hi
        for token, runs in changes.leases.items():
            leases.pop(token, None)
            if runs is not None:
                leases[token] = runs
    return floor, done, leases


@pytest.mark.parametrize("order", ["loose", "key", "strict"])
@pytest.mark.parametrize("seed", range(8))
def test_an_index_restored_from_its_changes_goes_on_alike(order: str, seed: int) -> None:
    """I4: what is done, leased and counted comes back; nothing else is given twice."""
    chance = random.Random(seed)
    bench = Bench(order, Log(size=7, key_of=lambda offset: b"%d" % (offset % 5)))
    bench.tail = 200
    history: list[IndexChanges] = []
    leases: list[LeasedRun] = []
    now_ms = NOW_MS
    for _ in range(150):
        leases += bench.lease(chance.randint(1, 6), now_ms).runs
        for leased in chance.sample(leases, min(2, len(leases))):
            lo = chance.randint(leased.lo, leased.hi - 1)
            hi = chance.randint(lo + 1, leased.hi)
            try:
                if chance.random() < 0.7:
                    bench.index.acknowledge(leased.token, lo, hi, now_ms)
                else:
                    bench.index.release(leased.token, lo, hi, chance.choice([0, 50]), now_ms)
            except ReceiptStale:
                leases.remove(leased)
        now_ms += chance.choice([0, 10, LEASE_MS])
        if chance.random() < 0.5 and (changes := bench.index.changes()) is not None:
            history.append(changes)
        assert bench.clean()
    if (changes := bench.index.changes()) is not None:
        history.append(changes)
    floor, done, runs = stored(history)
    old, bench.index = bench.index, bench.fresh(floor)
    bench.index.restore(done.items(), runs.items())
    assert bench.clean()
    assert (bench.index.done.floor, bench.index.done.runs()) == (old.done.floor, old.done.runs())
    undone = {o for o in range(floor, 200) if not any(lo <= o < hi for lo, hi in done.items())}
    given: list[int] = []
    for _ in range(400):
        now_ms += LEASE_MS
        for leased in bench.lease(50, now_ms).runs:
            given += range(leased.lo, leased.hi)
            bench.ack(leased, now_ms)
    assert sorted(given) == sorted(undone)


def test_changes_put_back_are_handed_out_again() -> None:
    bench = Bench()
    first, second = bench.take(), bench.take()
    bench.ack(second)
    changes = bench.index.changes()
    assert changes is not None
    bench.index.put_back()
    bench.ack(first)
    again = bench.index.changes()
    assert again is not None
    assert (again.floor, again.leases) == (2, {first.token: None, second.token: None})
    assert again.done == {1: None}


# -- what it costs --------------------------------------------------------------------------------


class Meter:
    """Counts the bytecodes of the index and the heap operations it asks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heap = 0
        self.opcodes = 0
        for name in ("heappush", "heappop", "heapify"):
            monkeypatch.setattr(heapq, name, self._counted(getattr(heapq, name)))
        self._files = {index_module.__file__, groups_module.__file__, *_runs_file()}

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.heap += 1
            return operation(*arguments)

        return counted

    def cost(self, action: Callable[[], object]) -> int:
        """Bytecodes that `action` runs inside the index."""
        self.opcodes = 0
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            action()
        finally:
            sys.settrace(before)
        return self.opcodes

    def _enter(self, frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: Any, event: str, argument: object) -> Any:
        self.opcodes += event == "opcode"
        return self._step


def _runs_file() -> set[str]:
    from ringdove.core import runs

    return {runs.__file__}


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    return Meter(monkeypatch)


def test_100_000_outstanding_leases_cost_no_more_per_call(meter: Meter) -> None:
    """Lease, acknowledge and expiry: the same bytecodes and heap operations at any number."""
    bench = Bench()
    costs: list[tuple[int, int, int]] = []
    leases: list[LeasedRun] = []
    for outstanding in (100, 100_000):
        while len(leases) < outstanding:
            leases.append(bench.take())
        middle = leases.pop(len(leases) // 2)
        heap = meter.heap
        costs.append(
            (
                meter.cost(lambda: leases.append(bench.take())),
                meter.cost(lambda middle=middle: bench.ack(middle)),
                meter.heap - heap,
            )
        )
    assert costs[0] == costs[1]
    assert min(costs[0]) > 0
    assert bench.index.leased == len(leases)


def test_a_mass_expiry_costs_a_bounded_amount_per_call(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROMOTE_PER_CALL_MAX", 50)
    bench = Bench()
    costs = []
    for outstanding in (200, 20_000):
        while bench.index.leased < outstanding:
            bench.take()
        heap = meter.heap
        delivered: list[Leased] = []
        later_ms = NOW_MS + LEASE_MS * (1 + len(costs))
        cost = meter.cost(lambda at=later_ms: delivered.append(bench.lease(1, at)))
        costs.append((cost, meter.heap - heap))
        assert delivered[0].more
        bench = Bench()
    assert costs[0] == costs[1]
    assert min(costs[0]) > 0


def test_leasing_and_acknowledging_looks_at_no_more_blocks_than_it_must() -> None:
    """The backlog costs nothing."""
    bench = Bench()
    for _ in range(500):
        bench.ack(bench.take(10))
    assert sorted(set(bench.log.fetched)) == list(range(0, 5000, 100))
    assert bench.index.changes() is not None
    assert bench.index.done.runs() == []


def test_20_000_groups_cost_no_more_per_message_than_20(meter: Meter) -> None:
    """FIFO: a receive of ten among very many groups looks at about ten messages."""
    costs = []
    for groups in (20, 20_000):
        log = Log(size=1000, key_of=lambda offset, groups=groups: b"%d" % (offset % groups))
        bench = Bench("key", log)
        bench.tail = 40_000
        for _ in range(200):
            for leased in bench.lease(10).runs:
                bench.ack(leased)
        costs.append(meter.cost(lambda: [bench.ack(leased) for leased in bench.lease(10).runs]))
    assert costs[1] <= 2 * costs[0]


def test_stale_entries_do_not_pile_up() -> None:
    """Leases that are extended again and again leave entries behind, a bounded number."""
    bench = Bench()
    leased = bench.take()
    for _ in range(50_000):
        bench.index.extend(leased.token, 0, 1, NOW_MS + LEASE_MS, NOW_MS)
    assert len(bench.index._timed) < 15_000
    assert bench.index.due_ms(NOW_MS, 1) == NOW_MS + LEASE_MS


@pytest.mark.parametrize("order", ["loose", "key"])
def test_what_was_scanned_and_is_ready_is_due_now(order: str) -> None:
    bench = Bench(order)
    bench.tail = 2
    leased = bench.take()
    assert bench.index.due_ms(NOW_MS, bench.tail) == NOW_MS
    bench.take()
    assert bench.index.due_ms(NOW_MS, bench.tail) == NOW_MS + LEASE_MS
    bench.index.unlease(leased.token, leased.lo, leased.hi, NOW_MS)
    bench.index.come_due(NOW_MS)
    assert bench.index.due_ms(NOW_MS, bench.tail) == NOW_MS
