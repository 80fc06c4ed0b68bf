"""A client that sends and sees single packets."""

import select
import socket
import time
from typing import Any, Self

from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import Decoder, encode
from ringdove.protocol.mqtt.packets import V5

PATIENCE_S = 30


class Wire:
    """A socket and a codec, nothing more: packets are answered only when a test does."""

    def __init__(self, port: int, version: int = V5) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.decoder = Decoder(version)
        self.found: list[Any] = []
        self._last_id = 0

    def connect(self, client_id: str = "", *, clean: bool = True, **fields: Any) -> p.ConnAck:
        """Say CONNECT; the answer."""
        if self.version != V5:
            fields.pop("properties", None)
        self.send(p.Connect(client_id, self.version, clean, **fields))
        return self.expect(p.ConnAck)

    def send(self, *packets: Any) -> None:
        """Send packets in one write."""
        self.socket.sendall(b"".join(encode(packet, self.version) for packet in packets))

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> Any:
        """Publish, and complete the exchange; the acknowledgement."""
        if not qos:
            self.send(p.Publish(topic, payload, **fields))
            return None
        self._last_id += 1
        self.send(p.Publish(topic, payload, qos, self._last_id, **fields))
        if qos == 1:
            return self.expect(p.PubAck)
        answer = self.expect(p.PubRec)
        if answer.reason < 0x80:
            self.send(p.PubRel(self._last_id))
            assert self.expect(p.PubComp).reason == 0
        return answer

    def subscribe(self, *filters: p.Filter | str, qos: int = 2, **fields: Any) -> list[int]:
        """Subscribe; what was granted."""
        self._last_id += 1
        wanted = [p.Filter(one, qos) if isinstance(one, str) else one for one in filters]
        self.send(p.Subscribe(self._last_id, wanted, **fields))
        return self.expect(p.SubAck).reasons

    def unsubscribe(self, *patterns: str) -> list[int]:
        """Unsubscribe; what became of it."""
        self._last_id += 1
        self.send(p.Unsubscribe(self._last_id, list(patterns)))
        return self.expect(p.UnsubAck).reasons

    def expect(self, kind: type) -> Any:
        """The next packet of a kind; others stay for later."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            for packet in self.found:
                if isinstance(packet, kind):
                    self.found.remove(packet)
                    return packet
            assert time.monotonic() < deadline_s, f"no {kind} but {self.found}"
            if not self._read(deadline_s - time.monotonic()):
                raise ConnectionError(f"closed, no {kind} but {self.found}")

    def message(self) -> p.Publish:
        """The next message, acknowledged."""
        packet = self.expect(p.Publish)
        if packet.qos == 1:
            self.send(p.PubAck(packet.packet_id))
        elif packet.qos == 2:
            self.send(p.PubRec(packet.packet_id))
            self.expect(p.PubRel)
            self.send(p.PubComp(packet.packet_id))
        return packet

    def messages(self, count: int) -> list[tuple[str, bytes, int]]:
        """The next messages: topic, payload and QoS."""
        found = [self.message() for _ in range(count)]
        return [(one.topic, one.payload, one.qos) for one in found]

    def nothing_more(self) -> bool:
        """Whether no message has come by the time that a ping is answered."""
        self.send(p.PingReq())
        self.expect(p.PingResp)
        return not any(isinstance(packet, p.Publish) for packet in self.found)

    def closed(self) -> p.Disconnect | p.ConnAck | None:
        """Wait for the end of the connection; the server's last word, if it had one."""
        while self._read(PATIENCE_S):
            pass
        last = [one for one in self.found if isinstance(one, p.Disconnect | p.ConnAck)]
        return last[-1] if last else None

    def disconnect(self, **fields: Any) -> None:
        """Say goodbye, and wait until the server has closed."""
        self.send(p.Disconnect(**fields))
        self.closed()
        self.socket.close()

    def drop(self) -> None:
        """Vanish without a word."""
        self.socket.close()

    def _read(self, patience_s: float) -> bool:
        readable, _, _ = select.select([self.socket], [], [], max(0.0, patience_s))
        assert readable, f"waited in vain; so far: {self.found}"
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.found += self.decoder.feed(data)
        assert self.decoder.failure is None, self.decoder.failure
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
