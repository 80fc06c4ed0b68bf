"""From queues to devices."""

import pytest

import ringdove
from mqtt.wire import Wire
from ringdove import limits
from ringdove.core.block import key_hash
from ringdove.core.settings import QueueSettings
from ringdove.errors import QueueFull, StoreFull
from ringdove.frontends.mqtt import downlink
from ringdove.frontends.mqtt.turn import Turn
from ringdove.protocol.mqtt import packets as p
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


def test_what_one_stripe_refuses_is_not_stored_twice_on_the_others(server, rd):
    queue = rd.create_queue(
        "readings", order="key", stripes=2, bytes_max=4_000, body_bytes_max=1_000
    )
    free, full = (
        next(str(n) for n in range(99) if key_hash(b"%d" % n) % 2 == stripe) for stripe in (0, 1)
    )
    for _ in range(3):
        queue.send(b"x" * 1_000, key=full)
    with pytest.raises(QueueFull):
        queue.send(b"x" * 1_000, key=full)
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        wire.send(
            p.Publish(f"meters/{free}/reading", b"one", 1, 1),
            p.Publish(f"meters/{full}/reading", b"y" * 1_000, 1, 2),
            p.Publish(f"meters/{free}/reading", b"two", 1, 3),
        )
        answers = [wire.expect(p.PubAck).reason for _ in range(3)]
        assert answers == [0, p.Reason.QUOTA_EXCEEDED, 0]
    found = [message.body for message in queue.peek(99) if message.key == free.encode()]
    assert found == [b"one", b"two"]


def test_a_batch_is_divided_into_what_is_stored_or_refused_as_one(monkeypatch):
    monkeypatch.setattr("ringdove.frontends.mqtt.turn._PART_BYTES_MAX", 10)
    turn = Turn()
    for mark, size in enumerate((6, 6, 11, 3, 3)):
        turn.put(mark, "q", b"x" * size, b"", None)
    batch = turn.batches["q"]
    [stripe] = batch.parts(QueueSettings())
    parts = [list(part) for part in stripe]
    assert parts == [[0], [1], [2], [3, 4]]
    assert [len(body) for body in batch.outgoing(parts[-1]).bodies] == [3, 3]


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


def test_attributes_that_mqtt_cannot_carry_do_not_keep_messages_back(server, rd):
    queue = rd.create_queue("commands")
    with Wire(server.server.mqtt_port) as lasting, Wire(server.server.mqtt_port) as brief:
        lasting.connect("device-7", **LASTING)
        brief.connect("device-8")
        for wire in (lasting, brief):
            wire.subscribe("devices/+/commands")
        odd = {"large": "x" * 70_000, "zero": "a\0b", "unit": "kWh"}
        queue.send_many([ringdove.NewMessage(b"one", "7", odd), ringdove.NewMessage(b"two", "7")])
        for wire in (lasting, brief):
            first, second = wire.message(), wire.message()
            assert (first.payload, second.payload) == (b"one", b"two")
            assert first.properties == {"user_property": [("unit", "kWh")]}


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


def test_subscribers_make_so_many_queues_and_no_more(server, rd, monkeypatch):
    monkeypatch.setattr(limits, "MQTT_QUEUES_MAX", 2)
    rd.create_queue("orders.there").send(b"one")
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        wire.subscribe(*(f"sites/{name}/orders" for name in ("a", "b", "c", "d")))
        wire.subscribe("sites/there/orders")
        assert wire.messages(1) == [("sites/there/orders", b"one", 1)]
        made = server.server._mqtt.downlinks._running
        wait_for(lambda: len(rd.queues("orders.")) == 3, "two were made")
        assert {rule.queue for rule in made} >= {"orders.there", "orders.a", "orders.b"}
        assert not {rule.queue for rule in made} & {"orders.c", "orders.d"}


def test_queues_that_could_not_be_made_for_subscribers_do_not_count(server, rd, monkeypatch):
    monkeypatch.setattr(limits, "MQTT_QUEUES_MAX", 2)
    monkeypatch.setattr(downlink, "_AGAIN_S", 0.001)
    failed = without_room(server, monkeypatch)
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        wire.subscribe("sites/a/orders", "sites/b/orders")
        wait_for(lambda: len(failed) > 5, "attempts")
        monkeypatch.undo()
        wait_for(lambda: len(rd.queues("orders.")) == 2, "both were made")
        assert server.server._mqtt.downlinks._created == 2


def test_queues_that_could_not_be_made_for_publishers_do_not_count(server, monkeypatch):
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        with monkeypatch.context() as full:
            failed = without_room(server, full)
            for _ in range(3):
                assert wire.publish("new/one", b"", 1).reason == p.Reason.QUOTA_EXCEEDED
            assert failed.count("new.one") == 3
        monkeypatch.setattr(limits, "MQTT_QUEUES_MAX", 1)
        assert wire.publish("new/one", b"", 1).reason == 0
        assert wire.publish("new/two", b"", 1).reason == p.Reason.QUOTA_EXCEEDED


def test_subscribers_who_may_make_no_queue_are_served_when_another_has_made_it(
    server, rd, monkeypatch
):
    monkeypatch.setattr(limits, "MQTT_QUEUES_MAX", 0)
    monkeypatch.setattr(downlink, "_AT_LIMIT_S", 0.001)
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        wire.subscribe("sites/x/orders")
        downlinks = server.server._mqtt.downlinks
        running = lambda: {own.queue for own in list(downlinks._running)}
        wait_for(lambda: "orders.x" not in running(), "refused")
        rd.create_queue("orders.x").send(b"one")
        assert wire.messages(1) == [("sites/x/orders", b"one", 1)]


def without_room(server, monkeypatch):
    """Have no queue made; the names of those that were wanted."""
    failed = []

    async def full(name, _):
        failed.append(name)
        raise StoreFull("The disk is full.")

    monkeypatch.setattr(server.server._broker, "create_queue", full)
    return failed


def test_a_rule_is_served_once_however_often_it_is_begun(server, rd):
    rd.create_queue("orders.x").send(b"one")
    with Wire(server.server.mqtt_port) as wire:
        wire.connect()
        wire.subscribe("sites/x/orders")
        assert wire.messages(1) == [("sites/x/orders", b"one", 1)]
        downlinks = server.server._mqtt.downlinks
        [rule] = [own for own in downlinks._running if own.queue == "orders.x"]
        before = downlinks._running[rule]
        server.call(_soon(lambda: downlinks._begin(rule)))
        assert downlinks._running[rule] is before


async def _soon(act):
    act()


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
