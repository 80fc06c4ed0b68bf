"""What a block cannot hold: refused when it is built, with the value and the remedy."""

from array import array

import msgspec
import pytest

from core.samples import column, forge
from ringdove import limits
from ringdove.core.block import HEADER_BYTES, Block
from ringdove.errors import LocalProtocolError, RemoteProtocolError

BODIES = [b"first", b"", b"third and longest"]


# -- what the builder refuses ------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, limits.BLOCK_MESSAGES_MAX + 1])
def test_a_count_outside_the_range_is_refused_naming_both(count):
    with pytest.raises(LocalProtocolError, match=rf"1 to 65536 messages, not {count}\."):
        Block.build([b""] * count, sent_ms=1)


def test_more_bytes_than_a_block_holds_are_refused_with_the_remedy():
    body = bytes(limits.BLOCK_BYTES_MAX // 2)
    with pytest.raises(LocalProtocolError, match=r"67108864 bytes, not .*send fewer"):
        Block.build([body, body, b"x"], sent_ms=1)


def test_bodies_that_fit_without_their_offsets_are_refused_with_them(monkeypatch):
    monkeypatch.setattr(limits, "BLOCK_BYTES_MAX", 1_000)
    Block.build([bytes(1_000 - HEADER_BYTES - 8 - 8 - 4)], sent_ms=1)
    with pytest.raises(LocalProtocolError, match=r"1000 bytes, not 1072"):
        Block.build([bytes(985)], sent_ms=1)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(2**64, id="integer beyond 64 bits"),
        pytest.param(-(2**63) - 1, id="integer below 64 bits"),
        pytest.param(object(), id="value of no known type"),
        pytest.param("\ud800", id="text that is no UTF-8"),
        pytest.param("x" * limits.ATTRIBUTES_BYTES_MAX, id="more bytes than allowed"),
    ],
)
def test_an_attribute_that_cannot_be_stored_is_refused(value):
    with pytest.raises(LocalProtocolError):
        Block.build(BODIES, sent_ms=1, attributes=[{"n": value}, None, None])


def test_attributes_nested_without_end_are_refused():
    nested: list = []
    nested.append(nested)
    with pytest.raises(LocalProtocolError):
        Block.build([b""], sent_ms=1, attributes=[{"n": nested}])


def test_attributes_nested_too_deeply_are_refused():
    nested: list = []
    for _ in range(3_000):
        nested = [nested]
    with pytest.raises(LocalProtocolError):
        Block.build([b""], sent_ms=1, attributes=[{"n": nested}])


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"keys": [b"a", b"b"]}, id="too few keys"),
        pytest.param({"keys": []}, id="no keys"),
        pytest.param({"keys": [b"a"] * 4}, id="too many keys"),
        pytest.param({"attributes": [{"a": 1}]}, id="too few attributes"),
        pytest.param({"attributes": [{"a": 1}] * 4}, id="too many attributes"),
        pytest.param({"sent_ms": [1, 2]}, id="too few times"),
        pytest.param({"sent_ms": []}, id="no times"),
        pytest.param({"sent_ms": -1}, id="time before 1970"),
        pytest.param({"sent_ms": 2**63}, id="time beyond int64"),
        pytest.param({"not_before_ms": -1}, id="not before 1970"),
        pytest.param({"priority": 10}, id="priority beyond the limit"),
        pytest.param({"priority": 256}, id="priority beyond a byte"),
        pytest.param({"compression": "gzip"}, id="unknown compression"),
        pytest.param({"attributes": [{1: "x"}, None, None]}, id="name that is no text"),
        pytest.param(
            {"bodies": [memoryview(array("I", [1, 2])), b"", b""]}, id="buffer of wide items"
        ),
    ],
)
def test_what_the_format_cannot_hold_is_refused_when_it_is_built(wrong):
    with pytest.raises(LocalProtocolError):
        Block.build(**{"bodies": BODIES, "sent_ms": 1, **wrong})


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 1), (3, 3), (1, 4), (-1, 2)])
def test_a_slice_outside_the_block_is_refused(start, stop):
    with pytest.raises(LocalProtocolError, match=f"{start}.*{stop}"):
        Block.build(BODIES, sent_ms=1).slice(start, stop)


# -- what the reader refuses in attributes ---------------------------------------------------------


def with_attributes(packed: bytes) -> bytes:
    """A block of one message with these encoded attributes."""
    return forge(bytes(8) + column([b""]) + column([packed]), flags=2)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\x81\xa1a\x91\x90", id="list in a list"),
        pytest.param(b"\x81\xa1a\x91\x80", id="map in a list"),
        pytest.param(b"\x81\xa1a\x80", id="map"),
        pytest.param(b"\x81\xa1a\xd4\x05\x00", id="extension"),
        pytest.param(b"\x81\xa1a\xd6\xff\x00\x00\x00\x01", id="timestamp"),
        pytest.param(
            msgspec.msgpack.encode({str(n): n for n in range(limits.ATTRIBUTES_MAX + 1)}),
            id="too many",
        ),
        pytest.param(
            msgspec.msgpack.encode({"a": bytes(limits.ATTRIBUTES_BYTES_MAX)}), id="too large"
        ),
    ],
)
def test_attributes_that_the_document_forbids_are_refused(packed):
    with pytest.raises(RemoteProtocolError):
        Block.decode(with_attributes(packed))


def test_attributes_at_the_limits_of_the_document_are_accepted():
    most = {str(n): [n, "x", None] for n in range(limits.ATTRIBUTES_MAX)}
    largest = {"a": bytes(limits.ATTRIBUTES_BYTES_MAX - 8)}
    for named in (most, largest):
        packed = msgspec.msgpack.encode(named)
        assert len(packed) <= limits.ATTRIBUTES_BYTES_MAX
        assert Block.decode(with_attributes(packed)).attributes() == [named]


# -- opened size -------------------------------------------------------------------------------


def test_every_block_that_is_built_is_also_accepted(monkeypatch):
    monkeypatch.setattr(limits, "BLOCK_BYTES_MAX", 4_000)
    bodies = [b"celsius=21.5;" * 280]
    keys = [b"sensor-" * 80]
    try:
        block = Block.build(bodies, keys=keys, sent_ms=1, compression="zstd")
    except LocalProtocolError:
        return
    assert Block.decode(block.buffer).bodies() == bodies


def test_every_block_that_is_accepted_can_be_sliced(monkeypatch):
    monkeypatch.setattr(limits, "BLOCK_BYTES_MAX", 4_000)
    payload = bytes(8) + column([b"x", b"y" * (4_000 - 24)])
    try:
        block = Block.decode(forge(payload, count=2, raw_bytes=len(payload) - 8))
    except RemoteProtocolError:
        return
    assert block.slice(1, 2).bodies() == [b"y" * (4_000 - 24)]
