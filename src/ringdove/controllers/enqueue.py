"""The enqueue controller (E-Ctrl): check parcels, choose the stripe, join, append (T2.1, T3.1).

A controller keeps nothing that matters. Small sends that arrive together for a stripe, or while an
append to it is under way, are joined into one block (gathering.py): thousands of devices that send
one message each cost the store one block per commit. Where order is kept, large blocks stand in the
same line as small sends.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.controllers.gathering import Apart, Content, Gathering, Message, Single
from ringdove.controllers.health import Health
from ringdove.controllers.sending import ANY_STRIPE, Delivered, Parcel
from ringdove.core.block import key_hash
from ringdove.core.dedup import Appended
from ringdove.core.tuples import maker
from ringdove.errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueNotFound,
    SettingsStale,
    StoreUnavailable,
)
from ringdove.pending import Pending
from ringdove.stores.base import Store, StripeId

if TYPE_CHECKING:
    from ringdove.controllers.catalog import Catalog, QueueInfo
    from ringdove.core.attributes import Attributes
    from ringdove.core.dedup import Segment
    from ringdove.core.tally import Tallies
    from ringdove.errors import ClientError

_stripe = maker(StripeId)

#: The stripe that a parcel goes to, and what will be answered.
Begun = tuple[StripeId, Pending["list[Appended | ClientError]"]]


class Enqueuer:
    """Stores parcels on the stripes of queues."""

    def __init__(self, store: Store, catalog: Catalog, tallies: Tallies) -> None:
        self.store = store
        self._catalog = catalog
        self._tallies = tallies
        #: Counts the choices of a stripe, for where to begin; and the last one, by queue and level.
        self._turn = 0
        self._chosen: dict[tuple[int, int], StripeId] = {}
        #: Seconds after which a node counts as slow, and a send that may go elsewhere does.
        self.slowdown_s = limits.SLOWDOWN_MS / 1000
        self.health = Health(store.clock.now_ms)
        self._gatherings: dict[StripeId, Gathering] = {}
        self._lock = threading.Lock()
        #: Messages that went to the store; blocks of them, and those joined from several sends.
        self.messages = 0
        self.blocks = 0
        self.joined = 0

    async def deliver(
        self, queue: str, version: int, parcel: Parcel, *, check: bool = False
    ) -> Delivered:
        """Store a parcel made for the queue's settings of that version; else SettingsStale.

        `check` what it holds when it comes from elsewhere.
        """
        info = self._catalog.known(queue) or await self._catalog.get(queue)
        if info.version != version:
            info = await self._fresh(queue, version)
        if check:
            check_parcel(info, parcel)
        segments = self._deferred(info, parcel)
        stripe = self._choose(info, parcel)
        try:
            if parcel.number == ANY_STRIPE and self._has_nodes(info):
                return await self._append_anywhere(info, stripe, segments)
            return stripe, await self._append(info, stripe, segments)
        except (SettingsStale, QueueNotFound):
            info = await self._fresh(queue, version)
            await self._catalog.finish_change(info)
            return stripe, await self._append(info, stripe, segments)

    def begin_to_deliver(self, queue: str, version: int, parcel: Parcel) -> Begun | None:
        """`deliver` with `check`, as far as nothing is to be waited for; None where something is.

        Fails with SettingsStale or QueueNotFound when the queue is not what it was: `deliver` then.
        """
        info = self._catalog.known(queue)
        if info is None or info.version != version:
            return None
        check_parcel(info, parcel)
        number, level, segments, delay_ms = parcel
        if number != ANY_STRIPE:
            stripe = _stripe((info.id, number, level))
        elif self._has_nodes(info):
            return None
        else:
            stripe = self._any_stripe(info, level)
        if info.settings.delay_ms or delay_ms:
            segments = self._deferred(info, parcel)
        return stripe, self._append(info, stripe, segments)

    def _has_nodes(self, info: QueueInfo) -> bool:
        """Whether a send may have to go elsewhere; asked before a stripe has its turn."""
        return self.store.node_of(StripeId(info.id, 0, 0)) is not None

    async def _append_anywhere(
        self, info: QueueInfo, first: StripeId, segments: list[Segment]
    ) -> Delivered:
        """Append to a stripe whose node answers in time: round-robin with exclusion (T3.5).

        What a slow node was asked for may still be done there: the messages are then stored twice,
        which an at-least-once queue allows and a sender who had to wait would do, too.
        """
        failure: StoreUnavailable | None = None
        slow: list[tuple[StripeId, Pending[list[Appended | ClientError]]]] = []
        count = info.settings.stripes
        order = [first._replace(number=(first.number + step) % count) for step in range(count)]
        willing = [stripe for stripe in order if self.health.admits(self.store.node_of(stripe))]
        for stripe in willing or order:
            node = self.store.node_of(stripe)
            began_s = time.monotonic()
            pending = self._append(info, stripe, segments)
            if not await pending.until(self.slowdown_s):
                self.health.failed(node)
                if not (isinstance(pending, Single) and pending.withdraw()):
                    slow.append((stripe, pending))
                continue
            try:
                answers = await pending
            except StoreUnavailable as error:
                self.health.failed(node)
                failure = error
                continue
            self.health.answered(node, time.monotonic() - began_s)
            return stripe, answers
        if failure is not None and not slow:
            raise failure
        # All are slow: then whoever has it, or the first one, has time.
        stripe, pending = slow[0] if slow else (first, self._append(info, first, segments))
        return stripe, await pending

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
        if parcel.number == ANY_STRIPE:
            return self._any_stripe(info, parcel.level)
        return StripeId(info.id, parcel.number, parcel.level)

    def _any_stripe(self, info: QueueInfo, level: int) -> StripeId:
        """Each stripe in turn; but where sends wait for company, so that they become one block.

        Where each stripe may have its own node, not behind an append: the slowest would get most.
        """
        last = self._chosen.get((info.id, level))
        gathering = self._gatherings.get(last) if last is not None else None
        if (
            gathering is not None
            and 0 < len(gathering.waiting) < limits.JOIN_MESSAGES_MAX
            and gathering.stripe.number < info.settings.stripes
            and (gathering.under_way is None or self.store.node_of(gathering.stripe) is None)
        ):
            return gathering.stripe
        self._turn += 1
        number = self._turn if last is None else last.number + 1
        stripe = StripeId(info.id, number % info.settings.stripes, level)
        if len(self._chosen) >= limits.SETTINGS_CACHE_MAX:
            self._chosen.clear()
        self._chosen[info.id, level] = stripe
        return stripe

    def _deferred(self, info: QueueInfo, parcel: Parcel) -> list[Segment]:
        delay_ms = info.settings.delay_ms if parcel.delay_ms is None else parcel.delay_ms
        if not delay_ms:
            return parcel.segments
        until_ms = self.store.clock.now_ms() + delay_ms
        return [s._replace(block=s.block.defer(until_ms)) for s in parcel.segments]

    def _append(
        self, info: QueueInfo, stripe: StripeId, segments: list[Segment]
    ) -> Pending[list[Appended | ClientError]]:
        if len(segments) == 1:
            block, producer, _, _, _, message_id, _ = segments[0]
            if (
                producer is None
                and message_id is None
                and block.count <= limits.JOIN_MESSAGES_MAX
                and block.nbytes <= limits.JOIN_BYTES_MAX
                and not block.not_before_ms
                and not block.codec
            ):
                return self._gather(stripe, block, info.version)
        pending = self._append_apart(info, stripe, segments)
        if segments and (segments[0].producer or segments[0].message_id) is not None:
            pending.when_done(partial(self._note_repeated, info.id, segments, pending))
        return pending

    def _append_apart(
        self, info: QueueInfo, stripe: StripeId, segments: list[Segment]
    ) -> Pending[list[Appended | ClientError]]:
        """Append what needs blocks of its own; on ordered queues not past what came before."""
        # Sequence numbers keep a producer's order, whatever overtakes what.
        if info.settings.ordered and not any(segment.producer for segment in segments):
            if self.store.node_of(stripe) is not None:
                # Of several appends under way, a fabric may repeat an earlier one after a later.
                return self._gather(stripe, Apart(segments), info.version)
            gathering = self._gatherings.get(stripe)
            if gathering is not None:
                gathering.flush(at_once=True)
        self.blocks += len(segments)
        self.messages += sum(segment.block.count for segment in segments)
        return self.store.submit_append(stripe, segments, info.version)

    def _gather(self, stripe: StripeId, content: Content, version: int) -> Single:
        with self._lock:
            gathering = self._gatherings.get(stripe)
            if gathering is None:
                gathering = self._gatherings[stripe] = Gathering(self, stripe)
            return gathering.add(content, version)

    def _note_repeated(
        self, queue: int, segments: list[Segment], pending: Pending[list[Appended | ClientError]]
    ) -> None:
        if pending.error() is None:
            for segment, answer in zip(segments, pending.result(), strict=True):
                if isinstance(answer, Appended) and answer.duplicate:
                    self._tallies.of(queue).repeated += segment.block.count

    def put(
        self, info: QueueInfo, body: bytes, key: bytes = b"", attributes: Attributes | None = None
    ) -> tuple[StripeId, Pending[list[Appended | ClientError]]] | None:
        """Gather one message that a front end has checked; a block is built once for all of them.

        None where that will not do: it is large or delayed, or may have to go elsewhere. Fails with
        SettingsStale or QueueNotFound when the queue is not what it was: send it the usual way.
        """
        settings = info.settings
        if len(body) > limits.JOIN_BYTES_MAX or settings.delay_ms or self._has_nodes(info):
            return None
        if settings.stripes == 1:
            stripe = StripeId(info.id, 0, 0)
        elif settings.order == "key":
            stripe = StripeId(info.id, key_hash(key) % settings.stripes, 0)
        else:
            stripe = self._any_stripe(info, 0)
        message = Message(body, key, attributes, self.store.clock.now_ms())
        return stripe, self._gather(stripe, message, info.version)

    def forget(self, gathering: Gathering) -> None:
        """Nothing is gathered there any more; the next send there finds it, if there are few."""
        if len(self._gatherings) <= _GATHERINGS_KEPT:
            return
        with self._lock:
            if not gathering.waiting and gathering.under_way is None:
                self._gatherings.pop(gathering.stripe, None)


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
    if parcel.delay_ms is not None:
        if settings.ordered:
            raise InvalidArgument(
                f"Queue {info.name!r} keeps order, so single messages cannot be delayed; "
                "set delay_ms on the queue instead."
            )
        if not 0 <= parcel.delay_ms < settings.retention_ms:
            raise InvalidArgument(f"delay_ms is {parcel.delay_ms}; it must be below retention_ms.")
    for segment in parcel.segments:
        block = segment.block
        usual = (
            segment.producer is None
            and segment.message_id is None
            and settings.order != "key"
            and block.priority == parcel.level
            and not block.not_before_ms
            and block.raw_bytes <= settings.body_bytes_max
        )
        if not usual:
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
    if segment.producer is not None and segment.span != block.count and not segment.gaps:
        raise InvalidArgument(
            "A segment uses up as many sequence numbers as it has messages, or allows gaps."
        )
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


#: Stripes whose gathering is kept when nothing is under way there.
_GATHERINGS_KEPT = 1_000
