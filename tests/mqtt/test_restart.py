"""What survives: a restart, and kill -9 in the middle of everything."""

import os
import random
import time
from collections import Counter

import ringdove
from mqtt.devices import LASTING, Publisher, Subscriber
from mqtt.wire import Wire
from ringdove.protocol.mqtt import packets as p
from server.running import ServerProcess, wait_for

KILLS = int(os.environ.get("RINGDOVE_MQTT_KILLS", "3"))
COUNT = 300 * KILLS


def test_sessions_retained_messages_and_wills_survive_a_restart(own_server, version):
    server = own_server()
    with (
        Wire(server.server.mqtt_port, version) as device,
        Wire(server.server.mqtt_port, version) as other,
    ):
        device.connect("device", **LASTING)
        device.subscribe("commands/+")
        other.connect("other", will=p.Will("wills/other", b"gone", 1, retain=True))
        other.publish("config", b"kept", 1, retain=True)
        other.publish("commands/1", b"before", 1)
        first = device.expect(p.Publish)
        other.send(p.Publish("exactly", b"once", 2, 9))
        other.expect(p.PubRec)
    server.stop()
    server.start()
    with (
        Wire(server.server.mqtt_port, version) as device,
        Wire(server.server.mqtt_port, version) as other,
    ):
        assert device.connect("device", **LASTING).session_present
        again = device.message()
        assert (again.payload, again.packet_id, again.dup) == (b"before", first.packet_id, True)
        other.connect("other")
        other.subscribe("config")
        assert other.messages(1) == [("config", b"kept", 1)]
        other.publish("commands/2", b"after", 1)
        assert device.messages(1) == [("commands/2", b"after", 1)]


def test_a_will_is_published_after_a_restart_unless_its_client_comes_back(own_server, monkeypatch):
    monkeypatch.setattr("ringdove.limits.MQTT_WILL_GRACE_S", 1)
    server = own_server()
    wires = [Wire(server.server.mqtt_port) for _ in range(2)]
    for name, wire in zip(("lost", "back"), wires, strict=True):
        wire.connect(name, will=p.Will(f"wills/{name}", b"gone", 1))
    server.stop()
    for wire in wires:
        wire.drop()
    server.start()
    with Wire(server.server.mqtt_port) as watcher, Wire(server.server.mqtt_port) as back:
        watcher.connect()
        watcher.subscribe("wills/#")
        back.connect("back")
        assert watcher.messages(1) == [("wills/lost", b"gone", 1)]
        assert watcher.nothing_more()


def test_an_ended_session_leaves_nothing_behind(own_server):
    server = own_server()
    with Wire(server.server.mqtt_port) as device:
        device.connect("device", **LASTING)
        device.subscribe("a")
        device.publish("a", b"x", 2)
        device.drop()
    with Wire(server.server.mqtt_port) as device:
        device.connect("device")
        device.disconnect()
    store = server.server._broker.store
    assert server.call(store.scan("mqtt/")) == []
    server.stop()
    server.start()
    assert server.server._mqtt.sessions.count == 0


def test_kill_9_under_load_loses_nothing_and_repeats_nothing_of_quality_2(tmp_path, version):
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    with ServerProcess(tmp_path / "data", "--mqtt", "0") as server:
        server.http_port = -1
        find_port = lambda: server.told["mqtt"]
        here = [
            Subscriber(find_port, version, f"here-{qos}", pattern=f"load/{qos}", qos=qos)
            for qos in (1, 2)
        ]
        away = Subscriber(find_port, version, "away", pattern="load/#", qos=2)
        for subscriber in (*here, away):
            subscriber.start()
            assert subscriber.subscribed.wait(60)
        away.over.set()
        with Wire(find_port(), version) as wire:
            wire.connect("away", **LASTING)  # Takes the session over, and vanishes.
        away.finish()
        with Wire(find_port(), version) as wire:
            wire.connect()
            wire.publish("kept", b"retained", 1, retain=True)
        publishers = [
            Publisher(
                find_port, version, f"publisher-{qos}", topic=f"load/{qos}", qos=qos, count=COUNT
            )
            for qos in (1, 2)
        ]
        for publisher in publishers:
            publisher.start()
        for kill in range(1, KILLS + 1):
            goal = COUNT * kill // (KILLS + 1)
            wait_for(lambda: all(one.sent >= goal for one in publishers), "publishers go on")
            time.sleep(dice.random() / 50)
            server.kill()
            server.start()
        for publisher in publishers:
            publisher.finish()
            assert publisher.connections > KILLS // 2
        _check_queues(server)
        with Wire(find_port(), version) as wire:
            wire.connect()
            for qos in (1, 2):
                wire.publish(f"load/{qos}", b"%d" % COUNT, 2)  # Behind all that is stored by now.
        _check_subscribers(here, find_port, version, seed)
        assert server.terminate() == 0


def _check(numbers, qos, count, where):
    """All there, in their order; of QoS 1, some may have come again."""
    if qos == 1:
        numbers = list(dict.fromkeys(numbers))
    assert Counter(numbers) == Counter(range(count)), f"lost or doubled: {where}"
    assert numbers == list(range(count)), f"out of order: {where}"


def _check_queues(server):
    with ringdove.connect(server.url) as rd:
        for qos in (1, 2):
            queue = rd.queue(f"load.{qos}")
            stored = list(queue.replay())
            _check([int(message.body) for message in stored], qos, COUNT, queue.name)
            left = {message.id for message in stored}
            while batch := queue.receive(max=1000):
                left.difference_update(message.id for message in batch)
                batch.ack()
            assert not left, f"stored and not received: {queue.name}"


def _await_end(subscriber, topics, seed):
    """Wait for the last of all messages, for as long as any come."""
    missing = {(topic, COUNT) for topic in topics}
    seen = 0
    while missing:
        wait_for(lambda: subscriber.error or len(subscriber.got) > seen, f"the end, seed {seed}")
        assert subscriber.error is None, subscriber.error
        fresh = subscriber.got[seen:]
        seen += len(fresh)
        missing.difference_update(fresh)
    subscriber.over.set()


def _check_subscribers(here, find_port, version, seed):
    back = Subscriber(find_port, version, "away", pattern="load/#", qos=2)
    back.subscribed.set()
    back.start()
    for subscriber in (*here, back):
        topics = {f"load/{subscriber.qos}"} if subscriber in here else {"load/1", "load/2"}
        _await_end(subscriber, topics, seed)
        for topic in topics:
            numbers = [number for found, number in subscriber.got if found == topic]
            where = f"{topic} to {subscriber.client_id}, seed {seed}"
            _check(numbers, int(topic[-1]), COUNT + 1, where)
    with Wire(find_port(), version) as wire:
        wire.connect()
        wire.subscribe("kept")
        assert wire.message().payload == b"retained"
