"""Clocks that never run backwards."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove import clock as clock_module
from ringdove.clock import Clock, ManualClock, SystemClock

SECOND_NS = 1_000_000_000


class Machine:
    """The two clocks of a computer, moved by hand."""

    def __init__(self, wall_s: int = 1_700_000_000, up_s: int = 50) -> None:
        self.wall_ns = wall_s * SECOND_NS
        self.up_ns = up_s * SECOND_NS

    def run_ms(self, duration_ms: int) -> None:
        """Let time pass on both."""
        self.wall_ns += duration_ms * 1_000_000
        self.up_ns += duration_ms * 1_000_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    time = SimpleNamespace(time_ns=lambda: machine.wall_ns, monotonic_ns=lambda: machine.up_ns)
    monkeypatch.setattr(clock_module, "time", time)
    return machine


def test_the_system_clock_starts_at_wall_time(machine: Machine):
    assert SystemClock().now_ms() == 1_700_000_000_000


def test_the_system_clock_follows_the_monotonic_clock_when_the_wall_clock_is_set(machine: Machine):
    clock = SystemClock()
    machine.run_ms(1_500)
    machine.wall_ns -= 3_600 * SECOND_NS
    assert clock.now_ms() == 1_700_000_001_500
    machine.wall_ns += 7_200 * SECOND_NS
    assert clock.now_ms() == 1_700_000_001_500


def test_a_remembered_time_moves_the_clock_forward_and_it_runs_on_from_there(machine: Machine):
    """B2: expiry is a comparison with times that a store wrote before a restart."""
    clock = SystemClock()
    clock.advance_to(1_700_000_100_000)
    assert clock.now_ms() == 1_700_000_100_000
    machine.run_ms(40)
    assert clock.now_ms() == 1_700_000_100_040


def test_a_remembered_time_in_the_past_changes_nothing(machine: Machine):
    clock = SystemClock()
    clock.advance_to(1)
    clock.advance_to(clock.now_ms())
    assert clock.now_ms() == 1_700_000_000_000


def test_a_clock_that_was_set_back_while_the_store_was_closed_is_caught_up(machine: Machine):
    before = SystemClock().now_ms()
    machine.wall_ns -= 86_400 * SECOND_NS
    reopened = SystemClock()
    assert reopened.now_ms() < before
    reopened.advance_to(before)
    assert reopened.now_ms() == before


def test_parts_of_a_millisecond_are_kept_over_an_advance(machine: Machine):
    machine.wall_ns += 600_000
    clock = SystemClock()
    clock.advance_to(1_700_000_000_005)
    assert clock.now_ms() == 1_700_000_000_005
    machine.up_ns += 400_000
    assert clock.now_ms() == 1_700_000_000_006


def test_the_real_system_clock_never_runs_backwards():
    clock = SystemClock()
    answers = [clock.now_ms() for _ in range(1_000)]
    assert answers == sorted(answers)
    assert answers[0] > 1_600_000_000_000


steps = st.lists(
    st.tuples(st.sampled_from(["advance", "run", "set"]), st.integers(-5_000, 5_000)), max_size=30
)


@untimed
@given(steps)
def test_no_sequence_of_advances_and_clock_changes_turns_time_back(steps):
    machine = Machine()
    time = SimpleNamespace(time_ns=lambda: machine.wall_ns, monotonic_ns=lambda: machine.up_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_module, "time", time)
        clock = SystemClock()
        last = clock.now_ms()
        for step, amount in steps:
            if step == "advance":
                clock.advance_to(last + amount)
                assert clock.now_ms() == max(last, last + amount)
            elif step == "run":
                machine.run_ms(abs(amount))
                assert clock.now_ms() == last + abs(amount)
            else:
                machine.wall_ns += amount * 1_000_000
                assert clock.now_ms() == last
            last = clock.now_ms()


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(100)
    assert [clock.now_ms(), clock.now_ms()] == [100, 100]
    clock.sleep_ms(30)
    assert clock.now_ms() == 130
    clock.advance_to(120)
    assert clock.now_ms() == 130
    clock.advance_to(500)
    assert clock.now_ms() == 500


def test_both_clocks_can_be_passed_where_a_clock_is_asked_for():
    def later(clock: Clock) -> int:
        clock.advance_to(2_000_000_000_000)
        return clock.now_ms()

    assert later(ManualClock()) == 2_000_000_000_000
    assert later(SystemClock()) >= 2_000_000_000_000
