"""Topic filters: the standard's own examples, a plain definition, and paho's opinion."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from ringdove.protocol.mqtt.topics import (
    FilterTree,
    Shared,
    is_filter,
    is_topic,
    matches,
    parse_filter,
)

levels = st.sampled_from(["a", "b", "", "$x"])
names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.tuples(
        st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), min_size=1, max_size=4).map("/".join),
        st.booleans(),
    )
    .map(lambda made: f"{made[0]}/#" if made[1] else made[0])
    .filter(bool)
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/broker", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/broker", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ],
)
def test_the_examples_of_the_standard(pattern, name, expected):
    assert matches(pattern, name) is expected
    tree = FilterTree()
    tree.add(pattern, 1)
    assert tree.find(name) == ([1] if expected else [])


def test_what_a_name_and_a_filter_may_be():
    assert all(map(is_topic, ["a", "/", "a//b", "$SYS/x", "a b"]))
    assert not any(map(is_topic, ["", "a/+", "#", "a\0"]))
    assert all(map(is_filter, ["#", "+", "a/+/b", "/+/#", "//"]))
    assert not any(map(is_filter, ["", "a#", "#/a", "a+", "a/b+/c", "a/#/b"]))


def test_a_shared_filter_has_a_group_and_a_filter():
    assert parse_filter("$share/g/a/+") == Shared("g", "a/+")
    assert parse_filter("a/#") == Shared("", "a/#")
    for bad in ("$share/g", "$share//a", "$share/g/", "$share/g+/a", "$share/#/a", "a/#/b"):
        assert parse_filter(bad) is None


@settings(deadline=None, max_examples=100)
@given(st.lists(filters, max_size=8), names, st.data())
def test_a_tree_finds_what_matches_one_by_one(patterns, name, data):
    tree = FilterTree()
    for pattern in patterns:
        tree.add(pattern, pattern)
    gone = set(data.draw(st.lists(st.sampled_from(patterns), max_size=4))) if patterns else set()
    for pattern in gone:
        tree.remove(pattern, pattern)
        tree.remove(pattern, pattern)
    expected = {pattern for pattern in set(patterns) - gone if matches(pattern, name)}
    assert sorted(tree.find(name)) == sorted(expected)
    assert set(tree) == set(patterns) - gone
    assert tree.count == len(set(patterns) - gone)
    for pattern in set(patterns):
        tree.remove(pattern, pattern)
    assert not tree._root.below


@settings(deadline=None, max_examples=100)
@given(filters, names)
def test_paho_thinks_the_same(pattern, name):
    assert matches(pattern, name) == topic_matches_sub(pattern, name)
