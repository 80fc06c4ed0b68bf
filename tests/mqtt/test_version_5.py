"""What only version 5 promises."""

import pytest

from mqtt.wire import Wire
from ringdove import limits
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.packets import V5, Reason
from ringdove.protocol.mqtt.session import TOPIC_ALIAS_MAX
from server.running import wait_for

LASTING = {"clean": False, "properties": {"session_expiry_interval": 3600}}


@pytest.fixture
def version():
    return V5


def connack(server, client_id="", **fields):
    with Wire(server.server.mqtt_port) as wire:
        answer = wire.connect(client_id, **fields)
        wire.disconnect()
    return answer


def test_the_server_tells_its_limits(server):
    told = connack(server).properties
    assert told["receive_maximum"] == limits.MQTT_RECEIVE_MAXIMUM
    assert told["maximum_packet_size"] == limits.MQTT_PACKET_BYTES_MAX
    assert told["topic_alias_maximum"] == TOPIC_ALIAS_MAX


def test_properties_go_from_publisher_to_subscriber(client, rd, fresh):
    wire = client()
    wire.subscribe(fresh)
    properties = {
        "payload_format_indicator": 1, "content_type": "text/plain", "response_topic": "answers/1",
        "correlation_data": b"\x01\x02", "user_property": [("a", "2"), ("c", "3"), ("a", "4")],
    }  # fmt: skip
    for qos in (0, 1, 2):
        wire.publish(fresh, b"hello", qos, properties=dict(properties))
        found = wire.message().properties
        assert {
            **found,
            "user_property": [tuple(pair) for pair in found["user_property"]],
        } == properties
    [message] = rd.queue(fresh).receive(max=1)
    assert message.attributes["content_type"] == "text/plain"
    assert message.attributes["correlation_data"] == b"\x01\x02"
    assert message.attributes["user.c"] == "3"


def test_a_request_is_answered_on_its_response_topic(client, fresh):
    server_side, client_side = client(), client()
    server_side.subscribe(f"{fresh}/request")
    client_side.subscribe(f"{fresh}/response")
    ask = {"response_topic": f"{fresh}/response", "correlation_data": b"42"}
    client_side.publish(f"{fresh}/request", b"?", 1, properties=ask)
    asked = server_side.message()
    server_side.publish(
        asked.properties["response_topic"], b"!", 1,
        properties={"correlation_data": asked.properties["correlation_data"]},
    )  # fmt: skip
    assert client_side.message().properties == {"correlation_data": b"42"}


def test_a_session_ends_after_its_expiry(server, fresh):
    lasting = {"session_expiry_interval": 1}
    assert not connack(server, fresh, properties=lasting).session_present
    assert connack(server, fresh, clean=False, properties=lasting).session_present
    wait_for(lambda: server.server._mqtt.sessions.get(fresh) is None, "the end of the session")
    assert not connack(server, fresh, clean=False, properties=lasting).session_present


def test_a_session_without_expiry_ends_with_its_connection(server, fresh):
    connack(server, fresh)
    assert not connack(server, fresh, clean=False).session_present


def test_the_expiry_may_change_at_the_end(server, client, fresh):
    wire = client(fresh, properties={"session_expiry_interval": 1})
    wire.disconnect(properties={"session_expiry_interval": 3600})
    present = connack(server, fresh, clean=False, properties={"session_expiry_interval": 3600})
    assert present.session_present
    wire = client(fresh, clean=False, properties={"session_expiry_interval": 3600})
    wire.disconnect(properties={"session_expiry_interval": 0})
    assert not connack(server, fresh, clean=False).session_present


def test_a_session_without_expiry_cannot_get_one_at_its_end(client):
    wire = client()
    wire.send(p.Disconnect(properties={"session_expiry_interval": 10}))
    assert wire.closed().reason == Reason.PROTOCOL_ERROR


def test_messages_expire_while_they_wait(client, fresh):
    lasting = {"clean": False, "properties": {"session_expiry_interval": 3600}}
    away = client(fresh, **lasting)
    away.subscribe(fresh)
    away.disconnect()
    publisher = client()
    publisher.publish(fresh, b"soon over", 1, properties={"message_expiry_interval": 1})
    publisher.publish(fresh, b"stays", 1, properties={"message_expiry_interval": 100})
    publisher.publish(
        f"{fresh}/r", b"kept", 1, retain=True, properties={"message_expiry_interval": 1}
    )
    watcher = client()

    def gone():
        watcher.subscribe(f"{fresh}/r")
        found = not watcher.nothing_more()
        watcher.found.clear()
        return not found

    wait_for(gone, "the retained message expires")
    back = client(fresh, **lasting)
    message = back.message()
    assert message.payload == b"stays"
    assert 90 <= message.properties["message_expiry_interval"] < 100
    assert back.nothing_more()


def test_no_local_keeps_away_ones_own_messages(client, fresh):
    one, other = client(), client()
    for wire in (one, other):
        wire.subscribe(p.Filter(fresh, 1, no_local=True))
    one.publish(fresh, b"not to me", 1)
    assert other.messages(1) == [(fresh, b"not to me", 1)]
    assert one.nothing_more()
    one.send(p.Subscribe(99, [p.Filter(f"$share/g/{fresh}", 1, no_local=True)]))
    assert one.closed().reason == Reason.PROTOCOL_ERROR


def test_no_local_holds_for_a_session_that_lasts(client, fresh):
    one, other = client(fresh, **LASTING), client()
    one.subscribe(p.Filter(fresh, 1, no_local=True))
    one.publish(fresh, b"not to me", 1)
    other.publish(fresh, b"from another", 1)
    assert one.messages(1) == [(fresh, b"from another", 1)]
    assert one.nothing_more()


def test_retain_as_published(client, fresh):
    wire = client()
    wire.subscribe(p.Filter(fresh, 1, retain_as_published=True))
    wire.publish(fresh, b"no", 1)
    wire.publish(fresh, b"yes", 1, retain=True)
    assert [wire.message().retain for _ in range(2)] == [False, True]


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(client, fresh, handling, counts):
    wire = client()
    wire.publish(fresh, b"kept", 1, retain=True)
    for count in counts:
        wire.subscribe(p.Filter(fresh, 1, retain_handling=handling))
        wire.messages(count)
        assert wire.nothing_more()


def test_subscription_identifiers_come_with_the_messages(client, fresh):
    wire = client()
    wire.subscribe(f"{fresh}/a", properties={"subscription_identifier": [7]})
    wire.subscribe(f"{fresh}/+", properties={"subscription_identifier": [300_000]})
    wire.publish(f"{fresh}/a", b"", 1)
    assert sorted(wire.message().properties["subscription_identifier"]) == [7, 300_000]
    wire.publish(f"{fresh}/b", b"", 1)
    assert wire.message().properties["subscription_identifier"] == [300_000]


def test_a_topic_alias_stands_for_its_topic_in_both_directions(client, fresh):
    wire = client(properties={"topic_alias_maximum": 1})
    wire.subscribe(f"{fresh}/#")
    wire.publish(f"{fresh}/a", b"1", 1, properties={"topic_alias": 3})
    wire.publish("", b"2", 1, properties={"topic_alias": 3})
    first, second = wire.message(), wire.message()
    assert (first.topic, second.topic) == (f"{fresh}/a", "")
    assert first.properties["topic_alias"] == second.properties["topic_alias"] == 1
    wire.publish(f"{fresh}/b", b"3", 1)
    third = wire.message()
    assert (third.topic, third.properties) == (f"{fresh}/b", None)


@pytest.mark.parametrize(
    ("alias", "reason"),
    [(TOPIC_ALIAS_MAX + 1, Reason.TOPIC_ALIAS_INVALID), (0, Reason.TOPIC_ALIAS_INVALID), (5, Reason.PROTOCOL_ERROR)],
)  # fmt: skip
def test_a_bad_alias_ends_the_connection(client, alias, reason):
    wire = client()
    wire.send(p.Publish("", b"", properties={"topic_alias": alias}))
    assert wire.closed().reason == reason


def test_the_server_keeps_to_the_receive_maximum(client, fresh):
    wire = client(properties={"receive_maximum": 2})
    wire.subscribe(fresh)
    publisher = client()
    for number in range(6):
        publisher.publish(fresh, b"%d" % number, 1 + number % 2)
    held = [wire.expect(p.Publish), wire.expect(p.Publish)]
    assert wire.nothing_more()
    wire.found += held
    assert [payload for _, payload, _ in wire.messages(6)] == [b"%d" % n for n in range(6)]


def test_a_client_that_exceeds_the_receive_maximum_is_ended(client, fresh):
    wire = client()
    count = limits.MQTT_RECEIVE_MAXIMUM + 1
    wire.send(*(p.Publish(fresh, b"", 2, number) for number in range(1, count + 1)))
    assert wire.closed().reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_a_packet_beyond_the_servers_maximum_ends_the_connection(client, fresh):
    wire = client()
    wire.socket.sendall(b"\x30" + b"\xff\xff\xff\x01" + b"\x00\x01a\x00")
    assert wire.closed().reason == Reason.PACKET_TOO_LARGE


def test_a_packet_beyond_the_clients_maximum_is_not_sent(client, fresh):
    wire = client(properties={"maximum_packet_size": 100})
    wire.subscribe(fresh)
    publisher = client()
    for qos in (0, 1, 2):
        publisher.publish(fresh, b"x" * 200, qos)
        publisher.publish(fresh, b"short", qos)
    assert wire.messages(3) == [(fresh, b"short", qos) for qos in (0, 1, 2)]
    assert wire.nothing_more()


def test_a_will_waits_for_its_delay_and_a_client_that_comes_back_takes_it_along(client, fresh):
    watcher = client()
    watcher.subscribe(fresh)
    fields = {
        "clean": False,
        "will": p.Will(fresh, b"gone", 0, properties={"will_delay_interval": 1, "user_property": [("a", "b")]}),
        "properties": {"session_expiry_interval": 3600},
    }  # fmt: skip
    client(fresh, **fields).drop()
    back = client(fresh, **fields)
    back.drop()
    message = watcher.message()
    assert (message.payload, message.properties) == (b"gone", {"user_property": [("a", "b")]})
    assert watcher.nothing_more()


def test_a_will_comes_when_the_session_ends_before_its_delay(client, fresh):
    watcher = client()
    watcher.subscribe(fresh)
    will = p.Will(fresh, b"gone", properties={"will_delay_interval": 3600})
    client(fresh, will=will, properties={"session_expiry_interval": 0}).drop()
    assert watcher.messages(1) == [(fresh, b"gone", 0)]
    lasting = {"will": will, "properties": {"session_expiry_interval": 3600}}
    client(fresh, **lasting).drop()
    assert watcher.nothing_more()
    client(fresh, clean=True)
    assert watcher.messages(1) == [(fresh, b"gone", 0)]


def test_a_client_may_say_goodbye_and_have_its_will_published(client, fresh):
    watcher = client()
    watcher.subscribe(fresh)
    client(fresh, will=p.Will(fresh, b"bye")).disconnect(reason=Reason.DISCONNECT_WITH_WILL)
    assert watcher.messages(1) == [(fresh, b"bye", 0)]


def test_a_goodbye_with_an_error_has_the_will_published(client, fresh):
    watcher = client()
    watcher.subscribe(fresh)
    client(fresh, will=p.Will(fresh, b"bye")).disconnect(reason=Reason.UNSPECIFIED_ERROR)
    assert watcher.messages(1) == [(fresh, b"bye", 0)]


def test_a_will_comes_when_its_session_is_taken_over_and_begun_anew(client, fresh):
    watcher = client()
    watcher.subscribe(fresh)
    will = p.Will(fresh, b"gone", properties={"will_delay_interval": 3600})
    client(fresh, will=will, **LASTING)
    client(fresh, clean=True)
    assert watcher.messages(1) == [(fresh, b"gone", 0)]


def test_an_unknown_way_to_authenticate_is_refused(server):
    with Wire(server.server.mqtt_port) as wire:
        answer = wire.connect(properties={"authentication_method": "SCRAM"})
        assert answer.reason == Reason.BAD_AUTHENTICATION_METHOD


def test_a_release_of_nothing_is_answered_so(client):
    wire = client()
    wire.send(p.PubRel(77))
    assert wire.expect(p.PubComp).reason == Reason.PACKET_ID_NOT_FOUND
    wire.send(p.PubRec(78))
    assert wire.expect(p.PubRel).reason == Reason.PACKET_ID_NOT_FOUND


def test_the_server_may_limit_the_keep_alive_time_and_the_expiry(own_server):
    server = own_server(mqtt_keep_alive_s=60, mqtt_session_s=100)
    answer = connack(server, keep_alive_s=120, properties={"session_expiry_interval": 0xFFFF_FFFF})
    assert answer.properties["server_keep_alive"] == 60
    assert answer.properties["session_expiry_interval"] == 100
    assert "server_keep_alive" not in connack(server, keep_alive_s=30).properties
