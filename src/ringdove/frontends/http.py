"""The HTTP front end: one ASGI application without a framework.

GET /healthz   200 while the process runs
GET /readyz    200 while it serves, 503 while it starts or drains
GET /metrics   Prometheus's text format
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

from ringdove import limits, metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.native import NativeServer

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves HTTP on the event loop of the native front end."""

    def __init__(self, broker: Broker, native: NativeServer) -> None:
        self._broker = broker
        self._native = native
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.ready = False

    async def listen(self, host: str, port: int) -> int:
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
            timeout_graceful_shutdown=limits.DRAIN_S_MAX,
        )
        self._server = _Server(config)
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

    async def app(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],  # noqa: ARG002
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        status, body = await self._respond(scope["method"], scope["path"])
        headers = [(b"content-type", _TEXT), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, method: str, path: str) -> tuple[int, bytes]:
        if path not in ("/healthz", "/readyz", "/metrics"):
            return 404, b"There is /healthz, /readyz and /metrics here.\n"
        if method not in ("GET", "HEAD"):
            return 405, b"Only GET.\n"
        if path == "/healthz":
            return 200, b"ok\n"
        if path == "/readyz":
            return (200, b"ready\n") if self.ready else (503, b"not ready\n")
        return 200, await metrics.render(self._broker, self._native)


class _Server(uvicorn.Server):
    """uvicorn, without its own ideas about signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when it listens."""
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield
