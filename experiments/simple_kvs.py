"""The thesis's baseline (T2.2): a queue in a plain key-value store, guarded by a lock.

The queue is a head and a tail in one key and a key for each message. An operation takes three round
trips: get the lock; read the metadata; then, sent together, write or take the message, write the
metadata and give the lock back. A transaction enqueues one message and takes one.

Two locks: `SET NX`, which the loser tries again after a pause, and `BLPOP` on a list with one
token, which waits in the server as the lock inside the thesis's own prototype does.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from experiments.pipelined import HOST, figures, pack
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator

    from experiments.pipelined import Server

LOCKS = ("SET NX", "BLPOP")

#: A whole queue has one hash tag, as a client of a cluster would see to.
_LOCK, _META, _MESSAGE = "simple:{q}:lock", "simple:{q}:meta", "simple:{q}:%d"
_LOCK_MS = 30_000
#: Seconds before the lock is tried again: twice as long each time, and at random.
_PAUSE_S, _PAUSE_S_MAX = 0.0002, 0.01
_READ_BYTES = 65_536


class Request(NamedTuple):
    """What a client sends next, and how many replies it waits for; none: it pauses."""

    data: bytes
    replies: int
    pause_s: float = 0.0


class Lock(NamedTuple):
    """How a lock is asked for and given back."""

    ask: Request
    give_back: bytes


def _lock(kind: str) -> Lock:
    if kind == "BLPOP":
        return Lock(Request(pack(("BLPOP", _LOCK, 0)), 1), pack(("RPUSH", _LOCK, "free")))
    ask = pack(("SET", _LOCK, "taken", "NX", "PX", _LOCK_MS))
    return Lock(Request(ask, 1), pack(("DEL", _LOCK)))


class Client:
    """One connection with one request outstanding."""

    def __init__(self, port: int, lock: Lock, body: bytes, seed: int) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transactions = 0
        self._lock = lock
        self._body = body
        self._random = random.Random(seed)
        self._reader = hiredis.Reader()
        self._replies: list[Any] = []
        self._work = self._transactions()
        self._request = next(self._work)

    def send(self) -> None:
        """Send what is due."""
        self.socket.sendall(self._request.data)

    def receive(self) -> Request | None:
        """Take in what has come; answers the next request once all replies are here."""
        self._reader.feed(self.socket.recv(_READ_BYTES))
        while (reply := self._reader.gets()) is not False:
            self._replies.append(reply)
        if len(self._replies) < self._request.replies:
            return None
        replies, self._replies = self._replies, []
        self._request = self._work.send(replies)
        return self._request

    def _transactions(self) -> Generator[Request, list[Any], None]:
        while True:
            yield from self._enqueue()
            yield from self._take()
            self.transactions += 1

    def _enqueue(self) -> Generator[Request, list[Any], None]:
        yield from self._locked()
        head, tail = yield from self._meta()
        write = pack(("SET", _MESSAGE % tail, self._body))
        replies = yield self._leave([write], head, tail + 1)
        _check(replies[0] == b"OK", replies)

    def _take(self) -> Generator[Request, list[Any], None]:
        yield from self._locked()
        head, tail = yield from self._meta()
        message = _MESSAGE % head
        replies = yield self._leave(
            [pack(("GET", message)), pack(("DEL", message))], head + 1, tail
        )
        _check(replies[0] == self._body and replies[1] == 1, replies)

    def _locked(self) -> Generator[Request, list[Any], None]:
        ask, pause_s = self._lock.ask, _PAUSE_S
        while not (yield ask)[0]:
            ask = self._lock.ask._replace(pause_s=pause_s * self._random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _meta(self) -> Generator[Request, list[Any], tuple[int, int]]:
        [told] = yield Request(pack(("GET", _META)), 1)
        head, tail = map(int, told.split())
        return head, tail

    def _leave(self, commands: list[bytes], head: int, tail: int) -> Request:
        meta = pack(("SET", _META, f"{head} {tail}"))
        data = b"".join([*commands, meta, self._lock.give_back])
        return Request(data, len(commands) + 2)


def _check(ok: bool, replies: list[Any]) -> None:
    if not ok:
        raise StoreUnavailable(f"The simple queue is out of step: {replies!r}.")


def measure(
    server: Server, connections: int, lock: str, body: bytes, seconds: float
) -> dict[str, Any]:
    """Transactions per second over so many connections, and who was busy."""
    _prepare(server.port, lock)
    clients = [Client(server.port, _lock(lock), body, seed) for seed in range(connections)]
    try:
        server_s, client_s = -server.cpu_s(), -time.process_time()
        began_s = time.perf_counter()
        _drive(clients, began_s + seconds)
        elapsed_s = time.perf_counter() - began_s
        client_s += time.process_time()
        server_s += server.cpu_s()
    finally:
        for client in clients:
            client.socket.close()
    done = sum(client.transactions for client in clients)
    return figures(done, elapsed_s, server_s, client_s)


def _prepare(port: int, lock: str) -> None:
    """An empty queue, and a lock that is free."""
    commands = [("DEL", _LOCK), ("SET", _META, "0 0")]
    if lock == "BLPOP":
        commands.append(("RPUSH", _LOCK, "free"))
    reader = hiredis.Reader()
    with socket.create_connection((HOST, port)) as connection:
        for command in commands:
            connection.sendall(pack(command))
            while reader.gets() is False:
                reader.feed(connection.recv(_READ_BYTES))


def _drive(clients: list[Client], until_s: float) -> None:
    """Have all clients work until a time, and at least until one transaction is done."""
    poll = select.epoll()
    by_fd = {client.socket.fileno(): client for client in clients}
    pausing: list[tuple[float, int]] = []
    for fd, client in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        client.send()
    with poll:
        while (now_s := time.perf_counter()) < until_s or not any(c.transactions for c in clients):
            while pausing and pausing[0][0] <= now_s:
                by_fd[heapq.heappop(pausing)[1]].send()
            # Its timer is too coarse for the pauses: look again at once.
            for fd, _ in poll.poll(0 if pausing else 0.1):
                request = by_fd[fd].receive()
                if request is None:
                    continue
                if request.pause_s:
                    heapq.heappush(pausing, (time.perf_counter() + request.pause_s, fd))
                else:
                    by_fd[fd].send()
