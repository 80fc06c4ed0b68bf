"""Clients that others wrote, as they are: paho, aiomqtt, mosquitto_pub and mosquitto_sub."""

import asyncio
import queue
import shutil
import subprocess
import threading

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ringdove.protocol.mqtt.packets import V5
from server.running import wait_for

PATIENCE_S = 30

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"
)


class Paho:
    """A client of paho with its messages in a queue."""

    def __init__(self, port, version, client_id="", **options):
        protocol = paho.MQTTv5 if version == V5 else paho.MQTTv311
        if version != V5:
            options = {"clean_session": not options.pop("lasting", False)} if client_id else {}
        lasting = options.pop("lasting", False)
        self.messages = queue.Queue()
        self.connected = threading.Event()
        self.present = None
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **options
        )
        self.client.on_connect = self._on_connect
        self.client.on_message = lambda *args: self.messages.put(args[2])
        self.subscribed = queue.Queue()
        self.client.on_subscribe = lambda *args: self.subscribed.put(args[3])
        connect = {}
        if version == V5:
            connect["clean_start"] = not lasting
            connect["properties"] = Properties(PacketTypes.CONNECT)
            connect["properties"].SessionExpiryInterval = 3600 if lasting else 0
        self.client.connect("127.0.0.1", port, **connect)
        self.client.loop_start()
        assert self.connected.wait(PATIENCE_S)

    def _on_connect(self, client, userdata, flags, reason, properties):
        assert not reason.is_failure
        self.present = flags.session_present
        self.connected.set()

    def subscribe(self, pattern, qos=2):
        self.client.subscribe(pattern, qos)
        return [reason.value for reason in self.subscribed.get(timeout=PATIENCE_S)]

    def publish(self, topic, payload, qos, **options):
        self.client.publish(topic, payload, qos, **options).wait_for_publish(PATIENCE_S)

    def message(self):
        found = self.messages.get(timeout=PATIENCE_S)
        return found.topic, found.payload, found.qos

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def port(server):
    return server.server.mqtt_port


def test_paho_publishes_and_subscribes(port, version, fresh):
    client = Paho(port, version)
    assert client.subscribe(f"{fresh}/#") == [2]
    for qos in (0, 1, 2):
        client.publish(f"{fresh}/{qos}", b"hello", qos)
        assert client.message() == (f"{fresh}/{qos}", b"hello", qos)
    client.close()


def test_paho_gets_what_came_while_it_was_away(port, version, fresh):
    away = Paho(port, version, fresh, lasting=True)
    away.subscribe(fresh)
    away.close()
    other = Paho(port, version)
    for number in range(50):
        other.publish(fresh, b"%d" % number, 1 + number % 2)
    back = Paho(port, version, fresh, lasting=True)
    assert back.present
    # paho shows messages of QoS 2 when they are released, so they may come a little later.
    assert sorted(int(back.message()[1]) for _ in range(50)) == list(range(50))
    back.close()
    other.close()


def test_paho_sends_a_thousand_in_order(port, version, fresh):
    client = Paho(port, version)
    client.subscribe(fresh, 1)
    sent = [client.client.publish(fresh, b"%d" % number, 1) for number in range(1_000)]
    sent[-1].wait_for_publish(PATIENCE_S)
    assert [client.message()[1] for _ in range(1_000)] == [b"%d" % n for n in range(1_000)]
    client.close()


def test_aiomqtt_publishes_and_subscribes(port, version, fresh):
    protocol = aiomqtt.ProtocolVersion.V5 if version == V5 else aiomqtt.ProtocolVersion.V311

    async def talk():
        async with aiomqtt.Client("127.0.0.1", port, protocol=protocol) as client:
            await client.subscribe(f"{fresh}/#", qos=2)
            for qos in (0, 1, 2):
                await client.publish(f"{fresh}/{qos}", b"hello", qos=qos, retain=True)
            found = [await anext(client.messages) for _ in range(3)]
            return [(str(one.topic), one.payload, one.qos) for one in found]

    found = asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))
    assert sorted(found) == [(f"{fresh}/{qos}", b"hello", qos) for qos in (0, 1, 2)]


def mosquitto(program, port, version, *arguments):
    name = "mqttv5" if version == V5 else "mqttv311"
    return [f"mosquitto_{program}", "-h", "127.0.0.1", "-p", str(port), "-V", name, *arguments]


@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mosquitto_publishes_and_subscribes(server, port, version, fresh, qos):
    subscriber = subprocess.Popen(
        mosquitto("sub", port, version, "-t", f"{fresh}/#", "-q", str(qos), "-C", "2", "-v"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        gateway = server.server._mqtt
        before = f"{fresh}/a"
        wait_for(lambda: gateway.routes.find(before).wanted, "the subscription")
        for level in "ab":
            command = mosquitto(
                "pub", port, version, "-t", f"{fresh}/{level}", "-m", "hi", "-q", str(qos)
            )
            subprocess.run(command, check=True, timeout=PATIENCE_S)
        output, _ = subscriber.communicate(timeout=PATIENCE_S)
    finally:
        subscriber.kill()
        subscriber.wait()
    assert output.splitlines() == [f"{fresh}/a hi", f"{fresh}/b hi"]
