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

from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import encode
from ringdove.protocol.mqtt.packets import V311

_PUBREC = 0x50
_READ_BYTES = 1 << 16


class _Publisher:
    """One connection."""

    __slots__ = ("_again", "_ids", "_made", "_next", "_qos", "_rest", "done", "socket")

    def __init__(self, port: int, client_id: str, topic: str, size: int, window: int, qos: int):
        self.socket = open_client(port, client_id)
        self._qos = qos
        #: Identifiers go round; twice the window of them are never all in use.
        self._ids = 2 * window
        body = b"x" * size
        if qos:
            made = [
                encode(p.Publish(topic, body, qos, number + 1), V311) for number in range(self._ids)
            ]
        else:
            made = [encode(p.Publish(topic, body), V311) * window + encode(p.PingReq(), V311)]
            self._ids = 1
        #: Any run of packets is a slice of this.
        self._made = made + made
        self._next = 0
        self._rest = b""
        self.done = 0
        self._again = window
        self.send(window if qos else 2)

    def send(self, count: int) -> None:
        """Publish some more."""
        first = self._next
        self.socket.sendall(
            b"".join(self._made[first : first + count] if self._qos else self._made[:count])
        )
        self._next = (first + count) % self._ids

    def answered(self) -> None:
        """Take what the server has said, and go on."""
        data = self._rest + self.socket.recv(_READ_BYTES)
        if not self._qos:
            self._rest = data[len(data) // 2 * 2 :]
            pongs = len(data) // 2
            self.done += pongs * self._again
            self.send(pongs)
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
            self.send(finished)


def open_client(port: int, client_id: str, **fields: Any) -> socket.socket:
    """A connection that the server has let in."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(encode(p.Connect(client_id, V311, **fields), V311))
    answer = client.recv(4)
    if answer != b"\x20\x02\x00\x00":
        raise ConnectionError(f"The server answered CONNECT with {answer!r}.")
    return client


def measure(port: int, connections: int, seconds: float, size: int, window: int, qos: int) -> float:
    """Publishes per second that the server has acknowledged."""
    made = [
        _Publisher(port, f"load-{number}", "bench/load", size, window, qos)
        for number in range(connections)
    ]
    poll = select.epoll()
    by_number = {publisher.socket.fileno(): publisher for publisher in made}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + seconds:
        for number, _ in poll.poll(1):
            by_number[number].answered()
    elapsed_s = time.perf_counter() - began_s
    done = sum(publisher.done for publisher in made)
    for publisher in made:
        publisher.socket.close()
    poll.close()
    return done / elapsed_s
