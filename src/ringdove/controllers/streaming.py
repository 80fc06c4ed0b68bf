"""Ordered streaming (M1): one reader takes a subscription's blocks in order, by offset.

A stream claims every stripe of its subscription: nobody else may stream or lease from it meanwhile.
It reads ahead of what is acknowledged, as far as its user lets it, and goes back when asked to. An
acknowledgement says which offset is wanted next; it moves the subscription's position. Each claim
has a fence larger than all before it, so a reader that was cut off and replaced cannot move it.
Stripes that the queue is given meanwhile are claimed with the next renewal of the claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.errors import (
    InvalidArgument,
    OffsetTrimmed,
    QueueNotFound,
    RingdoveError,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ringdove.controllers.catalog import QueueInfo
    from ringdove.core.block import Block
    from ringdove.core.tally import Tally
    from ringdove.stores.base import Store, StripeId


class StreamedBlock(NamedTuple):
    """A block of a stream."""

    stripe: StripeId
    #: The offset that was wanted. The block starts there, unless what was there has expired.
    wanted: int
    block: Block


class BlockStream:
    """A claim on a subscription, and the reader's place in each stripe."""

    def __init__(
        self,
        store: Store,
        info: QueueInfo,
        subscription: str,
        owner: bytes,
        lease_ms: int,
        tally: Tally,
        current: Callable[[], Awaitable[QueueInfo]],
    ) -> None:
        if not 0 < lease_ms <= limits.DURATION_MS_MAX:
            raise InvalidArgument(
                f"lease_ms is {lease_ms}; it must be 1 to {limits.DURATION_MS_MAX}."
            )
        self.subscription = subscription
        self.lease_ms = lease_ms
        #: Where the stream began, and the next offset to be read, by stripe.
        self.starts: dict[StripeId, int] = {}
        self.cursors: dict[StripeId, int] = {}
        self._store = store
        self._tally = tally
        #: Tells what the queue is now.
        self._current = current
        self._stripes = info.stripes()
        self._relayed = info.settings.relayed
        self._owner = owner
        self._fences: dict[StripeId, int] = {}
        self._exact = False
        self._following = False
        self._turn = 0
        self._held_until_ms = store.clock.now_ms() + lease_ms
        self._rewound: Pending[None] = Pending()

    @property
    def fence(self) -> int:
        """A number that grows with every claim."""
        return sum(self._fences.values())

    async def open(self, positions: Mapping[StripeId, int], *, exact: bool = False) -> None:
        """Claim the subscription; start where it is, or at `positions` kept by the reader.

        With `exact`, `next` raises OffsetTrimmed where what comes next is not stored any more;
        otherwise it goes on with the oldest message.
        """
        self._exact = exact
        try:
            for stripe in self._stripes:
                claimed = await self._store.claim(
                    stripe, self.subscription, self._owner, self.lease_ms
                )
                self._fences[stripe] = claimed.fence
                self.starts[stripe] = positions.get(stripe, claimed.offset)
                if stripe in positions:
                    await self._refuse_beyond(stripe, positions[stripe])
            self.cursors = dict(self.starts)
        except BaseException:
            await self.close()
            raise

    async def _refuse_beyond(self, stripe: StripeId, offset: int) -> None:
        """Refuse a position that a queue has not reached: what comes until then would be skipped.

        A copy may be behind its origin, and a fabric behind itself while another master takes over.
        """
        if self._relayed or self._store.node_of(stripe) is not None:
            return
        tail = (await self._store.stats(stripe)).tail
        if offset > tail:
            raise InvalidArgument(
                f"The position is offset {offset} of a stripe that ends at {tail}: the queue was "
                "emptied by a power cut, or restored from a backup. Begin without a position."
            )

    async def next(self, wait_s: float | None = None) -> StreamedBlock | None:
        """The next block of whichever stripe has one; None when there is none in time."""
        clock = self._store.clock
        until_ms = None if wait_s is None else clock.now_ms() + int(wait_s * 1000)
        while True:
            if clock.now_ms() >= self._hold_ms:
                await self.hold()
            watches = [self._store.watch(stripe) for stripe in self._stripes]
            rewound = self._rewound
            due_ms: int | None = None
            for _ in self._stripes:
                self._turn += 1
                stripe = self._stripes[self._turn % len(self._stripes)]
                found = await self._read(stripe)
                if found is None or self.cursors[stripe] != found.wanted:
                    continue  # Nothing there, or asked to go back meanwhile.
                wait_ms = found.block.not_before_ms
                if wait_ms <= clock.now_ms():
                    self.cursors[stripe] = end = found.block.end
                    self._tally.streamed(
                        stripe.number, stripe.level, self.subscription, found.wanted, end
                    )
                    return found
                due_ms = wait_ms if due_ms is None else min(due_ms, wait_ms)
            if until_ms is not None and clock.now_ms() >= until_ms:
                return None
            # However long it waits, the claim is kept.
            ends_ms = [ms for ms in (due_ms, until_ms, self._hold_ms) if ms is not None]
            await self._wait([*watches, rewound], min(ends_ms))

    async def _read(self, stripe: StripeId) -> StreamedBlock | None:
        wanted = self.cursors[stripe]
        at = wanted
        while True:
            try:
                blocks = await self._store.read(stripe, at, limits.BLOCK_MESSAGES_MAX, 1)
            except OffsetTrimmed:
                if self._exact:
                    raise
                at = (await self._store.stats(stripe)).head
            else:
                return StreamedBlock(stripe, wanted, blocks[0]) if blocks else None

    async def _wait(self, watches: list[Pending[None]], due_ms: int) -> None:
        either: Pending[None] = Pending()

        def done() -> None:
            if not either.done:
                either.resolve(None)

        for watch in watches:
            watch.when_done(done)
        now_ms = self._store.clock.now_ms()
        try:
            await either.until((due_ms - now_ms) / 1000)
        finally:
            for watch in watches:
                watch.forget(done)

    async def acknowledge(self, stripe: StripeId, offset: int, *, lazy: bool = True) -> None:
        """Everything below `offset` is done; raises FenceStale when the claim was lost."""
        if stripe not in self._fences:
            raise InvalidArgument(f"The stream has no stripe {tuple(stripe)}.")
        await self._store.commit(stripe, self.subscription, offset, self._fences[stripe], lazy=lazy)

    def rewind(self, stripe: StripeId, offset: int) -> None:
        """Read a stripe from `offset` again: a block was lost, damaged or refused."""
        if stripe not in self._fences or offset < 0:
            raise InvalidArgument(f"The stream has no offset {offset} of stripe {tuple(stripe)}.")
        self.cursors[stripe] = min(offset, self.cursors[stripe])
        self._look_again()

    def _look_again(self) -> None:
        """Have `next` look at all stripes, should it wait."""
        rewound, self._rewound = self._rewound, Pending()
        rewound.resolve(None)

    async def hold(self) -> None:
        """Keep the claim for another lease; raises FenceStale when it was lost."""
        self._held_until_ms = self._store.clock.now_ms() + self.lease_ms
        for stripe, fence in list(self._fences.items()):
            await self._store.hold(stripe, self.subscription, fence, self.lease_ms)
        await self._follow()

    @property
    def _hold_ms(self) -> int:
        """When the claim is to be kept for another lease."""
        return self._held_until_ms - 2 * self.lease_ms // 3

    async def _follow(self) -> None:
        """Take in the stripes that the queue was given since the stream began."""
        if self._following or not self._fences:
            return
        self._following = True
        try:
            added = set((await self._current()).stripes()).difference(self._fences)
            for stripe in sorted(added):
                await self._take_in(stripe)
        finally:
            self._following = False

    async def _take_in(self, stripe: StripeId) -> None:
        try:
            claimed = await self._store.claim(stripe, self.subscription, self._owner, self.lease_ms)
        except (QueueNotFound, SubscriptionBusy, SubscriptionNotFound):
            return  # Not made whole yet, or in use: with the next hold.
        if not self._fences:  # Closed meanwhile.
            await self._store.hold(stripe, self.subscription, claimed.fence, 0)
            return
        self._fences[stripe] = claimed.fence
        self.starts[stripe] = self.cursors[stripe] = claimed.offset
        self._stripes = (*self._stripes, stripe)
        self._look_again()

    async def close(self) -> None:
        """Give the claim up, so that the next reader need not wait."""
        for stripe, fence in list(self._fences.items()):
            try:
                await self._store.hold(stripe, self.subscription, fence, 0)
            except RingdoveError:  # Lost already, or the queue is gone.
                continue
        self._fences.clear()
