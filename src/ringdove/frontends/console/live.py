"""The live stream: what a page shows, once a second, as server-sent events.

A page says what it shows, and gets nothing else. Every snapshot is made for whoever is signed in at
that moment; when nobody is any more, the stream says so and ends. A client that does not read gets
no snapshot until it does, so nothing piles up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ringdove import limits, metrics
from ringdove.errors import NotAuthorized, QueueNotFound, RingdoveError
from ringdove.frontends.exchange import HttpResponse
from ringdove.frontends.rest.problems import Throttled
from ringdove.frontends.rest.queues import stats_shape

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.console.asides import Asides
    from ringdove.frontends.console.looks import Looks
    from ringdove.frontends.console.sessions import Sessions, Visitor
    from ringdove.frontends.exchange import HttpRequest
    from ringdove.frontends.http import HttpServer
    from ringdove.frontends.native import NativeServer
    from ringdove.pending import Driven

_log = logging.getLogger(__name__)

#: Seconds between two snapshots.
_PERIOD_S = 1.0

_HEADERS = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))
_encode = msgspec.json.Encoder().encode


class LiveQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What a page shows."""

    totals: bool = False
    queues: Annotated[str, Meta(description="Names with commas.")] = ""
    queue: str = ""
    fabric: bool = False


class Live:
    """Makes snapshots for every page that is open."""

    def __init__(
        self,
        broker: Broker,
        native: NativeServer,
        http: HttpServer,
        sessions: Sessions,
        looks: Looks,
        asides: Asides,
    ) -> None:
        self._broker = broker
        self._native = native
        self._http = http
        self._sessions = sessions
        self._looks = looks
        self._asides = asides
        self.feeds: set[_Feed] = set()

    def open(self, request: HttpRequest, ask: LiveQuery) -> HttpResponse:
        """A stream for a page."""
        if len(self.feeds) >= limits.FEEDS_MAX:
            raise Throttled(f"There are {limits.FEEDS_MAX} pages open, the most.")
        return HttpResponse(200, b"", _HEADERS, feed=_Feed(self, request, ask, self._http))

    async def snapshot(self, request: HttpRequest, ask: LiveQuery) -> bytes:
        """What a page shows, now, as JSON."""
        visitor = await self._sessions.visitor(request)
        told: dict[str, Any] = {"at_ms": self._broker.store.clock.now_ms()}
        if visitor.is_admin:
            told["server"] = self._server()
        if ask.totals:
            told["totals"] = await self._looks.totals(visitor)
        if ask.queues:
            asked = ask.queues.split(",")[: limits.FEED_QUEUES_MAX]
            names = [name for name in asked if visitor.may(name, "receive")]
            told["queues"] = await self._looks.rows(names)
        if ask.queue:
            told.update(await self._queue(visitor, ask.queue))
        if ask.fabric and visitor.is_admin:
            told["fabric"] = await self._fabric()
        return _encode(told)

    def _server(self) -> dict[str, Any]:
        told = metrics.counters(self._broker, self._native, self._http)
        return {
            **{name: value for name, (_, value) in told.items()},
            "connections": len(self._native.connections) + len(self._http.connections),
            "parked": self._broker.dequeuer.parked,
            "delays": self._broker.dequeuer.delays.counts,
        }

    async def _queue(self, visitor: Visitor, name: str) -> dict[str, Any]:
        """The state of a queue; None without one, or without the right to see it."""
        if not visitor.may(name, "receive"):
            return {"queue": None}
        try:
            stats = await self._broker.queue_stats(name)
        except QueueNotFound:
            return {"queue": None}
        tally = self._broker.tallies.of(stats.id)
        counted = {what: getattr(tally, what) for what in metrics.TALLIED}
        return {"queue": stats_shape(stats), "tally": counted}

    async def _fabric(self) -> Any:
        """The processes of the fabric, and how fast its nodes answer this server."""
        seen = {
            str(node): {"latency_ms": 1000 * health.latency_s, "excluded": health.excluded}
            for controller in (self._broker.enqueuer, self._broker.dequeuer)
            for node, health in controller.health.seen().items()
        }
        try:
            return {**await self._asides.look("fabric"), "nodes": seen}
        except RingdoveError as error:
            return {"kind": "none", "problem": str(error), "nodes": seen}


class _Feed:
    """One open page; see exchange.Feed."""

    def __init__(self, live: Live, request: HttpRequest, ask: LiveQuery, http: HttpServer) -> None:
        self._live = live
        self._request = request
        self._ask = ask
        self._runner = http.runner
        self._loop = http.loop
        self._write: Callable[[bytes], bool] | None = None
        self._driven: Driven | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, write: Callable[[bytes], bool]) -> None:
        """See exchange.Feed."""
        self._write = write
        self._live.feeds.add(self)
        write(b"retry: 1000\n\n")
        self._go_on()

    def end(self) -> None:
        """See exchange.Feed."""
        self._write = None
        self._live.feeds.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._driven is not None:
            self._driven.cancel()

    def _go_on(self) -> None:
        snapshot = self._live.snapshot(self._request, self._ask)
        driven = self._runner.spawn(snapshot, self._tell)
        self._driven = None if driven.over else driven

    def _tell(self, snapshot: bytes | None, error: BaseException | None) -> None:
        self._driven = None
        if self._write is None:
            return
        if isinstance(error, NotAuthorized):
            self._write(b"event: ended\ndata: %b\n\n" % _encode(str(error)))
            return  # The page closes it; one that does not waits for nothing.
        if snapshot is not None:
            self._write(b"data: %b\n\n" % snapshot)
        elif isinstance(error, RingdoveError):
            self._write(b"event: problem\ndata: %b\n\n" % _encode(str(error)))
        else:
            _log.error("A snapshot failed.", exc_info=error)
        self._timer = self._loop.call_later(_PERIOD_S, self._go_on)
