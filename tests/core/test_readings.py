"""Readings of smart meters: they say who, which and whether they are whole."""

import json
import random
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove.core.readings import device_name, is_intact, make_reading, who_and_which

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def reading(number=12, sequence=3, seed=7):
    return make_reading(number, seed, sequence, AT, random.Random(seed))


def test_a_reading_says_who_which_and_when():
    fields = json.loads(reading())
    assert (fields["device"], fields["sequence"]) == ("meter-7-0012", 3)
    assert fields["time"] == "2026-01-01T12:00:00Z"
    assert fields["kwh"] > 0
    assert who_and_which(reading()) == (device_name(12, 7), 3)


def test_the_same_chance_makes_the_same_reading():
    assert reading() == reading()
    assert reading() != reading(seed=8)


@untimed
@given(st.data())
def test_a_changed_byte_is_noticed(data):
    body = bytearray(reading())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    assert is_intact(reading())
    assert not is_intact(bytes(body))


@untimed
@given(st.binary(max_size=60))
def test_what_is_no_reading_is_nobodys(body):
    assert who_and_which(body) is None
    assert not is_intact(body)
