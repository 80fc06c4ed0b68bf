"""The dequeue of a fabric, simulated: what must hold in every run, and the document's shapes."""

from collections import Counter

import pytest

from ringdove.core import dequeue
from ringdove.errors import InvalidArgument
from ringdove.models import fabric
from ringdove.models.costs import Costs, work
from ringdove.models.events import Node, Timeline
from ringdove.models.fabric import METHODS, Fabric, Load, simulate


def test_events_happen_in_order_of_time_and_then_of_asking():
    timeline = Timeline()
    seen = []
    timeline.after(2, lambda: seen.append("c"))
    timeline.after(1, lambda: seen.append("a"))
    timeline.after(1, lambda: seen.append("b"))
    timeline.after(9, lambda: seen.append("never"))
    timeline.run(5)
    assert seen == ["a", "b", "c"]
    assert timeline.now_s == 5


def test_a_node_does_one_thing_at_a_time():
    timeline = Timeline()
    node = Node(timeline)
    ended = []
    for cost_s in (3.0, 1.0):
        node.serve(lambda cost_s=cost_s: cost_s, lambda: ended.append(timeline.now_s))
    timeline.run(10)
    assert ended == [3, 4]
    assert node.worked_s == 4


@pytest.mark.parametrize("method", METHODS)
def test_every_message_is_delivered_once_or_still_there(method):
    run = Fabric(Load(method, 20.0, 50.0), seed=1)
    run.timeline.run(20)
    waiting = sum(len(stripe.sent_s) for stripe in run.stripes)
    on_the_way = run.tally.sent - run.tally.delivered - waiting
    assert run.tally.delivered > 0
    # Found by a request that has not answered yet.
    assert 0 <= on_the_way <= run.load.back_ends * run.load.asks_max * run.load.messages_max


@pytest.mark.parametrize("method", METHODS)
def test_the_machines_are_the_ones_that_controllers_run(method, monkeypatch):
    made = Counter()
    real = dequeue._CALLS[method]

    def counted(*arguments):
        made[method] += 1
        return real(*arguments)

    monkeypatch.setitem(dequeue._CALLS, method, counted)
    run = Fabric(Load(method, 20.0), seed=1)
    run.timeline.run(2)
    assert made[method] == run.tally.asked > 0


@pytest.mark.parametrize("method", METHODS)
def test_the_work_of_the_nodes_is_what_the_cost_model_says(method):
    load = Load(method, 50.0)
    found = simulate(load, seed=2, seconds=20, warm_s=5)
    misses = found["visits_per_s"] * (1 - found["hit_rate"])
    expected = work(
        Costs(), found["sent_per_s"], misses, found["looks_per_s"], found["messages_per_hit"]
    )
    assert found["busy_share"] * load.stripes == pytest.approx(expected.total, rel=0.05)


def test_a_seed_repeats_a_run():
    load = Load("retry", 50.0)
    assert simulate(load, 3, 5, 1) == simulate(load, 3, 5, 1)
    assert simulate(load, 3, 5, 1) != simulate(load, 4, 5, 1)


def test_who_waits_is_called_by_what_arrives():
    rare = simulate(Load("wake", 50.0, 0.5, controllers=1), seconds=60)
    assert rare["delivered_per_s"] == pytest.approx(rare["sent_per_s"])
    # An append, a visit and a message; two of them where messages meet.
    assert 22 <= rare["delay_ms"] < 44


def test_the_documents_shapes():
    def at(method, asks, pause_s=0.1):
        return simulate(Load(method, asks, pause_s=pause_s), 0, 20, 10)

    poll = [at("poll", asks)["delivered_per_s"] for asks in (10.0, 50.0, 200.0)]
    assert poll == sorted(poll, reverse=True)
    busy, monitor, retry = at("poll", 200.0), at("monitor", 200.0), at("retry", 200.0, 5.0)
    assert retry["delivered_per_s"] > monitor["delivered_per_s"] > busy["delivered_per_s"]
    assert monitor["hit_rate"] < busy["hit_rate"]
    assert monitor["messages_per_hit"] > busy["messages_per_hit"]


@pytest.mark.parametrize("wrong", [{"method": "push"}, {"stripes": 0}, {"asks_per_s": 0}])
def test_values_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        fabric.Load(**wrong)
