"""Delays are counted where they belong, by powers of two of a millisecond."""

import pytest

from ringdove.core.delays import BOUNDS_MS, Delays


@pytest.mark.parametrize(
    ("delay_ms", "place"),
    [(-5, 0), (0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1000, 10), (1 << 40, len(BOUNDS_MS))],
)
def test_a_delay_is_below_its_bound_and_not_below_the_one_before(delay_ms, place):
    delays = Delays()
    delays.add(delay_ms)
    assert [n for n, count in enumerate(delays.counts) if count] == [place]
    if place < len(BOUNDS_MS):
        assert delay_ms < BOUNDS_MS[place]
    if place:
        assert delay_ms >= BOUNDS_MS[place - 1]


def test_the_total_is_kept_too():
    delays = Delays()
    for delay_ms in (3, 4, -1):
        delays.add(delay_ms)
    assert (sum(delays.counts), delays.total_ms) == (3, 7)
