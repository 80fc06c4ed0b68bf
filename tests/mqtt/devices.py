"""Devices that keep to the protocol whatever happens to the server: they connect again and go on.

Each is a thread. What a real device would keep in its flash is in its attributes, and outlives its
connections.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from mqtt.wire import Wire
from ringdove.protocol.mqtt import packets as p

LASTING = {"clean": False, "properties": {"session_expiry_interval": 3600}}

#: Publishes that a device keeps unacknowledged.
WINDOW = 10


class Device(threading.Thread):
    """One device."""

    def __init__(self, find_port: Callable[[], int], version: int, client_id: str) -> None:
        super().__init__(daemon=True)
        self.find_port = find_port
        self.version = version
        self.client_id = client_id
        self.over = threading.Event()
        self.connections = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                with contextlib.suppress(OSError):
                    self._live()
                time.sleep(0.02)
        except BaseException as error:
            self.error = error

    def _live(self) -> None:
        with Wire(self.find_port(), self.version) as wire:
            present = wire.connect(self.client_id, **LASTING).session_present
            assert present or not self.connections, "the server has forgotten the session"
            self.connections += 1
            self.live(wire)

    def live(self, wire: Wire) -> None:
        """Do what the device does, until it is over or the connection breaks."""
        raise NotImplementedError

    def finish(self, patience_s: float = 60) -> None:
        """Wait for its end."""
        self.join(patience_s)
        assert self.error is None, self.error
        assert not self.is_alive(), f"{self.client_id} does not finish"


class Publisher(Device):
    """Publishes numbers, each until it is acknowledged."""

    def __init__(self, *args, topic: str, qos: int, count: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.qos = qos
        self.count = count
        #: Numbers by identifier, in their order; those of QoS 2 that the server has said PUBREC to.
        self.under_way: dict[int, int] = {}
        self.received: set[int] = set()
        self.sent = 0

    def live(self, wire: Wire) -> None:
        for packet_id, number in self.under_way.items():
            if packet_id in self.received:
                wire.send(p.PubRel(packet_id))
            else:
                wire.send(self._packet(packet_id, number, dup=True))
        while self.sent < self.count or self.under_way:
            while self.sent < self.count and len(self.under_way) < WINDOW:
                packet_id = next(n for n in range(1, 100) if n not in self.under_way)
                self.under_way[packet_id] = self.sent
                self.sent += 1
                wire.send(self._packet(packet_id, self.sent - 1, dup=False))
            answer = wire.expect(p.PubAck | p.PubRec | p.PubComp)
            assert answer.reason in (0, 0x92), answer
            if isinstance(answer, p.PubRec):
                self.received.add(answer.packet_id)
                wire.send(p.PubRel(answer.packet_id))
            else:
                self.received.discard(answer.packet_id)
                del self.under_way[answer.packet_id]
        self.over.set()

    def _packet(self, packet_id: int, number: int, *, dup: bool) -> p.Publish:
        return p.Publish(self.topic, b"%d" % number, self.qos, packet_id, dup=dup)


class Subscriber(Device):
    """Notes what it gets, and recognises by identifier what it had before."""

    def __init__(self, *args, pattern: str, qos: int) -> None:
        super().__init__(*args)
        self.pattern = pattern
        self.qos = qos
        self.got: list[tuple[str, int]] = []
        self.subscribed = threading.Event()
        self._held: set[int] = set()

    def live(self, wire: Wire) -> None:
        if not self.subscribed.is_set():
            assert wire.subscribe(self.pattern, qos=self.qos) == [self.qos]
            self.subscribed.set()
        while not self.over.is_set():
            packet = wire.expect(p.Publish | p.PubRel)
            if isinstance(packet, p.PubRel):
                self._held.discard(packet.packet_id)
                wire.send(p.PubComp(packet.packet_id))
                continue
            if packet.qos < 2 or packet.packet_id not in self._held:
                self.got.append((packet.topic, int(packet.payload)))
            if packet.qos == 2:
                self._held.add(packet.packet_id)
                wire.send(p.PubRec(packet.packet_id))
            elif packet.qos == 1:
                wire.send(p.PubAck(packet.packet_id))
