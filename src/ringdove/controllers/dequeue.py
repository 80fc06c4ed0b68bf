"""The dequeue controller (D-Ctrl): visit stripes, hand out leases, hold while there is nothing.

A receive visits the stripes in turn, higher priorities first, until it has what it wants. When it
finds nothing and may wait, it is parked until a stripe announces an arrival or the next lease or
delay comes due: no polling, no timers in the store.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.controllers.catalog import Catalog, QueueInfo, with_fresh_settings
from ringdove.core.policy import SpreadGauge, TokenBucket, level_order
from ringdove.core.receipt import Receipt
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import InvalidArgument, RingdoveError
from ringdove.pending import Pending
from ringdove.stores.base import Claim, Delivered, Store, StripeId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ringdove.errors import ClientError
    from ringdove.stores.base import Delivery


class Received(NamedTuple):
    """A leased run with its messages and the receipt that settles it."""

    receipt: Receipt
    until_ms: int
    receives: int
    first_ms: int
    delivered: Delivered


class Dequeuer:
    """Receives and settles messages of queues of a store."""

    def __init__(self, store: Store, catalog: Catalog, seed: int | None = None) -> None:
        self._store = store
        self._catalog = catalog
        self._random = random.Random(seed)
        self._turn = 0
        self._gauges: dict[tuple[int, str], SpreadGauge] = {}
        self._buckets: dict[tuple[int, str], TokenBucket] = {}
        self._busy: dict[tuple[int, str], int] = {}
        #: Takes runs that were received too often; set by the owner, who knows the way to the
        #: dead-letter queue.
        self.on_dead: Callable[[QueueInfo, list[Received]], Awaitable[None]] | None = None

    async def receive(
        self,
        queue: str,
        subscription: str = DEFAULT_SUBSCRIPTION,
        max: int = 1,
        wait_s: float | None = 0,
        lease_ms: int | None = None,
    ) -> list[Received]:
        """Lease up to `max` messages, waiting up to `wait_s` (None: for ever) for the first."""
        if not 1 <= max <= limits.LEASE_MESSAGES_MAX:
            raise InvalidArgument(f"max is {max}; it must be 1 to {limits.LEASE_MESSAGES_MAX}.")
        if lease_ms is not None and not 1 <= lease_ms <= limits.DURATION_MS_MAX:
            raise InvalidArgument(f"lease_ms is {lease_ms}; it must be above 0.")
        now_ms = self._store.clock.now_ms()
        deadline_ms = None if wait_s is None else now_ms + int(wait_s * 1000)

        async def action(info: QueueInfo) -> list[Received]:
            return await self._receive(info, subscription, max, deadline_ms, lease_ms)

        received: list[Received] = await with_fresh_settings(self._catalog, queue, action)
        return received

    async def _receive(
        self,
        info: QueueInfo,
        subscription: str,
        want: int,
        deadline_ms: int | None,
        lease_ms: int | None,
    ) -> list[Received]:
        key = (info.id, subscription)
        while True:
            watches = [self._store.watch(stripe) for stripe in info.stripes()]
            granted, due_ms = self._admit(info, subscription, want)
            if granted:
                self._busy[key] = self._busy.get(key, 0) + 1
                try:
                    found, due_ms = await self._visit(info, subscription, granted, lease_ms)
                finally:
                    self._busy[key] -= 1
                self._return_unused(info, subscription, granted - _count(found))
                if found:
                    return found
            now_ms = self._store.clock.now_ms()
            ends_ms = [ms for ms in (deadline_ms, due_ms) if ms is not None]
            if deadline_ms is not None and deadline_ms <= now_ms:
                return []
            timeout_s = (min(ends_ms) - now_ms) / 1000 if ends_ms else None
            if timeout_s is None or timeout_s > 0:
                await _any_of(watches, timeout_s)

    async def _visit(
        self, info: QueueInfo, subscription: str, want: int, lease_ms: int | None
    ) -> tuple[list[Received], int | None]:
        """Visit stripes until `want` messages are found; answers also when to look again."""
        found: list[Received] = []
        dues: list[int] = []
        spread = self._spread(info, subscription)
        lease_ms = lease_ms or info.settings.lease_ms
        for stripe in self._order(info):
            more = True
            while more and want > 0:
                delivery = await self._store.lease(
                    stripe, subscription, want, lease_ms, spread, info.version
                )
                if delivery.dead:
                    await self._bury(info, subscription, stripe, delivery)
                for delivered in delivery.runs:
                    found.append(_received(stripe, delivery.epoch, subscription, delivered))
                    want -= delivered.run.hi - delivered.run.lo
                more = delivery.more or bool(delivery.dead)
                if delivery.due_ms is not None:
                    dues.append(delivery.due_ms)
            if want <= 0:
                break
        self._learn(info, subscription, found=bool(found))
        return found, min(dues, default=None)

    async def _bury(
        self, info: QueueInfo, subscription: str, stripe: StripeId, delivery: Delivery
    ) -> None:
        dead = [_received(stripe, delivery.epoch, subscription, run) for run in delivery.dead]
        if self.on_dead is not None:
            await self.on_dead(info, dead)

    def _order(self, info: QueueInfo) -> list[StripeId]:
        """The stripes in the order in which this receive visits them."""
        self._turn += 1
        count = info.settings.stripes
        start = self._turn % count
        if info.settings.spread == "infinite":
            start = self._random.randrange(count)
        return [
            StripeId(info.id, (start + step) % count, level)
            for level in level_order(info.settings.priority + 1, self._turn)
            for step in range(count)
        ]

    # -- settling -------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Sequence[Receipt]) -> list[int | ClientError]:
        """Mark messages done. Per receipt: how many, or why it is refused."""
        return await self._settle(
            receipts, lambda s, sub, claims: self._store.acknowledge(s, sub, claims, 0)
        )

    async def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> list[int | ClientError]:
        """Keep messages leased for `lease_ms` from now."""
        if not 0 < lease_ms <= limits.DURATION_MS_MAX:
            raise InvalidArgument(f"lease_ms is {lease_ms}; it must be above 0.")
        return await self._settle(
            receipts, lambda s, sub, claims: self._store.extend(s, sub, claims, lease_ms, 0)
        )

    async def release(
        self, receipts: Sequence[Receipt], delay_ms: int | None = None
    ) -> list[int | ClientError]:
        """Give messages back after `delay_ms`, by default after the queue's back-off."""
        if delay_ms is not None and not 0 <= delay_ms <= limits.DURATION_MS_MAX:
            raise InvalidArgument(f"delay_ms is {delay_ms}; it must be 0 or more.")
        return await self._settle(
            receipts, lambda s, sub, claims: self._store.release(s, sub, claims, delay_ms, 0)
        )

    async def _settle(
        self,
        receipts: Sequence[Receipt],
        act: Callable[[StripeId, str, list[Claim]], Awaitable[list[int | ClientError]]],
    ) -> list[int | ClientError]:
        """One store call per stripe and subscription; answers in the order of the receipts."""
        groups: dict[tuple[StripeId, str], list[int]] = {}
        for position, receipt in enumerate(receipts):
            stripe = StripeId(receipt.queue, receipt.number, receipt.level)
            groups.setdefault((stripe, receipt.subscription), []).append(position)
        answers: list[int | ClientError] = [0] * len(receipts)
        for (stripe, subscription), positions in groups.items():
            claims = [
                Claim(receipts[p].epoch, receipts[p].token, receipts[p].lo, receipts[p].hi)
                for p in positions
            ]
            for position, answer in zip(
                positions, await act(stripe, subscription, claims), strict=True
            ):
                answers[position] = answer
        return answers

    # -- pace and spread ------------------------------------------------------------------------

    def _admit(self, info: QueueInfo, subscription: str, want: int) -> tuple[int, int | None]:
        """How many messages the subscription's rate allows now, and when it allows more."""
        rate = info.settings.receive_rate_max
        if rate is None:
            return want, None
        now_ms = self._store.clock.now_ms()
        key = (info.id, subscription)
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate_per_s != rate:
            bucket = self._buckets[key] = TokenBucket(rate, now_ms)
        granted = bucket.take(want, now_ms)
        return granted, None if granted else bucket.next_ms(now_ms)

    def _return_unused(self, info: QueueInfo, subscription: str, count: int) -> None:
        bucket = self._buckets.get((info.id, subscription))
        if bucket is not None and count > 0:
            bucket.give_back(count)

    def _spread(self, info: QueueInfo, subscription: str) -> int:
        spread = info.settings.spread
        if spread == "infinite":
            return limits.SPREAD_MAX
        if spread == "auto":
            return self._gauges.setdefault((info.id, subscription), SpreadGauge()).spread
        return spread

    def _learn(self, info: QueueInfo, subscription: str, *, found: bool) -> None:
        """Teach an automatic spread: receivers at work at the same time, or an empty visit."""
        gauge = self._gauges.get((info.id, subscription))
        if gauge is None:
            return
        if not found or self._busy.get((info.id, subscription), 0) > 1:
            gauge.collided()
        else:
            gauge.succeeded()


def raise_refusals(answers: Iterable[int | RingdoveError]) -> int:
    """The total of the answers, or the first refusal."""
    total = 0
    for answer in answers:
        if isinstance(answer, RingdoveError):
            raise answer
        total += answer
    return total


async def _any_of(watches: list[Pending[None]], timeout_s: float | None) -> None:
    """Wait until one of the watches is done, or the time is up."""
    if len(watches) == 1:
        await watches[0].until(timeout_s)
        return
    either: Pending[None] = Pending()

    def done() -> None:
        if not either.done:
            either.resolve(None)

    for watch in watches:
        watch.when_done(done)
    try:
        await either.until(timeout_s)
    finally:
        for watch in watches:
            watch.forget(done)


def _received(stripe: StripeId, epoch: int, subscription: str, delivered: Delivered) -> Received:
    run = delivered.run
    receipt = Receipt(*stripe, epoch, run.token, run.lo, run.hi, subscription)
    return Received(receipt, run.until_ms, run.receives, run.first_ms, delivered)


def _count(found: list[Received]) -> int:
    return sum(received.receipt.hi - received.receipt.lo for received in found)
