"""The consistency metrics of B5."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove.core.consistency import (
    Consistency,
    average_displacement,
    longest_increasing,
    measure,
    out_of_order_rate,
)

permutations = st.integers(0, 40).flatmap(lambda n: st.permutations(range(n)))


def longest_by_trying_all(ranks: list[int]) -> int:
    """The definition, at exponential cost."""
    return max(
        (
            size
            for size in range(len(ranks) + 1)
            for chosen in combinations(ranks, size)
            if all(a < b for a, b in pairwise(chosen))
        ),
        default=0,
    )


@pytest.mark.parametrize(
    ("received", "displacement"),
    [([2, 1, 3, 4, 5], 0.4), ([2, 3, 4, 5, 1], 1.6)],
)
def test_the_two_examples_of_b5(received, displacement):
    """B5: both sequences are 20 % out of order, and differ in displacement."""
    found = measure([1, 2, 3, 4, 5], received)
    assert found.out_of_order_rate == pytest.approx(0.20)
    assert found.displacement == pytest.approx(displacement)
    assert (found.lost, found.duplicated, found.unexpected) == (0, 0, 0)


def test_an_ordered_sequence_is_perfect():
    assert measure("abcdef", "abcdef") == Consistency(6, 6, 0, 0.0, 0, 0.0, 0, 0.0, 0.0)


def test_nothing_sent_and_nothing_received_is_perfect_too():
    assert measure([], []) == Consistency(0, 0, 0, 0.0, 0, 0.0, 0, 0.0, 0.0)


def test_a_reversed_sequence_keeps_one_message_in_order():
    found = measure(range(5), reversed(range(5)))
    assert found.out_of_order_rate == pytest.approx(0.8)
    assert found.displacement == pytest.approx((4 + 2 + 0 + 2 + 4) / 5)


def test_losses_are_counted_and_leave_the_order_of_the_others_alone():
    found = measure(range(10), [0, 2, 3, 7, 9])
    assert (found.lost, found.loss_rate) == (5, 0.5)
    assert (found.out_of_order_rate, found.displacement) == (0.0, 0.0)


def test_everything_lost_is_a_loss_rate_of_one():
    found = measure(range(4), [])
    assert (found.lost, found.loss_rate, found.received) == (4, 1.0, 0)
    assert (found.duplication_rate, found.out_of_order_rate, found.displacement) == (0.0, 0.0, 0.0)


def test_duplicates_are_counted_and_only_the_first_arrival_counts_for_order():
    found = measure([1, 2, 3, 4], [1, 2, 1, 3, 4, 4, 1, 2])
    assert (found.duplicated, found.duplication_rate) == (4, 0.5)
    assert (found.lost, found.out_of_order_rate, found.displacement) == (0, 0.0, 0.0)


def test_messages_that_nobody_sent_are_unexpected_and_count_for_nothing_else():
    found = measure([1, 2], [9, 1, 8, 2, 9])
    assert found.unexpected == 2
    assert (found.lost, found.duplicated) == (0, 1)
    assert (found.out_of_order_rate, found.displacement) == (0.0, 0.0)


def test_messages_may_be_named_by_anything_hashable():
    sent = [("stripe", 3), b"id", "text", None]
    assert measure(iter(sent), iter(sent)).lost == 0


@untimed
@given(st.lists(st.integers(0, 9), max_size=9))
def test_the_longest_increasing_subsequence_is_that_of_trying_all(ranks):
    assert longest_increasing(ranks) == longest_by_trying_all(ranks)


@untimed
@given(permutations)
def test_the_rates_follow_their_definitions(ranks):
    count = len(ranks)
    if not count:
        assert (out_of_order_rate(ranks), average_displacement(ranks)) == (0.0, 0.0)
        return
    assert out_of_order_rate(ranks) == pytest.approx(1 - longest_increasing(ranks) / count)
    moved = sum(abs(ranks.index(rank) - rank) for rank in range(count)) / count
    assert average_displacement(ranks) == pytest.approx(moved)
    assert (average_displacement(ranks) == 0) == (out_of_order_rate(ranks) == 0)


@untimed
@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 40)))
def test_the_counts_add_up(sent, received):
    found = measure(sent, received)
    assert found.sent == len(set(sent))
    assert found.received == len(received)
    assert found.lost == len(set(sent) - set(received))
    assert found.unexpected == len(set(received) - set(sent))
    assert found.received - found.duplicated == found.sent - found.lost + found.unexpected
    assert 0 <= found.out_of_order_rate < 1


@untimed
@given(permutations, st.data())
def test_duplicates_losses_and_strangers_do_not_change_order(ranks, data):
    """B5 leaves duplicates out, and a loss is counted as a loss, not as disorder."""
    kept = [rank for rank in ranks if data.draw(st.booleans())]
    noisy = []
    for rank in kept:
        noisy += [rank, -1 - rank] if data.draw(st.booleans()) else [rank]
        if noisy and data.draw(st.booleans()):
            noisy.append(data.draw(st.sampled_from(noisy)))
    clean, disturbed = measure(sorted(kept), kept), measure(range(len(ranks)), noisy)
    assert disturbed.out_of_order_rate == pytest.approx(clean.out_of_order_rate)
    assert disturbed.displacement == pytest.approx(clean.displacement)


def test_a_hundred_thousand_messages_in_reverse_take_no_quadratic_time():
    count = 100_000
    assert longest_increasing(range(count, 0, -1)) == 1
    assert longest_increasing(range(count)) == count
