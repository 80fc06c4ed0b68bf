"""Closed forms: against independent calculations, and against each other where they must agree."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove.errors import InvalidArgument
from ringdove.models.classes import ServiceClass, delays, mixed
from ringdove.models.costs import (
    Costs,
    asked_per_s,
    break_even_per_s,
    throughput_max_per_s,
    work,
)
from ringdove.models.delivery import Delivery
from ringdove.models.stations import Service, Station
from ringdove.models.tails import distribution, percentile


def by_balance(rate, service_s, threads):
    """The mean number in M/M/n from its birth-death balance, term by term."""
    weight, weights = 1.0, [1.0]
    while weight > 1e-14 * max(weights) or len(weights) < 2 * threads:
        weight *= rate * service_s / min(len(weights), threads)
        weights.append(weight)
    return sum(k * w for k, w in enumerate(weights)) / sum(weights)


def delivery(threads, reliability, **options):
    service = Service(0.1)
    return Delivery(30.3, service, service, threads, threads, reliability, **options)


@pytest.mark.parametrize("reliability", [0.99, 0.88])
@pytest.mark.parametrize("threads", range(4, 11))
def test_the_mean_delivery_time_is_that_of_the_balance_equations(threads, reliability):
    first = by_balance(30.3, 0.1, threads)
    second = by_balance(30.3 / reliability, 0.1, threads)
    expected_ms = 1e3 * (first + second) / 30.3
    assert 1e3 * delivery(threads, reliability).sojourn_s == pytest.approx(expected_ms, rel=1e-9)


@pytest.mark.parametrize(
    ("threads", "reliability", "sojourn_ms"),
    [(4, 0.99, 312.38), (4, 0.88, 412.38), (10, 0.99, 201.05), (10, 0.88, 213.71)],
)
def test_the_mean_delivery_time_has_the_known_values(threads, reliability, sojourn_ms):
    assert 1e3 * delivery(threads, reliability).sojourn_s == pytest.approx(sojourn_ms, abs=0.005)


def test_the_printed_form_has_another_third_term():
    right = delivery(5, 0.88)
    second = right.stations[1]
    difference_s = second.wait_s / 0.12 - second.wait_s / 0.88
    assert right.printed_s - right.sojourn_s == pytest.approx(difference_s)
    assert delivery(5, 1.0).printed_s is None


def test_a_link_is_passed_twice_and_once_more_for_each_failure():
    near, far = delivery(5, 0.88), delivery(5, 0.88, link_s=0.01)
    assert far.total_s - near.total_s == pytest.approx((2 + 0.12 / 0.88) * 0.01)


def test_a_failure_waits_out_what_is_left_of_the_timeout():
    at_once, late = delivery(5, 0.88), delivery(5, 0.88, timeout_s=30.0)
    per_failure_s = (late.sojourn_s - at_once.sojourn_s) / (0.12 / 0.88)
    assert per_failure_s == pytest.approx(30 - 0.1, abs=1e-9)
    assert delivery(5, 0.88, timeout_s=0.0).sojourn_s == pytest.approx(at_once.sojourn_s)


@pytest.mark.parametrize(("rate", "reliability"), [(40.0, 1.0), (36.0, 0.9), (50.0, 0.99)])
def test_a_load_that_grows_without_bound_is_refused_with_what_would_do(rate, reliability):
    service = Service(0.1)
    with pytest.raises(InvalidArgument, match=r"not stable.*at least \d+ threads"):
        Delivery(rate, service, service, 4, 4, reliability)


@pytest.mark.parametrize(
    "options", [{"reliability": 0}, {"reliability": 1.1}, {"link_s": -1}, {"timeout_s": -1}]
)
def test_values_that_mean_nothing_are_refused(options):
    service = Service(0.1)
    with pytest.raises(InvalidArgument):
        Delivery(1.0, service, service, 1, 1, **options)


def test_one_thread_with_general_service_is_pollaczek_and_khinchin():
    for variation in (0.0, 0.25, 1.0, 4.0):
        station = Station(8.0, Service(0.1, variation), 1)
        expected_s = 0.8 * 0.1 * (1 + variation) / 2 / (1 - 0.8)
        assert station.wait_s == pytest.approx(expected_s)
    assert Service.erlang(0.1, 4).variation == 0.25


def test_a_station_that_is_ever_busier_waits_ever_longer():
    waits = [Station(rate, Service(0.1), 5).wait_s for rate in range(5, 50, 5)]
    assert waits == sorted(waits)
    assert waits[-1] > 10 * waits[-4]


@settings(max_examples=50)
@given(st.floats(0.05, 0.95), st.integers(1, 40))
def test_littles_law_and_the_balance_equations_hold_for_every_station(utilisation, threads):
    rate = 10 * threads * utilisation
    station = Station(rate, Service(0.1), threads)
    assert station.present == pytest.approx(by_balance(rate, 0.1, threads), rel=1e-6)
    assert station.present == pytest.approx(station.waiting + station.load)
    assert station.utilisation <= station.busy_probability + 1e-12
    assert station.busy_probability < 1


def test_percentiles_of_known_distributions():
    exponential = Service(2.0).transform
    assert percentile(exponential, 0.99, 2.0) == pytest.approx(2 * math.log(100), rel=1e-6)
    assert distribution(exponential, 3.0) == pytest.approx(1 - math.exp(-1.5), rel=1e-6)
    assert distribution(exponential, 0.0) == 0
    two_stages = Service.erlang(2.0, 2).transform
    assert distribution(two_stages, 3.0) == pytest.approx(1 - math.exp(-3) * 4, rel=1e-6)


def test_the_sojourn_of_one_thread_is_exponential():
    station = Station(6.0, Service(0.1), 1)
    assert percentile(station.transform, 0.9, station.sojourn_s) == pytest.approx(
        math.log(10) / 4, rel=1e-6
    )


def test_classes_share_the_wait_of_all():
    classes = [ServiceClass("gold", 10, Service(0.1)), ServiceClass("tin", 20.3, Service(0.1))]
    gold, tin = delays(classes, 4)
    whole = Station(30.3, Service(0.1), 4)
    assert gold.wait_s < whole.wait_s < tin.wait_s
    assert gold.waiting + tin.waiting == pytest.approx(whole.waiting)


def test_one_thread_with_classes_is_cobhams_formula():
    classes = [ServiceClass("a", 2, Service(0.1, 0.5)), ServiceClass("b", 3, Service(0.2))]
    residual_s = (2 * 0.1**2 * 1.5 + 3 * 0.2**2 * 2) / 2
    a, b = delays(classes, 1)
    assert a.wait_s == pytest.approx(residual_s / (1 - 0.2))
    assert b.wait_s == pytest.approx(residual_s / ((1 - 0.2) * (1 - 0.8)))
    with pytest.raises(InvalidArgument):
        mixed([ServiceClass("none", 0, Service(1))])


def test_the_work_of_a_fabric_adds_up():
    found = work(Costs(), 100, misses_per_s=50, looks_per_s=1_000, messages_per_hit=10)
    assert found.enqueue == pytest.approx(0.1)
    assert found.hit == pytest.approx(10 * 0.02 + 100 * 0.001)
    assert found.miss == pytest.approx(1.0)
    assert found.look == pytest.approx(0.1)
    # With one message per hit it is the document's equation (4).
    assert work(Costs(), 100, 50).total == pytest.approx(100 * 0.021 + 100 * 0.001 + 50 * 0.02)
    assert asked_per_s(200, 100, 10) == 200_000
    with pytest.raises(InvalidArgument):
        work(Costs(), 1, messages_per_hit=0.5)


def test_at_the_break_even_rate_the_nodes_are_just_busy():
    costs = Costs()
    rate = break_even_per_s(costs, 10, 1_000, back_ends=10, tries=3, messages_per_hit=20)
    misses = rate * 10 * 3 - 1_000 / 20
    assert work(costs, 1_000, misses, 0, 20).total == pytest.approx(10)
    assert throughput_max_per_s(costs, 10, misses, 20) == pytest.approx(1_000)
    assert throughput_max_per_s(costs, 10, 2 * misses, 20) < 1_000
    assert throughput_max_per_s(costs, 10, 1_000, 20) == 0
    with pytest.raises(InvalidArgument, match="even without a miss"):
        break_even_per_s(costs, 1, 1_000, 10, 3)
