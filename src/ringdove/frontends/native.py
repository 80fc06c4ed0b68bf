"""The native TCP front end: listens, and drives all connections on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.frontends.connection import Connection
from ringdove.frontends.requests import HANDLERS
from ringdove.pending import Runner
from ringdove.protocol.frames import SCRATCH_BYTES

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.visiting import Received
    from ringdove.frontends.connection import Follower
    from ringdove.protocol.messages import Follow
    from ringdove.spinning import Spinner

_log = logging.getLogger(__name__)

#: Seconds between two looks for dead connections.
_SWEEP_S = 1.0
_BACKLOG = 4096


class NativeServer:
    """The native protocol over TCP, with or without TLS, and over a unix socket."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, token: str | None = None
    ) -> None:
        self.broker = broker
        self.loop = loop
        self.token = token
        self.runner = Runner(loop)
        #: What keeps the loop awake for the next request, if anything does.
        self.spinner: Spinner | None = None
        #: What clients are told that the store is called.
        self.store_id = ""
        #: What serves each verb; a server that has more roles adds theirs.
        self.handlers = dict(HANDLERS)
        #: What serves a standby.
        self.follow: Callable[[Connection, int, Follow], Follower] = _no_standby
        #: What all connections read into; each takes its bytes out before the next one reads.
        self.scratch = bytearray(SCRATCH_BYTES)
        #: Counters since the start.
        self.accepted = 0
        self.refused = 0
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_out = 0
        self.connections: set[Connection] = set()
        self._listeners: list[asyncio.Server] = []
        #: Where a unix socket is, and the number by which it is known to be ours.
        self._unix: tuple[Path, int] | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address; answers the port, which is a free one for 0."""
        listener = await self.loop.create_server(
            lambda: Connection(self), host, port, ssl=tls, backlog=_BACKLOG
        )
        self._listeners.append(listener)
        self._sweep_later()
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    async def listen_unix(self, path: Path) -> None:
        """Listen on a unix socket; one that a killed server has left is taken over."""
        if _answers(path):
            raise StoreUnavailable(
                f"A server listens on {path} already: end it, or give --unix another path."
            )
        try:
            listener = await self.loop.create_unix_server(
                lambda: Connection(self), str(path), backlog=_BACKLOG
            )
            self._unix = path, _number(path)
        except OSError as error:
            raise StoreUnavailable(
                f"Cannot listen on {path}: {error.strerror or error}. Give --unix the path of a "
                "socket, in a directory where one can be made."
            ) from error
        self._listeners.append(listener)
        self._sweep_later()

    async def close(self) -> None:
        """Answer parked receivers, let accepted sends commit, then close every connection."""
        for listener in self._listeners:
            listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        clients = [one for one in self.connections if one.follower is None]
        for connection in clients:
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_S_MAX):
                for connection in clients:
                    await connection.settled()
        for connection in list(self.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_S_MAX):
                for connection in list(self.connections):
                    await connection.ended()
        if self._unix is not None:
            path, number = self._unix
            if _number(path) == number:
                path.unlink(missing_ok=True)

    def abort(self) -> None:
        """Hang up on everybody, and let nobody in."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.abort()

    def connected(self, connection: Connection) -> None:
        """A client has connected."""
        self.accepted += 1
        self.connections.add(connection)
        if len(self.connections) > limits.CONNECTIONS_MAX:
            _log.warning("There are %d connections, the most: refused.", limits.CONNECTIONS_MAX)
            connection.close()

    def disconnected(self, connection: Connection) -> None:
        """A client has gone."""
        self.connections.discard(connection)

    def give_back(self, received: list[Received]) -> None:
        """Messages were leased and not sent to anybody: others may have them at once."""
        receipts = [run.receipt for run in received]
        self.runner.spawn(self.broker.unlease(receipts), _given_back)

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.expire(now_s)
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)


def _number(path: Path) -> int:
    """What tells a file from another of the same name; 0 for none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _answers(path: Path) -> bool:
    """Whether a server listens there; connecting to a unix socket waits for nobody."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(0)
        try:
            end.connect(str(path))
        except BlockingIOError:  # It does, and many wait to be let in.
            return True
        except OSError:
            return False
    return True


def _no_standby(*_: object) -> Follower:
    raise InvalidArgument(
        "This server takes no standby: start it with --with-standby. On a fabric none is needed: "
        "each of its servers serves the same queues, and the cluster keeps their copies."
    )


def _given_back(_: Any, error: BaseException | None) -> None:
    if error is not None:
        _log.info("Messages of a client that has gone could not be given back: %s", error)
