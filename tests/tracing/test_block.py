"""Trace blocks: what is written is read; what is no trace is refused."""

import contextlib
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove import limits
from ringdove.errors import InvalidArgument, RemoteProtocolError
from ringdove.tracing.block import TraceBlock

rows = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40), st.integers(0, 2)),
    min_size=1,
    max_size=30,
)


def block(found, kind="received"):
    times, ids, checks = zip(*found, strict=True)
    return TraceBlock.build("q", kind, "someone", 7, array("q", times), ids, bytes(checks))


@untimed
@given(rows, st.sampled_from(["sent", "received"]))
def test_what_was_written_is_read(found, kind):
    made = block(found, kind)
    assert TraceBlock.decode(made.encode()) == made
    assert made.count == len(found)


@untimed
@given(rows, st.data())
def test_bytes_that_were_changed_or_cut_off_are_refused_if_they_cannot_be_read(found, data):
    encoded = bytearray(block(found).encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut])):
        with contextlib.suppress(RemoteProtocolError):
            read = TraceBlock.decode(damaged)
            assert array("i", read.offsets)[-1] == len(read.ids)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("times_us", bytes(7)),
        ("offsets", bytes(4)),
        ("offsets", array("i", [0, 9]).tobytes()),
        ("offsets", array("i", [1, 2]).tobytes()),
        ("ids", b"longer"),
        ("checks", b"\x03"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(field, value):
    bad = msgspec.structs.replace(block([(1, b"id", 1)]), **{field: value})
    with pytest.raises(RemoteProtocolError):
        TraceBlock.decode(bad.encode())


def test_offsets_that_go_back_are_refused():
    offsets = array("i", [0, 3, 2]).tobytes()
    bad = msgspec.structs.replace(block([(1, b"a", 1), (2, b"b", 1)]), offsets=offsets)
    with pytest.raises(RemoteProtocolError):
        TraceBlock.decode(bad.encode())


def test_another_message_is_told_to_be_no_trace():
    with pytest.raises(RemoteProtocolError, match="is no trace"):
        TraceBlock.decode(b"21.5 degrees")


def test_an_id_may_be_as_long_as_a_message_id_and_no_longer():
    block([(1, bytes(limits.MESSAGE_ID_BYTES_MAX), 1)])
    with pytest.raises(InvalidArgument, match="257 bytes"):
        block([(1, bytes(limits.MESSAGE_ID_BYTES_MAX + 1), 1)])
