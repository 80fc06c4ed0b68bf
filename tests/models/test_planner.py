"""The planner, and what it makes of a server's metrics."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove.errors import InvalidArgument
from ringdove.models.calibration import Scrape, advise, observe, parse, queues_of
from ringdove.models.planner import (
    Goal,
    Load,
    by_rate,
    by_threads,
    make_plan,
    meets,
    report,
    turning_point,
)
from ringdove.models.stations import Service


def load(rate=1_000.0, service_s=0.01, **options):
    return Load(rate, Service(service_s), **options)


def test_without_a_target_threads_are_as_busy_as_they_may_be():
    plan = make_plan(load(), Goal(load_max=0.8))
    assert plan.threads == 13
    assert plan.controllers == 1
    assert 0.7 < report(plan)["utilisation"] <= 0.8


def test_failures_need_more_threads():
    assert make_plan(load(loss=0.5), Goal()).threads == 25


def _is_met(plan):
    try:
        return meets(plan)
    except InvalidArgument:  # Not even stable.
        return False


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1, 5_000),
    st.floats(0.001, 0.2),
    st.floats(0, 0.3),
    st.floats(1.05, 4),
)
def test_a_plan_meets_its_target_and_one_thread_less_does_not(rate, service_s, loss, slack):
    wanted = load(rate, service_s, loss=loss)
    idle_s = make_plan(wanted, Goal(load_max=0.3)).p99_s
    goal = Goal(p99_s=slack * idle_s)
    plan = make_plan(wanted, goal)
    assert meets(plan)
    if plan.threads > 1:
        assert not _is_met(replace(plan, threads=plan.threads - 1))


def test_controllers_are_added_when_they_are_what_is_slow():
    busy = load(rate=79.0, service_s=0.001, controller_s=0.01)
    alone = make_plan(busy, Goal())
    assert alone.controllers == 1
    fast = make_plan(busy, Goal(mean_s=0.014))
    assert fast.controllers > 1
    assert fast.mean_s <= 0.014


def test_servers_follow_from_controllers():
    heavy = load(rate=20_000.0, controller_s=0.000_2)
    plan = make_plan(heavy, Goal(controllers_per_server=2))
    assert plan.controllers == 5
    assert plan.servers == 3
    assert make_plan(load(), Goal(fabric=True)).servers == 5


@pytest.mark.parametrize(
    ("wanted", "goal", "told"),
    [
        (load(), Goal(p99_s=0.01), "No number of threads"),
        (load(loss=0.05, lease_s=30.0), Goal(p99_s=1.0), "wait out the lease"),
        (load(rate=1e9), Goal(), "more than one plan"),
    ],
)
def test_a_target_that_cannot_be_met_is_told(wanted, goal, told):
    with pytest.raises(InvalidArgument, match=told):
        make_plan(wanted, goal)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: load(rate=0),
        lambda: load(loss=1),
        lambda: load(controller_s=0),
        lambda: Goal(load_max=1),
        lambda: Goal(controllers_per_server=0),
    ],
)
def test_values_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        wrong()


def test_curves_fall_with_threads_and_rise_with_the_rate():
    plan = make_plan(load(), Goal(p99_s=0.06))
    threads, rates = list(by_threads(plan)), list(by_rate(plan))
    assert plan.threads in [row["threads"] for row in threads]
    delays = [row["mean_ms"] for row in threads]
    assert delays == sorted(delays, reverse=True)
    delays = [row["mean_ms"] for row in rates]
    assert delays == sorted(delays)
    assert plan.load.rate_per_s < plan.knee_per_s < plan.delivery.rate_max_per_s
    assert 11 <= turning_point(plan) <= plan.threads + 5


# -- calibration ----------------------------------------------------------------------------------

TEXT = """\
# HELP ringdove_delivered_messages_total Messages handed to receivers.
# TYPE ringdove_delivered_messages_total counter
ringdove_delivered_messages_total {delivered}
ringdove_receivers_parked {parked}
ringdove_cpu_seconds_total {cpu}
ringdove_queue_bytes{{queue="q"}} 5000.0
ringdove_queue_sent_messages_total{{queue="q"}} {sent}
ringdove_queue_messages{{queue="q",subscription="default",state="waiting"}} {waiting}
ringdove_queue_messages{{queue="q",subscription="default",state="leased"}} {leased}
ringdove_queue_messages{{queue="q",subscription="default",state="delayed"}} 0
"""


def scrapes(*, waiting=(0, 0), leased=8, parked=2, sent=1_000, delivered=1_250, cpu=0.1):
    first = TEXT.format(
        delivered=0, parked=parked, cpu=1, sent=0, waiting=waiting[0], leased=leased
    )
    last = TEXT.format(
        delivered=delivered,
        parked=parked,
        cpu=1 + cpu,
        sent=sent,
        waiting=waiting[1],
        leased=leased,
    )
    return [Scrape(100.0, first), Scrape(110.0, last)]


def test_metrics_tell_rate_service_time_loss_and_threads():
    seen = observe(scrapes(), "q")
    assert queues_of(scrapes()[0].text) == ["q"]
    assert seen.rate_per_s == 100
    assert seen.service_s == pytest.approx(8 / 125)
    assert seen.loss == pytest.approx(0.2)
    assert seen.controller_s == pytest.approx(0.000_1)
    assert (seen.threads, seen.utilisation) == (10, 0.8)


def test_messages_that_still_wait_are_not_taken_for_lost():
    seen = observe(scrapes(waiting=(0, 200), delivered=800), "q")
    assert seen.loss == 0


def test_busy_threads_are_told_to_grow_and_idle_ones_to_shrink():
    assert advise(observe(scrapes(), "q"), Goal(load_max=0.5)).action == "out"
    stay = advise(observe(scrapes(), "q"), Goal(load_max=0.85))
    assert (stay.action, stay.threads_wanted) == ("stay", 10)
    shrink = advise(observe(scrapes(parked=40), "q"), Goal())
    assert shrink.action == "in"
    assert shrink.threads_wanted == 10


def test_a_backlog_and_full_storage_ask_for_more():
    behind = advise(observe(scrapes(waiting=(6_000, 6_000)), "q"), Goal())
    assert behind.action == "out"
    assert behind.threads_wanted > 15
    assert "5,998 messages wait" in behind.reason
    full = advise(observe(scrapes(parked=8), "q"), Goal(), stored_bytes_max=6_000)
    assert full.action == "out"
    assert "bytes" in full.reason


def test_what_says_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="two or more"):
        observe(scrapes()[:1], "q")
    with pytest.raises(InvalidArgument, match="of queue other"):
        observe(scrapes(), "other")
    with pytest.raises(InvalidArgument, match="no load yet"):
        advise(observe(scrapes(sent=0, delivered=0, leased=0), "q"), Goal())
    with pytest.raises(InvalidArgument, match="no line of metrics"):
        parse("<html>")
