"""The set of done offsets against a set of integers, and runs that are split."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.samples import untimed
from ringdove.core import runs
from ringdove.core.runs import LEASED, READY, WAITING, DoneSet, Heirs, Run

UNIVERSE = 60


def maximal_runs(offsets: set[int]) -> list[tuple[int, int]]:
    """The offsets as runs [lo, hi) that do not touch."""
    starts = sorted(offset for offset in offsets if offset - 1 not in offsets)
    ends = sorted(offset + 1 for offset in offsets if offset + 1 not in offsets)
    return list(zip(starts, ends, strict=True))


class DoneSetMachine(RuleBasedStateMachine):
    """Marks offsets done in a DoneSet, in a plain set, and on a disk that is told of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.done = DoneSet()
        self.model: set[int] = set()
        self.disk: dict[int, int] = {}

    @precondition(lambda self: len(self.model) < UNIVERSE)
    @rule(data=st.data())
    def add(self, data: Any) -> None:
        free = [offset for offset in range(UNIVERSE) if offset not in self.model]
        lo = data.draw(st.sampled_from(free))
        hi = lo + 1
        longest = data.draw(st.integers(1, 8))
        while hi < UNIVERSE and hi not in self.model and hi - lo < longest:
            hi += 1
        self.done.add(lo, hi)
        self.model |= set(range(lo, hi))

    @rule(floor=st.integers(0, UNIVERSE))
    def raise_floor(self, floor: int) -> None:
        self.done.raise_floor(floor)
        self.model |= set(range(floor))

    @rule()
    def write_changes(self) -> None:
        for lo in self.done.changed:
            hi = self.done.end_of(lo)
            if hi is None:
                self.disk.pop(lo, None)
            else:
                self.disk[lo] = hi
        self.done.changed.clear()
        assert sorted(self.disk.items()) == self.done.runs()

    @rule()
    def reopen(self) -> None:
        self.write_changes()
        reopened = DoneSet(self.done.floor)
        for lo, hi in self.disk.items():
            reopened.add(lo, hi)
        reopened.changed.clear()
        self.done = reopened

    @invariant()
    def the_floor_is_the_first_offset_that_is_not_done(self) -> None:
        expected = min(set(range(UNIVERSE + 1)) - self.model)
        assert self.done.floor == expected

    @invariant()
    def the_runs_are_what_is_done_above_the_floor(self) -> None:
        above = {offset for offset in self.model if offset >= self.done.floor}
        assert self.done.runs() == maximal_runs(above)
        assert self.done.above == len(above)

    @invariant()
    def each_run_is_found_by_its_start_alone(self) -> None:
        ends = dict(self.done.runs())
        for offset in range(UNIVERSE):
            assert self.done.end_of(offset) == ends.get(offset)


DoneSetMachine.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
TestDoneSetAgainstASetOfIntegers = DoneSetMachine.TestCase


@untimed
@given(st.permutations(range(24)))
def test_in_whatever_order_all_become_done_only_the_floor_remains(order):
    done = DoneSet()
    for offset in order:
        done.add(offset, offset + 1)
    assert (done.floor, done.above, done.runs()) == (24, 0, [])
    assert (done._hi_of, done._lo_of) == ({}, {})


def test_a_new_set_has_everything_below_its_floor_done():
    done = DoneSet(7)
    assert (done.floor, done.above, done.runs(), done.changed) == (7, 0, [], set())


def test_what_follows_the_floor_raises_it_and_writes_no_run():
    done = DoneSet()
    done.add(0, 5)
    assert (done.floor, done.runs(), done.changed) == (5, [], set())


def test_filling_a_gap_merges_both_neighbours_into_one_run():
    done = DoneSet()
    done.add(2, 4)
    done.add(6, 8)
    done.changed.clear()
    done.add(4, 6)
    assert done.runs() == [(2, 8)]
    assert done.changed == {2, 6}


def test_filling_the_gap_above_the_floor_swallows_the_run_behind_it():
    done = DoneSet()
    done.add(3, 9)
    done.add(12, 13)
    done.changed.clear()
    done.add(0, 3)
    assert (done.floor, done.runs(), done.above) == (9, [(12, 13)], 1)
    assert done.changed == {3}


@pytest.mark.parametrize(
    ("floor", "expected", "runs"),
    [
        (1, 1, [(2, 4), (6, 8)]),
        (2, 4, [(6, 8)]),
        (3, 4, [(6, 8)]),
        (4, 4, [(6, 8)]),
        (5, 5, [(6, 8)]),
        (6, 8, []),
        (7, 8, []),
        (99, 99, []),
    ],
)
def test_raising_the_floor_swallows_what_it_passes_or_touches(floor, expected, runs):
    done = DoneSet()
    done.add(2, 4)
    done.add(6, 8)
    done.raise_floor(floor)
    assert (done.floor, done.runs()) == (expected, runs)
    assert done.above == sum(hi - lo for lo, hi in runs)


def test_the_floor_never_sinks():
    done = DoneSet(9)
    done.raise_floor(3)
    done.raise_floor(9)
    assert (done.floor, done.changed) == (9, set())


# -- runs --------------------------------------------------------------------------------------


def test_a_new_run_is_ready_and_was_never_handed_out():
    run = Run(3, 8)
    assert (run.state, run.token, run.receives, run.first_ms, run.until_ms) == (READY, 0, 0, 0, 0)
    assert (len(run), run.group, run.place) == (5, None, 0)


def test_a_part_has_the_history_of_its_run_and_no_place_of_its_own():
    run = Run(3, 8, token=77, until_ms=500, receives=2, first_ms=100)
    run.state = LEASED
    run.place = 9
    part = run.part(4, 6)
    assert (part.lo, part.hi, len(part)) == (4, 6, 2)
    assert (part.token, part.until_ms, part.receives, part.first_ms) == (77, 500, 2, 100)
    assert (part.state, part.place) == (LEASED, 0)
    assert (run.lo, run.hi, run.place) == (3, 8, 9)


@pytest.mark.parametrize(
    ("state", "word"), [(READY, "ready"), (LEASED, "leased"), (WAITING, "waiting")]
)
def test_a_run_says_in_words_what_it_is(state, word):
    run = Run(3, 8, receives=2)
    run.state = state
    assert repr(run) == f"Run(3..8, {word}, receives=2)"


def test_an_heir_is_found_through_every_lease_in_between():
    heirs = Heirs()
    heirs.note(1, 2)
    heirs.note(1, 3)
    heirs.note(3, 4)
    leases = {2: [Run(0, 5, 2)], 4: [Run(5, 9, 4)]}
    assert [heirs.find(1, offset, leases) for offset in (0, 4, 5, 8)] == [2, 2, 4, 4]
    assert heirs.find(1, 9, leases) == 1
    assert heirs.find(7, 0, leases) == 7


def test_heirs_are_remembered_within_a_bound(monkeypatch):
    monkeypatch.setattr(runs, "_HEIRS_MAX", 3)
    heirs = Heirs()
    for token in range(1, 5):
        heirs.note(token, token + 1)
    leases = {5: [Run(0, 1, 5)]}
    assert [heirs.find(token, 0, leases) for token in (1, 3)] == [1, 5]
