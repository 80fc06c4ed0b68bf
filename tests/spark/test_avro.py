"""Bodies in Avro are read by their schema, or refused with a reason."""

import datetime as dt
import json

import pytest

from ringdove.errors import AvroInvalid
from ringdove.spark.pipeline.avro import decode
from spark.avro_bodies import double, number, text

TANK = json.dumps(
    {
        "type": "record",
        "name": "Tank",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "level", "type": ["null", "double"]},
            {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["ok", "low"]}},
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "notes", "type": {"type": "array", "items": "string"}},
            {"name": "code", "type": {"type": "fixed", "name": "C", "size": 2}},
        ],
    }
)
WHOLE = (
    text("tank-ä") + number(1_763_000_000_123) + number(1) + double(2.5) + number(1)
    + number(1) + text("a") + number(-7) + number(0)
    + number(-2) + number(4) + text("x") + text("y") + number(0)
    + b"\x01\x02"
)  # fmt: skip


def test_every_kind_of_field_is_read():
    assert decode(TANK, WHOLE) == {
        "id": "tank-ä",
        "at": dt.datetime(2025, 11, 13, 2, 13, 20, 123_000, tzinfo=dt.UTC),
        "level": 2.5,
        "state": "low",
        "tags": [("a", -7)],
        "notes": ["x", "y"],
        "code": b"\x01\x02",
    }


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_body_that_ends_early_is_refused(length):
    with pytest.raises(AvroInvalid):
        decode(TANK, WHOLE[:length])


def test_a_body_that_goes_on_is_refused():
    with pytest.raises(AvroInvalid, match="1 bytes follow"):
        decode(TANK, WHOLE + b"\0")


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("long", b"\xff" * 20, "more than ten bytes"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("int", number(1 << 31), "more than 32 bits"),
        ("string", number(-5), "ends after"),
        ("string", number(2) + b"\xff\xff", "decode"),
        (["null", "int"], number(2), "choice 2 of 2"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            number(1 << 62),
            "out of range|large",
        ),
    ],
)
def test_what_cannot_be_is_refused(kind, body, reason):
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(AvroInvalid, match=reason):
        decode(json.dumps(schema), body)


@pytest.mark.parametrize(("kind", "bits"), [("int", 32), ("long", 64)])
def test_whole_numbers_have_so_many_bits(kind, bits):
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    for value in (2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
        assert decode(json.dumps(schema), number(value)) == {"f": value}


def test_a_record_may_contain_itself():
    schema = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
    }
    body = number(1) + number(1) + number(2) + number(0)
    assert decode(json.dumps(schema), body) == {"n": 1, "next": {"n": 2, "next": None}}
