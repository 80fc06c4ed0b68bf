"""The document's net: its figures, what it keeps, and its drawing."""

from xml.etree import ElementTree as ET

import pytest

from ringdove.errors import InvalidArgument
from ringdove.models.delivery import Delivery
from ringdove.models.petri.drawing import draw, pages_of
from ringdove.models.petri.engine import Simulation
from ringdove.models.replications import estimate, fan_out, student
from ringdove.models.stations import Service
from ringdove.models.visibility import IN_ORDER, OUT_OF_ORDER, Msg, Setup, simulate

SEEDS = range(6)


def closed(setup):
    return Delivery(
        setup.rate_per_s,
        Service(1 / setup.sender_rate_per_s),
        Service(1 / setup.broker_rate_per_s),
        setup.sender_threads,
        setup.broker_threads,
        setup.reliability,
        setup.link_s,
        setup.timeout_s if setup.waits_out else None,
    )


@pytest.mark.parametrize(
    "setup",
    [
        Setup(sender_threads=6, broker_threads=6, reliability=0.88),
        Setup(sender_threads=7, broker_threads=5, reliability=0.99, link_s=0.02),
        Setup(sender_threads=7, broker_threads=7, reliability=0.8, waits_out=True, timeout_s=0.5),
    ],
)
def test_out_of_order_agrees_with_the_closed_form(setup):
    runs = [simulate(setup, seed) for seed in SEEDS]
    expected = closed(setup)
    band = estimate([run["delivery_ms"] for run in runs], 0.99, 4)
    assert band.covers(1e3 * expected.total_s)
    first, second = expected.stations
    for name, value in {
        "sender_utilisation": first.utilisation,
        "broker_utilisation": second.utilisation,
        "sender_waiting": first.waiting,
    }.items():
        assert estimate([run[name] for run in runs], 0.99, 4).covers(value), name


def test_percentiles_are_those_of_the_simulation():
    setup = Setup(sender_threads=6, broker_threads=6, reliability=0.88)
    found = simulate(setup, seconds=600)["p99_ms"]
    assert found == pytest.approx(1e3 * closed(setup).percentile_s(0.99), rel=0.1)


def test_in_order_is_slower_and_works_as_much():
    setup = {"sender_threads": 6, "broker_threads": 6, "reliability": 0.88}
    loose = [simulate(Setup(**setup), seed) for seed in SEEDS]
    strict = [simulate(Setup(in_order=True, **setup), seed) for seed in SEEDS]

    def mean(runs, name):
        return sum(run[name] for run in runs) / len(runs)

    assert mean(strict, "delivery_ms") > 1.2 * mean(loose, "delivery_ms")
    assert mean(strict, "broker_busy") < mean(loose, "broker_busy")
    assert mean(strict, "broker_utilisation") == pytest.approx(
        mean(loose, "broker_utilisation"), rel=0.05
    )


@pytest.mark.parametrize("net", [OUT_OF_ORDER, IN_ORDER])
def test_threads_and_messages_are_kept(net):
    values = {
        "Msg": Msg, "rate": 50.0, "mu1": 10.0, "mu2": 10.0, "n1": 6, "n2": 7, "q": 0.7,
        "link": 0.01, "timeout": 0.3, "waits_out": True,
    }  # fmt: skip
    simulation = Simulation(net, values, seed=1, checked=True)
    for _ in range(200):
        simulation.run(firings_max=10)
        count = {name: simulation.marking(name).total() for name in simulation.places}
        assert count["Send_Proc.Send_Threads"] + count["Send_Proc.Sending"] == 6
        assert count["Broker.Recv_Threads"] + count["Broker.Forwarding"] == 7
        assert max(simulation.marking("Queue").values(), default=1) == 1
        hidden = simulation.marking("Broker.Invisible")
        ids = {message.id for message in simulation.marking("Queue")}
        assert set(hidden) <= ids
        if net is OUT_OF_ORDER:
            assert set(simulation.marking("Msg_Vis")) | set(hidden) == ids


def test_in_order_messages_are_taken_up_in_the_order_they_were_produced():
    values = {
        "Msg": Msg, "rate": 30.0, "mu1": 10.0, "mu2": 10.0, "n1": 8, "n2": 8, "q": 1.0,
        "link": 0.0, "timeout": 9.0, "waits_out": False,
    }  # fmt: skip
    simulation = Simulation(IN_ORDER, values, seed=1)
    taken = []
    while len(taken) < 300:
        simulation.run(firings_max=1)
        newest = next(iter(simulation.marking("Broker.Newest")))
        if not taken or taken[-1] != newest:
            taken.append(newest)
    assert taken == list(range(300))


@pytest.mark.parametrize(
    "wrong",
    [{"rate_per_s": 0}, {"broker_threads": 0}, {"reliability": 0}, {"timeout_s": -1}],
)
def test_values_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        Setup(**wrong)


@pytest.mark.parametrize("net", [OUT_OF_ORDER, IN_ORDER])
def test_every_page_is_drawn_from_its_data(net):
    pages = pages_of(net.page)
    assert [page.name for page in pages] == [
        "Cloud_Queue", "Send_Proc", "Broker", "Visibility_Timeout", "Recv_Proc",
    ]  # fmt: skip
    for page in pages:
        root = ET.fromstring(draw(page))
        texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
        for node in (*page.places, *page.transitions, *page.substitutions):
            assert node.name in texts


def test_runs_are_the_same_in_one_process_and_in_two():
    grid = [Setup(), Setup(in_order=True)]
    assert fan_out(simulate, grid, range(2), 1) == fan_out(simulate, grid, range(2), 2)


def test_students_quantiles_are_those_of_the_tables():
    assert student(0.975, 19) == pytest.approx(2.0930, abs=2e-4)
    assert student(0.995, 19) == pytest.approx(2.8609, abs=5e-4)
    assert student(0.975, 5) == pytest.approx(2.5706, abs=5e-3)
    assert student(0.5, 7) == pytest.approx(0, abs=1e-12)


def test_an_interval_needs_two_replications():
    with pytest.raises(InvalidArgument):
        estimate([1.0])
