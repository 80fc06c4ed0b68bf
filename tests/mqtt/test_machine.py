"""The server's side of a connection as a machine: any bytes in any pieces, and never a surprise."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mqtt import made_packets
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt import session as events
from ringdove.protocol.mqtt.codec import Decoder, encode
from ringdove.protocol.mqtt.packets import V5, V311, Reason
from ringdove.protocol.mqtt.session import ServerMachine


def machine(version=V5, **properties):
    """One that has let its client in."""
    made = ServerMachine(100_000, 10)
    made.receive(encode(p.Connect("c", version, properties=properties or None), version))
    made.accept(session_present=False, properties={})
    made.data_to_send()
    return made


def said(made):
    """The packets that the machine wants to send."""
    decoder = Decoder(made.version)
    found = decoder.feed(made.data_to_send())
    assert decoder.failure is None
    assert decoder.partial_bytes == 0
    return found


def feed(made, *packets):
    return made.receive(b"".join(encode(packet, made.version) for packet in packets))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([V311, V5]))
def test_whatever_a_client_sends_it_gets_good_packets_and_at_most_one_end(data, version):
    made = ServerMachine(100_000, 10)
    packets = data.draw(st.lists(made_packets.packets(version), max_size=8))
    if data.draw(st.booleans()):
        packets.insert(0, p.Connect("c", version))
    stream = b"".join(encode(packet, version) for packet in packets)
    stream += data.draw(st.binary(max_size=8))
    step = data.draw(st.integers(1, len(stream) or 1))
    found = []
    for at in range(0, len(stream), step):
        for event in made.receive(stream[at : at + step]):
            found.append(event)
            if isinstance(event, p.Connect):
                made.accept(session_present=False, properties={})
                found += made.receive(b"")
            elif isinstance(event, p.Publish) and event.qos:
                made.stored(event.packet_id, event.qos)
        said(made)
    ends = [event for event in found if isinstance(event, events.Ended)]
    assert len(ends) <= 1
    assert not ends or made.ended
    assert made.ended == bool(ends)
    if ends:
        assert made.receive(b"\xc0\x00") == []


def test_a_message_of_quality_1_is_answered_when_it_is_stored():
    made = machine()
    [event] = feed(made, p.Publish("a", b"x", 1, 7))
    assert event == p.Publish("a", b"x", 1, 7)
    assert said(made) == []
    made.stored(7, 1)
    assert said(made) == [p.PubAck(7)]
    feed(made, p.Publish("a", b"x", 1, 8))
    made.stored(8, 1, Reason.QUOTA_EXCEEDED)
    assert said(made) == [p.PubAck(8, Reason.QUOTA_EXCEEDED)]


def test_a_message_of_quality_2_is_told_of_once_until_it_is_released():
    made = machine()
    publish = p.Publish("a", b"x", 2, 7)
    assert feed(made, publish, publish) == [publish]
    made.stored(7, 2)
    assert said(made) == [p.PubRec(7)]
    assert feed(made, publish) == []
    assert said(made) == [p.PubRec(7)]
    assert feed(made, p.PubRel(7)) == [events.Released(7)]
    assert said(made) == []
    made.complete(7)
    assert said(made) == [p.PubComp(7)]
    assert feed(made, publish) == [publish]


def test_a_refused_message_of_quality_2_leaves_its_identifier_free():
    made = machine()
    publish = p.Publish("a", b"x", 2, 7)
    feed(made, publish)
    made.stored(7, 2, Reason.NOT_AUTHORIZED)
    assert said(made) == [p.PubRec(7, Reason.NOT_AUTHORIZED)]
    assert feed(made, publish) == [publish]


def test_a_message_to_the_client_goes_through_its_states():
    made = machine(receive_maximum=2)
    assert made.room == 2
    assert made.deliver(p.Publish("a", b"", 1, 1))
    assert made.deliver(p.Publish("a", b"", 2, 2))
    assert made.room == 0
    assert len(said(made)) == 2
    assert feed(made, p.PubAck(1)) == [events.Acknowledged(1)]
    assert feed(made, p.PubAck(1)) == []
    assert feed(made, p.PubRec(2)) == [events.Received(2)]
    assert feed(made, p.PubRec(2)) == []
    made.release(2)
    assert said(made) == [p.PubRel(2)]
    assert feed(made, p.PubRec(2)) == []
    assert said(made) == [p.PubRel(2)]
    assert made.room == 1
    assert feed(made, p.PubComp(2)) == [events.Completed(2)]
    assert made.room == 2


def test_a_client_may_refuse_a_message():
    made = machine()
    made.deliver(p.Publish("a", b"", 2, 2))
    assert feed(made, p.PubRec(2, Reason.QUOTA_EXCEEDED)) == [events.Acknowledged(2)]
    assert made.room == made.window


def test_nothing_is_said_to_a_client_that_never_connected():
    made = ServerMachine(100, 10)
    [end] = made.receive(b"\xc0\x00")
    assert (end.reason, said(made)) == (Reason.PROTOCOL_ERROR, [])


def test_explanations_are_left_out_for_those_who_do_not_want_them():
    made = machine(request_problem_information=0)
    made.end(Reason.SERVER_BUSY, "Because.")
    assert said(made) == [p.Disconnect(Reason.SERVER_BUSY)]
    made = machine()
    made.end(Reason.SERVER_BUSY, "Because.")
    assert said(made) == [p.Disconnect(Reason.SERVER_BUSY, {"reason_string": "Because."})]
    made = machine(V311)
    made.end(Reason.SERVER_BUSY, "Because.")
    assert said(made) == []


def test_explanations_are_left_out_for_those_who_take_no_packet_of_that_size():
    made = machine(maximum_packet_size=20)
    made.end(Reason.SERVER_BUSY, "Because there is too much to do.")
    assert said(made) == [p.Disconnect(Reason.SERVER_BUSY)]
    made = ServerMachine(100_000, 10)
    made.receive(encode(p.Connect("c", V5, properties={"maximum_packet_size": 20}), V5))
    made.end(Reason.NOT_AUTHORIZED, "Because nobody knows who you are.")
    assert said(made) == [p.ConnAck(reason=Reason.NOT_AUTHORIZED)]


def test_a_message_that_mqtt_has_no_words_for_is_not_sent_and_leaves_no_trace():
    made = machine(topic_alias_maximum=10)
    impossible = {"user_property": [("a", "x" * 70_000)]}
    assert not made.deliver(p.Publish("a", b"", 1, 1, properties=impossible))
    assert not made.in_use(1)
    assert made.deliver(p.Publish("a", b"", 1, 1))
    assert [one.topic for one in said(made)] == ["a"]
