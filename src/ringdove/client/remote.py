"""A client's backend on a server: every request of `Backend` over a link.

Messages become blocks here, by the same code that the library uses in one process; the server only
checks and stores them. A request whose connection breaks is repeated on the next one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.client.address import parse
from ringdove.client.link import BackgroundLoop, Link, LinkOptions
from ringdove.client.roaming import ManagedEndpoints
from ringdove.client.streaming import RemoteStream
from ringdove.clock import Clock, SystemClock
from ringdove.controllers.broker import QueueStats, total_stats
from ringdove.controllers.catalog import QueueInfo
from ringdove.controllers.dequeue import check_wait
from ringdove.controllers.sending import Outgoing, Sender, Sequencer
from ringdove.controllers.visiting import Received
from ringdove.core.dedup import Appended
from ringdove.core.receipt import Receipt
from ringdove.core.runs import LeasedRun
from ringdove.core.settings import check_name
from ringdove.core.stripe import Part
from ringdove.core.tuples import maker
from ringdove.errors import (
    ConnectionClosed,
    InvalidArgument,
    QueueNotFound,
    RemoteProtocolError,
    RingdoveError,
    SequenceRefused,
    SubscriptionNotFound,
)
from ringdove.pending import Pending, on_event_loop
from ringdove.protocol import messages
from ringdove.protocol.frames import blocks_of
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import Request
from ringdove.stores.base import Delivered, Start, StripeId, StripeStats, SubscriptionStats

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from ringdove.controllers.sending import Delivered as DeliveredParcel
    from ringdove.controllers.sending import Parcel, Sent, SentBatch
    from ringdove.core.block import Block
    from ringdove.core.dedup import Segment
    from ringdove.errors import ClientError
    from ringdove.protocol.frames import Frame

#: Times that a send is numbered, each time anew because others before it failed; the last time
#: under a name of its own, so that there are no others.
_SEQUENCE_ATTEMPTS = 8

#: Times that a request damaged on its way is repeated.
_DAMAGED_MAX = 3


_decode_stored = messages.decoder(messages.Stored)
_decode_runs = messages.decoder(list[messages.WireRun])
_decode_settled = messages.decoder(list[int | messages.WireError])

_appended, _stripe, _receipt = maker(Appended), maker(StripeId), maker(Receipt)
_leased_run, _part, _delivered = maker(LeasedRun), maker(Part), maker(Delivered)
_received = maker(Received)


class _Own(threading.local):
    """What a thread numbers its own sends by, by id of the queue."""

    def __init__(self) -> None:
        self.sequencers: dict[int, Sequencer] = {}


class RemoteBackend:
    """See `ringdove.client.backend.Backend`."""

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        self._address = parse(url)
        self._options = LinkOptions(**options)
        self._clock: Clock = clock or SystemClock()
        self._background: BackgroundLoop | None = None
        self._link: Link | None = None
        self._known: dict[str, QueueInfo] = {}
        #: The queue as it was when last looked at, for packing messages.
        self.known: Callable[[str], QueueInfo | None] = self._known.get
        self._sender = Sender(self, self.deliver, self._clock.now_ms)
        self._own = _Own()

    @property
    def link(self) -> Link:
        """The way to the servers."""
        if self._link is None:
            raise ConnectionClosed("The connection is not open.")
        return self._link

    async def open(self) -> None:
        """Connect to one of the servers."""
        if on_event_loop():
            self._link = self._make_link(asyncio.get_running_loop())
            await self._link.open()
            return
        self._background = BackgroundLoop()
        self._link = self._make_link(self._background.loop)
        try:
            await self._elsewhere(self._link.open())
        except BaseException:
            self._background.stop()
            raise

    def _make_link(self, loop: asyncio.AbstractEventLoop) -> Link:
        address, options = self._address, self._options
        link = Link(address, options, loop)
        if address.asker is not None:
            link.endpoints = ManagedEndpoints(address, address.asker, options, loop, link.lost)
        return link

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        link, self._link = self._link, None
        if link is None:
            return
        if self._background is None:
            await link.close()
        else:
            await self._elsewhere(link.close(), link.loop)
            self._background.stop()
            link.refuse_inbox()

    async def _elsewhere(
        self, coroutine: Any, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Run a coroutine on the background loop, and wait for it here."""
        done: Pending[None] = Pending()

        async def work() -> None:
            try:
                await coroutine
            except BaseException as error:  # noqa: BLE001  delivered to whoever waits
                done.fail(error)
            else:
                done.resolve(None)

        asyncio.run_coroutine_threadsafe(work(), loop or self.link.loop)
        await done

    # -- asking ---------------------------------------------------------------------------------

    async def _ask(
        self,
        verb: Verb,
        value: Any = None,
        blocks: Sequence[Block] = (),
        wait_s: float | None = 0,
        asked: list[Request] | None = None,
    ) -> Frame:
        """Make a request and wait for its answer; again if it was damaged on its way.

        `asked` takes down what was asked.
        """
        meta = b"" if value is None else messages.encode(value)
        for attempt in range(_DAMAGED_MAX + 1):
            link = self._link or self.link
            request = Request(verb, meta, blocks)
            if wait_s is not None:
                request.deadline_s = link.loop.time() + link.options.timeout_s + wait_s
            if asked is not None:
                asked.append(request)
            link.submit(request)
            try:
                return await request.answer
            except RemoteProtocolError:
                if attempt == _DAMAGED_MAX:
                    raise
            except BaseException:
                if not request.answer.done:
                    link.abandon(request)
                raise
        raise AssertionError

    async def _remove(self, verb: Verb, value: Any, gone: type[RingdoveError]) -> None:
        """Ask for something to be removed; that it is gone already is fine for a repetition."""
        asked: list[Request] = []
        try:
            await self._ask(verb, value, asked=asked)
        except gone:
            if sum(request.sent_times for request in asked) < 2:
                raise

    async def _get(self, kind: Any, verb: Verb, value: Any = None) -> Any:
        frame = await self._ask(verb, value)
        return messages.decode(kind, frame.meta)

    # -- queues ---------------------------------------------------------------------------------

    async def create_queue(self, name: str, settings: dict[str, Any]) -> QueueInfo:
        """See Backend."""
        ask = messages.Settings(name, settings)
        return self._remember(await self._get(messages.WireInfo, Verb.CREATE, ask))

    async def get_queue(self, name: str) -> QueueInfo:
        """See Backend."""
        return self._remember(await self._get(messages.WireInfo, Verb.GET, check_name(name)))

    async def get(self, name: str) -> QueueInfo:
        """`known`, or looked up."""
        return self._known.get(name) or await self.get_queue(name)

    async def refresh(self, name: str) -> QueueInfo:
        """The queue as it is now; until that is known, what was known before counts."""
        try:
            return await self.get_queue(name)
        except QueueNotFound:
            self._known.pop(name, None)
            raise

    async def list_queues(self, prefix: str = "") -> list[QueueInfo]:
        """See Backend."""
        found = await self._get(list[messages.WireInfo], Verb.LIST, prefix)
        return [_info(wire) for wire in found]

    async def change_queue(self, name: str, settings: dict[str, Any]) -> QueueInfo:
        """See Backend."""
        ask = messages.Settings(name, settings)
        return self._remember(await self._get(messages.WireInfo, Verb.CHANGE, ask))

    async def delete_queue(self, name: str) -> None:
        """See Backend."""
        self._known.pop(name, None)
        await self._remove(Verb.DELETE, name, QueueNotFound)

    async def purge_queue(self, name: str) -> int:
        """See Backend."""
        count: int = await self._get(int, Verb.PURGE, name)
        return count

    async def queue_stats(self, name: str) -> QueueStats:
        """See Backend."""
        found = await self._get(list[messages.WireStripeStats], Verb.STATS, name)
        return total_stats(
            name,
            {
                StripeId(*s.stripe): StripeStats(
                    s.epoch, s.head, s.tail, s.nbytes, s.oldest_ms,
                    [SubscriptionStats(*sub) for sub in s.subscriptions],
                )
                for s in found
            },
        )  # fmt: skip

    def _remember(self, wire: messages.WireInfo) -> QueueInfo:
        if len(self._known) >= limits.SETTINGS_CACHE_MAX:
            self._known.clear()
        info = self._known[wire.name] = _info(wire)
        return info

    # -- subscriptions --------------------------------------------------------------------------

    async def subscriptions(self, queue: str) -> tuple[str, ...]:
        """See Backend."""
        return tuple(await self._get(list[str], Verb.SUBSCRIPTIONS, queue))

    async def subscribe(
        self, queue: str, subscription: str, start: Start, *, keep_default: bool = False
    ) -> None:
        """See Backend."""
        ask = messages.Subscribe(queue, subscription, start, keep_default)
        await self._ask(Verb.SUBSCRIBE, ask)

    async def unsubscribe(self, queue: str, subscription: str) -> None:
        """See Backend."""
        await self._remove(Verb.UNSUBSCRIBE, (queue, subscription), SubscriptionNotFound)

    # -- messages -------------------------------------------------------------------------------

    async def send(self, queue: str, outgoing: Outgoing) -> SentBatch:
        """See Backend."""
        if outgoing.producer is not None or outgoing.ids is not None:
            return await self._sender.send(queue, outgoing)
        for attempt in range(1, _SEQUENCE_ATTEMPTS + 1):
            info = self._known.get(queue) or await self.get_queue(queue)
            if not info.settings.exactly_once:
                return await self._sender.send(queue, outgoing)
            last = attempt == _SEQUENCE_ATTEMPTS
            own = Sequencer(os.urandom(16)) if last else self._sequencer(info)
            numbered = outgoing._replace(producer=own, sequences={})
            try:
                return await self._sender.send(queue, numbered)
            except SequenceRefused:
                # A send before this one failed and left a gap; nothing of this one was stored.
                self._retire(info, own)
                several = numbered.sequences is not None and len(numbered.sequences) > 1
                if several or last:
                    raise
            except BaseException:
                self._retire(info, own)
                raise
        raise AssertionError

    def send_one(self, queue: str, body: bytes) -> Coroutine[Any, Any, Sent]:
        """See Backend."""
        info = self._known.get(queue)
        if info is not None and info.settings.delivery == "at-least-once":
            return self._sender.send_one(queue, body)
        return self._send_numbered(queue, body)

    async def _send_numbered(self, queue: str, body: bytes) -> Sent:
        return (await self.send(queue, Outgoing([body])))[0]

    def _sequencer(self, info: QueueInfo) -> Sequencer:
        """Numbers sends without a producer of their own, so that a repeated one is recognised.

        One per thread: within a thread, sends go out in the order in which they are numbered.
        """
        known = self._own.sequencers
        found = known.get(info.id)
        if found is None:
            found = known[info.id] = Sequencer(os.urandom(16))
        return found

    def _retire(self, info: QueueInfo, own: Sequencer) -> None:
        """A send failed: what follows is numbered anew, under another name."""
        known = self._own.sequencers
        if known.get(info.id) is own:
            del known[info.id]

    async def deliver(self, queue: str, version: int, parcel: Parcel) -> DeliveredParcel:
        """See Backend."""
        some = left = parcel.segments
        if len(left) > 1:
            some = _as_one_frame(left)
        stripe, answers = await self._deliver_some(queue, version, parcel, some)
        while len(some) < len(left):
            left = left[len(some) :]
            some = _as_one_frame(left)
            # What goes in several frames goes to one stripe.
            parcel = parcel._replace(number=stripe.number)
            answers += (await self._deliver_some(queue, version, parcel, some))[1]
        return stripe, answers

    async def _deliver_some(
        self, queue: str, version: int, parcel: Parcel, some: list[Segment]
    ) -> DeliveredParcel:
        segments, blocks = [], []
        for block, producer, sequence, span, gaps, message_id, _ in some:
            blocks.append(block)
            segments.append(messages.WireSegment(producer, sequence, span, message_id, gaps))
        ask = messages.Send(queue, version, parcel.number, parcel.level, parcel.delay_ms, segments)
        frame = await self._ask(Verb.SEND, ask, blocks)
        stored = _decode_stored(frame.meta)
        answers: list[Any] = []
        for base, duplicate, error in stored.answers:
            answers.append(
                _appended((base, duplicate)) if error is None else messages.decode_error(error)
            )
        return _stripe(stored.stripe), answers

    async def receive(
        self, queue: str, subscription: str, max: int, wait_s: float | None, lease_ms: int | None
    ) -> list[Received]:
        """See Backend."""
        check_wait(wait_s)
        ask = messages.Receive(queue, subscription, max, wait_s, lease_ms)
        frame = await self._ask(Verb.RECEIVE, ask, wait_s=wait_s)
        runs = _decode_runs(frame.meta)
        count = 0
        for run in runs:
            count += run.blocks
        blocks = blocks_of(frame, count)
        received = []
        at = 0
        for run in runs:
            receipt = _receipt(run.receipt)
            history = run.until_ms, run.receives, run.first_ms
            leased = _leased_run((receipt.lo, receipt.hi, receipt.token, *history))
            parts = [_part((block, 0, block.count)) for block in blocks[at : at + run.blocks]]
            at += run.blocks
            received.append(_received((receipt, *history, _delivered((leased, parts)))))
        return received

    async def _settle(
        self, verb: Verb, receipts: Sequence[Receipt], value: int | None
    ) -> list[int | ClientError]:
        frame = await self._ask(verb, messages.Settle(list(receipts), value))
        answers = _decode_settled(frame.meta)
        told: list[Any] = [
            answer if isinstance(answer, int) else messages.decode_error(answer)
            for answer in answers
        ]
        return told

    async def acknowledge(self, receipts: Sequence[Receipt]) -> list[int | ClientError]:
        """See Backend."""
        return await self._settle(Verb.ACKNOWLEDGE, receipts, None)

    async def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> list[int | ClientError]:
        """See Backend."""
        return await self._settle(Verb.EXTEND, receipts, lease_ms)

    async def release(
        self, receipts: Sequence[Receipt], delay_ms: int | None
    ) -> list[int | ClientError]:
        """See Backend."""
        return await self._settle(Verb.RELEASE, receipts, delay_ms)

    async def unlease(self, receipts: Sequence[Receipt]) -> list[int | ClientError]:
        """See Backend."""
        return await self._settle(Verb.UNLEASE, receipts, None)

    async def bury(self, queue: str, receipt: Receipt, blocks: list[Block], reason: str) -> None:
        """See Backend."""
        ask = messages.Bury(queue, receipt, reason, len(blocks))
        await self._ask(Verb.BURY, ask, blocks)

    async def redrive(
        self,
        queue: str,
        target: str | None,
        max: int | None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """See Backend. Moves step by step, so that progress shows and no answer takes long."""
        moved = 0
        while max is None or moved < max:
            want = _REDRIVE_STEP if max is None else min(_REDRIVE_STEP, max - moved)
            count: int = await self._get(int, Verb.REDRIVE, messages.Redrive(queue, target, want))
            moved += count
            if on_progress is not None:
                on_progress(moved)
            if count < want:
                break
        return moved

    async def stream(
        self,
        queue: str,
        subscription: str,
        owner: bytes,
        positions: Mapping[StripeId, int],
        lease_ms: int,
        compression: str = "none",
    ) -> RemoteStream:
        """See Backend; blocks may be compressed on their way."""
        stream = RemoteStream(
            self.link, queue, subscription, owner, positions, lease_ms, compression
        )
        await stream.open()
        return stream

    # -- reading by offset ----------------------------------------------------------------------

    async def read(
        self,
        stripe: StripeId,
        offset: int,
        messages_max: int,
        bytes_max: int = limits.BLOCK_BYTES_MAX,
        *,
        skip_trimmed: bool = True,
    ) -> list[Block]:
        """See Backend."""
        ask = messages.Read(stripe, offset, messages_max, skip_trimmed, bytes_max)
        frame = await self._ask(Verb.READ, ask)
        return blocks_of(frame, messages.decode(int, frame.meta))

    async def position(self, stripe: StripeId, start: Start) -> int:
        """See Backend."""
        offset: int = await self._get(int, Verb.POSITION, messages.Position(stripe, start))
        return offset

    async def advance(self, stripe: StripeId, subscription: str, offset: int) -> None:
        """See Backend."""
        await self._ask(Verb.ADVANCE, messages.Advance(stripe, subscription, offset))

    # -- accounts -------------------------------------------------------------------------------

    async def account(self, command: str, arguments: dict[str, Any]) -> Any:
        """See Backend."""
        ask: messages.Command = (command, arguments)
        if command == "delete":
            return await self._remove(Verb.ACCOUNT, ask, InvalidArgument)
        return await self._get(Any, Verb.ACCOUNT, ask)

    # -- tiers ----------------------------------------------------------------------------------

    async def tier(self, command: str, arguments: dict[str, Any]) -> Any:
        """Ask the manager of tiers; only a server that is one answers."""
        ask: messages.Command = (command, arguments)
        return await self._get(Any, Verb.TIER, ask)


def _as_one_frame(segments: list[Segment]) -> list[Segment]:
    """As many of the segments as go in one frame; at least one."""
    nbytes = 0
    for position, segment in enumerate(segments):
        nbytes += segment.block.nbytes
        if position and nbytes > limits.BLOCK_BYTES_MAX:
            return segments[:position]
    return segments


def _info(wire: messages.WireInfo) -> QueueInfo:
    return QueueInfo(wire.name, wire.id, wire.settings, wire.version, wire.created_ms)


_REDRIVE_STEP = 1_000
