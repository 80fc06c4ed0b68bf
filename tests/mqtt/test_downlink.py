"""From queues to devices."""

import pytest

import ringdove
from mqtt.wire import Wire
from ringdove.protocol.mqtt.packets import V5
from server.running import wait_for

RULES = (
    "meters/+/reading -> readings, key = segment 2",
    "configuration => devices/{key}/config, retain",
    "commands => devices/{key}/commands",
    "orders.{2} => sites/+/orders",
    "chat/# -> none",
)
LASTING = {"clean": False, "properties": {"session_expiry_interval": 3600}}


@pytest.fixture
def server(own_server):
    return own_server(mqtt_rules=RULES)


@pytest.fixture
def rd(server):
    with ringdove.connect(server.url) as connection:
        yield connection


def test_a_rule_gathers_many_topics_in_one_queue_by_key(server, rd):
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        for meter in (1, 2):
            wire.publish(f"meters/{meter}/reading", b"%d" % meter, 1)
        wire.publish("chat/room", b"hi", 1)
    found = {m.key: (m.body, m.attributes["topic"]) for m in rd.queue("readings").receive(max=10)}
    assert found == {b"1": (b"1", "meters/1/reading"), b"2": (b"2", "meters/2/reading")}
    assert "chat.room" not in {queue.name for queue in rd.queues()}


def test_configuration_is_retained_for_each_device(server, rd, version):
    queue = rd.create_queue("configuration")
    queue.send(b"old", key="7")
    queue.send(b"new", key="7", attributes={"unit": "kWh"})
    wait_for(lambda: not queue.stats().messages, "the queue is published")
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect()
        wire.subscribe("devices/7/config")
        message = wire.message()
        assert (message.payload, message.retain) == (b"new", True)
        if version == V5:
            assert message.properties == {"user_property": [("unit", "kWh")]}
        queue.send(b"newest", key="7")
        assert wire.message().payload == b"newest"


def test_commands_stay_in_their_queue_until_somebody_wants_them(server, rd):
    wait_for(lambda: "commands" in {queue.name for queue in rd.queues()}, "the rule's queue")
    queue = rd.queue("commands")
    queue.configure(backoff_ms=10, backoff_ms_max=50)
    queue.send(b"open", key="7")
    queue.send(b"nobody's", key="8")
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device-7", **LASTING)
        wire.subscribe("devices/7/commands")
        assert wire.messages(1) == [("devices/7/commands", b"open", 1)]
    queue.send(b"close", key="7")
    left = lambda: sum(queue.stats().subscriptions["default"])
    wait_for(lambda: left() == 1, "the session has the command")
    with Wire(server.server.mqtt_port) as wire:
        assert wire.connect("device-7", **LASTING).session_present
        assert wire.messages(1) == [("devices/7/commands", b"close", 1)]


def test_a_device_may_have_a_queue_of_its_own(server, rd):
    queue = rd.create_queue("orders.north")
    queue.send(b"one")
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        wire.subscribe("sites/north/orders", "sites/south/orders")
        assert wire.messages(1) == [("sites/north/orders", b"one", 1)]
        queue.send(b"two")
        assert wire.messages(1) == [("sites/north/orders", b"two", 1)]
        wait_for(lambda: "orders.south" in {queue.name for queue in rd.queues()}, "its queue")
    wait_for(lambda: queue.stats().waiting() == 0, "all are done")


def test_a_queue_of_its_own_is_served_after_a_restart(server):
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device", **LASTING)
        wire.subscribe("sites/north/orders", qos=1)
    server.stop()
    server.start()
    with ringdove.connect(server.url) as rd, Wire(server.server.mqtt_port) as wire:
        rd.create_queue("orders.north").send(b"after the restart")
        assert wire.connect("device", **LASTING).session_present
        assert wire.messages(1) == [("sites/north/orders", b"after the restart", 1)]


@pytest.fixture
def attempts(server, monkeypatch):
    """How often messages went back to their queues because nobody wanted them."""
    broker, found = server.server._broker, []
    unlease = broker.unlease

    def count(receipts):
        found.append(len(receipts))
        return unlease(receipts)

    monkeypatch.setattr(broker, "unlease", count)
    return found


def test_waiting_for_a_subscriber_does_not_make_dead_letters(server, rd, attempts):
    wait_for(lambda: "commands" in {queue.name for queue in rd.queues()}, "the rule's queue")
    rd.create_queue("dead")
    queue = rd.queue("commands")
    queue.configure(receives_max=1, dead_letter="dead", backoff_ms=1, backoff_ms_max=1)
    queue.send(b"open", key="7")
    wait_for(lambda: len(attempts) >= 3, "three attempts")
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device-7", **LASTING)
        wire.subscribe("devices/7/commands")
        assert wire.messages(1) == [("devices/7/commands", b"open", 1)]
    assert rd.queue("dead").stats().messages == 0


def test_a_message_that_nobody_wants_does_not_keep_up_those_behind_it(server, rd, monkeypatch):
    monkeypatch.setattr("ringdove.frontends.mqtt.downlink._BATCH", 1)
    wait_for(lambda: "commands" in {queue.name for queue in rd.queues()}, "the rule's queue")
    queue = rd.queue("commands")
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device-7", **LASTING)
        wire.subscribe("devices/7/commands")
        for _ in range(5):
            queue.send(b"nobody's", key="8")
        queue.send(b"open", key="7")
        assert wire.messages(1) == [("devices/7/commands", b"open", 1)]


def test_who_is_away_and_subscribes_with_quality_0_finds_the_command_when_it_is_back(
    server, rd, attempts
):
    wait_for(lambda: "commands" in {queue.name for queue in rd.queues()}, "the rule's queue")
    queue = rd.queue("commands")
    queue.configure(backoff_ms=1, backoff_ms_max=1)
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device-7", **LASTING)
        wire.subscribe("devices/7/commands", qos=0)
        wire.disconnect()
    queue.send(b"open", key="7")
    wait_for(lambda: attempts, "an attempt")
    with Wire(server.server.mqtt_port) as wire:
        assert wire.connect("device-7", **LASTING).session_present
        assert wire.messages(1) == [("devices/7/commands", b"open", 0)]
