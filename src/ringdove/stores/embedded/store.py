"""The embedded store: the contract of stores/base.py on LMDB.

Leases, extensions and releases change the index in memory and are written along with the next
commit; acknowledgements wait for that commit, because done is as durable as an append (I4). Reads
that may touch the disk leave the event loop.
"""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ringdove import limits
from ringdove.clock import Clock, SystemClock
from ringdove.core.settings import check_name
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION, find_time
from ringdove.core.tuples import maker
from ringdove.errors import ConnectionClosed, StoreCorrupted
from ringdove.stores import local
from ringdove.stores.base import (
    Claim,
    Claimed,
    Delivery,
    Record,
    Start,
    StripeId,
    StripeStats,
)
from ringdove.stores.embedded import journal, records
from ringdove.stores.embedded.changes import (
    Change,
    claiming,
    configuring,
    subscribing,
    unsubscribing,
)
from ringdove.stores.embedded.environment import Directory, Environment, maybe_find
from ringdove.stores.embedded.readers import Readers
from ringdove.stores.embedded.state import (
    OFFSET,
    TAIL,
    BlockCache,
    StripeRecord,
    StripeState,
    SubscriptionRecord,
    encode,
    load,
    under,
)
from ringdove.stores.embedded.sweep import Sweep, compact
from ringdove.stores.embedded.writer import Writer
from ringdove.stores.local import committable, hold, read_blocks, settle, stripe_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.block import Block
    from ringdove.core.dedup import Appended, Segment
    from ringdove.core.settings import Durability, QueueSettings
    from ringdove.errors import ClientError
    from ringdove.pending import Pending
    from ringdove.stores.embedded.shipping import Oversight, Shipping

_delivery = maker(Delivery)

#: How far the time of the last commit may be ahead of this machine's clock: a year. Anything more
#: would expire everything that waits.
_CLOCK_AHEAD_MS_MAX = 366 * 24 * 3600 * 1000


class EmbeddedStore(local.OneNode):
    """A data directory in use by this process; the contract is in `ringdove.stores.base`."""

    def __init__(
        self, path: str | Path, clock: Clock | None = None, seed: int | None = None
    ) -> None:
        self.path = Path(path)
        self.clock: Clock = clock or SystemClock()
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._cache = BlockCache()
        self._states: dict[StripeId, StripeState] = {}
        #: Dropped stripes that somebody still works with: there is never a second state for one.
        self._evicted: WeakValueDictionary[StripeId, StripeState] = WeakValueDictionary()
        #: Stripes loaded at which to look again for some to drop, if there are very many.
        self._crowd = 0
        #: Whether nothing is taken any more, and whether the directory was let go.
        self._closed = self._released = False
        self._closing = threading.Lock()
        #: Set where somebody else may take over: asked before every operation.
        self.oversight: Oversight | None = None
        self._shipping: Shipping | None = None
        self._readers = Readers()
        self._directory = Directory(self.path)
        self._writers: dict[Durability, Writer] = {}
        try:
            self._open("disk")
            if maybe_find(self.path / "memory") is not None:
                self._open("memory")
        except BaseException:
            # Nothing may go on writing: somebody else may open the directory next.
            for writer in self._writers.values():
                writer.close()
                writer.env.close()
            self._directory.close(clean=False)
            raise

    def _open(self, durability: Durability) -> Writer:
        env = Environment(self.path / durability, durability)
        try:
            number = journal.recover(env, journal.contents(env.journal))
            with env.lmdb.begin() as txn:
                written = txn.get(b"clock", db=env.db["meta"])
                graves = [key for key, _ in under(txn, env.db["graves"], b"")]
            if written is not None:
                self._resume_clock(written, env)
        except BaseException:
            env.lmdb.close()
            raise
        small = journal.Journal(env.journal, synced=durability == "disk", number=number)
        writer = Writer(env, self._directory, self.clock, self._lock, self._cache, small)
        writer.shipping = self._shipping
        writer.graves = graves
        writer.on_sweep = Sweep(writer, self._lock, self._states, self._maybe_state).run
        self._writers[durability] = writer
        return writer

    def _resume_clock(self, written: bytes, env: Environment) -> None:
        """Go on from the time of the last commit, unless nobody can have written it."""
        at_ms = int.from_bytes(written, "big")
        if len(written) != OFFSET.size or at_ms > self.clock.now_ms() + _CLOCK_AHEAD_MS_MAX:
            raise StoreCorrupted(
                f"{env.path} says that it was written at {at_ms} ms after 1970, years from now. "
                "Set this machine's clock right; if it is right, restore a backup."
            )
        self.clock.advance_to(at_ms)

    async def close(self) -> None:
        """Commit everything accepted, then let go of the directory.

        Where that is interrupted, closing once more goes on with it.
        """
        with self._lock:
            self._closed = True
        with self._closing:
            if self._released:
                return
            for writer in self._writers.values():
                writer.close()
            self._readers.close()
            for writer in self._writers.values():
                writer.env.close()
            self._directory.close(clean=True)
            self._released = True

    # -- stripes --------------------------------------------------------------------------------

    async def create(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """See StripeStore."""
        self._refuse_closed()
        if self._maybe_state(stripe) is not None:
            return
        with self._lock:
            writer = self._writers.get(settings.durability) or self._open(settings.durability)
        key = stripe.key()
        record = StripeRecord(settings.encode(), version, 1)

        def edit(txn: Any) -> bool:
            if key in writer.graves:
                return False  # What is left of an earlier one goes with this commit, or the next.
            db = writer.env.db
            if txn.get(key, db=db["stripes"]) is None:
                txn.put(key, encode(record), db=db["stripes"])
                txn.put(key, TAIL.pack(0, 0, 0), db=db["tails"])
                subscription = SubscriptionRecord(0, 0)
                txn.put(key + DEFAULT_SUBSCRIPTION.encode(), encode(subscription), db=db["subs"])
            return True

        while not await writer.submit(Change(edit)):
            continue

    async def configure(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """See StripeStore."""
        state = self._state(stripe)
        await self._submit(state, configuring(state, settings, version))

    async def delete(self, stripe: StripeId) -> None:
        """See StripeStore."""
        state = self._maybe_state(stripe)
        if state is None:
            return
        writer = self._writer(state)

        def edit(txn: Any) -> None:
            if state.deleted:
                return
            db = state.env.db
            txn.delete(state.key, db=db["stripes"])
            txn.delete(state.key, db=db["tails"])
            for name in state.numbers:
                txn.delete(state.key + name.encode(), db=db["subs"])
            txn.put(state.key, b"", db=db["graves"])
            # It stays known until the commit is done: others would load it once more, and use it.
            state.deleted = True
            deleted.append(state.key)
            writer.graves.insert(0, state.key)

        def undo() -> None:
            while deleted:
                state.deleted = False
                writer.graves.remove(deleted.pop())

        def publish() -> None:
            with self._lock:
                if self._states.get(stripe) is state:
                    del self._states[stripe]
                if self._evicted.get(stripe) is state:
                    del self._evicted[stripe]
            if state.stripe.tail:
                self._cache.remove_stripe(stripe)
            state.announce()

        deleted: list[bytes] = []
        await self._submit(state, Change(edit, undo, publish))

    async def append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> list[Appended | ClientError]:
        """See StripeStore."""
        return await self.submit_append(stripe, segments, version)

    def submit_append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> Pending[list[Appended | ClientError]]:
        """`append`, without waiting: for producers that keep several blocks in flight."""
        state = self._state(stripe)
        if self.oversight is not None:
            self.oversight.check_append()
        return self._writers[state.env.durability].append(state, segments, version)

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
        state = self._state(stripe)
        arguments = state, subscription, want, lease_ms, spread, version
        index = state.stripe.subscriptions.get(subscription)
        if index is None or index.scan >= state.stripe.tail or state.in_memory(index.scan):
            return self._lease(*arguments)
        return await self._readers.run(partial(self._lease, *arguments))

    def _lease(
        self,
        state: StripeState,
        subscription: str,
        want: int,
        lease_ms: int,
        spread: int,
        version: int,
    ) -> Delivery:
        with self._lock:
            stripe = state.check(version)
            now_ms = self.clock.now_ms()
            expired = now_ms >= state.expire_due_ms and state.expire(now_ms)
            index = stripe.subscriptions.get(subscription)
            if index is None or index.held is not None:
                index = stripe.leasable(subscription, now_ms)
            leased = index.lease(want, now_ms, lease_ms, state, stripe.tail, spread)
            if leased.runs or leased.dead or expired:
                self._writers[state.env.durability].touch(state)
            runs, dead = hold(index, leased, state, now_ms)
            due_ms = index.due_ms(now_ms, stripe.tail)
            return _delivery((stripe.epoch, runs, dead, leased.more, due_ms))

    async def acknowledge(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """See StripeStore."""
        state = self._state(stripe)
        answers = self._settle(state, subscription, claims, version, local.acknowledging)
        try:
            await self._writer(state).barrier()
        finally:
            # Also if nobody waits for the answer any more, or it is an error: others may go on.
            if state.stripe.settings.ordered:
                state.announce()
        return answers

    async def extend(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        lease_ms: int,
        version: int,
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle_aloud(stripe, subscription, claims, version, local.extending(lease_ms))

    async def release(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        delay_ms: int | None,
        version: int,
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle_aloud(stripe, subscription, claims, version, local.releasing(delay_ms))

    async def unlease(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return self._settle_aloud(stripe, subscription, claims, version, local.unleasing)

    def _settle_aloud(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        version: int,
        act: local.Act,
    ) -> list[int | ClientError]:
        """Settle, and have those look who wait: something may be deliverable sooner than before."""
        state = self._state(stripe)
        answers = self._settle(state, subscription, claims, version, act)
        state.announce()
        return answers

    def _settle(
        self,
        state: StripeState,
        subscription: str,
        claims: Sequence[Claim],
        version: int,
        act: local.Act,
    ) -> list[int | ClientError]:
        with self._lock:
            stripe = state.check(version)
            answers = settle(stripe, subscription, claims, self.clock.now_ms(), act)
            self._writer(state).touch(state)
        return answers

    async def read(
        self, stripe: StripeId, offset: int, messages_max: int, bytes_max: int
    ) -> list[Block]:
        """See StripeStore."""
        state = self._state(stripe)

        def read() -> list[Block]:
            with self._lock:
                self._tidy(state)
                state.stripe.check_readable(offset)
                return read_blocks(state, offset, state.stripe.tail, messages_max, bytes_max)

        with self._lock:
            near = state.near_blocks(offset, messages_max, bytes_max)
        return near or await self._readers.run(read)

    async def find(self, stripe: StripeId, time_ms: int) -> int:
        """See StripeStore."""
        state = self._state(stripe)

        def find() -> int:
            with self._lock:
                return find_time(state, state.stripe.head, state.stripe.tail, time_ms)

        return await self._readers.run(find)

    async def subscribe(self, stripe: StripeId, subscription: str, start: Start) -> int:
        """See StripeStore."""
        check_name(subscription, "subscription")
        state = self._state(stripe)
        offset: int = await self._submit(state, subscribing(state, subscription, start))
        return offset

    async def unsubscribe(self, stripe: StripeId, subscription: str) -> None:
        """See StripeStore."""
        state = self._state(stripe)
        await self._submit(state, unsubscribing(state, subscription))

    async def claim(
        self, stripe: StripeId, subscription: str, owner: bytes, lease_ms: int
    ) -> Claimed:
        """See StripeStore."""
        state = self._state(stripe)
        claimed: Claimed = await self._submit(
            state, claiming(state, subscription, owner, lease_ms, self.clock.now_ms)
        )
        return claimed

    async def hold(self, stripe: StripeId, subscription: str, fence: int, lease_ms: int) -> None:
        """See StripeStore."""
        state = self._state(stripe)
        with self._lock:
            state.check(0).hold(subscription, fence, lease_ms, self.clock.now_ms())

    async def commit(
        self,
        stripe: StripeId,
        subscription: str,
        offset: int,
        fence: int = 0,
        *,
        lazy: bool = False,
    ) -> None:
        """See StripeStore."""
        state = self._state(stripe)
        with self._lock:
            index = committable(state.check(0), subscription, fence)
            index.drop_below(min(offset, state.stripe.tail))
            self._writer(state).touch(state)
        if not lazy:
            await self._writer(state).barrier()

    async def purge(self, stripe: StripeId) -> int:
        """See StripeStore."""
        state = self._state(stripe)
        with self._lock:
            count = state.stripe.purge()
            self._writer(state).touch(state)
        await self._writer(state).barrier()
        return count

    async def trim(self, stripe: StripeId) -> int:
        """See StripeStore."""
        state = self._state(stripe)
        while True:
            with self._lock:
                head = state.log_head
                self._tidy(state)
                self._writer(state).touch(state)
            await self._submit(state, Change(_in_the_tree))
            if state.log_head == head:
                return head

    async def stats(self, stripe: StripeId) -> StripeStats:
        """See StripeStore."""
        state = self._state(stripe)

        def stats() -> StripeStats:
            with self._lock:
                self._tidy(state)
                empty = state.stripe.head >= state.stripe.tail
                oldest_ms = 0 if empty else state.block_at(state.stripe.head).stored_ms
                return stripe_stats(state.stripe, oldest_ms, self.clock.now_ms())

        return await self._readers.run(stats)

    def watch(self, stripe: StripeId) -> Pending[None]:
        """See StripeStore."""
        return self._state(stripe).watch

    # -- records --------------------------------------------------------------------------------

    async def get(self, key: str) -> Record | None:
        """See RecordStore."""
        self._refuse_closed()
        with self._lock:
            return records.get(self._writers["disk"].env, key, self.clock.now_ms())

    async def put(
        self, key: str, value: bytes, expect: int | None = None, expires_ms: int = 0
    ) -> Record:
        """See RecordStore."""
        edit = records.put_edit(
            self._writers["disk"].env, key, value, expect, expires_ms, self.clock.now_ms()
        )
        record: Record = await self._writers["disk"].submit(Change(edit))
        return record

    async def remove(self, key: str, expect: int | None = None) -> bool:
        """See RecordStore."""
        edit = records.remove_edit(self._writers["disk"].env, key, expect, self.clock.now_ms())
        removed: bool = await self._writers["disk"].submit(Change(edit))
        return removed

    async def scan(self, prefix: str, after: str = "", count_max: int = 1000) -> list[Record]:
        """See RecordStore."""
        self._refuse_closed()
        env, now_ms = self._writers["disk"].env, self.clock.now_ms()
        with self._lock:
            return records.scan(env, prefix, after, count_max, now_ms)

    # -- care -----------------------------------------------------------------------------------

    async def compact(self) -> tuple[int, int]:
        """Give free space back to the disk; everything waits meanwhile. Bytes before and after."""
        return await self._readers.run(
            lambda: compact(self._directory, list(self._writers.values()), self._lock)
        )

    def share(self, shipping: Shipping | None) -> list[Writer]:
        """Have new environments shipped from the start; answers the writers of those there are."""
        with self._lock:
            self._shipping = shipping
            return list(self._writers.values())

    # -- inside ---------------------------------------------------------------------------------

    def _state(self, stripe: StripeId) -> StripeState:
        if self._closed or self.oversight is not None:
            self._refuse_closed()
        state = self._states.get(stripe)
        if state is None or state.deleted:
            state = self._maybe_state(stripe)
        if state is None:
            raise stripe.gone()
        return state

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ConnectionClosed("The store has been closed.")
        if self.oversight is not None:
            self.oversight.check()

    def _maybe_state(self, stripe: StripeId) -> StripeState | None:
        with self._lock:
            state = self._states.get(stripe) or self._evicted.get(stripe)
            if state is not None:
                self._states[stripe] = state
                return None if state.deleted else state
            for writer in self._writers.values():
                state = load(stripe, writer.env, self._cache, self._random)
                if state is not None:
                    self._evict()
                    self._states[stripe] = state
                    return state
        return None

    def _evict(self) -> None:
        """Make room for one more loaded stripe by dropping some that have nothing to write."""
        if len(self._states) < max(limits.STRIPES_LOADED_MAX, self._crowd):
            return
        now_ms = self.clock.now_ms()
        dirty: set[StripeState] = set()
        for writer in self._writers.values():
            dirty |= writer.dirty | writer.unwritten
        idle = [
            key
            for key, state in self._states.items()
            if state not in dirty and not state.in_use(now_ms)
        ]
        for key in idle[: len(self._states) // 4]:
            state = self._states.pop(key)
            self._evicted[key] = state
            state.announce()
        # All are looked at, so not again before there are some more.
        self._crowd = len(self._states) * 5 // 4

    def _writer(self, state: StripeState) -> Writer:
        return self._writers[state.env.durability]

    def _submit(self, state: StripeState, change: Change) -> Pending[Any]:
        return self._writer(state).submit(change)

    def _tidy(self, state: StripeState) -> None:
        """Apply retention and trimming before an answer that would show what they drop."""
        now_ms = self.clock.now_ms()
        expired = state.expire(now_ms)
        if state.hide_trimmed(now_ms) or expired:
            self._writer(state).touch(state)


def _in_the_tree(_: Any) -> None:
    """Change nothing; but the commit is one of the tree, which trims what may go."""
