"""How many messages a consumer takes at a time."""

import pytest

from ringdove.client.leases import Appetite


def grown(each_s, batches=20, have=1_000_000):
    """What a consumer asks for, batch after batch, when a message takes `each_s` seconds."""
    appetite = Appetite(None, "auto")
    asked = []
    for _ in range(batches):
        asked.append(appetite.max)
        count = min(appetite.max, have)
        appetite.handled(count, count * each_s)
    return asked


def test_it_begins_small_and_grows_to_a_limit_while_messages_are_handled_fast():
    asked = grown(1e-6)
    assert asked[:6] == [10, 40, 160, 640, 2_560, 10_000]
    assert asked[-1] == 10_000


@pytest.mark.parametrize(("each_s", "settles"), [(0.001, 100), (0.02, 5), (3, 1)])
def test_it_settles_where_a_batch_takes_a_tenth_of_a_second(each_s, settles):
    assert grown(each_s)[-1] == pytest.approx(settles, abs=1)


def test_a_queue_with_little_in_it_does_not_make_it_shrink():
    assert grown(1e-5, have=2)[-1] == 10_000


def test_it_follows_a_handler_that_becomes_slow():
    appetite = Appetite(None, "auto")
    for _ in range(10):
        appetite.handled(appetite.max, 0)
    assert appetite.max == 10_000
    appetite.handled(10_000, 500)
    assert appetite.max == 2


@pytest.mark.parametrize(
    ("max", "ack", "stays"), [(7, "auto", 7), (7, "manual", 7), (None, "manual", 100)]
)
def test_a_number_that_was_given_stays_and_so_does_that_of_manual_mode(max, ack, stays):
    appetite = Appetite(max, ack)
    appetite.handled(stays, 1e-6)
    assert appetite.max == stays
