"""Packets in and out: cut anywhere, damaged anywhere, and read alike by other people's codecs."""

import mqtt5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mqtt import made_packets
from ringdove.errors import LocalProtocolError, PacketRefused
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import Decoder, encode
from ringdove.protocol.mqtt.packets import V5, V311, Reason
from ringdove.protocol.mqtt.properties import write_properties, write_varint

untimed = settings(deadline=None, max_examples=50)

CONNECT = encode(p.Connect("device-1", V5), V5)


def decode(version, *pieces):
    decoder = Decoder(version)
    return [packet for piece in pieces for packet in decoder.feed(piece)], decoder


def refusal(data, version=V5):
    """The reason for which bytes are refused."""
    found, decoder = decode(version, data)
    assert found == []
    assert isinstance(decoder.failure, PacketRefused)
    return decoder.failure.reason


@untimed
@given(made_packets.versioned, st.binary(max_size=1))
def test_a_packet_is_read_as_written_whole_bytewise_and_with_bytes_behind_it(made, extra):
    version, packet = made
    data = encode(packet, version)
    assert decode(version, data)[0] == [packet]
    found, decoder = decode(version, *(data[at : at + 1] for at in range(len(data))))
    assert found == [packet]
    assert decoder.partial_bytes == 0
    found, decoder = decode(version, data + extra)
    assert found == [packet]
    assert decoder.partial_bytes == len(extra)


@untimed
@given(st.data(), st.sampled_from([V311, V5]))
def test_a_stream_may_be_cut_anywhere(data, version):
    packets = data.draw(st.lists(made_packets.packets(version), max_size=6))
    stream = b"".join(encode(packet, version) for packet in packets)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    # A packet that says CONNECT sets the version, which is the same one here.
    assert decode(version, *pieces)[0] == packets


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60), st.sampled_from([None, V311, V5]))
def test_any_bytes_are_packets_or_a_failure(data, version):
    whole, whole_decoder = decode(version, data)
    parts, parts_decoder = decode(version, *(data[at : at + 1] for at in range(len(data))))
    assert whole == parts
    assert (whole_decoder.failure is None) == (parts_decoder.failure is None)


@settings(deadline=None, max_examples=100)
@given(made_packets.versioned, st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_packet_is_a_packet_or_a_failure(made, at, byte):
    version, packet = made
    data = bytearray(encode(packet, version))
    data[at % len(data)] = byte
    found, decoder = decode(version, bytes(data))
    for one in found:
        assert isinstance(one, p.Packet)
    assert decoder.failure is None or decoder.failure.reason >= 0x80


def test_packets_before_a_bad_one_are_given_and_nothing_after_it():
    good = encode(p.Publish("a", b"1"), V5)
    found, decoder = decode(V5, good + b"\x00\x00" + good)
    assert found == [p.Publish("a", b"1")]
    assert decoder.failure is not None
    assert decoder.feed(good) == []


def test_a_server_learns_the_version_from_connect():
    for version in (V311, V5):
        found, decoder = decode(None, encode(p.Connect("x", version), version))
        assert found[0].version == decoder.version == version


def test_a_packet_beyond_the_limit_is_refused_before_it_has_come():
    decoder = Decoder(V5, packet_bytes_max=100)
    assert decoder.feed(b"\x30\xff\x7f") == []
    assert decoder.failure.reason == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
        (b"\x36\x05\x00\x01a\x00\x01", Reason.MALFORMED_PACKET),  # QoS 3
        (b"\x38\x04\x00\x01a\x00", Reason.MALFORMED_PACKET),  # DUP at QoS 0
        (b"\x32\x06\x00\x01a\x00\x00\x00", Reason.MALFORMED_PACKET),  # identifier 0
        (b"\x30\x04\x00\x05ab", Reason.MALFORMED_PACKET),
        (b"\x30\x04\x00\x01\xff\x00", Reason.MALFORMED_PACKET),  # no UTF-8
        (b"\x30\x04\x00\x01\x00\x00", Reason.MALFORMED_PACKET),  # the character 0
        (b"\x80\x07\x00\x01\x00\x00\x01a\x00", Reason.MALFORMED_PACKET),  # flags of SUBSCRIBE
        (b"\x82\x03\x00\x01\x00", Reason.PROTOCOL_ERROR),  # no filter
        (b"\x82\x07\x00\x01\x00\x00\x01a\x30", Reason.PROTOCOL_ERROR),  # retain handling 3
        (b"\x82\x07\x00\x01\x00\x00\x01a\xc0", Reason.MALFORMED_PACKET),  # reserved options
        (b"\xa2\x03\x00\x01\x00", Reason.PROTOCOL_ERROR),
        (b"\xc0\x01\x00", Reason.MALFORMED_PACKET),
        (b"\x40\x02\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x10\x06\x00\x04MQTX", Reason.MALFORMED_PACKET),
        (b"\x10\x0c\x00\x04MQTT\x06\x00\x00\x00\x00\x00", Reason.UNSUPPORTED_VERSION),
        (b"\x10\x0d\x00\x04MQTT\x05\x01\x00\x00\x00\x00\x00", Reason.MALFORMED_PACKET),
        # Properties: unknown, in the wrong packet, twice, and 0 where that is not allowed.
        (b"\x30\x06\x00\x01a\x02\x7f\x00", Reason.MALFORMED_PACKET),
        (b"\x30\x07\x00\x01a\x03\x13\x00\x01", Reason.MALFORMED_PACKET),
        (b"\x30\x08\x00\x01a\x04\x01\x00\x01\x00", Reason.PROTOCOL_ERROR),
        (b"\x30\x06\x00\x01a\x02\x01\x02", Reason.PROTOCOL_ERROR),
        (b"\x30\x06\x00\x01a\x02\x0b\x00", Reason.PROTOCOL_ERROR),
        (b"\x30\x05\x00\x01a\x09\x01", Reason.MALFORMED_PACKET),
    ],
)  # fmt: skip
def test_bad_bytes_have_their_reason(data, reason):
    assert refusal(data) == reason


def test_what_only_version_5_knows_is_refused_in_3_1_1():
    assert refusal(b"\x82\x06\x00\x01\x00\x01a\x04", V311) == Reason.MALFORMED_PACKET
    assert refusal(b"\xe0\x01\x00", V311) == Reason.MALFORMED_PACKET
    assert refusal(b"\xf0\x00", V311) == Reason.MALFORMED_PACKET
    assert refusal(b"\x40\x03\x00\x01\x00", V311) == Reason.MALFORMED_PACKET
    password_alone = b"\x10\x0f\x00\x04MQTT\x04\x40\x00\x00\x00\x00\x00\x01x"
    assert refusal(password_alone, None) == Reason.MALFORMED_PACKET


def test_what_cannot_be_written_is_our_own_error():
    for packet in (
        p.Publish("a" * 70_000, b""),
        p.Publish("a", b"", properties={"colour": 1}),
        p.Publish("a", b"", properties={"message_expiry_interval": -1}),
        p.Publish("\ud800", b""),
    ):
        with pytest.raises(LocalProtocolError):
            encode(packet, V5)
    with pytest.raises(LocalProtocolError):
        encode(p.Auth(), V311)


# -- other people's codecs -------------------------------------------------------------------------

#: Our names of properties, and theirs.
_MQTT5_NAMES = {
    "user_property": "user_properties",
    "receive_maximum": "receive_max",
    "topic_alias_maximum": "topic_alias_max",
    "maximum_packet_size": "max_packet_size",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
    "assigned_client_identifier": "assigned_client_id",
    "maximum_qos": "max_qos",
    "wildcard_subscription_available": "wildcard_subscription_available",
    "subscription_identifier_available": "subscription_id_available",
    "shared_subscription_available": "shared_subscription_available",
    "reason_string": "reason_str",
    "response_information": "response_info",
}


def _same_properties(theirs, ours):
    for name, value in (ours or {}).items():
        if name == "subscription_identifier":
            ids = getattr(theirs, "subscription_ids", None)
            assert (ids if ids is not None else [theirs.subscription_id]) == value
        else:
            assert getattr(theirs, _MQTT5_NAMES.get(name, name)) == value


@settings(deadline=None, max_examples=100)
@given(made_packets.packets(V5).filter(lambda packet: packet != p.Auth()))
def test_mqtt5_reads_what_we_write_and_we_read_what_it_writes(packet):
    """All but an AUTH without fields, which the standard allows and mqtt5 does not read."""
    data = encode(packet, V5)
    theirs, length = mqtt5.read(memoryview(data))
    assert length == len(data)
    assert type(theirs).__name__.lower() == f"{type(packet).__name__}Packet".lower()
    _same_properties(theirs, getattr(packet, "properties", None))
    match packet:
        case p.Publish():
            assert (theirs.topic, bytes(theirs.payload)) == (packet.topic, packet.payload)
            assert (theirs.qos, theirs.retain) == (packet.qos, packet.retain)
            assert (theirs.packet_id or 0) == packet.packet_id
        case p.Connect():
            assert (theirs.client_id, theirs.username) == (packet.client_id, packet.username)
            assert (theirs.keep_alive, theirs.password) == (packet.keep_alive_s, packet.password)
            assert (theirs.will is None) == (packet.will is None)
            if packet.will is not None:
                assert theirs.will.topic == packet.will.topic
                assert (theirs.will.payload or b"") == packet.will.payload
                _same_properties(theirs.will, packet.will.properties)
        case p.Subscribe():
            for their, our in zip(theirs.topic_filters, packet.filters, strict=True):
                assert (their.pattern, their.max_qos) == (our.pattern, our.qos)
                assert (their.no_local, their.retain_handling) == (
                    our.no_local,
                    our.retain_handling,
                )
    written_by_them = theirs.write()
    [read] = decode(V5, bytes(written_by_them))[0]
    assert encode(read, V5) == bytes(written_by_them) or _canonical(read) == _canonical(packet)


def _canonical(packet):
    """A packet without properties that say what is so anyway, in the order of their names."""
    defaults = {
        "payload_format_indicator": 0, "session_expiry_interval": 0, "receive_maximum": 65_535,
        "topic_alias_maximum": 0, "request_problem_information": 1, "will_delay_interval": 0,
        "request_response_information": 0, "maximum_qos": 2, "retain_available": 1,
        "wildcard_subscription_available": 1, "subscription_identifier_available": 1,
        "shared_subscription_available": 1,
    }  # fmt: skip
    plain = {name: getattr(packet, name) for name in packet.__struct_fields__}
    if plain.get("properties"):
        plain["properties"] = {
            name: value
            for name, value in plain["properties"].items()
            if defaults.get(name) != value
        }
    plain["properties"] = sorted((plain.get("properties") or {}).items())
    if plain.get("will") is not None:
        plain["will"] = _canonical(plain["will"])
    return plain


@untimed
@given(made_packets.properties(**made_packets.MESSAGE, topic_alias=made_packets.some_u16))
def test_paho_reads_the_properties_we_write(ours):
    theirs = Properties(PacketTypes.PUBLISH)
    theirs.unpack(write_properties(ours))
    names = {
        "payload_format_indicator": "PayloadFormatIndicator", "user_property": "UserProperty",
        "message_expiry_interval": "MessageExpiryInterval", "content_type": "ContentType",
        "response_topic": "ResponseTopic", "correlation_data": "CorrelationData",
        "topic_alias": "TopicAlias",
    }  # fmt: skip
    for name, value in (ours or {}).items():
        assert getattr(theirs, names[name]) == value
    body = b"\x00\x01a" + theirs.pack()
    [read] = decode(V5, b"\x30" + write_varint(len(body)) + body)[0]
    assert read.properties == ours
