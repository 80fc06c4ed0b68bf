"""CoAP packets: what we write aiocoap reads, and the other way round; garbage is refused."""

import aiocoap
import pytest
from aiocoap.message import Direction
from aiocoap.numbers.optionnumbers import OptionNumber
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove.errors import RemoteProtocolError
from ringdove.protocol.coap.packet import Code, Kind, Option, Packet, decode, encode, name_of, uint

VALUES = st.binary(max_size=300)
OPTIONS = st.lists(st.tuples(st.integers(1, 2_100), VALUES), max_size=6).map(
    lambda options: tuple(sorted(options, key=lambda option: option[0]))
)
PACKETS = st.builds(
    Packet,
    st.sampled_from(Kind),
    st.integers(1, 255),
    st.integers(0, 65_535),
    st.binary(max_size=8),
    OPTIONS,
    st.binary(max_size=40),
)


@untimed
@given(PACKETS)
def test_a_packet_comes_back_as_it_went(packet):
    assert decode(encode(packet)) == packet


#: Opaque to both sides, whatever their bytes.
OPAQUE = [Option.ETAG, OptionNumber.IF_MATCH, 2_049, 65_000]
TEXTS = [Option.URI_PATH, Option.URI_QUERY, Option.LOCATION_PATH, Option.LOCATION_QUERY]
NUMBERS = [Option.CONTENT_FORMAT, Option.MAX_AGE, Option.OBSERVE, Option.SIZE1]


@untimed
@given(
    st.sampled_from([Code.GET, Code.POST, Code.CONTENT, Code.CHANGED, Code.UNAVAILABLE]),
    st.binary(max_size=8),
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(OPAQUE), st.binary(min_size=1, max_size=8)),
            st.tuples(st.sampled_from(TEXTS), st.text(max_size=90).map(str.encode)),
        ),
        max_size=5,
    ),
    st.dictionaries(st.sampled_from(NUMBERS), st.integers(0, 65_535), max_size=4),
    st.binary(max_size=40),
)
def test_aiocoap_reads_what_we_write_and_we_read_what_it_writes(
    code, token, values, numbers, payload
):
    options = [*values, *((number, uint(value)) for number, value in numbers.items())]
    ordered = tuple(sorted(options, key=lambda option: option[0]))
    ours = Packet(Kind.CON, code, 77, token, ordered, payload)

    theirs = aiocoap.Message.decode(encode(ours))

    assert (theirs.mtype, theirs.code, theirs.mid, theirs.token) == ours[:4]
    assert theirs.payload == payload
    assert [(int(o.number), o.encode()) for o in theirs.opt.option_list()] == list(ordered)
    theirs.direction = Direction.OUTGOING
    assert decode(theirs.encode()) == ours


@untimed
@given(st.binary(max_size=60))
def test_bytes_are_a_packet_or_refused(data):
    try:
        packet = decode(data)
    except RemoteProtocolError:
        return
    assert decode(encode(packet)) == packet


@untimed
@given(PACKETS, st.data())
def test_a_packet_cut_short_is_another_or_refused(packet, data):
    whole = encode(packet)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        assert decode(cut) != packet
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x40\x01\x00", b"\x80\x01\x00\x01", b"\x49\x01\x00\x01" + 9 * b"t",
        b"\x42\x01\x00\x01t", b"\x40\x00\x00\x01x", b"\x40\x01\x00\x01\xff", b"\x40\x01\x00\x01\xf0",
        b"\x40\x01\x00\x01\x0f", b"\x40\x01\x00\x01\x13ab", b"\x40\x01\x00\x01\xd0",
    ],
    ids=[
        "nothing", "too short", "version 2", "long token", "cut token", "empty with more",
        "mark without payload", "reserved difference", "reserved length", "cut value", "cut number",
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(data):
    with pytest.raises(RemoteProtocolError):
        decode(data)


def test_codes_are_named_as_people_write_them():
    assert [name_of(code) for code in (Code.CHANGED, Code.NOT_FOUND, Code.UNAVAILABLE)] == [
        "2.04",
        "4.04",
        "5.03",
    ]
