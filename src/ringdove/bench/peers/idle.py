"""Consumers that wait: what thousands of connections cost a server, and how soon one is woken.

The connections are bare sockets on which each consumer has said what makes it wait, so that the
server is measured and not the clients. Messages sent afterwards must arrive at one of them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

from ringdove.bench.load import percentile
from ringdove.bench.measure import OTHER_FILES, open_files
from ringdove.bench.peers.clients import connect_client
from ringdove.bench.peers.ways import Driven
from ringdove.bench.processes import tree_cpu_s, tree_resident_bytes

if TYPE_CHECKING:
    from ringdove.bench.peers.peer import Client, Peer, Server

_SENDS = 20
_SETTLE_S_MAX = 60
_LOOK_S = 0.5
#: A server that uses less than this share of a core has taken all consumers in.
_CALM = 0.1
_ARRIVE_S_MAX = 10


def measure(
    peer: Peer, server: Server, queue: str, consumers: int, seconds: float
) -> dict[str, Any]:
    """Memory and processor time while they wait, then the time to wake one."""
    before_bytes = tree_resident_bytes(server.pid)
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as ready:
        stack.enter_context(open_files(consumers + OTHER_FILES))
        for number in range(consumers):
            own = stack.enter_context(socket.create_connection(_endpoint(server.address)))
            own.sendall(peer.park(queue, number))
            own.setblocking(False)
            ready.register(own, selectors.EVENT_READ)
        _settle(server.pid, ready)
        grown_bytes = tree_resident_bytes(server.pid) - before_bytes
        cpu_s, began_s = tree_cpu_s(server.pid), time.perf_counter()
        time.sleep(max(seconds, 2 * _LOOK_S))
        share = (tree_cpu_s(server.pid) - cpu_s) / (time.perf_counter() - began_s)
        sender = _sender(peer, server, queue)
        took_ms = [_wake(sender, ready, number) for number in range(_SENDS)]
        sender.close()
    arrived = [took for took in took_ms if took is not None]
    row: dict[str, Any] = {
        "messages": _SENDS,
        "lost": _SENDS - len(arrived),
        "consumers": consumers,
        "idle_cpu_share": round(share, 4),
    }
    if len(arrived) == _SENDS:
        row["kb_per_consumer"] = round(grown_bytes / 1e3 / consumers, 1)
        row["wake_ms"] = percentile(arrived, 50)
    return row


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("/")[2].partition(":")
    return host, int(port)


def _sender(peer: Peer, server: Server, queue: str) -> Client:
    way = next(way for way in reversed(peer.ways) if isinstance(way, Driven))
    return connect_client(peer.clients_path(), way.client_class, server.address, queue)


def _settle(pid: int, ready: selectors.BaseSelector) -> None:
    """Wait until the server has nothing more to do for them."""
    deadline_s = time.monotonic() + _SETTLE_S_MAX
    share = 1.0
    while share > _CALM and time.monotonic() < deadline_s:
        cpu_s = tree_cpu_s(pid)
        until_s = time.monotonic() + _LOOK_S
        while (left_s := until_s - time.monotonic()) > 0:
            _read(ready, left_s)
        share = (tree_cpu_s(pid) - cpu_s) / _LOOK_S


def _wake(sender: Client, ready: selectors.BaseSelector, number: int) -> float | None:
    """Milliseconds from a send until a consumer has it; None when none gets it."""
    body = b"wake up, consumer: %06d" % number
    began_s = time.perf_counter()
    sender.send([body])
    while time.perf_counter() - began_s < _ARRIVE_S_MAX:
        if any(body in data for data in _read(ready, 1)):
            return (time.perf_counter() - began_s) * 1e3
    return None


def _read(ready: selectors.BaseSelector, wait_s: float) -> list[bytes]:
    """What has come to any of them."""
    found = []
    for key, _ in ready.select(wait_s):
        own = key.fileobj
        assert isinstance(own, socket.socket)
        with contextlib.suppress(OSError):
            data = own.recv(1 << 16)
            if data:
                found.append(data)
                continue
        ready.unregister(own)  # The server has hung up.
    return found
