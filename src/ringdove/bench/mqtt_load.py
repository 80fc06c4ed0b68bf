"""A light load generator for MQTT 3.1.1, the same for every server.

Each connection keeps a window of publishes unacknowledged. Packets are made once and written as
they are, answers are counted by their length: on a machine with two cores a comfortable client
would be what is measured.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from ringdove.bench.processes import wait_for_go
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import encode
from ringdove.protocol.mqtt.packets import V311

_PUBREC = 0x50
_TOPIC = "bench/load"
_READ_BYTES = 1 << 16


class _Publisher:
    """One connection."""

    __slots__ = ("_count", "_made", "_next", "_qos", "_rest", "_window", "done", "socket")

    def __init__(self, port: int, client_id: str, size: int, window: int, qos: int) -> None:
        self.socket = open_client(port, client_id)
        self._qos = qos
        self._window = window
        body = b"x" * size
        if qos:
            # Identifiers go round; twice the window of them are never all in use.
            made = [encode(p.Publish(_TOPIC, body, qos, n + 1), V311) for n in range(2 * window)]
        else:
            # Nothing is acknowledged, so a ping behind each window shows that it was read.
            made = [encode(p.Publish(_TOPIC, body), V311) * window + encode(p.PingReq(), V311)] * 2
        self._count = len(made)
        #: Any run of packets is a slice of this.
        self._made = made + made
        self._next = 0
        self._rest = b""
        #: Publishes that the server has answered.
        self.done = 0

    def begin(self) -> None:
        """Publish the first window."""
        self._send(self._window if self._qos else 2)

    def _send(self, count: int) -> None:
        first = self._next
        self.socket.sendall(b"".join(self._made[first : first + count]))
        self._next = (first + count) % self._count

    def answered(self) -> None:
        """Take what the server has said, and go on."""
        data = self._rest + self.socket.recv(_READ_BYTES)
        if not self._qos:
            self._rest = data[len(data) // 2 * 2 :]
            pongs = len(data) // 2
            self.done += pongs * self._window
            self._send(pongs)
            return
        whole = len(data) // 4 * 4
        self._rest = data[whole:]
        finished = whole // 4
        if self._qos == 2:
            received = [at for at in range(0, whole, 4) if data[at] == _PUBREC]
            if received:
                self.socket.sendall(
                    b"".join(b"\x62\x02" + data[at + 2 : at + 4] for at in received)
                )
            finished -= len(received)
        self.done += finished
        if finished:
            self._send(finished)


def open_client(port: int, client_id: str, **fields: Any) -> socket.socket:
    """A connection that the server has let in."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(encode(p.Connect(client_id, V311, **fields), V311))
    answer = client.recv(4)
    if answer != b"\x20\x02\x00\x00":
        raise ConnectionError(f"The server answered CONNECT with {answer!r}.")
    return client


def measure(
    port: int, connections: int, seconds: float, size: int, window: int, qos: int
) -> dict[str, float]:
    """How many publishes the server acknowledges, and in which time; begins when told to."""
    made = [_Publisher(port, f"load-{number}", size, window, qos) for number in range(connections)]
    poll = select.epoll()
    by_number = {publisher.socket.fileno(): publisher for publisher in made}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    wait_for_go()
    began_s = time.perf_counter()
    for publisher in made:
        publisher.begin()
    while time.perf_counter() < began_s + seconds:
        for number, _ in poll.poll(1):
            by_number[number].answered()
    elapsed_s = time.perf_counter() - began_s
    for publisher in made:
        publisher.socket.close()
    poll.close()
    return {"done": sum(publisher.done for publisher in made), "elapsed_s": elapsed_s}
