"""Bad clients: each has a defined outcome, and others do not notice."""

import random
import socket

import pytest

from mqtt.wire import Wire
from ringdove import limits
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import encode
from ringdove.protocol.mqtt.packets import V5, Reason
from server.running import wait_for


@pytest.fixture
def version():
    return V5


def test_random_bytes_end_connections_and_nothing_else(server, client):
    witness = client()
    dice = random.Random(7)
    for _ in range(50):
        with Wire(server.server.mqtt_port) as wire:
            if dice.random() < 0.5:
                wire.connect()
            # What it sends may be the beginning of a packet: then the end of the stream is its end.
            wire.socket.sendall(dice.randbytes(dice.randrange(1, 200)))
            wire.socket.shutdown(socket.SHUT_WR)
            wire.closed()
    assert witness.publish("alive", b"", 1).reason == 0


def test_a_slow_subscriber_is_ended_before_it_fills_the_memory(server, client, fresh, monkeypatch):
    monkeypatch.setattr(limits, "MQTT_BACKLOG_MAX", 50)
    slow = client(properties={"receive_maximum": 1})
    slow.subscribe(fresh, qos=1)
    publisher = client()
    for _ in range(60):
        publisher.publish(fresh, b"x", 1)
    assert slow.closed().reason == Reason.QUOTA_EXCEEDED


def test_a_subscriber_that_does_not_read_loses_quality_0_and_keeps_the_rest(server, client, fresh):
    deliveries = server.server._mqtt.deliveries
    deaf = client(fresh, clean=False, properties={"session_expiry_interval": 3600})
    deaf.subscribe(f"{fresh}/#", qos=1)
    publisher = client()
    before = deliveries.dropped
    body = b"x" * 200_000
    publisher.publish(f"{fresh}/kept", b"kept", 1)
    while deliveries.dropped == before:
        publisher.publish(f"{fresh}/0", body)
        publisher.publish("flush", b"", 1)
    publisher.publish(f"{fresh}/kept", b"kept too", 1)
    kept = []
    while len(kept) < 2:
        message = deaf.message()
        if message.qos:
            kept.append(message.payload)
    assert kept == [b"kept", b"kept too"]


def test_there_are_only_so_many_filters_in_a_session(client, fresh, monkeypatch):
    monkeypatch.setattr(limits, "MQTT_SUBSCRIPTIONS_MAX", 2)
    wire = client()
    assert wire.subscribe("a", "b", "c", "a", qos=0) == [0, 0, Reason.QUOTA_EXCEEDED, 0]


def test_there_are_only_so_many_sessions(server, monkeypatch):
    monkeypatch.setattr(limits, "MQTT_SESSIONS_MAX", 0)
    with Wire(server.server.mqtt_port) as wire:
        assert wire.connect("one too many").reason == Reason.QUOTA_EXCEEDED


def test_there_are_only_so_many_queues_made_by_devices(own_server, monkeypatch):
    monkeypatch.setattr(limits, "MQTT_QUEUES_MAX", 1)
    server = own_server()
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        assert wire.publish("first", b"", 1).reason == 0
        assert wire.publish("second", b"", 1).reason == Reason.QUOTA_EXCEEDED
        wire.send(p.Publish("first", b"", 1, 90), p.Publish("third", b"", 1, 91))
        assert [wire.expect(p.PubAck).reason for _ in range(2)] == [0, Reason.QUOTA_EXCEEDED]


def test_there_are_only_so_many_retained_messages(client, fresh, monkeypatch):
    wire = client()
    assert wire.publish(f"{fresh}/old", b"x", 1, retain=True).reason == 0
    monkeypatch.setattr(limits, "MQTT_RETAINED_MAX", 0)
    assert wire.publish(f"{fresh}/new", b"x", 1, retain=True).reason == Reason.QUOTA_EXCEEDED
    assert wire.publish(f"{fresh}/old", b"newer", 1, retain=True).reason == 0
    assert wire.publish(f"{fresh}/old", b"", 1, retain=True).reason == 0


def test_a_queue_that_does_not_take_a_message_refuses_that_one_only(client, rd, fresh):
    rd.create_queue(fresh, body_bytes_max=10)
    wire = client()
    wire.send(*(p.Publish(fresh, b"x" * size, 1, size) for size in (5, 20, 10)))
    answers = [wire.expect(p.PubAck) for _ in range(3)]
    assert [(one.packet_id, one.reason) for one in answers] == [
        (5, 0), (20, Reason.QUOTA_EXCEEDED), (10, 0),
    ]  # fmt: skip
    assert rd.queue(fresh).stats().waiting() == 2


def test_without_words_for_it_version_3_1_1_is_disconnected(server, rd, fresh):
    rd.create_queue(fresh, body_bytes_max=10)
    with Wire(server.server.mqtt_port, p.V311) as wire:
        wire.connect()
        wire.send(p.Publish(fresh, b"x" * 11, 1, 1))
        assert wire.closed() is None
        assert not wire.found


def test_a_client_identifier_has_a_limit(server):
    with Wire(server.server.mqtt_port) as wire:
        answer = wire.connect("x" * (limits.MQTT_CLIENT_ID_BYTES_MAX + 1))
        assert answer.reason == Reason.CLIENT_ID_INVALID


def test_long_names_of_clients_and_topics_are_remembered_too(own_server):
    server = own_server()
    client_id, topic = "c" * 250, "t" * 5_000
    with Wire(server.server.mqtt_port) as wire:
        wire.connect(client_id, clean=False, properties={"session_expiry_interval": 3600})
        wire.subscribe(topic)
        wire.publish(topic, b"kept", 1, retain=True)
    server.stop()
    server.start()
    with Wire(server.server.mqtt_port) as wire:
        assert wire.connect(
            client_id, clean=False, properties={"session_expiry_interval": 3600}
        ).session_present
        assert wire.message().topic == topic
        wire.subscribe(topic)
        assert wire.message().retain


def test_a_large_connect_is_refused_before_the_client_is_known(server):
    with Wire(server.server.mqtt_port) as wire:
        body = encode(p.Connect("x", V5, password=b"x" * 65_000), V5)
        wire.socket.sendall(b"\x10\xff\xff\xff\x01" + body)
        assert wire.closed() is None


def test_those_who_say_nothing_are_dropped(server, monkeypatch):
    monkeypatch.setattr("ringdove.frontends.mqtt.connection._CONNECT_S_MAX", 0.1)
    with Wire(server.server.mqtt_port) as wire:
        assert wire.closed() is None
    gateway = server.server._mqtt
    wait_for(lambda: all(one.machine.connect for one in list(gateway.connections)), "it is gone")
