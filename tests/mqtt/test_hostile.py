"""Bad clients: each has a defined outcome, and others do not notice."""

import random
import socket

import pytest

from mqtt.wire import Wire
from ringdove import limits
from ringdove.errors import StoreUnavailable
from ringdove.frontends.mqtt.routes import Routes
from ringdove.pending import Pending
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import encode
from ringdove.protocol.mqtt.packets import V5, Reason
from ringdove.protocol.mqtt.rules import Rules
from ringdove.protocol.mqtt.topics import LEVELS_MAX
from server.running import wait_for

LASTING = {"clean": False, "properties": {"session_expiry_interval": 3600}}


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


def test_retained_messages_that_have_expired_make_room(server, client, fresh, monkeypatch):
    retained = server.server._mqtt.retained
    before = (retained.count, retained.nbytes)
    wire = client()
    for number in range(3):
        expiry = {"message_expiry_interval": 1 if number < 2 else 3600}
        wire.publish(f"{fresh}/{number}", b"x", 1, retain=True, properties=expiry)
    wire.publish(f"{fresh}/1", b"y", 1, retain=True)
    monkeypatch.setattr(limits, "MQTT_RETAINED_MAX", before[0] + 3)
    wait_for(lambda: retained.count == before[0] + 2, "one has expired")
    assert wire.publish(f"{fresh}/new", b"x", 1, retain=True).reason == 0
    for topic in ("1", "2", "new"):
        wire.publish(f"{fresh}/{topic}", b"", 1, retain=True)
    assert (retained.count, retained.nbytes) == before


def test_topics_of_retained_messages_count_and_those_of_the_server_do_not(own_server, monkeypatch):
    server = own_server()
    retained = server.server._mqtt.retained
    assert retained.find("$SYS/#", 0)
    assert retained.count == 0
    monkeypatch.setattr(limits, "MQTT_RETAINED_BYTES_MAX", retained.nbytes + 60_000)
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        refused = wire.publish("t" * 60_000, b"x", 1, retain=True)
        assert refused.reason == Reason.QUOTA_EXCEEDED
        refused = wire.publish("few" + "/" * 127, b"x", 1, retain=True)
        assert refused.reason == 0


def test_a_topic_has_only_so_many_levels(client):
    wire = client()
    assert wire.publish("/" * (LEVELS_MAX - 1), b"", 1).reason == 0
    wire.send(p.Publish("/" * LEVELS_MAX, b"", 1, 9))
    assert wire.closed().reason == Reason.TOPIC_NAME_INVALID


def test_routes_of_long_topics_are_not_all_remembered(monkeypatch):
    monkeypatch.setattr(limits, "MQTT_ROUTES_CHARS_MAX", 100)
    routes = Routes(Rules())
    for number in range(50):
        routes.find(f"{number:040}")
    assert len(routes._known) <= 2


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


def fill(wire, topic):
    """Publish until the queue is full; what it took."""
    taken = 0
    while wire.publish(topic, b"x" * 500, 1).reason == 0:
        taken += 1
    return taken


@pytest.mark.parametrize(
    "properties", [None, {"user_property": [("", "")] * 50}], ids=["plain", "with properties"]
)
def test_the_smallest_messages_do_not_pile_up_while_the_store_is_busy(
    server, client, fresh, properties, monkeypatch
):
    gateway = server.server._mqtt
    wire = client(fresh)
    connection = gateway.sessions.get(fresh).connection
    held = []
    begin = gateway.turns._begin_messages
    monkeypatch.setattr(gateway.turns, "_begin_messages", held.append)
    count = 10_000 if properties is None else 1_000
    wire.send(*[p.Publish("chat", b"", properties=properties)] * count)
    wait_for(lambda: not connection._reading, "the server has stopped reading")
    monkeypatch.undo()
    server.loop.call_soon_threadsafe(lambda: [begin(turn) for turn in held])
    assert wire.publish("chat", b"", 1).reason == 0
    assert connection._storing_bytes == 0


def test_nobody_gets_a_message_that_its_queue_has_refused(client, server, rd, fresh):
    rd.create_queue(fresh, bytes_max=4_000, body_bytes_max=1_000)
    here, away = client(), client(fresh, **LASTING)
    for wire in (here, away):
        wire.subscribe(fresh, qos=1)
    publisher = client()
    taken = fill(publisher, fresh)
    assert here.messages(taken) == away.messages(taken) == [(fresh, b"x" * 500, 1)] * taken
    for retain in (False, True):
        assert publisher.publish(fresh, b"y" * 500, 1, retain=retain).reason
        assert publisher.publish(fresh, b"y" * 1_001, 1, retain=retain).reason
        with Wire(server.server.mqtt_port, p.V311) as old:
            old.connect(f"{fresh}-old")
            old.send(p.Publish(fresh, b"y" * 500, 1, 1, retain))
            assert old.closed() is None
    assert here.nothing_more()
    assert away.nothing_more()
    late = client()
    late.subscribe(fresh)
    assert late.nothing_more()
    publisher.publish(f"{fresh}/other", b"", 1)
    away.subscribe(f"{fresh}/other")
    publisher.publish(f"{fresh}/other", b"the next", 1)
    assert away.messages(1) == [(f"{fresh}/other", b"the next", 1)]


def test_what_was_retained_stays_when_its_successor_is_refused(client, rd, fresh):
    rd.create_queue(fresh, body_bytes_max=10)
    wire = client()
    assert wire.publish(fresh, b"old", 1, retain=True).reason == 0
    wire.send(*(p.Publish(fresh, b"x" * 20, 1, number, retain=True) for number in (90, 91)))
    assert [wire.expect(p.PubAck).reason for _ in range(2)] == [Reason.QUOTA_EXCEEDED] * 2
    wire.subscribe(fresh)
    assert wire.messages(1) == [(fresh, b"old", 1)]


def test_a_message_that_cannot_be_retained_is_not_in_its_queue(client, rd, fresh, monkeypatch):
    queue = rd.create_queue(fresh)
    wire = client()
    monkeypatch.setattr(limits, "MQTT_RETAINED_MAX", 0)
    assert wire.publish(fresh, b"x", 1, retain=True).reason == Reason.QUOTA_EXCEEDED
    assert queue.stats().messages == 0


def test_a_message_with_too_large_a_record_does_not_harm_those_beside_it(client, fresh):
    wire = client()
    topic = f"{fresh}/{'t' * 60_000}"
    large = {"topic_alias": 1, "user_property": [("a", "y" * 60_000)] * 17}
    wire.send(
        p.Publish(topic, b"", 1, 1, properties={"topic_alias": 1}),
        p.Publish("", b"x" * 1_000, 1, 2, retain=True, properties=large),
        p.Publish(fresh, b"beside it", 1, 3),
    )
    answers = [wire.expect(p.PubAck).reason for _ in range(3)]
    assert answers == [0, Reason.QUOTA_EXCEEDED, 0]


def test_what_cannot_be_stored_concerns_those_only_whose_it_is(server, client, fresh, monkeypatch):
    gateway = server.server._mqtt
    subscriber, wire = client(fresh, **LASTING), client()
    subscriber.subscribe(f"{fresh}/copied", qos=1)
    stripe = gateway.sessions.get(fresh).stripe
    put, append = gateway._store.put, gateway._store.submit_append

    async def refuse_retained(key, *args, **options):
        if key.startswith("mqtt/retained/"):
            raise StoreUnavailable("There is no room.")
        return await put(key, *args, **options)

    def refuse_copies(where, *args):
        if where != stripe:
            return append(where, *args)
        refused = Pending()
        refused.fail(StoreUnavailable("Its node is gone."))
        return refused

    monkeypatch.setattr(gateway._store, "put", refuse_retained)
    monkeypatch.setattr(gateway._store, "submit_append", refuse_copies)
    wire.send(
        p.Publish(f"{fresh}/kept", b"x", 1, 1, retain=True),
        p.Publish(f"{fresh}/copied", b"x", 1, 2),
        p.Publish(f"{fresh}/plain", b"x", 1, 3),
    )
    answers = [wire.expect(p.PubAck).reason for _ in range(3)]
    assert answers == [Reason.UNSPECIFIED_ERROR, Reason.UNSPECIFIED_ERROR, 0]


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
