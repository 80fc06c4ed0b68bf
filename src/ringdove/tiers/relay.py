"""The relay of a broker: keeps copies of an upstream broker's queues, and pulls into them (M4).

It looks at the upstream's queues once a second, makes a copy of each that it wants, under the same
id, and has a `QueuePull` fill it. Without its upstream the copies serve on; when it is back, or
when another one is found, every pull goes on where its copy stands.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ringdove.client.address import with_token, without_token
from ringdove.client.remote import RemoteBackend
from ringdove.errors import (
    ClientError,
    QueueExists,
    QueueNotFound,
    RingdoveError,
    StoreFull,
    StoreUnavailable,
)
from ringdove.log import event_logger
from ringdove.tiers.background import Background
from ringdove.tiers.pulling import Diverged, Pulled, QueuePull, relay_subscription, store_of
from ringdove.tiers.reports import Place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.core.settings import QueueSettings

#: Seconds between looks at the upstream's queues, and before another try to reach one.
_LOOK_S = 1.0
_AGAIN_S = 0.5

#: Seconds of silence after which a connection is broken off, and without any after which an
#: upstream is given up and another one looked for.
_SILENCE_S = 2.0
_SESSION_S = 3.0

#: Bytes that a copy may hold, and how long what is done stays for others to take over from.
SPOOL_BYTES = 10 << 30
KEEP_MS = 600_000

#: Records of the upstreams where this broker has or had a place: their URLs, by store.
_LEFT_KEY = "tier/left/"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """How a broker keeps its copies."""

    #: The broker's name, unique among all.
    name: str
    #: Names of the queues to copy, as shell patterns.
    queues: tuple[str, ...] = ("*",)
    #: Bytes that a copy may hold; pulling stops there.
    spool_bytes: int = SPOOL_BYTES
    #: How long messages that are done here stay readable, for consumers that come from elsewhere.
    keep_ms: int = KEEP_MS
    #: How blocks are compressed on the way: zstd, lz4 or none.
    compression: str = "none"
    #: For upstreams whose URL has none: managers do not hand out tokens.
    token: str = ""


class Relay(Background):
    """See the module. `find` answers where to pull from, best first, given names to avoid."""

    def __init__(
        self,
        broker: Broker,
        options: RelayOptions,
        find: Callable[[str, list[str]], Awaitable[list[Place]]],
        **link: Any,
    ) -> None:
        self._broker = broker
        self._options = options
        self._find = find
        self._link = {"silence_s": _SILENCE_S, "session_s": _SESSION_S, **link}
        #: Where it pulls from, while it does.
        self.upstream: Place | None = None
        #: By queue.
        self.pulled: dict[str, Pulled] = {}
        self._pulls: dict[str, tuple[QueueInfo, QueuePull, asyncio.Task[None]]] = {}
        self._move = asyncio.Event()
        #: Queues that have a place at the present upstream; and that there are others than before.
        self._placed: set[str] = set()
        self._settled = asyncio.Event()
        self._log = event_logger("ringdove.relay")

    def move(self) -> None:
        """Look for an upstream anew: there is a better one."""
        self._move.set()

    # -- finding an upstream --------------------------------------------------------------------

    async def run(self) -> None:
        """Pull, from one upstream after the other."""
        avoid: list[str] = []
        while True:
            place = None
            try:
                at = self.upstream.name if self.upstream else ""
                self.upstream = None
                places = await self._find(at, avoid)
                if places:
                    place = places[0]
                    await self._pull_from(place)
                avoid = []
            except (RingdoveError, OSError) as error:
                self._away(str(error))
                avoid = [place.name] if place is not None and not avoid else []
            await asyncio.sleep(_AGAIN_S)

    def _away(self, reason: str) -> None:
        self._log.info("no upstream", reason=reason)
        for pulled in self.pulled.values():
            if pulled.state == "pulling":
                pulled.state, pulled.reason = "away", reason

    async def _pull_from(self, place: Place) -> None:
        upstream = self._connection(place.url)
        await upstream.open()
        self._move.clear()
        self._log.info("pulling", upstream=place.name, url=without_token(place.url))
        self.upstream = place
        self._placed = set()
        leaving = asyncio.create_task(self._leave_others(place, upstream))
        try:
            while not self._move.is_set():
                await self._look(upstream)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._move.wait(), _LOOK_S)
        finally:
            leaving.cancel()
            await self._end_pulls()
            await upstream.close()

    def _connection(self, url: str) -> RemoteBackend:
        return RemoteBackend(with_token(url, self._options.token), **self._link)

    # -- queues ---------------------------------------------------------------------------------

    async def _look(self, upstream: RemoteBackend) -> None:
        """Begin, renew and end pulls by what upstream has; raises when it has gone."""
        infos = await upstream.list_queues()
        dead = {info.settings.dead_letter for info in infos}
        wanted = {
            info.name: info for info in infos if info.name not in dead and self._wants(info.name)
        }
        for name, (info, _, task) in list(self._pulls.items()):
            if task.done() or wanted.get(name) != info:
                task.cancel()
                await asyncio.wait([task])
                del self._pulls[name]
                self._judge(name, task, gone=name not in wanted)
        for name, info in wanted.items():
            pull = self._pulls.get(name)
            if pull is not None:
                await pull[1].look_behind()
            elif await self._can_pull(info):
                self._begin(upstream, info)
        placed = {name for name, (_, pull, _) in self._pulls.items() if pull.placed}
        if placed != self._placed:
            self._placed = placed
            self._settled.set()

    def _wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._options.queues)

    def _judge(self, name: str, task: asyncio.Task[None], *, gone: bool) -> None:
        """Note why a pull has ended; raises when all of them will, because upstream is gone."""
        error = None if task.cancelled() else task.exception()
        pulled = self.pulled[name]
        if gone or isinstance(error, QueueNotFound):
            pulled.state, pulled.reason = "away", "The queue is gone upstream; its copy stays."
        elif isinstance(error, Diverged):
            pulled.state, pulled.reason = "diverged", str(error)
            self._log.error("diverged", queue=name, reason=pulled.reason)
        elif error is not None:
            raise error

    async def _can_pull(self, origin: QueueInfo) -> bool:
        """See that there is a copy; one that this broker refuses does not stop the others."""
        pulled = self.pulled.setdefault(origin.name, Pulled())
        try:
            return await self._adopt(origin, pulled)
        except StoreFull as error:
            pulled.state, pulled.reason = "full", str(error)
        except ClientError as error:
            pulled.state, pulled.reason = "diverged", f"Its copy cannot follow: {error}"
        return False

    async def _adopt(self, origin: QueueInfo, pulled: Pulled) -> bool:
        """Make the copy of a queue, or bring it up to date; False while there cannot be one."""
        settings = self._settings(origin.settings)
        try:
            info = await self._broker.get_queue(origin.name)
        except QueueNotFound:
            info = await self._broker.adopt_queue(origin, settings)
        if info.id == origin.id and info.settings.relayed:
            if info.settings != settings:
                await self._broker.change_queue(origin.name, settings.to_dict())
            await self._broker.queue_stats(origin.name)  # Makes stripes that a power cut took.
            return True
        if not info.settings.relayed:
            pulled.state = "diverged"
            pulled.reason = f"There is a queue {origin.name!r} here that is no copy."
            return False
        stats = await self._broker.queue_stats(origin.name)
        if any(any(counts) for counts in stats.subscriptions.values()):
            pulled.state = "diverged"
            pulled.reason = (
                f"Queue {origin.name!r} was made anew upstream; the copy of the old one still has "
                "messages. It is replaced when they are done."
            )
            return False
        await self._broker.delete_queue(origin.name)
        with contextlib.suppress(QueueExists):
            await self._broker.adopt_queue(origin, settings)
        return True

    def _settings(self, origin: QueueSettings) -> QueueSettings:
        """The settings of a copy: the origin's, within this broker's spool, never dropping."""
        options = self._options
        bytes_max = max(min(origin.bytes_max, options.spool_bytes), origin.body_bytes_max)
        keep_ms = min(max(origin.keep_done_ms, options.keep_ms), origin.retention_ms)
        return origin.replace(
            relayed=True, bytes_max=bytes_max, keep_done_ms=keep_ms, when_full="refuse"
        )

    def _begin(self, upstream: RemoteBackend, info: QueueInfo) -> None:
        options = self._options
        pull = QueuePull(
            self._broker, upstream, info, options.name, options.compression, self.pulled[info.name]
        )
        self._pulls[info.name] = info, pull, asyncio.create_task(pull.run())

    async def _end_pulls(self) -> None:
        pulls, self._pulls = self._pulls, {}
        tasks = [task for _, _, task in pulls.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- leaving --------------------------------------------------------------------------------

    async def _leave_others(self, place: Place, upstream: RemoteBackend) -> None:
        """Give up this broker's place at former upstreams, which would keep messages for it."""
        store = self._broker.store
        key = _LEFT_KEY + (store_of(upstream) or place.name)
        await store.put(key, place.url.encode())
        while others := [record for record in await store.scan(_LEFT_KEY) if record.key != key]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), 10 * _LOOK_S)
            self._settled.clear()
            for record in others:
                with contextlib.suppress(RingdoveError, OSError):
                    if await self._leave(record.value.decode(), upstream):
                        await store.remove(record.key)

    async def _leave(self, url: str, present: RemoteBackend) -> bool:
        """Give up the places at a former upstream that the present one has; whether none is left.

        A URL of another spelling may lead to the present one: nothing is given up there, nor where
        that cannot be told.
        """
        former = self._connection(url)
        await former.open()
        try:
            if not store_of(former) or not store_of(present):
                return False
            if store_of(former) == store_of(present):
                return True
            none_left = True
            for info in await former.list_queues():
                subscription = relay_subscription(self._options.name)
                if subscription not in await former.subscriptions(info.name):
                    continue
                if info.name in self._placed or not self._wants(info.name):
                    await former.unsubscribe(info.name, subscription)
                else:
                    none_left = False
            return none_left
        finally:
            await former.close()


def fixed(url: str) -> Callable[[str, list[str]], Awaitable[list[Place]]]:
    """A way to find an upstream that is always the same."""

    async def find(at: str, avoid: list[str]) -> list[Place]:  # noqa: ARG001
        if not url:
            raise StoreUnavailable("No upstream is known.")
        return [Place(without_token(url), url, 0, "")]

    return find
