"""What a server counts of order and duplicates (B5), run by run."""

from ringdove import limits
from ringdove.core.tally import Tallies, Tally


def handed_out(*runs):
    tally = Tally()
    for lo, hi, receives in runs:
        tally.handed_out(0, 0, "default", lo, hi, receives)
    return tally.delivered, tally.again, tally.late


def test_in_order_nothing_stands_out():
    assert handed_out((0, 10, 1), (10, 11, 1), (20, 30, 1)) == (21, 0, 0)


def test_what_comes_after_a_later_one_is_late():
    assert handed_out((5, 10, 1), (0, 5, 1), (10, 12, 1)) == (12, 0, 5)


def test_what_comes_again_is_not_late_as_well():
    assert handed_out((0, 10, 1), (3, 5, 2), (3, 5, 3), (10, 11, 1)) == (15, 4, 0)


def test_stripes_levels_and_subscriptions_are_apart():
    tally = Tally()
    for number, level, name in ((0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")):
        tally.handed_out(number, level, name, 5, 6, 1)
    assert tally.late == 0
    tally.handed_out(0, 1, "a", 0, 1, 1)
    assert tally.late == 1


def test_a_stream_that_begins_again_hands_out_again():
    tally = Tally()
    for lo, hi in ((0, 10), (10, 20), (5, 15), (15, 30)):
        tally.streamed(0, 0, "default", lo, hi)
    assert (tally.delivered, tally.again, tally.late) == (45, 15, 0)


def test_a_queue_keeps_its_tally_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "SETTINGS_CACHE_MAX", 3)
    tallies = Tallies()
    tallies.of(1).repeated += 7
    assert tallies.of(1).repeated == 7
    for queue in (2, 3, 4):
        tallies.of(queue)
    assert len(tallies._tallies) == 3
    assert tallies.of(1).repeated == 0
