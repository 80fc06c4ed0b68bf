"""Rules from reports to alarms, and when alarms begin and end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringdove.tiers.alarms import (
    AWAY_MS,
    CLEAR_AFTER_MS,
    DISK,
    LAG,
    MISMATCH_MS,
    Alarm,
    causes,
    judge,
)
from ringdove.tiers.registry import Known, Seen, heard
from ringdove.tiers.reports import BrokerReport, Load, QueueReport

NOW_MS = 1_700_000_000_000


def report(level=1, upstream="core", **fields):
    return BrokerReport("west", level, "eu", "ringdove://west:1", upstream=upstream, **fields)


def relayed(**fields):
    return report(queues=[QueueReport("readings", 7, **fields)])


def seen(of, **fields):
    return Seen(of, NOW_MS, NOW_MS, **fields)


def keys(brokers, raised=(), missing=None, now_ms=NOW_MS):
    return [alarm.key for alarm in causes(brokers, missing or {}, raised, now_ms)]


def test_a_healthy_broker_is_no_cause():
    fine = relayed(state="pulling", lag_ms=LAG.upper - 1, mismatches=3)
    fine.load = Load(disk=DISK.upper - 0.01)
    assert keys([seen(fine)]) == []


def test_a_broker_that_is_missed_is_lost():
    assert keys([], missing={"west": Known(2, "eu", "ringdove://west:1")}) == ["lost/west/"]


@pytest.mark.parametrize(
    ("queue", "key"),
    [
        ({"state": "full"}, "spool/west/readings"),
        ({"state": "diverged"}, "diverged/west/readings"),
        ({"lag_ms": LAG.upper}, "lag/west/readings"),
    ],
)
def test_what_a_queue_reports_is_a_cause(queue, key):
    assert keys([seen(relayed(**queue))]) == [key]


def test_the_text_says_why():
    [alarm] = causes([seen(relayed(state="full", reason="5 GB are used."))], {}, (), NOW_MS)
    assert "5 GB are used." in alarm.text
    assert "readings at broker west" in alarm.text


def test_what_is_raised_lasts_down_to_the_lower_threshold():
    key = "lag/west/readings"
    between = seen(relayed(lag_ms=LAG.upper - 1))
    assert keys([between]) == []
    assert keys([between], raised={key}) == [key]
    assert keys([seen(relayed(lag_ms=LAG.lower - 1))], raised={key}) == []


def test_a_full_disk_is_a_cause_until_there_is_some_room():
    def at(disk, raised=()):
        return keys([seen(report(load=Load(disk=disk)))], raised)

    assert at(DISK.upper) == ["disk/west/"]
    assert at(DISK.lower, raised={"disk/west/"}) == ["disk/west/"]
    assert at(DISK.lower) == []


@pytest.mark.parametrize(
    ("away", "key"),
    [(report(upstream=""), "upstream/west/"), (relayed(state="away"), "upstream/west/readings")],
    ids=["broker", "queue"],
)
def test_an_upstream_may_be_away_for_a_moment(away, key):
    first = heard(None, away, NOW_MS)
    later = heard(first, away, NOW_MS + AWAY_MS)
    assert keys([first]) == []
    assert keys([later], now_ms=NOW_MS + AWAY_MS) == [key]
    back = heard(later, report(), NOW_MS + AWAY_MS + 1)
    assert keys([back], now_ms=NOW_MS + 2 * AWAY_MS) == []


def test_level_0_and_standbys_need_no_upstream():
    for each in (report(level=0, upstream=""), report(upstream="", serving=False)):
        assert heard(None, each, NOW_MS).away_ms == 0


def test_mismatches_are_a_cause_when_they_grow_and_for_a_while():
    quiet = heard(heard(None, relayed(), 1), relayed(), 1_000)
    assert quiet.mismatched_ms == 0
    grown = heard(quiet, relayed(mismatches=2), NOW_MS)
    assert keys([grown]) == ["mismatch/west/"]
    same = heard(grown, relayed(mismatches=2), NOW_MS + MISMATCH_MS)
    assert keys([same], now_ms=NOW_MS + MISMATCH_MS) == []


def test_a_restart_counts_from_nothing_and_makes_no_rate():
    first = heard(None, report(started_ms=1, queues=[QueueReport("q", 1, stored=0)]), 1_000)
    second = heard(first, report(started_ms=1, queues=[QueueReport("q", 1, stored=100)]), 2_000)
    assert second.rate > 0
    assert second.since_ms == 1_000
    third = heard(second, report(started_ms=2, queues=[QueueReport("q", 1, stored=100)]), 3_000)
    assert (third.rate, third.since_ms) == (0, 3_000)


def test_offsets_that_a_fabric_skips_make_no_rate():
    first = heard(None, report(queues=[QueueReport("q", 1, stored=100)]), 1_000)
    second = heard(first, report(queues=[QueueReport("q", 1, stored=2**32 + 3)]), 2_000)
    third = heard(second, report(queues=[QueueReport("q", 1, stored=2**32 + 8)]), 3_000)
    assert second.rate == 0
    assert 0 < third.rate <= 5


def steady(rounds):
    """The rate after that many seconds of 500 messages each."""
    at = heard(None, report(queues=[QueueReport("q", 1, stored=0)]), 0)
    for second in range(1, rounds + 1):
        at = heard(at, report(queues=[QueueReport("q", 1, stored=500 * second)]), second * 1_000)
    return at.rate


def test_the_rate_approaches_what_is_stored_per_second():
    assert steady(30) == pytest.approx(500, rel=0.01)


def test_the_processor_counts_when_it_is_busy_for_a_while():
    busy = [heard(None, report(load=Load(cpu=1.0)), 0)]
    for second in range(1, 30):
        busy.append(heard(busy[-1], report(load=Load(cpu=1.0)), second * 1_000))
    cpus = [at.report.load.cpu for at in busy]
    assert cpus[0] == 0
    assert cpus == sorted(cpus)
    assert cpus[1] < 0.5 < 0.95 < cpus[-1]


def raised(alarm, at_ms):
    return {alarm.key: Alarm(alarm.kind, alarm.broker, raised_ms=at_ms, seen_ms=at_ms)}


LOST = Alarm("lost", "west")


def test_an_alarm_is_raised_once_and_keeps_its_time():
    changes = judge([LOST], {}, NOW_MS, 0)
    assert [alarm.raised_ms for alarm in changes.raised] == [NOW_MS]
    changes = judge([LOST], raised(LOST, NOW_MS), NOW_MS + 5_000, 0)
    assert [(alarm.raised_ms, alarm.seen_ms) for alarm in changes.kept] == [
        (NOW_MS, NOW_MS + 5_000)
    ]
    assert not changes.raised
    assert not changes.cleared


def test_an_alarm_is_cleared_when_its_cause_has_been_away_for_a_while():
    before = raised(LOST, NOW_MS)
    assert judge([], before, NOW_MS + CLEAR_AFTER_MS - 1, 0).cleared == []
    [gone] = judge([], before, NOW_MS + CLEAR_AFTER_MS, 0).cleared
    assert (gone.raised_ms, gone.cleared_ms) == (NOW_MS, NOW_MS + CLEAR_AFTER_MS)


def test_nothing_is_cleared_by_a_manager_that_has_only_just_come():
    began_ms = NOW_MS + 3_600_000
    assert judge([], raised(LOST, NOW_MS), began_ms + CLEAR_AFTER_MS - 1, began_ms).cleared == []


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_what_comes_and_goes_is_one_alarm(history):
    """Second by second a cause is there or not: alarms never overlap, and none is too short."""
    now: dict[str, Alarm] = {}
    past = []
    last_seen_ms = None
    for second, there in enumerate(history):
        at_ms = second * 1_000
        changes = judge([Alarm("lost", "west")] if there else [], now, at_ms, 0)
        last_seen_ms = at_ms if there else last_seen_ms
        now = {a.key: a for a in (*now.values(), *changes.raised, *changes.kept)}
        for alarm in changes.cleared:
            past.append(now.pop(alarm.key))
            assert at_ms - last_seen_ms >= CLEAR_AFTER_MS
        quiet = last_seen_ms is None or at_ms - last_seen_ms >= CLEAR_AFTER_MS
        assert bool(now) != quiet
    times = [(alarm.raised_ms, alarm.seen_ms) for alarm in past]
    assert all(end < start for (_, end), (start, _) in zip(times, times[1:], strict=False))
