"""Where to connect: examples of each rule, and properties over all topologies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringdove.errors import InvalidArgument
from ringdove.tiers.reports import BrokerReport, Load, Where
from ringdove.tiers.routing import (
    FULL,
    MARGIN,
    ROLES,
    SETTLED_MS,
    Candidate,
    Routes,
    load_of,
)


def places(topology, where):
    return Routes(topology).places(where)


def moves(topology, where):
    return Routes(topology).moves(where)


def broker(name, level=0, region="", up_ms=SETTLED_MS, cpu=0.0, **fields):
    load = Load(cpu=cpu, disk=fields.pop("disk", 0.0), connections=fields.pop("connections", 0))
    url = f"ringdove://{name}:7117"
    return Candidate(BrokerReport(name, level, region, url, load=load, **fields), up_ms)


def names(found):
    return [place.name for place in found]


TREE = [
    broker("core", 0),
    broker("hub-eu", 1, "eu"),
    broker("hub-us", 1, "us"),
    broker("west", 2, "eu-west"),
    broker("north", 2, "eu-north"),
    broker("texas", 2, "us-south"),
]


def test_a_producer_goes_to_level_0():
    assert names(places(TREE, Where("producer", region="eu-west"))) == ["core"]


def test_a_consumer_goes_to_the_highest_level_of_its_region():
    found = names(places(TREE, Where("consumer", region="eu-west")))
    assert found == ["west", "north", "hub-eu", "texas", "hub-us", "core"]


def test_a_consumer_of_a_wider_region_goes_to_the_highest_level_in_it():
    assert names(places(TREE, Where("consumer", region="us")))[:2] == ["texas", "hub-us"]


def test_a_consumer_without_a_region_goes_to_the_highest_level():
    assert places(TREE, Where("consumer"))[0].level == 2


def test_a_relay_goes_one_level_up_to_the_nearest():
    where = Where("relay", level=2, region="eu-west", name="west")
    assert names(places(TREE, where)) == ["hub-eu", "hub-us", "core"]


def test_a_relay_never_pulls_from_one_that_pulls_from_it():
    # They once had other levels: reports may be late and contradict each other.
    tangle = [broker("a", 2), broker("b", 1, upstream="c"), broker("c", 0, upstream="a")]
    assert places(tangle, Where("relay", level=2, name="a")) == []


def test_a_broker_that_does_not_serve_is_no_place():
    assert places([broker("standby", serving=False)], Where("producer")) == []


def test_what_could_not_be_reached_comes_last():
    two = [broker("near", 1, "eu"), broker("far", 1, "us")]
    where = Where("consumer", region="eu", avoid=["near"])
    assert names(places(two, where)) == ["far", "near"]


def test_a_network_of_ones_own_comes_before_load():
    two = [broker("here", cpu=0.8, networks=["10.1.0.0/16", "fd00::/8"]), broker("idle")]
    for address in ("10.1.2.3", "fd00::7"):
        assert names(places(two, Where("producer", addresses=[address])))[0] == "here"
    assert names(places(two, Where("producer", addresses=["10.2.2.3"])))[0] == "idle"


def test_the_disk_counts_for_those_who_fill_it():
    two = [broker("full", 0, disk=0.97), broker("busy", 0, cpu=0.6)]
    assert names(places(two, Where("producer"))) == ["busy", "full"]
    assert names(places(two, Where("consumer"))) == ["full", "busy"]


def test_load_is_relative_to_capacity():
    large = broker("large", connections=1_000, capacity=10_000)
    small = broker("small", connections=500, capacity=1_000)
    assert names(places([small, large], Where("consumer"))) == ["large", "small"]


def test_equals_are_spread_over_and_a_name_always_gets_the_same():
    equals = [broker(f"b{number}", cpu=number / 100) for number in range(4)]
    routes = Routes(equals)
    first = [routes.places(Where("consumer", name=f"c{n}"))[0].name for n in range(400)]
    again = [places(equals[::-1], Where("consumer", name=f"c{n}"))[0].name for n in range(400)]
    assert first == again
    assert min(first.count(f"b{number}") for number in range(4)) > 60


def test_who_is_connected_stays_while_others_are_only_a_little_better():
    two = [broker("here", cpu=0.49), broker("there", cpu=0.49 - MARGIN + 0.02)]
    assert names(places(two, Where("consumer", name="c", at="here"))) == ["here", "there"]
    assert moves(two, Where("consumer", name="c", at="here")) == []


def test_a_share_leaves_a_busy_broker_as_large_as_makes_both_equal():
    two = [broker("here", cpu=0.9), broker("there", cpu=0.3)]
    gone = [bool(moves(two, Where("consumer", name=f"c{n}", at="here"))) for n in range(3000)]
    assert 0.28 < sum(gone) / len(gone) < 0.39


def test_a_full_broker_loses_some_to_another_region():
    two = [broker("home", 1, "eu", cpu=1.0), broker("away", 1, "us", cpu=0.2)]
    gone = [moves(two, Where("consumer", name=f"c{n}", region="eu", at="home")) for n in range(99)]
    assert 0 < sum(map(bool, gone)) < 99


def test_nobody_returns_to_a_home_that_is_barely_better_or_just_back():
    away = broker("away", 1, "us", cpu=0.6)
    where = Where("consumer", name="c", region="eu", at="away")
    assert moves([away, broker("home", 1, "eu", cpu=FULL - 0.05)], where) == []
    assert moves([away, broker("home", 1, "eu", up_ms=SETTLED_MS - 1)], where) == []
    assert names(moves([away, broker("home", 1, "eu")], where)) == ["home"]


def test_whose_broker_has_gone_moves_at_once():
    fresh = broker("fresh", up_ms=0)
    assert names(moves([fresh], Where("producer", at="gone"))) == ["fresh"]
    assert moves([broker("here")], Where("producer", at="here")) == []


@pytest.mark.parametrize(
    ("where", "report"),
    [
        (Where("king"), {}),
        (Where("producer", addresses=["nowhere"]), {"networks": ["10.0.0.0/8"]}),
    ],
)
def test_what_cannot_be_read_is_refused(where, report):
    with pytest.raises(InvalidArgument):
        places([broker("b", **report)], where)


REGIONS = st.sampled_from(["", "eu", "eu-west", "eu-west-1", "eu-north", "us", "us-south"])
SHARES = st.sampled_from([0.0, 0.2, 0.5, 0.6, 0.9, 0.96, 1.0])


@st.composite
def topologies(draw):
    count = draw(st.integers(0, 7))
    ids = [f"b{number}" for number in range(count)]
    return [
        broker(
            name,
            draw(st.integers(0, 3)),
            draw(REGIONS),
            draw(st.sampled_from([0, SETTLED_MS])),
            draw(SHARES),
            disk=draw(SHARES),
            upstream=draw(st.sampled_from(["", "gone", *ids])),
            serving=draw(st.booleans() | st.just(True)),
        )
        for name in ids
    ]


@st.composite
def askers(draw):
    maybe_ids = [f"b{number}" for number in range(7)]
    return Where(
        draw(st.sampled_from(ROLES)),
        draw(st.integers(0, 4)),
        draw(REGIONS),
        name=draw(st.sampled_from(["someone", *maybe_ids])),
        at=draw(st.sampled_from(["", "gone", *maybe_ids])),
        avoid=draw(st.lists(st.sampled_from(maybe_ids), max_size=2)),
    )


def chain(topology, name):
    """The brokers that one pulls from, itself first, until there is none or one comes again."""
    upstreams = {each.report.name: each.report.upstream for each in topology}
    found = []
    while name and name not in found:
        found.append(name)
        name = upstreams.get(name, "")
    return found


@given(topologies(), askers())
def test_places_are_right_for_the_role_and_complete(topology, where):
    found = places(topology, where)
    right = {
        "producer": lambda b: b.level == 0,
        "consumer": lambda _: True,
        "relay": lambda b: b.level < where.level and where.name not in chain(topology, b.name),
    }[where.role]
    expected = {c.report.name for c in topology if c.report.serving and right(c.report)}
    assert set(names(found)) == expected
    assert len(found) == len(expected)


@given(topologies(), askers(), st.randoms(use_true_random=False))
def test_the_order_of_reports_does_not_matter(topology, where, random):
    before = places(topology, where)
    random.shuffle(topology)
    assert places(topology, where) == before


@given(topologies(), askers())
def test_the_first_place_is_reachable_if_any_is(topology, where):
    found = names(places(topology, where))
    if set(found) - set(where.avoid):
        assert found[0] not in where.avoid


@given(topologies(), askers())
def test_who_stays_is_told_to_stay_and_who_moves_is_never_sent_back_to_the_same(topology, where):
    first = names(places(topology, where))[:1]
    sent = names(moves(topology, where))
    assert where.at not in sent
    if first == [where.at]:
        assert sent == []


@given(topologies(), askers())
def test_who_was_moved_stays_where_it_was_sent(topology, where):
    """One move is enough: with the same reports nobody goes on to a third place or back."""
    settled = [each._replace(up_ms=SETTLED_MS) for each in topology]
    sent = moves(settled, where)
    if sent and where.avoid == []:
        where.at = sent[0].name
        assert moves(settled, where) == []


@given(topologies(), askers())
def test_a_place_that_is_not_full_comes_before_one_that_is(topology, where):
    where.at, where.avoid = "", []
    full = [
        load_of(next(c.report for c in topology if c.report.name == place.name), where.role) >= FULL
        for place in places(topology, where)
    ]
    assert full == sorted(full)
