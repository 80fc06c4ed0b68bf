"""The HTTP front end: one ASGI application without a framework, and the server that runs it.

GET /healthz   200 while the process runs
GET /readyz    200 while it serves, 503 while it starts or drains
GET /metrics   Prometheus's text format; with the server's token, if it has one
/v1/...        REST (rest.py)
anything else  the SQS dialect (sqs/)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn

from ringdove import limits, metrics
from ringdove.frontends.exchange import ClientGone, HttpRequest, HttpResponse

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.exchange import Drive
    from ringdove.frontends.native import NativeServer
    from ringdove.pending import Runner

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    #: A dialect: answers a request, driving the broker with what it is given.
    Dialect = Callable[[HttpRequest, Drive], Awaitable[HttpResponse]]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")

#: On every response: what is served here is data, never a page to be framed or guessed at.
_SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class HttpServer:
    """Serves HTTP on the event loop of the native front end."""

    def __init__(self, broker: Broker, native: NativeServer) -> None:
        self._broker = broker
        self._native = native
        self._runner = native.runner
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        #: By the first part of the path; the one under "" takes the rest.
        self.dialects: dict[str, Dialect] = {}
        self.ready = False
        #: Requests answered and those answered with an error, for the metrics.
        self.requests = 0
        self.refused = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address; answers the port, which is a free one for 0."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=limits.HTTP_BACKLOG,
            timeout_keep_alive=limits.IDLE_S_MAX,
            timeout_graceful_shutdown=limits.DRAIN_S_MAX,
        )
        self._server = _Server(config, tls)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._server.serve(sockets=[sock]))
        await self._server.up.wait()
        bound: int = sock.getsockname()[1]
        return bound

    async def close(self) -> None:
        """Finish what is under way, and stop."""
        self.ready = False
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()

    async def app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        try:
            response = await self._respond(scope, receive)
        except ClientGone:
            return
        self.requests += 1
        self.refused += response.status >= 400
        headers = [*response.headers, *_SECURITY]
        if response.status != 204:
            headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: dict[str, Any], receive: Receive) -> HttpResponse:
        path: str = scope["path"]
        if path in _OWN_PATHS:
            return await self._own(scope["method"], path, _headers(scope))
        try:
            async with asyncio.timeout(limits.FRAME_S_MAX):
                body = await _read_body(receive)
        except TimeoutError:
            return _text(408, "The request did not arrive in time.")
        if body is None:
            return _text(413, f"A request has at most {limits.HTTP_BODY_BYTES_MAX} bytes.")
        request = HttpRequest(
            scope["method"],
            path,
            scope["raw_path"],
            scope["query_string"],
            _headers(scope),
            body,
            scope["scheme"],
        )
        first = path.split("/", 2)[1] if path.startswith("/") else ""
        dialect = self.dialects.get(first) or self.dialects[""]
        try:
            return await dialect(request, _Driver(self._runner, receive))
        except ClientGone:
            raise
        except Exception:  # noqa: BLE001  one request must not end the server
            _log.exception("A request failed.")
            return _text(500, "The server failed; its log says why.")

    async def _own(self, method: str, path: str, headers: dict[bytes, bytes]) -> HttpResponse:
        if method not in ("GET", "HEAD"):
            return _text(405, "Only GET.")
        if path == "/healthz":
            return _text(200, "ok")
        if path == "/readyz":
            return _text(200, "ready") if self.ready else _text(503, "not ready")
        token = self._native.token
        given = headers.get(b"authorization", b"")
        if token is not None and not secrets.compare_digest(given, f"Bearer {token}".encode()):
            return _text(401, "Give the server's token: Authorization: Bearer TOKEN.")
        return HttpResponse(200, await metrics.render(self._broker, self._native), (_TEXT,))


class _Driver:
    """Drives a request's work on the runner, as long as its client is there."""

    __slots__ = ("_receive", "_runner")

    def __init__(self, runner: Runner, receive: Receive) -> None:
        self._runner = runner
        self._receive = receive

    async def __call__(self, coroutine: Coroutine[Any, Any, T], *, parks: bool = False) -> T:
        future: asyncio.Future[T] = self._runner.loop.create_future()
        driven = self._runner.spawn(coroutine, partial(_settle, future))
        if future.done() or not parks:
            return await future
        # What follows the request can only be the client's departure.
        left = asyncio.ensure_future(self._receive())
        left.add_done_callback(lambda _: None if future.done() else future.cancel())
        try:
            return await future
        except asyncio.CancelledError:
            driven.cancel()
            if left.done():
                raise ClientGone from None
            raise
        finally:
            left.cancel()


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None when it is too long."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body if len(body) <= limits.HTTP_BODY_BYTES_MAX else None
    parts = [body]
    nbytes = len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        nbytes += len(parts[-1])
        if nbytes > limits.HTTP_BODY_BYTES_MAX:
            return None
    return b"".join(parts)


def _headers(scope: dict[str, Any]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b"," + value if name in headers else value
    return headers


def _text(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, text.encode() + b"\n", (_TEXT,))


class _Server(uvicorn.Server):
    """uvicorn, without its own ideas about signals and TLS."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        config.load()
        config.ssl = tls
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when it listens."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


_OWN_PATHS = ("/healthz", "/readyz", "/metrics")
