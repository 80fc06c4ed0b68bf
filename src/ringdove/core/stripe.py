"""A stripe's state besides its blocks: settings, subscriptions, positions, what may be trimmed.

Stores own one `Stripe` per physical queue and keep the blocks wherever they keep them; what a call
means is decided here, once for all stores that run in this process.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.core.groups import KeyIndex
from ringdove.core.index import Index
from ringdove.core.runs import Hold
from ringdove.core.tuples import maker
from ringdove.errors import (
    FenceStale,
    LimitExceeded,
    OffsetTrimmed,
    QueueFull,
    ReceiptStale,
    SettingsRefused,
    SettingsStale,
    SubscriptionBusy,
    SubscriptionNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ringdove.core.block import Block
    from ringdove.core.runs import Source
    from ringdove.core.settings import QueueSettings

#: Delayed blocks that a stripe remembers for its statistics.
_DELAYS_MAX = 10_000

#: Subscriptions whose marks may be looked at in a millisecond.
_LOOKS_PER_MS = 16

#: Into how many parts `keep_done_ms` is divided, with a mark each: something may be kept longer by
#: one part. With very many subscriptions the parts are larger, for about so many marks in all.
_MARK_PARTS = 1_000
_MARKS_MAX = 100_000

#: The subscription that a plain queue has.
DEFAULT_SUBSCRIPTION = "default"


class Stripe:
    """The state of one physical queue. Not thread-safe; its store serialises access."""

    def __init__(
        self,
        settings: QueueSettings,
        version: int,
        make_token: Callable[[], int],
        random: Random,
        *,
        epoch: int = 1,
        head: int = 0,
        tail: int = 0,
        nbytes: int = 0,
    ) -> None:
        self.settings = settings
        self.version = version
        self.epoch = epoch
        #: First offset stored.
        self.head = head
        #: Next offset to be given; everything below is as durable as promised and may be seen.
        self.tail = tail
        self.nbytes = nbytes
        self.subscriptions: dict[str, Index] = {}
        self._make_token = make_token
        self._random = random
        self._dropped = head
        #: Delayed blocks that were appended lately: base, end, when they are due. For statistics: a
        #: restart, or very many of them, makes the count of what waits behind the scan too low.
        self._delays: deque[tuple[int, int, int]] = deque(maxlen=_DELAYS_MAX)
        #: With keep_done_ms, per subscription and for all together: the offset below which the time
        #: has passed, and further positions with when they were reached; a restart counts anew.
        self._done_marks: dict[str, tuple[int, deque[tuple[int, int]]]] = {}
        #: The lowest of those offsets, and when it is looked for again.
        self._kept = head
        self._look_ms = 0

    def check_version(self, version: int) -> None:
        """Refuse a caller who decided by other settings."""
        if version and version != self.version:
            raise SettingsStale(
                f"The queue's settings have version {self.version}, not {version}: read them again."
            )

    def check_epoch(self, epoch: int) -> None:
        """Refuse receipts from before the stripe lost its tail."""
        if epoch != self.epoch:
            raise ReceiptStale(f"The receipt is from epoch {epoch}; the stripe is in {self.epoch}.")

    def make_room(self, nbytes: int, source: Source, log_head: int) -> None:
        """See that `nbytes` more fit, giving up kept or oldest messages; or QueueFull.

        What is stored begins at `log_head`: blocks below the head may be still to be removed.
        """
        excess = self.nbytes + nbytes - self.settings.bytes_max
        if excess <= 0:
            return
        limit = self.tail if self.settings.when_full == "drop-oldest" else self.done_floor()
        at = log_head
        while excess > 0 and at < limit:
            block = source.block_at(at)
            if block.end > limit:
                break
            excess -= block.nbytes
            at = block.end
        if excess > 0:
            raise QueueFull(
                f"The queue holds {self.nbytes} bytes and may hold {self.settings.bytes_max}; "
                f"{nbytes} more do not fit. Receive some, or raise bytes_max."
            )
        self.drop_below(at)

    def note_appended(self, block: Block) -> None:
        """A block is stored at the tail."""
        self.tail = block.end
        if block.not_before_ms:
            self._delays.append((block.base, block.end, block.not_before_ms))

    def delayed_ahead(self, index: Index, now_ms: int) -> int:
        """Messages that a subscription has not come to yet and that wait for their time."""
        delays = self._delays
        while delays and (delays[0][1] <= self.done_floor() or delays[0][2] <= now_ms):
            delays.popleft()
        return sum(
            end - max(base, index.scan)
            for base, end, due_ms in delays
            if end > index.scan and due_ms > now_ms
        )

    def configure(self, settings: QueueSettings, version: int) -> Callable[[], None]:
        """Take newer settings; answers how to take them back while nothing else has happened.

        Order may change only while nothing is waiting or leased.
        """
        if version < self.version:
            raise SettingsStale(
                f"The queue's settings have version {self.version} already, not {version}."
            )
        reordered = settings.order != self.settings.order
        if reordered and any(i.done.floor < self.tail for i in self._indexes()):
            raise SettingsRefused(
                f"order can change from {self.settings.order!r} to {settings.order!r} only while "
                "no message is waiting or leased: drain the queue, or purge it."
            )
        before = self.settings, self.version, dict(self.subscriptions)
        self._take(settings, version, self.subscriptions)
        if reordered:
            for name, former in before[2].items():
                self.subscriptions[name] = self.make_index(former.done.floor)
                self.subscriptions[name].succeed(former)
        return lambda: self._take(*before)

    def _take(self, settings: QueueSettings, version: int, subscriptions: dict[str, Index]) -> None:
        self.settings, self.version, self.subscriptions = settings, version, subscriptions
        for index in subscriptions.values():
            index.settings = settings

    def make_index(self, floor: int) -> Index:
        """A new index of the kind the queue's order needs."""
        kind = KeyIndex if self.settings.order == "key" else Index
        return kind(self.settings, self._make_token, self._random, floor)

    def subscription(self, name: str) -> Index:
        """The index of a subscription, or SubscriptionNotFound."""
        index = self.subscriptions.get(name)
        if index is None:
            known = ", ".join(sorted(self.subscriptions)) or "none"
            raise SubscriptionNotFound(
                f"There is no subscription {name!r} on this queue (it has: {known})."
            )
        return index

    def leasable(self, name: str, now_ms: int) -> Index:
        """The index of a subscription, unless it is being streamed."""
        index = self.subscription(name)
        if index.held is not None and index.held.until_ms > now_ms:
            raise SubscriptionBusy(
                f"Subscription {name!r} is being streamed from: receive from another one, or end "
                "the stream."
            )
        return index

    def claim(self, name: str, owner: bytes, lease_ms: int, now_ms: int) -> tuple[int, int]:
        """Give `owner` alone the right to stream; answers the new fence and where to start (M1).

        A fence is larger than all before it, so whoever holds an older one can be refused.
        """
        index = self.subscription(name)
        held = index.held
        if held is not None and held.owner != owner and held.until_ms > now_ms:
            raise SubscriptionBusy(
                f"Subscription {name!r} is streamed from by somebody else for at least "
                f"{held.until_ms - now_ms} ms more."
            )
        index.come_due(now_ms)
        if index.leased or index.delayed or index.done.above:
            raise SubscriptionBusy(
                f"Subscription {name!r} is received from: {index.leased} messages are leased, "
                f"{index.delayed} wait and {index.done.above} are done out of order. "
                "Stream from a subscription of its own."
            )
        index.fence += 1
        index.held = Hold(owner, now_ms + lease_ms)
        return index.fence, index.done.floor

    def check_fence(self, name: str, fence: int) -> Index:
        """The index, unless the subscription was claimed anew since `fence` was given."""
        index = self.subscription(name)
        if fence != index.fence or index.held is None:
            raise FenceStale(
                f"Subscription {name!r} has fence {index.fence}; the reader with fence {fence} has "
                "lost its claim and must begin again."
            )
        return index

    def hold(self, name: str, fence: int, lease_ms: int, now_ms: int) -> None:
        """Keep a claim for `lease_ms` from now; 0 gives it up."""
        index = self.check_fence(name, fence)
        assert index.held is not None
        index.held = index.held._replace(until_ms=now_ms + lease_ms) if lease_ms else None

    def subscribe(self, name: str, offset: int) -> Index:
        """Add a subscription that starts at `offset`."""
        if len(self.subscriptions) >= limits.SUBSCRIPTIONS_MAX:
            raise LimitExceeded(f"A queue has at most {limits.SUBSCRIPTIONS_MAX} subscriptions.")
        index = self.make_index(min(max(offset, self.head, self._dropped), self.tail))
        self.subscriptions[name] = index
        self._done_marks[name] = (index.done.floor, deque())
        return index

    def unsubscribe(self, name: str) -> Index | None:
        """Forget a subscription; answers its index, if there was one."""
        self._done_marks.pop(name, None)
        return self.subscriptions.pop(name, None)

    def purge(self) -> int:
        """Mark everything done for all subscriptions; answers how many messages were not."""
        count = max(
            (i.waiting(self.tail) + i.leased + i.delayed for i in self._indexes()), default=0
        )
        self.drop_below(self.tail)
        return count

    def expire(self, source: Source, now_ms: int) -> None:
        """Drop what retention no longer keeps."""
        start = at = max(self.head, self._dropped)
        for _ in range(limits.TRIM_BLOCKS_PER_COMMIT_MAX):
            if at >= self.tail:
                break
            block = source.block_at(at)
            if block.stored_ms + self.settings.retention_ms > now_ms:
                break
            at = block.end
        if at > start:
            self.drop_below(at)

    def drop_below(self, offset: int) -> None:
        """Give up everything below `offset`, whoever may have wanted it."""
        self._dropped = max(self._dropped, offset)
        for index in self._indexes():
            index.drop_below(offset)

    def done_floor(self) -> int:
        """Below it every subscription is done; without subscriptions nothing is."""
        if len(self.subscriptions) == 1:
            [index] = self.subscriptions.values()
            return index.done.floor
        return min((i.done.floor for i in self._indexes()), default=max(self.head, self._dropped))

    def trim_offset(self, now_ms: int) -> int:
        """The offset below which no block is needed any more (I6)."""
        keep_ms = self.settings.keep_done_ms
        if not keep_ms and len(self.subscriptions) == 1:
            [index] = self.subscriptions.values()
            return index.done.floor
        floor = self.done_floor()
        if not keep_ms:
            return floor
        if now_ms >= self._look_ms or now_ms + keep_ms < self._look_ms:  # The clock was put back.
            self._kept = min(
                self._kept_below("", floor, now_ms),
                *(
                    self._kept_below(name, i.done.floor, now_ms)
                    for name, i in self.subscriptions.items()
                ),
                floor,
            )
            # Each costs about a microsecond: many must not make every commit slow.
            self._look_ms = now_ms + min(len(self.subscriptions) // _LOOKS_PER_MS, keep_ms // 100)
        return min(floor, max(self._kept, self._dropped))

    def _kept_below(self, name: str, floor: int, now_ms: int) -> int:
        """Below it, a subscription (without name: all) has been done for `keep_done_ms`."""
        kept, marks = self._done_marks.setdefault(name, (self.head, deque()))
        kept = min(kept, floor)
        while marks and marks[-1][0] > floor:
            marks.pop()  # A new subscription still wants what all others were done with.
        if floor > (marks[-1][0] if marks else kept):
            part_ms = self._mark_part_ms()
            if marks and marks[-1][1] // part_ms == now_ms // part_ms:
                marks.pop()  # Two of the same moment are one, a little later.
            marks.append((floor, now_ms))
        while marks and marks[0][1] + self.settings.keep_done_ms <= now_ms:
            kept = marks.popleft()[0]
        self._done_marks[name] = (kept, marks)
        return kept

    def _mark_part_ms(self) -> int:
        """How long one mark stands for: that bounds how many there are, whatever the load."""
        coarser = max(1, len(self.subscriptions) * _MARK_PARTS // _MARKS_MAX)
        return max(1, self.settings.keep_done_ms * coarser // _MARK_PARTS)

    def check_readable(self, offset: int) -> None:
        """Raise OffsetTrimmed when `offset` has been trimmed."""
        if offset < self.head:
            raise OffsetTrimmed(
                f"Offset {offset} has been trimmed; the oldest one stored is {self.head}."
            )

    def _indexes(self) -> list[Index]:
        return list(self.subscriptions.values())


class Part(NamedTuple):
    """Messages `start` to `stop` of a block, not yet cut out of it."""

    block: Block
    start: int
    stop: int

    def cut(self) -> Block:
        """The messages as a block of their own."""
        return self.block.slice(self.start, self.stop)

    @property
    def share_bytes(self) -> int:
        """Their share of what the block takes."""
        return self.block.nbytes * (self.stop - self.start) // self.block.count

    @property
    def nbytes(self) -> int:
        """What they take as a block of their own."""
        return self.block.slice_bytes(self.start, self.stop)


_part = maker(Part)


def add_parts(found: list[Part], source: Source, lo: int, hi: int, bytes_max: int) -> int:
    """Add where the messages [lo, hi) are, up to the one with which they have `bytes_max`.

    Answers their share of what the blocks take.
    """
    left = bytes_max
    while lo < hi and left > 0:
        block = source.block_at(lo)
        if block.base >= hi:
            break
        start = max(lo, block.base) - block.base
        stop = min(hi, block.end) - block.base
        found.append(_part((block, start, stop)))
        left -= block.nbytes * (stop - start) // block.count
        lo = block.end
    return bytes_max - left


def find_time(source: Source, head: int, tail: int, time_ms: int) -> int:
    """The first offset in [head, tail) stored at or after `time_ms`; else the tail."""
    while head < tail:
        block = source.block_at((head + tail) // 2)
        if block.base >= tail:
            tail = (head + tail) // 2
        elif block.stored_ms < time_ms:
            head = block.end
        else:
            tail = max(head, block.base)
    return head
