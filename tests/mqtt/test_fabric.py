"""Two servers of one fabric: a device may come to either."""

import shutil

import pytest

from fabric.clusters import running
from mqtt.wire import Wire
from ringdove.cluster.layout import Rings
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.packets import V5, Reason
from server.running import ServerThread, wait_for

LASTING = {"clean": False, "properties": {"session_expiry_interval": 3600}}

pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    place = tmp_path_factory.mktemp("fabric")
    with running(place / "cluster", Rings(3)) as cluster:
        options = {"http": -1, "mqtt": 0, "store": cluster.url}
        with (
            ServerThread(place / "unused", **options) as one,
            ServerThread(place / "unused", **options) as other,
        ):
            yield one, other, lambda: ServerThread(place / "unused", **options)


@pytest.fixture
def ports(servers):
    return [server.server.mqtt_port for server in servers[:2]]


def knows(server, topic):
    """Whether a server knows that somebody subscribes to a topic, here or elsewhere."""
    gateway = server.server._mqtt
    return lambda: gateway.routes.find(topic).wanted or gateway.peers._elsewhere.find(topic)


def test_what_is_published_at_one_server_comes_to_subscribers_of_the_other(servers, ports, version):
    with Wire(ports[0], version) as publisher, Wire(ports[1], version) as subscriber:
        publisher.connect()
        subscriber.connect()
        subscriber.subscribe(f"live/{version}/#")
        wait_for(knows(servers[0], f"live/{version}/x"), "the other's subscription")
        for qos in (0, 1, 2):
            publisher.publish(f"live/{version}/{qos}", b"hello", qos)
        found = subscriber.messages(3)
        assert sorted(found) == [(f"live/{version}/{qos}", b"hello", qos) for qos in (0, 1, 2)]
        assert subscriber.nothing_more()


def test_a_lasting_session_goes_on_at_the_other_server(servers, ports, version):
    name = f"roaming-{version}"
    with Wire(ports[0], version) as device, Wire(ports[1], version) as other:
        device.connect(name, **LASTING)
        device.subscribe(f"commands/{version}", qos=2)
        other.connect()
        wait_for(knows(servers[1], f"commands/{version}"), "the session")
        other.publish(f"commands/{version}", b"while here", 2)
        assert device.messages(1) == [(f"commands/{version}", b"while here", 2)]
        device.send(p.Publish(f"up/{version}", b"once", 2, 9))
        device.expect(p.PubRec)
        with Wire(ports[1], version) as moved:
            assert moved.connect(name, **LASTING).session_present
            last = device.closed()
            assert last is None if version != V5 else last.reason == Reason.SESSION_TAKEN_OVER
            moved.send(p.Publish(f"up/{version}", b"once", 2, 9, dup=True))
            moved.expect(p.PubRec)
            other.publish(f"commands/{version}", b"after the move", 1)
            assert moved.messages(1) == [(f"commands/{version}", b"after the move", 1)]
        other.publish(f"commands/{version}", b"while away", 1)
    with Wire(ports[0], version) as back:
        assert back.connect(name, **LASTING).session_present
        assert back.messages(1) == [(f"commands/{version}", b"while away", 1)]
    stats = servers[0].call(servers[0].server._broker.queue_stats(f"up.{version}"))
    assert stats.waiting() == 1


def test_subscribes_that_overlap_do_not_disturb_one_another(servers, ports):
    with Wire(ports[0]) as device, Wire(ports[0]) as other:
        device.connect("overlapping", **LASTING)
        device.send(*(p.Subscribe(n, [p.Filter(f"overlap/{n}", 1)]) for n in (1, 2, 3)))
        assert [device.expect(p.SubAck).packet_id for _ in range(3)] == [1, 2, 3]
        other.connect()
        for n in (1, 2, 3):
            other.publish(f"overlap/{n}", b"", 1)
        assert [topic for topic, _, _ in device.messages(3)] == [f"overlap/{n}" for n in (1, 2, 3)]


def test_what_is_retained_at_one_server_is_retained_at_the_other(servers, ports):
    with Wire(ports[0]) as publisher, Wire(ports[1]) as subscriber:
        publisher.connect()
        publisher.publish("kept", b"value", 1, retain=True)
        subscriber.connect()
        retained = servers[1].server._mqtt.retained
        wait_for(lambda: retained.find("kept", 0), "the news of it")
        subscriber.subscribe("kept")
        assert subscriber.messages(1) == [("kept", b"value", 1)]


def test_a_group_gets_each_message_once_wherever_its_members_are(servers, ports):
    with Wire(ports[0]) as publisher, Wire(ports[1]) as first, Wire(ports[1]) as second:
        publisher.connect()
        for member in (first, second):
            member.connect()
            member.subscribe("$share/g/jobs", qos=1)
        wait_for(knows(servers[0], "jobs"), "the group")
        for number in range(6):
            publisher.publish("jobs", b"%d" % number, 1)
        found = first.messages(3) + second.messages(3)
        assert sorted(payload for _, payload, _ in found) == [b"%d" % n for n in range(6)]
        assert first.nothing_more()
        assert second.nothing_more()


def test_a_client_without_a_lasting_session_is_let_go_when_it_connects_elsewhere(ports):
    with Wire(ports[0]) as before, Wire(ports[1]) as after:
        before.connect("wanderer")
        after.connect("wanderer")
        assert before.closed().reason == Reason.SESSION_TAKEN_OVER
        assert after.nothing_more()


def test_the_will_of_a_client_whose_server_is_gone_is_published_by_another(
    servers, ports, monkeypatch
):
    monkeypatch.setattr("ringdove.limits.MQTT_WILL_GRACE_S", 0)
    monkeypatch.setattr("ringdove.frontends.mqtt.gateway.SIGN_S", 0.2)
    with Wire(ports[0]) as watcher, servers[2]() as third, Wire(third.server.mqtt_port) as device:
        watcher.connect()
        watcher.subscribe("wills")
        device.connect("mortal", will=p.Will("wills", b"gone", 1))
        assert watcher.nothing_more()
        third.stop()
        assert watcher.messages(1) == [("wills", b"gone", 1)]
        assert watcher.nothing_more()
