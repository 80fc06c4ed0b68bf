"""The memory store: the readable reference.

Everything is in dictionaries and lists of this process and is gone with it. Every operation
finishes without waiting, under one lock, so it is atomic by construction. Tests hold the other
stores against this one; users get it with the URL `memory:`.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ringdove import limits
from ringdove.clock import Clock, SystemClock
from ringdove.core.dedup import Appended, ProducerState, Segment, plan
from ringdove.core.settings import check_name
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION, Stripe, find_time
from ringdove.errors import ClientError, RingdoveError
from ringdove.pending import Pending
from ringdove.stores.base import (
    Claim,
    Claimed,
    Delivery,
    Record,
    Start,
    StripeId,
    StripeStats,
)
from ringdove.stores.local import (
    Act,
    OneNode,
    acknowledging,
    check_expected,
    check_record,
    committable,
    extending,
    hold,
    live,
    make_token,
    next_record,
    read_blocks,
    releasing,
    settle,
    start_offset,
    stripe_stats,
    unleasing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ringdove.core.block import Block
    from ringdove.core.settings import QueueSettings


P = ParamSpec("P")
R = TypeVar("R")


def _locked(
    method: Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, R]]:
    """Keep threads out of each other's way; nothing is waited for meanwhile."""

    @wraps(method)
    async def locked(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return await method(self, *args, **kwargs)

    return locked


class _MemoryStripe:
    """One stripe: its state, its blocks in order, and what it remembers of senders."""

    def __init__(self, stripe: Stripe) -> None:
        self.stripe = stripe
        self.blocks: list[Block] = []
        self.ends: list[int] = []
        self.producers: dict[bytes, ProducerState] = {}
        #: Offset and time by message id, in the order they came.
        self.message_ids: dict[bytes, tuple[int, int]] = {}
        self.watch: Pending[None] = Pending()

    def block_at(self, offset: int) -> Block:
        return self.blocks[bisect_right(self.ends, offset)]

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.ends.append(block.end)
        self.stripe.note_appended(block)
        self.stripe.nbytes += block.nbytes

    def tidy(self, now_ms: int) -> None:
        """Expire by retention, then trim what nobody needs."""
        stripe = self.stripe
        stripe.expire(self, now_ms)
        gone = bisect_right(self.ends, stripe.trim_offset(now_ms))
        stripe.nbytes -= sum(block.nbytes for block in self.blocks[:gone])
        del self.blocks[:gone]
        del self.ends[:gone]
        stripe.head = self.blocks[0].base if self.blocks else stripe.tail

    def announce(self) -> None:
        watch, self.watch = self.watch, Pending()
        watch.resolve(None)


class MemoryStore(OneNode):
    """See `ringdove.stores.base.Store` for the contract."""

    def __init__(self, clock: Clock | None = None, seed: int | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._stripes: dict[StripeId, _MemoryStripe] = {}
        self._records: dict[str, Record] = {}

    async def close(self) -> None:
        """Nothing to finish."""

    # -- stripes --------------------------------------------------------------------------------

    @_locked
    async def create(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """See StripeStore."""
        if stripe not in self._stripes:
            state = Stripe(settings, version, make_token, self._random)
            state.subscribe(DEFAULT_SUBSCRIPTION, 0)
            self._stripes[stripe] = _MemoryStripe(state)

    @_locked
    async def configure(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """See StripeStore."""
        state = self._get(stripe)
        state.stripe.configure(settings, version)
        state.announce()

    @_locked
    async def delete(self, stripe: StripeId) -> None:
        """See StripeStore."""
        state = self._stripes.pop(stripe, None)
        if state is not None:
            state.announce()

    async def append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> list[Appended | ClientError]:
        """See StripeStore."""
        return self._append(stripe, segments, version)

    def submit_append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> Pending[list[Appended | ClientError]]:
        """See StripeStore."""
        pending: Pending[list[Appended | ClientError]] = Pending()
        try:
            pending.resolve(self._append(stripe, segments, version))
        except RingdoveError as error:
            pending.fail(error)
        return pending

    def _append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> list[Appended | ClientError]:
        with self._lock:
            return self._append_now(self._get(stripe, version), segments)

    def _append_now(
        self, state: _MemoryStripe, segments: Sequence[Segment]
    ) -> list[Appended | ClientError]:
        now_ms = self.clock.now_ms()
        state.tidy(now_ms)
        self._forget_ids(state, now_ms)
        planned = plan(
            segments,
            state.stripe.tail,
            now_ms,
            state.stripe.settings.retention_ms,
            state.producers.get,
            lambda message_id: state.message_ids.get(message_id, (None,))[0],
            lambda: self._room_for_producer(state, now_ms),
            relayed=state.stripe.settings.relayed,
        )
        state.stripe.make_room(planned.nbytes, state, state.stripe.head)
        for block in planned.blocks:
            state.add(block)
        state.producers |= planned.producers
        state.message_ids |= {key: (offset, now_ms) for key, offset in planned.ids.items()}
        state.tidy(now_ms)
        state.announce()
        return planned.answers

    def _room_for_producer(self, state: _MemoryStripe, now_ms: int) -> bool:
        if len(state.producers) < limits.PRODUCERS_MAX:
            return True
        expired_ms = now_ms - state.stripe.settings.retention_ms
        state.producers = {k: p for k, p in state.producers.items() if p.seen_ms > expired_ms}
        return len(state.producers) < limits.PRODUCERS_MAX

    def _forget_ids(self, state: _MemoryStripe, now_ms: int) -> None:
        while state.message_ids:
            oldest = next(iter(state.message_ids))
            if state.message_ids[oldest][1] + state.stripe.settings.dedup_ms > now_ms:
                return
            del state.message_ids[oldest]

    @_locked
    async def lease(
        self,
        stripe: StripeId,
        subscription: str,
        want: int,
        lease_ms: int,
        spread: int,
        version: int,
    ) -> Delivery:
        """See StripeStore."""
        state = self._get(stripe, version)
        now_ms = self.clock.now_ms()
        state.tidy(now_ms)
        index = state.stripe.leasable(subscription, now_ms)
        tail = state.stripe.tail
        leased = index.lease(want, now_ms, lease_ms, state, tail, spread)
        return Delivery(
            state.stripe.epoch,
            *hold(index, leased, state, now_ms),
            leased.more,
            index.due_ms(now_ms, tail),
        )

    @_locked
    async def acknowledge(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle(stripe, subscription, claims, version, acknowledging)

    @_locked
    async def extend(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        lease_ms: int,
        version: int,
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle(stripe, subscription, claims, version, extending(lease_ms))

    @_locked
    async def release(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        delay_ms: int | None,
        version: int,
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle(stripe, subscription, claims, version, releasing(delay_ms))

    @_locked
    async def unlease(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle(stripe, subscription, claims, version, unleasing)

    def _settle(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        version: int,
        act: Act,
    ) -> list[int | ClientError]:
        state = self._get(stripe, version)
        answers = settle(state.stripe, subscription, claims, self.clock.now_ms(), act)
        state.tidy(self.clock.now_ms())
        state.announce()
        return answers

    @_locked
    async def read(
        self, stripe: StripeId, offset: int, messages_max: int, bytes_max: int
    ) -> list[Block]:
        """See StripeStore."""
        state = self._get(stripe)
        state.tidy(self.clock.now_ms())
        state.stripe.check_readable(offset)
        return read_blocks(state, offset, state.stripe.tail, messages_max, bytes_max)

    @_locked
    async def find(self, stripe: StripeId, time_ms: int) -> int:
        """See StripeStore."""
        state = self._get(stripe)
        return find_time(state, state.stripe.head, state.stripe.tail, time_ms)

    @_locked
    async def subscribe(self, stripe: StripeId, subscription: str, start: Start) -> int:
        """See StripeStore."""
        check_name(subscription, "subscription")
        state = self._get(stripe)
        index = state.stripe.subscriptions.get(subscription)
        if index is None:
            index = state.stripe.subscribe(subscription, start_offset(state.stripe, state, start))
            state.announce()
        return index.done.floor

    @_locked
    async def unsubscribe(self, stripe: StripeId, subscription: str) -> None:
        """See StripeStore."""
        state = self._get(stripe)
        state.stripe.unsubscribe(subscription)
        state.announce()

    @_locked
    async def claim(
        self, stripe: StripeId, subscription: str, owner: bytes, lease_ms: int
    ) -> Claimed:
        """See StripeStore."""
        state = self._get(stripe)
        now_ms = self.clock.now_ms()
        return Claimed(*state.stripe.claim(subscription, owner, lease_ms, now_ms))

    @_locked
    async def hold(self, stripe: StripeId, subscription: str, fence: int, lease_ms: int) -> None:
        """See StripeStore."""
        self._get(stripe).stripe.hold(subscription, fence, lease_ms, self.clock.now_ms())

    @_locked
    async def commit(
        self,
        stripe: StripeId,
        subscription: str,
        offset: int,
        fence: int = 0,
        *,
        lazy: bool = False,  # noqa: ARG002  nothing here is durable
    ) -> None:
        """See StripeStore."""
        state = self._get(stripe)
        index = committable(state.stripe, subscription, fence)
        index.drop_below(min(offset, state.stripe.tail))
        state.tidy(self.clock.now_ms())

    @_locked
    async def purge(self, stripe: StripeId) -> int:
        """See StripeStore."""
        state = self._get(stripe)
        count = state.stripe.purge()
        state.tidy(self.clock.now_ms())
        return count

    @_locked
    async def trim(self, stripe: StripeId) -> int:
        """See StripeStore."""
        state = self._get(stripe)
        head = -1
        while head < state.stripe.head:
            head = state.stripe.head
            state.tidy(self.clock.now_ms())
        return head

    @_locked
    async def stats(self, stripe: StripeId) -> StripeStats:
        """See StripeStore."""
        state = self._get(stripe)
        state.tidy(self.clock.now_ms())
        oldest_ms = state.blocks[0].stored_ms if state.blocks else 0
        return stripe_stats(state.stripe, oldest_ms, self.clock.now_ms())

    def watch(self, stripe: StripeId) -> Pending[None]:
        """See StripeStore."""
        return self._get(stripe).watch

    def _get(self, stripe: StripeId, version: int = 0) -> _MemoryStripe:
        state = self._stripes.get(stripe)
        if state is None:
            raise stripe.gone()
        state.stripe.check_version(version)
        return state

    # -- records --------------------------------------------------------------------------------

    @_locked
    async def get(self, key: str) -> Record | None:
        """See RecordStore."""
        return live(self._records.get(key), self.clock.now_ms())

    @_locked
    async def put(
        self, key: str, value: bytes, expect: int | None = None, expires_ms: int = 0
    ) -> Record:
        """See RecordStore."""
        check_record(key, value)
        record = next_record(await self.get(key), key, value, expect, expires_ms)
        self._records[key] = record
        return record

    @_locked
    async def remove(self, key: str, expect: int | None = None) -> bool:
        """See RecordStore."""
        current = await self.get(key)
        check_expected(current, key, expect)
        self._records.pop(key, None)
        return current is not None

    @_locked
    async def scan(self, prefix: str, after: str = "", count_max: int = 1000) -> list[Record]:
        """See RecordStore."""
        now_ms = self.clock.now_ms()
        keys = sorted(k for k in self._records if k.startswith(prefix) and k > after)
        found = (live(self._records[key], now_ms) for key in keys)
        return [record for record in found if record is not None][:count_max]
