"""The enqueue controller (E-Ctrl): check parcels, choose the stripe, join, append (T2.1, T3.1).

A controller keeps nothing that matters. Small sends that arrive for a stripe while an append to it
is under way are joined into one block, which goes in the next commit: thousands of devices that
send one message each cost the store a few blocks per commit. Where repetition is judged, segments
stay apart, and still share the commit.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.controllers.sending import ANY_STRIPE, Delivered, Parcel
from ringdove.core.block import Block, key_hash
from ringdove.core.dedup import Appended, Segment
from ringdove.errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    RingdoveError,
    SettingsStale,
)
from ringdove.pending import Pending
from ringdove.stores.base import Store, StripeId

if TYPE_CHECKING:
    from ringdove.controllers.catalog import Catalog, QueueInfo


class Enqueuer:
    """Stores parcels on the stripes of queues."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._turn = 0
        #: By stripe with an append under way: small blocks that wait for it to end.
        self._gathered: dict[StripeId, list[_Single]] = {}
        self._lock = threading.Lock()
        #: Blocks that went to the store, and those of them that were joined from several sends.
        self.blocks = 0
        self.joined = 0

    async def deliver(self, queue: str, version: int, parcel: Parcel) -> Delivered:
        """Store a parcel made for the queue's settings of that version; else SettingsStale."""
        info = await self._catalog.get(queue)
        if info.version != version:
            info = await self._fresh(queue, version)
        stripe = self._choose(info, parcel)
        segments = self._deferred(info, parcel)
        try:
            return stripe, await self._append(info, stripe, segments)
        except (SettingsStale, QueueNotFound):
            info = await self._fresh(queue, version)
            await self._catalog.finish_change(info)
            return stripe, await self._append(info, stripe, segments)

    async def _fresh(self, queue: str, version: int) -> QueueInfo:
        """The queue as it is recorded now, which must be as the sender believes."""
        self._catalog.forget(queue)
        info = await self._catalog.get(queue)
        if info.version != version:
            raise SettingsStale(
                f"The settings of queue {queue!r} have version {info.version}, not {version}: "
                "read them again."
            )
        return info

    def _choose(self, info: QueueInfo, parcel: Parcel) -> StripeId:
        number = parcel.number
        if number == ANY_STRIPE:
            self._turn += 1
            number = self._turn % info.settings.stripes
        return StripeId(info.id, number, parcel.level)

    def _deferred(self, info: QueueInfo, parcel: Parcel) -> list[Segment]:
        delay_ms = info.settings.delay_ms if parcel.delay_ms is None else parcel.delay_ms
        if not delay_ms:
            return parcel.segments
        until_ms = self._store.clock.now_ms() + delay_ms
        return [s._replace(block=s.block.defer(until_ms)) for s in parcel.segments]

    async def _append(
        self, info: QueueInfo, stripe: StripeId, segments: list[Segment]
    ) -> list[Appended | Any]:
        if len(segments) == 1 and _joinable(segments[0]):
            return [await self._append_single(info, stripe, segments[0].block)]
        self.blocks += len(segments)
        return await self._store.append(stripe, segments, info.version)

    async def _append_single(self, info: QueueInfo, stripe: StripeId, block: Block) -> Appended:
        """Append a small block, together with others if an append is under way.

        Whoever finds none under way goes alone. The others wait; when that append has ended, the
        first of them takes all that came meanwhile.
        """
        mine = _Single(block, info.version)
        with self._lock:
            gathered = self._gathered.get(stripe)
            if gathered is None:
                self._gathered[stripe] = []
            else:
                gathered.append(mine)
        batch = [mine]
        if gathered is not None:
            answer = await mine.turn
            if answer is not None:
                return answer
            batch = self._take(stripe, mine)
        try:
            base = await self._append_batch(stripe, batch)
        except BaseException as error:
            failure = error if isinstance(error, RingdoveError) else None
            for single in batch:
                if single is not mine:
                    # One whose leader was interrupted goes again by itself.
                    single.turn.fail(failure) if failure else single.turn.resolve(None)
            raise
        finally:
            self._hand_over(stripe)
        for single in batch:
            if single is not mine:
                single.turn.resolve(Appended(base))
            else:
                own = base
            base += single.block.count
        return Appended(own)

    async def _append_batch(self, stripe: StripeId, batch: list[_Single]) -> int:
        block = Block.join([single.block for single in batch])
        self.blocks += 1
        self.joined += len(batch) > 1
        [answer] = await self._store.append(stripe, [Segment(block)], batch[0].version)
        if isinstance(answer, RingdoveError):
            raise answer
        return answer.base

    def _take(self, stripe: StripeId, mine: _Single) -> list[_Single]:
        """What may go in one block with `mine`; the rest waits for the next."""
        batch: list[_Single] = []
        count = nbytes = 0
        with self._lock:
            gathered = self._gathered.get(stripe, [])
            if mine not in gathered:
                return [mine]
            for single in gathered:
                count += single.block.count
                nbytes += single.block.nbytes
                if batch and (
                    count > limits.BLOCK_MESSAGES_TARGET
                    or nbytes > limits.BLOCK_BYTES_TARGET
                    or single.version != batch[0].version
                ):
                    break
                batch.append(single)
            del gathered[: len(batch)]
        return batch

    def _hand_over(self, stripe: StripeId) -> None:
        with self._lock:
            gathered = self._gathered.get(stripe)
            if not gathered:
                self._gathered.pop(stripe, None)
                return
            leader = gathered[0]
        if not leader.turn.done:
            leader.turn.resolve(None)


class _Single:
    """A small block that waits for company; `turn` is its answer, or None when it must lead."""

    __slots__ = ("block", "turn", "version")

    def __init__(self, block: Block, version: int) -> None:
        self.block = block
        self.version = version
        self.turn: Pending[Appended | None] = Pending()


def _joinable(segment: Segment) -> bool:
    block = segment.block
    return (
        segment.producer is None
        and segment.message_id is None
        and block.count <= limits.JOIN_MESSAGES_MAX
        and block.nbytes <= limits.JOIN_BYTES_MAX
        and not block.not_before_ms
        and not block.codec
    )


def check_parcel(info: QueueInfo, parcel: Parcel) -> None:
    """Refuse a parcel from elsewhere that the queue does not take, before anything is stored."""
    settings = info.settings
    if not 0 <= parcel.level <= settings.priority:
        raise InvalidArgument(
            f"Queue {info.name!r} takes priorities 0 to {settings.priority}, not {parcel.level}; "
            "raise its setting 'priority' for more."
        )
    if not ANY_STRIPE <= parcel.number < settings.stripes:
        raise InvalidArgument(f"Queue {info.name!r} has no stripe {parcel.number}.")
    if settings.ordered and parcel.delay_ms is not None:
        raise InvalidArgument(
            f"Queue {info.name!r} keeps order, so single messages cannot be delayed; "
            "set delay_ms on the queue instead."
        )
    if parcel.delay_ms is not None and not 0 <= parcel.delay_ms < settings.retention_ms:
        raise InvalidArgument(f"delay_ms is {parcel.delay_ms}; it must be below retention_ms.")
    for segment in parcel.segments:
        _check_segment(info, parcel.number, parcel.level, segment)


def _check_segment(info: QueueInfo, number: int, level: int, segment: Segment) -> None:
    settings, block = info.settings, segment.block
    if block.priority != level or block.not_before_ms:
        raise InvalidArgument("A block's priority differs from its parcel's, or it is delayed.")
    if (
        block.raw_bytes > settings.body_bytes_max
        and block.body_bytes_longest() > settings.body_bytes_max
    ):
        raise MessageTooLarge(
            f"A body of {block.body_bytes_longest()} bytes exceeds body_bytes_max of queue "
            f"{info.name!r}, which is {settings.body_bytes_max}."
        )
    if segment.message_id is not None and block.count != 1:
        raise InvalidArgument("A message id names one message; its block must hold one.")
    if segment.producer is not None and segment.span != block.count:
        raise InvalidArgument("A segment uses up as many sequence numbers as it has messages.")
    if settings.order == "key":
        homes = {value % settings.stripes if value else None for value in block.key_hashes()}
        if homes != {number}:
            raise InvalidArgument(
                f"Queue {info.name!r} keeps messages in order by key: every message needs a key, "
                "and its stripe is given by the key's hash."
            )
    elif (
        settings.exactly_once
        and segment.producer is not None
        and number != key_hash(segment.producer) % settings.stripes
    ):
        raise InvalidArgument("The stripe of a producer is given by its name's hash.")
