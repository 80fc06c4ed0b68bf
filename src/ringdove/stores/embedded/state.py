"""One stripe as the embedded store holds it: state in memory, blocks and history in LMDB.

The index in memory is the truth while the process lives; what of it must survive is written by the
next group commit (writer.py). Loading reads it back: the floor, the runs done above it, and the
leases.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import lmdb
import msgspec

from ringdove import limits
from ringdove.core.block import Block
from ringdove.core.runs import RunRecord
from ringdove.core.settings import QueueSettings
from ringdove.core.stripe import Stripe
from ringdove.errors import RemoteProtocolError, SettingsRefused, StoreCorrupted
from ringdove.pending import Pending
from ringdove.stores.base import STRIPE_KEY_BYTES, StripeId
from ringdove.stores.embedded.environment import translated
from ringdove.stores.local import make_token, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from ringdove.core.index import Index
    from ringdove.stores.embedded.environment import Environment

OFFSET = struct.Struct(">Q")
NUMBER = struct.Struct(">H")
TAIL = struct.Struct("<QQQ")


class StripeRecord(NamedTuple):
    """A stripe's entry in the database `stripes`."""

    settings: bytes
    version: int
    epoch: int
    #: Whether it was a relay's copy once, so that offsets may be missing.
    copied: bool = False


class SubscriptionRecord(NamedTuple):
    """A subscription's entry in the database `subs`."""

    number: int
    floor: int
    fence: int = 0


decode_stripe = msgspec.msgpack.Decoder(StripeRecord).decode
decode_subscription = msgspec.msgpack.Decoder(SubscriptionRecord).decode
decode_runs = msgspec.msgpack.Decoder(list[RunRecord]).decode
encode = msgspec.msgpack.Encoder().encode

#: What decoding a damaged entry may raise.
DAMAGE = (msgspec.MsgspecError, struct.error, ValueError, SettingsRefused)


class BlockCache:
    """Recently appended blocks, for receivers that keep up; the oldest go first.

    Shared by the writers of both durabilities, which change it under its lock; reading needs none.
    """

    def __init__(self, bytes_max: int = limits.BLOCK_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._nbytes = 0
        self._blocks: dict[tuple[StripeId, int], Block] = {}
        self._lock = threading.Lock()

    def add(self, stripe: StripeId, block: Block) -> None:
        """Remember a block by its base offset."""
        key = (stripe, block.base)
        with self._lock:
            if key in self._blocks:
                self._forget(key)
            self._blocks[key] = block
            self._nbytes += block.nbytes
            while self._nbytes > self._bytes_max:
                self._forget(next(iter(self._blocks)))

    def get(self, stripe: StripeId, base: int) -> Block | None:
        """The block that starts exactly at `base`, if it is here."""
        return self._blocks.get((stripe, base))

    def remove(self, key: tuple[StripeId, int]) -> None:
        """Forget a block, if it is here."""
        with self._lock:
            self._forget(key)

    def remove_stripe(self, stripe: StripeId) -> None:
        """Forget all blocks of a stripe: another of that name may have other ones there."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] == stripe]:
                self._forget(key)

    def _forget(self, key: tuple[StripeId, int]) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self._nbytes -= block.nbytes


class StripeState:
    """A loaded stripe. Guarded by its store's lock, except `block_at`, which only reads."""

    def __init__(
        self, stripe_id: StripeId, env: Environment, cache: BlockCache, stripe: Stripe
    ) -> None:
        self.id = stripe_id
        self.key = stripe_id.key()
        self.env = env
        self.stripe = stripe
        #: Numbers of the subscriptions, part of their keys.
        self.numbers: dict[str, int] = {}
        self.watch: Pending[None] = Pending()
        self._watch_lock = threading.Lock()
        self.deleted = False
        #: First offset in the log and the end of its block, 0 when not known. The stripe's own head
        #: may be ahead: what is no longer needed is out of sight at once and removed later.
        self.log_head = stripe.head
        self.head_end = 0
        #: Producers remembered, None when not counted yet.
        self.producer_count: int | None = None
        #: When one of them may be forgotten, if there are as many as there may be; not later.
        self.producers_due_ms = 0
        #: When the head block's retention ends; 0 when that must be looked up.
        self.expire_due_ms = 0
        self._cache = cache
        #: The block that was looked at last, and the one that came last.
        self._hot: Block | None = None
        self.newest: Block | None = None
        #: Blocks that the journal has and the tree does not, in order.
        self.unwritten: list[Block] = []

    def block_at(self, offset: int) -> Block:
        """See core.index.Source."""
        block = self.newest
        if block is not None and block.base <= offset < block.end:
            return block
        block = self._hot
        if block is None or not block.base <= offset < block.end:
            block = self._cache.get(self.id, offset)
            if block is None:
                block = self._fetch(offset)
            self._hot = block
        return block

    def in_memory(self, offset: int) -> bool:
        """Whether `block_at` would not touch the disk."""
        for block in (self.newest, self._hot):
            if block is not None and block.base <= offset < block.end:
                return True
        journaled = self.unwritten[:1]
        if journaled and journaled[0].base <= offset:
            return True
        return self._cache.get(self.id, offset) is not None

    @property
    def is_young(self) -> bool:
        """Whether all of its blocks are in the journal, and none in the tree."""
        journaled = self.unwritten[:1]
        return bool(journaled) and journaled[0].base <= self.log_head

    def near_blocks(self, offset: int, messages_max: int, bytes_max: int) -> list[Block]:
        """What a read asks for if all of it is in memory, as for readers that keep up; or none."""
        tail = self.stripe.tail
        end, left = offset, bytes_max
        while end < tail and end - offset < messages_max and (left > 0 or end == offset):
            if not self.in_memory(end):
                return []
            block = self.block_at(end)
            left -= block.nbytes
            end = block.end
        if offset < self.stripe.head:
            return []
        return read_blocks(self, offset, tail, messages_max, bytes_max)

    def announce(self) -> None:
        """Tell everybody who watches that something may be deliverable."""
        fresh: Pending[None] = Pending()
        with self._watch_lock:
            watch, self.watch = self.watch, fresh
        watch.resolve(None)

    def expire(self, now_ms: int) -> bool:
        """Apply retention if the oldest block's time has come; answers whether anything went."""
        if now_ms < self.expire_due_ms:
            return False
        stripe = self.stripe
        before = stripe.trim_offset(now_ms)
        try:
            stripe.expire(self, now_ms)
            oldest = stripe.trim_offset(now_ms)
            if stripe.head <= oldest < stripe.tail:
                oldest_ms = self.block_at(oldest).stored_ms
                self.expire_due_ms = oldest_ms + stripe.settings.retention_ms
            else:
                self.expire_due_ms = now_ms + stripe.settings.retention_ms
        except StoreCorrupted:
            # How old a damaged block is, nobody knows: it stays until it is purged or received.
            self.expire_due_ms = now_ms + limits.RETENTION_CHECK_MS
            return False
        return oldest > before

    def hide_trimmed(self, now_ms: int) -> bool:
        """Move the head past what nobody needs any more; answers whether it moved."""
        stripe = self.stripe
        before = stripe.head
        trim_offset = stripe.trim_offset(now_ms)
        for _ in range(limits.TRIM_BLOCKS_PER_COMMIT_MAX):
            if stripe.head >= min(trim_offset, stripe.tail):
                break
            block = self.block_at(stripe.head)
            if block.end > trim_offset:
                break
            stripe.head = block.end
        return stripe.head > before

    def in_use(self, now_ms: int) -> bool:
        """Whether somebody waits here, or streams: what only memory knows of that must stay."""
        return self.watch.awaited or any(
            index.held is not None and index.held.until_ms > now_ms
            for index in self.stripe.subscriptions.values()
        )

    def check(self, version: int) -> Stripe:
        """The stripe, unless it is gone or the caller's settings are old."""
        if self.deleted:
            raise self.id.gone()
        if version and version != self.stripe.version:
            self.stripe.check_version(version)
        return self.stripe

    def _fetch(self, offset: int) -> Block:
        journaled = self.unwritten[:]  # Others may take from it.
        if journaled and journaled[0].base <= offset:
            return journaled[bisect_right(journaled, offset, key=end_of)]
        key = self.key + OFFSET.pack(offset)
        try:
            with self.env.lmdb.begin(db=self.env.db["log"]) as txn:
                cursor = txn.cursor()
                if cursor.set_range(key) and cursor.key().startswith(self.key):
                    return read_block(cursor.key(), cursor.value())
        except lmdb.Error as error:
            raise translated(error, self.env.path) from error
        if journaled:
            return journaled[0]  # Offsets before it were skipped.
        raise StoreCorrupted(
            f"Offset {offset} of stripe {self.id} is missing from the log. Run 'ringdove fsck'."
        )


def end_of(block: Block) -> int:
    """Where a block ends, as a key to search by."""
    return block.end


def read_block(key: bytes, value: bytes) -> Block:
    """A block from the log, with its checksums verified."""
    try:
        block = Block.decode(value, trusted=True)
    except RemoteProtocolError as error:
        raise StoreCorrupted(
            f"A block in the log is damaged: {error} Run 'ringdove fsck'."
        ) from error
    if block.end - 1 != OFFSET.unpack_from(key, STRIPE_KEY_BYTES)[0]:
        raise StoreCorrupted(f"{block} is filed under another offset. Run 'ringdove fsck'.")
    return block


def load(
    stripe_id: StripeId, env: Environment, cache: BlockCache, random: Random
) -> StripeState | None:
    """Read a stripe's state back, or None when this environment does not have it."""
    key = stripe_id.key()
    try:
        with env.lmdb.begin() as txn:
            raw = txn.get(key, db=env.db["stripes"])
            if raw is None:
                return None
            stripe = load_stripe(txn, env, key, decode_stripe(raw), random)
            state = StripeState(stripe_id, env, cache, stripe)
            for sub_key, value in under(txn, env.db["subs"], key):
                sub = decode_subscription(value)
                name = sub_key[STRIPE_KEY_BYTES:].decode()
                state.numbers[name] = sub.number
                stripe.subscriptions[name] = load_index(txn, env, stripe, key, sub)
    except lmdb.Error as error:
        raise translated(error, env.path) from error
    except DAMAGE as error:
        raise StoreCorrupted(
            f"What is stored of stripe {tuple(stripe_id)} is damaged: {error} Run 'ringdove fsck'."
        ) from error
    return state


def load_stripe(
    txn: Any, env: Environment, key: bytes, record: StripeRecord, random: Random
) -> Stripe:
    """A stripe's state without its subscriptions."""
    tail, nbytes, head = TAIL.unpack(txn.get(key, db=env.db["tails"]) or b"")
    if not head <= tail <= limits.OFFSET_MAX:
        raise ValueError(f"its head is {head} and its tail {tail}.")
    return Stripe(
        QueueSettings.decode(record.settings),
        record.version,
        make_token,
        random,
        epoch=record.epoch,
        head=head,
        tail=tail,
        nbytes=nbytes,
    )


def load_index(
    txn: Any, env: Environment, stripe: Stripe, key: bytes, sub: SubscriptionRecord
) -> Index:
    """Read one subscription's index back."""
    prefix = key + NUMBER.pack(sub.number)
    index = stripe.make_index(sub.floor)
    done = [
        (OFFSET.unpack_from(k, len(prefix))[0], OFFSET.unpack(v)[0])
        for k, v in under(txn, env.db["done"], prefix)
    ]
    leases = [
        (OFFSET.unpack_from(k, len(prefix))[0], decode_runs(v))
        for k, v in under(txn, env.db["leases"], prefix)
    ]
    spans = sorted(done + [(run.lo, run.hi) for _, runs in leases for run in runs])
    at = sub.floor
    for lo, hi in spans:
        if not at <= lo < hi <= stripe.tail:
            raise ValueError(f"a run {lo}..{hi} of a subscription overlaps another or the end.")
        at = hi
    if sub.floor > stripe.tail:
        raise ValueError(f"a subscription is done up to {sub.floor}, beyond {stripe.tail}.")
    index.restore(done, leases)
    index.fence = sub.fence
    return index


def under(txn: Any, db: Any, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """All entries whose key starts with `prefix`, in order, from the key `start` on."""
    cursor = txn.cursor(db)
    found = cursor.set_range(max(prefix, start))
    while found and (key := bytes(cursor.key())).startswith(prefix):
        yield key, cursor.value()
        found = cursor.next()
