"""A device that does exactly as it is told: it sends and reads single datagrams."""

import random
import socket
from typing import Any, Self

from ringdove.protocol.coap.packet import Code, Kind, Option, Packet, decode, encode, uint

PATIENCE_S = 30


class Device:
    """One UDP socket that has a server to talk to."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._socket.settimeout(PATIENCE_S)
        self._mid = random.getrandbits(16)

    def request(
        self,
        code: Code,
        uri: str,
        payload: bytes = b"",
        *options: tuple[int, bytes],
        kind: Kind = Kind.CON,
        token: bytes = b"t",
    ) -> Packet:
        """A request with a message id of its own."""
        self._mid = (self._mid + 1) & 0xFFFF
        path, _, query = uri.partition("?")
        parts = [(Option.URI_PATH, part.encode()) for part in path.split("/")[1:]]
        parts += [(Option.URI_QUERY, part.encode()) for part in query.split("&") if part]
        return Packet(kind, code, self._mid, token, (*parts, *options), payload)

    def ask(self, *arguments: Any, **options: Any) -> Packet:
        """Send a request; the next packet that comes."""
        self.send(self.request(*arguments, **options))
        return self.read()

    def send(self, packet: Packet | bytes) -> None:
        """Send a packet, or bytes that are none."""
        self._socket.send(packet if isinstance(packet, bytes) else encode(packet))

    def read(self) -> Packet:
        """The next packet that comes."""
        return decode(self._socket.recv(65_536))

    def heard(self) -> list[Packet]:
        """What has come by now: everything before the answer to a ping."""
        self._mid = (self._mid + 1) & 0xFFFF
        self.send(Packet(Kind.CON, Code.EMPTY, self._mid))
        found: list[Packet] = []
        while (packet := self.read()) != Packet(Kind.RST, Code.EMPTY, self._mid):
            found.append(packet)
        return found

    def acknowledge(self, packet: Packet, kind: Kind = Kind.ACK) -> None:
        """Say that a packet has come, or with RST that it is not wanted."""
        self.send(Packet(kind, Code.EMPTY, packet.mid))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OBSERVE = (Option.OBSERVE, uint(0))
FORGET = (Option.OBSERVE, uint(1))
