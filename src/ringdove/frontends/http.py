"""The HTTP front end: listens, finds who answers a request, and ends in good order.

GET /healthz   200 while the process runs
GET /readyz    200 while it serves, 503 while it starts or drains
GET /metrics   Prometheus's text format; with the server's token, if it has one
/v1/...        REST (rest/)
/console/...   the console (console/)
anything else  the SQS dialect (sqs/)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from ringdove import limits, metrics
from ringdove.errors import RingdoveError
from ringdove.frontends.exchange import TEXT, HttpResponse, is_local, text_response
from ringdove.frontends.http_connection import HttpConnection, date_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from prometheus_client.registry import Collector

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.access import Access
    from ringdove.frontends.exchange import Drive, HttpRequest
    from ringdove.frontends.native import NativeServer

    #: Answers a request, driving the broker with what it is given.
    Dialect = Callable[[HttpRequest, Drive], Awaitable[HttpResponse]]

_log = logging.getLogger(__name__)

#: Seconds between two looks for connections that dawdle.
_SWEEP_S = 1.0

_OWN_PATHS = ("/healthz", "/readyz", "/metrics")


class HttpServer:
    """Serves HTTP on the event loop and the runner of the native front end."""

    def __init__(self, broker: Broker, native: NativeServer, access: Access) -> None:
        self.loop = native.loop
        self.runner = native.runner
        self.scheme = "http"
        self.draining = False
        self.ready = False
        #: By the first part of the path; the one under "" takes the rest.
        self.dialects: dict[str, Dialect] = {}
        #: What /metrics tells besides the server's own, for its other roles.
        self.collectors: list[Collector] = []
        #: Requests answered, and those answered with an error or not at all.
        self.requests = 0
        self.refused = 0
        self.connections: set[HttpConnection] = set()
        self._broker = broker
        self._native = native
        self._access = access
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        #: Whether it is open, to this machine alone.
        self._unguarded = False
        self._date = b""
        self._date_s = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address; answers the port, which is a free one for 0."""
        self.scheme = "https" if tls is not None else "http"
        self._unguarded = is_local(host) and self._access.is_open_to_operators()
        self._listener = await self.loop.create_server(
            lambda: HttpConnection(self), host, port, ssl=tls, backlog=limits.HTTP_BACKLOG
        )
        self._sweep()
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Finish what is under way, and stop."""
        self.ready = False
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_S_MAX):
                while self.connections:
                    self._gone.clear()
                    await self._gone.wait()
        for connection in list(self.connections):
            connection.abort()

    def abort(self) -> None:
        """Hang up on everybody, and let nobody in."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.abort()

    # -- for connections ------------------------------------------------------------------------

    def connected(self, connection: HttpConnection) -> None:
        """A client has connected."""
        self.connections.add(connection)
        if len(self.connections) > limits.CONNECTIONS_MAX:
            _log.warning("There are %d connections, the most: refused.", limits.CONNECTIONS_MAX)
            self.refused += 1
            connection.abort()

    def disconnected(self, connection: HttpConnection) -> None:
        """A client has gone."""
        self.connections.discard(connection)
        self._gone.set()

    async def respond(self, request: HttpRequest, drive: Drive) -> HttpResponse:
        """The response to a request, whatever happens."""
        if self._unguarded and request.from_browser and not request.names_this_machine:
            # A page whose name was made to lead here speaks as if it came from here.
            return text_response(
                421, "Without a token this server is for its own machine: ask it as localhost."
            )
        if request.path in _OWN_PATHS:
            return await self._own(request)
        if _is_typed(request):
            there = ((b"location", b"/console/"),)
            return text_response(302, "The console is at /console/.", there)
        first = request.path.split("/", 2)[1] if request.path.startswith("/") else ""
        dialect = self.dialects.get(first) or self.dialects[""]
        return await dialect(request, drive)

    def failure(self, error: BaseException | None) -> HttpResponse:
        """What to answer when a dialect has failed."""
        if isinstance(error, RingdoveError):
            _log.warning("A request failed: %s", error)
        else:
            _log.error("A request failed.", exc_info=error)
        return text_response(500, "The server failed; its log says why.")

    def count(self, response: HttpResponse) -> None:
        """Count a request that is answered."""
        self.requests += 1
        self.refused += response.status >= 400

    def date_line(self) -> bytes:
        """The header with the time, made once a second."""
        now_s = int(time.time())
        if now_s != self._date_s:
            self._date_s, self._date = now_s, date_line(now_s)
        return self._date

    # -- inside ---------------------------------------------------------------------------------

    async def _own(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return text_response(405, "Only GET.", ((b"allow", b"GET, HEAD"),))
        if request.path == "/healthz":
            return text_response(200, "ok")
        if request.path == "/readyz":
            return text_response(200, "ready") if self.ready else text_response(503, "not ready")
        if not self._access.is_operator(request) and not self._access.is_open_to_operators():
            return text_response(401, "Give the server's token: Authorization: Bearer TOKEN.")
        return HttpResponse(200, await metrics.render(self._broker, self._native, self), (TEXT,))

    def _sweep(self) -> None:
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.expire(now_s)
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)


def _is_typed(request: HttpRequest) -> bool:
    """Whether somebody has typed the bare address; programs of SQS's dialect say what they want."""
    bare = (request.method, request.path, request.query) == ("GET", "/", b"")
    return bare and request.from_browser
