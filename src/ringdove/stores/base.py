"""The contract of a store.

Everything that Ringdove remembers is in a store, and every operation below is atomic and as durable
as the queue's settings promise when it returns. A store has two parts:

*Stripes* are logs of blocks with subscriptions (core/index.py). Calls are batch-shaped: blocks,
runs and lists of claims, never single messages. Each call carries the version of the settings its
caller used; 0 means "whatever it is". A call with another version raises SettingsStale and changes
nothing.

*Records* are small versioned values by key: queue settings, accounts, registrations, anything else.

Invariants, tested on every store by one suite (tests/stores):

I1 An acknowledged append survives what the queue's durability promises.
I2 Per subscription each offset is exactly one of waiting, leased, done.
I3 Between store failures no message is in two live leases. A lease need not survive a crash.
I4 Done is as durable as an append and never leased again.
I5 Any controller can honour any receipt. An expired receipt acknowledges until its messages are
   leased again, except on ordered queues; a stale one raises ReceiptStale.
I6 Nothing is trimmed before it is done or expired.
I7 (epoch, offset) of a stripe only increases and is never reused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ringdove.errors import InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ringdove.clock import Clock
    from ringdove.core.block import Block
    from ringdove.core.dedup import Appended, Segment
    from ringdove.core.runs import LeasedRun
    from ringdove.core.settings import QueueSettings
    from ringdove.core.stripe import Part
    from ringdove.errors import ClientError
    from ringdove.pending import Pending

_STRIPE_KEY = struct.Struct(">QHB")


class StripeId(NamedTuple):
    """Names one physical queue everywhere and for ever: queue ids are random and never reused."""

    queue: int
    number: int
    level: int

    def key(self) -> bytes:
        """Eleven bytes that sort like the id."""
        return _STRIPE_KEY.pack(*self)

    def place(self, offset: int) -> bytes:
        """Names a message of the stripe, likewise."""
        return self.key() + offset.to_bytes(8, "big")

    @classmethod
    def from_key(cls, key: bytes) -> StripeId:
        """The id whose key starts `key`."""
        return cls(*_STRIPE_KEY.unpack_from(key))

    def gone(self) -> QueueNotFound:
        """The error for a stripe that is not there."""
        return QueueNotFound(f"There is no stripe {tuple(self)}; its queue was deleted.")


STRIPE_KEY_BYTES = _STRIPE_KEY.size


class Claim(NamedTuple):
    """A receiver's word that it holds messages [lo, hi) under a lease."""

    epoch: int
    token: int
    lo: int
    hi: int
    #: Whether the word of an earlier holder counts too, as long as the queue is loose: SQS's rule.
    earlier: bool = False


class Delivered(NamedTuple):
    """A leased run with its messages."""

    run: LeasedRun
    #: Where they are; nothing is copied until somebody reads or cuts.
    parts: list[Part]

    @property
    def blocks(self) -> list[Block]:
        """Blocks that hold exactly the run."""
        return [part.cut() for part in self.parts]


class Delivery(NamedTuple):
    """What a lease call gives."""

    epoch: int
    runs: list[Delivered]
    #: Runs received too often, leased for moving to the dead-letter queue.
    dead: list[Delivered]
    #: Call again at once: a limit stopped the search.
    more: bool
    #: When something more is deliverable, as far as time alone decides: now, later, or None.
    due_ms: int | None


class Claimed(NamedTuple):
    """An exclusive right to stream one subscription of a stripe."""

    fence: int
    #: Where to start: everything below is done.
    offset: int


class Start(NamedTuple):
    """Where a new subscription starts: "earliest", "latest", "offset" or "time", and its value."""

    kind: str
    value: int = 0

    def unknown(self) -> InvalidArgument:
        """The error for a kind that there is not."""
        return InvalidArgument(
            f"{self.kind!r} is no start: use 'earliest', 'latest', 'offset' or 'time'."
        )


class SubscriptionStats(NamedTuple):
    """The state of one subscription on one stripe, in messages."""

    name: str
    #: Everything below is done.
    floor: int
    waiting: int
    leased: int
    delayed: int


class StripeStats(NamedTuple):
    """The state of one stripe."""

    epoch: int
    #: First offset stored and next offset to be given.
    head: int
    tail: int
    nbytes: int
    #: When the oldest stored block came; 0 when there is none.
    oldest_ms: int
    subscriptions: list[SubscriptionStats]


class Record(NamedTuple):
    """A small remembered value. Versions start at 1 and grow by 1."""

    key: str
    value: bytes
    version: int
    #: When the record vanishes by itself; 0 for never.
    expires_ms: int = 0


class StripeStore(Protocol):
    """The stripes of a store. See the module for the invariants."""

    clock: Clock

    async def create(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """Make an empty stripe with the subscription `default`; nothing happens if it exists."""
        ...

    async def configure(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """Give the stripe newer settings; older versions are refused from now on."""
        ...

    async def delete(self, stripe: StripeId) -> None:
        """Forget the stripe and everything in it; nothing happens if it does not exist."""
        ...

    async def append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> list[Appended | ClientError]:
        """Append the segments in order, in one atomic step, each accepted or refused for itself.

        Raises QueueFull or StoreFull, with nothing stored, when there is no room for all of them.
        """
        ...

    def submit_append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> Pending[list[Appended | ClientError]]:
        """`append` without waiting for its end; appends to one stripe keep their order."""
        ...

    async def lease(
        self,
        stripe: StripeId,
        subscription: str,
        want: int,
        lease_ms: int,
        spread: int,
        version: int,
    ) -> Delivery:
        """Hand out up to `want` of the oldest deliverable messages for `lease_ms`.

        Fewer where they would be too large to hold: at least one block, and `LEASE_BYTES_MAX`.
        """
        ...

    async def acknowledge(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """Mark claimed messages done. Per claim: how many, or why it is refused."""
        ...

    async def extend(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        lease_ms: int,
        version: int,
    ) -> list[int | ClientError]:
        """Keep claimed messages leased for `lease_ms` from now. Answers as `acknowledge`."""
        ...

    async def release(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        delay_ms: int | None,
        version: int,
    ) -> list[int | ClientError]:
        """Give claimed messages back after `delay_ms`, by default after the queue's back-off."""
        ...

    async def unlease(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """Take leases back whose messages nobody has seen: it is as if they had not been leased."""
        ...

    async def read(
        self, stripe: StripeId, offset: int, messages_max: int, bytes_max: int
    ) -> list[Block]:
        """Whole blocks from the one that holds `offset`, cut to start there; for replay and peek.

        At least one block when there is any at or after `offset`. Raises OffsetTrimmed below the
        head.
        """
        ...

    async def find(self, stripe: StripeId, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`; the tail when there is none."""
        ...

    async def subscribe(self, stripe: StripeId, subscription: str, start: Start) -> int:
        """Add a subscription; answers the offset it starts at. Repeating it changes nothing."""
        ...

    async def unsubscribe(self, stripe: StripeId, subscription: str) -> None:
        """Remove a subscription; nothing happens if it does not exist."""
        ...

    async def claim(
        self, stripe: StripeId, subscription: str, owner: bytes, lease_ms: int
    ) -> Claimed:
        """Give `owner` alone the right to read the subscription by offset, for `lease_ms`.

        Leases are refused meanwhile, and positions committed under an older fence. The same owner
        may claim again at once. Raises SubscriptionBusy while somebody else holds or leases.
        """
        ...

    async def hold(self, stripe: StripeId, subscription: str, fence: int, lease_ms: int) -> None:
        """Keep the claim for `lease_ms` from now; 0 gives it up. Raises FenceStale when lost."""
        ...

    async def commit(
        self,
        stripe: StripeId,
        subscription: str,
        offset: int,
        fence: int = 0,
        *,
        lazy: bool = False,
    ) -> None:
        """Mark everything below `offset` done: the position of a reader by offset.

        With a fence, raises FenceStale unless the claim is still held. `lazy` does not wait until
        it is durable: after a crash the position may be an older one.
        """
        ...

    async def purge(self, stripe: StripeId) -> int:
        """Mark everything done for all subscriptions; answers how many messages were not."""
        ...

    async def trim(self, stripe: StripeId) -> int:
        """Drop what retention and `keep_done_ms` allow, now; answers the new head."""
        ...

    async def stats(self, stripe: StripeId) -> StripeStats:
        """The state of the stripe."""
        ...

    def node_of(self, stripe: StripeId) -> Hashable | None:
        """Names what serves the stripe, where several nodes could; None where there is only one."""
        ...

    def is_near(self, stripe: StripeId) -> bool:
        """Whether what serves the stripe is on this machine."""
        ...

    def watch(self, stripe: StripeId) -> Pending[None]:
        """Done when something may have become deliverable, other than by time alone.

        That is after an append, release, extension, subscription, change of settings or deletion,
        and on ordered queues an acknowledgement. Take it before looking, then wait.
        """
        ...


class RecordStore(Protocol):
    """The records of a store."""

    async def get(self, key: str) -> Record | None:
        """The record, unless it is missing or has expired."""
        ...

    async def put(
        self, key: str, value: bytes, expect: int | None = None, expires_ms: int = 0
    ) -> Record:
        """Write a record if its version is `expect` (0: it must not exist; None: in any case).

        Raises RecordConflict otherwise.
        """
        ...

    async def remove(self, key: str, expect: int | None = None) -> bool:
        """Delete a record; answers whether it was there. Raises RecordConflict like `put`."""
        ...

    async def scan(self, prefix: str, after: str = "", count_max: int = 1000) -> list[Record]:
        """Records whose key starts with `prefix` and is greater than `after`, in key order."""
        ...


class Store(StripeStore, RecordStore, Protocol):
    """Everything a Ringdove process remembers."""

    async def close(self) -> None:
        """Finish what was accepted, then let go. Idempotent."""
        ...
