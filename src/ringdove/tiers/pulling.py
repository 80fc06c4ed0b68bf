"""Pulls one queue from an upstream broker into a copy of it (M1, M2).

Blocks come in order through a stream of the native protocol, which checks their hashes and asks
again for what is lost or damaged. Each is appended under the offsets of its origin, only where the
copy stands; several appends are under way at a time and share a commit. Upstream hears of a block
when it is durable here, or, where the queue's `relay_done` is `consumed`, when everybody here is
done with it. When there is no room the pull stops, says so, and goes on when there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.core.dedup import Segment
from ringdove.errors import (
    ClientError,
    ConnectionClosed,
    OffsetTrimmed,
    QueueFull,
    QueueNotFound,
    RingdoveError,
    StoreCorrupted,
    StoreFull,
    WaitTimeout,
)
from ringdove.log import event_logger
from ringdove.stores.base import Start

if TYPE_CHECKING:
    from ringdove.client.remote import RemoteBackend
    from ringdove.client.streaming import RemoteStream
    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.streaming import StreamedBlock
    from ringdove.core.block import Block
    from ringdove.core.dedup import Appended
    from ringdove.pending import Pending
    from ringdove.stores.base import StripeId

#: Appends under way; the stream's window bounds their bytes.
_UNDER_WAY_MAX = 64

#: How long upstream keeps a broken reader's claim; the same reader takes it over at once.
_CLAIM_MS = 10_000

#: Seconds between looks for room, between word of what was consumed, and before another try.
_ROOM_S = 0.2
_CONSUMED_S = 0.5
_AGAIN_S = 1.0


#: Seconds without messages, with none left upstream, after which nothing is late any more: long
#: beside the time between two reports.
_QUIET_S = 10.0

#: Records of queues whose place upstream is being taken, by store and id.
_TAKING = "tier/taking/"


class Diverged(RingdoveError):
    """Upstream and copy do not belong together; a person must look."""

    code = "diverged"


class Compared(NamedTuple):
    """How far a copy and its upstream have come; neither contradicts the other."""

    #: Where the copy stands, by stripe, and up to where upstream has the same.
    positions: dict[StripeId, int]
    both: dict[StripeId, int]
    #: What upstream, a copy itself, lacks of this one so far; empty when it lacks nothing.
    lacks: str

    def is_behind(self, stripe: StripeId) -> bool:
        """Whether upstream had less of a stripe than the copy."""
        return self.both.get(stripe, 0) < self.positions.get(stripe, 0)


@dataclass
class Pulled:
    """What a pull has done so far, for the broker's report."""

    messages: int = 0
    nbytes: int = 0
    behind: int = 0
    lag_ms: int = 0
    #: When the last message came, on the monotonic clock.
    came_s: float = float("-inf")
    mismatches: int = 0
    #: See `reports.QueueReport`.
    state: str = "away"
    reason: str = ""


class _UnderWay(NamedTuple):
    streamed: StreamedBlock
    append: Pending[list[Appended | ClientError]]


class QueuePull:
    """One queue, from one upstream; `run` ends when the connection does."""

    def __init__(
        self,
        broker: Broker,
        upstream: RemoteBackend,
        origin: QueueInfo,
        name: str,
        compression: str,
        pulled: Pulled,
    ) -> None:
        self._broker = broker
        self._upstream = upstream
        self._origin = origin
        self._name = name
        self._compression = compression
        self.pulled = pulled
        #: Whether this broker has a place upstream.
        self.placed = False
        self._log = event_logger("ringdove.relay").bind(queue=origin.name)

    @property
    def subscription(self) -> str:
        """What holds this broker's place upstream."""
        return relay_subscription(self._name)

    async def run(self) -> None:
        """Pull until the connection is gone; raises Diverged when going on would lose messages."""
        while True:
            try:
                refused = await self._pull()
            except (ConnectionClosed, WaitTimeout, Diverged, QueueNotFound):
                raise
            except RingdoveError as error:
                self._tell("away", str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                if refused is not None:
                    await self._wait_for_room(refused)

    async def _pull(self) -> StreamedBlock | None:
        """Stream and append until there is no room; answers the block that did not fit.

        None when upstream was reached anew: it may not be what it was, so its place is taken again;
        or when it was behind and has caught up.
        """
        anew = asyncio.Event()
        on_welcome = self._upstream.link.on_welcome
        on_welcome.append(anew.set)
        try:
            compared = await self._take_place()
            self.placed = not compared.lacks
            stream = await self._upstream.stream(
                self._origin.name, self.subscription, self._name.encode(), compared.positions,
                _CLAIM_MS, self._compression,
            )  # fmt: skip
            self._tell("away" if compared.lacks else "pulling", compared.lacks)
            return await self._keep_pulling(stream, anew, compared)
        finally:
            on_welcome.remove(anew.set)

    async def _keep_pulling(
        self, stream: RemoteStream, anew: asyncio.Event, compared: Compared
    ) -> StreamedBlock | None:
        """See `_pull`."""
        under_way: asyncio.Queue[_UnderWay] = asyncio.Queue(_UNDER_WAY_MAX)
        helpers: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._read(stream, under_way, anew, compared)),
            asyncio.create_task(anew.wait()),
        ]
        if compared.lacks:
            helpers.append(asyncio.create_task(self._follow_upstream()))
        if self._origin.settings.relay_done == "consumed":
            helpers.append(asyncio.create_task(self._tell_consumed(stream)))
        settling = asyncio.create_task(self._settle(stream, under_way))
        try:
            done, _ = await asyncio.wait([settling, *helpers], return_when=asyncio.FIRST_COMPLETED)
            if settling in done:
                return settling.result()
            if anew.is_set():
                return None
            for task in done:
                task.result()
            if compared.lacks:
                return None
            raise ConnectionClosed("The stream has ended.")
        finally:
            for task in (settling, *helpers):
                task.cancel()
            await asyncio.wait([settling, *helpers])
            await stream.close()

    async def _take_place(self) -> Compared:
        """Hold this broker's place upstream; answers where the copy stands.

        A copy that has something is compared before there is a place, and again when there is: with
        one, what is trimmed upstream is taken for expired. Until both are done a note says so, for
        the connection, or this process, may end in between.
        """
        upstream, queue, store = self._upstream, self._origin.name, self._broker.store
        note = f"{_TAKING}{store_of(upstream)}/{self._origin.id}"
        placed = self.subscription in await upstream.subscriptions(queue)
        known = placed and await store.get(note) is None
        try:
            if not known and await self._has_some():
                await self._compare(known=False)
                await store.put(note, b"")
            await upstream.subscribe(queue, self.subscription, Start("earliest"))
            placed = True
            compared = await self._compare(known=known)
        except Diverged:
            if placed and not known:
                await upstream.unsubscribe(queue, self.subscription)
            raise
        if not known and not compared.lacks:
            await store.remove(note)
        await self._move_place(compared)
        return compared

    async def _move_place(self, compared: Compared) -> None:
        """Tell upstream what it need not keep: it may have no room for more before that."""
        on_stored = self._origin.settings.relay_done == "stored"
        for stripe, both in compared.both.items():
            done = both if on_stored else min(both, await self._floor(stripe))
            if done:
                await self._upstream.advance(stripe, self.subscription, done)

    async def _follow_upstream(self) -> None:
        """Move the place along while upstream catches up; ends when it has."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            compared = await self._compare(known=True)
            await self._move_place(compared)
            if not compared.lacks:
                return
            self._tell("away", compared.lacks)

    async def _has_some(self) -> bool:
        """Whether anything was ever copied."""
        store = self._broker.store
        return any([(await store.stats(stripe)).tail for stripe in self._origin.stripes()])

    async def _compare(self, *, known: bool) -> Compared:
        """Where the copy stands; raises Diverged unless upstream goes on from there, or will."""
        queue = self._origin.name
        positions, shared = {}, {}
        lacks = ""
        for stripe, stats in (await self._upstream.queue_stats(queue)).stripes.items():
            tail = (await self._broker.store.stats(stripe)).tail
            if tail > stats.tail and self._origin.settings.relayed:
                lacks = (
                    f"Upstream has {stats.tail} messages of {queue!r} so far, this copy {tail}: "
                    "it is a copy itself, and has to catch up."
                )
            elif tail > stats.tail:
                raise Diverged(
                    f"Upstream has {stats.tail} messages of {queue!r}, this copy {tail}: upstream "
                    "has lost some, or is not what this was copied from."
                )
            if 0 < tail < stats.head and not known:
                raise Diverged(
                    f"Upstream has {queue!r} only from offset {stats.head}, this copy ends at "
                    f"{tail}: what is between has been trimmed there."
                )
            both = min(tail, stats.tail)
            if stats.head < both and not await self._same_at(stripe, both - 1):
                raise Diverged(
                    f"Offset {both - 1} of {queue!r} is another message upstream than here: "
                    "upstream has lost some and got others, or is not what this was copied from."
                )
            positions[stripe], shared[stripe] = tail, both
        return Compared(positions, shared, lacks)

    async def _same_at(self, stripe: StripeId, offset: int) -> bool:
        """Whether upstream has the copy's message there; True where that cannot be told."""
        try:
            mine = await self._broker.read(stripe, offset, 1, skip_trimmed=False)
            theirs = await self._upstream.read(stripe, offset, 1, skip_trimmed=False)
        except (OffsetTrimmed, StoreCorrupted):
            return True
        if mine and mine[0].base > offset:
            return True  # It had expired before it could come here.
        return [_content(block) for block in mine] == [_content(block) for block in theirs]

    async def _read(
        self,
        stream: RemoteStream,
        under_way: asyncio.Queue[_UnderWay],
        anew: asyncio.Event,
        compared: Compared,
    ) -> None:
        store = self._broker.store
        while True:
            streamed = await stream.next()
            assert streamed is not None
            if anew.is_set() or compared.is_behind(streamed.stripe):
                return  # What has caught up is compared first.
            self.pulled.mismatches += stream.mismatches
            stream.mismatches = 0
            segment = Segment(streamed.block, sequence=streamed.wanted, placed=True)
            append = store.submit_append(streamed.stripe, [segment], 0)
            append.start()
            await under_way.put(_UnderWay(streamed, append))

    async def _settle(
        self, stream: RemoteStream, under_way: asyncio.Queue[_UnderWay]
    ) -> StreamedBlock:
        """Tell upstream of each block that is durable; answers the first one without room."""
        on_stored = self._origin.settings.relay_done == "stored"
        while True:
            streamed, append = await under_way.get()
            try:
                [answer] = await append
            except (QueueFull, StoreFull) as error:
                self._tell("full", str(error))
                return streamed
            if isinstance(answer, ClientError):
                raise answer
            self._note(streamed)
            if on_stored:
                await stream.acknowledge(streamed.stripe, streamed.block.end)
            else:
                stream.make_room(streamed.stripe, streamed.block.end)

    def _note(self, streamed: StreamedBlock) -> None:
        pulled, block = self.pulled, streamed.block
        pulled.messages += block.count
        pulled.nbytes += block.nbytes
        pulled.came_s = time.monotonic()
        pulled.lag_ms = max(0, self._broker.store.clock.now_ms() - block.stored_ms)
        if block.base > streamed.wanted:
            self._log.warning(
                "skipped", wanted=streamed.wanted, found=block.base,
                why="upstream has no messages there: expired, or never given",
            )  # fmt: skip

    async def _tell_consumed(self, stream: RemoteStream) -> None:
        """Say upstream how far everybody here is done, now and then."""
        told: dict[StripeId, int] = {}
        while True:
            await asyncio.sleep(_CONSUMED_S)
            for stripe in self._origin.stripes():
                floor = await self._floor(stripe)
                if floor > told.get(stripe, 0):
                    told[stripe] = floor
                    await stream.acknowledge(stripe, floor)

    async def _floor(self, stripe: StripeId) -> int:
        """Below it every subscription here is done; without any, nothing is."""
        stats = await self._broker.store.stats(stripe)
        return min((sub.floor for sub in stats.subscriptions), default=0)

    async def _wait_for_room(self, refused: StreamedBlock) -> None:
        """Try a block again until it fits; meanwhile nothing more is pulled."""
        segment = Segment(refused.block, sequence=refused.wanted, placed=True)
        while True:
            await asyncio.sleep(_ROOM_S)
            try:
                [answer] = await self._broker.store.append(refused.stripe, [segment], 0)
            except (QueueFull, StoreFull):
                continue
            if isinstance(answer, ClientError):
                raise answer
            self._note(refused)
            return

    async def look_behind(self) -> None:
        """Note how much upstream has that is not here yet."""
        with contextlib.suppress(RingdoveError):
            theirs = (await self._upstream.queue_stats(self._origin.name)).stripes
            behind = 0
            for stripe, stats in theirs.items():
                more = max(0, stats.tail - (await self._broker.store.stats(stripe)).tail)
                # A fabric skips offsets after a failover; those it does not count as waiting.
                mine = (sub for sub in stats.subscriptions if sub.name == self.subscription)
                behind += min([more, *(sub.waiting + sub.delayed for sub in mine)])
            self.pulled.behind = behind
            if not behind and time.monotonic() - self.pulled.came_s > _QUIET_S:
                self.pulled.lag_ms = 0  # Nothing is late: nothing comes.

    def _tell(self, state: str, reason: str) -> None:
        if (state, reason) != (self.pulled.state, self.pulled.reason):
            self._log.info(state, reason=reason)
        self.pulled.state, self.pulled.reason = state, reason


def relay_subscription(name: str) -> str:
    """The subscription by which a broker holds its place upstream."""
    return f"relay.{name}"


def store_of(upstream: RemoteBackend) -> str:
    """What names the store that a connection leads to; empty where nobody says."""
    welcome = upstream.link.session.welcome
    return welcome.store if welcome is not None else ""


def _content(block: Block) -> tuple[Any, ...]:
    """What a block holds and where, however it is packed."""
    return block.base, block.stored_ms, block.sent_times_ms(), block.keys(), block.bodies()
