"""Drives one stripe of a store synchronously, so that a test reads like its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import QueueSettings
from ringdove.pending import run
from ringdove.stores.base import Claim, Delivered, Delivery, Start, StripeId, StripeStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.clock import ManualClock
    from ringdove.core.runs import LeasedRun
    from ringdove.errors import ClientError
    from ringdove.pending import Pending
    from ringdove.stores.base import Store, SubscriptionStats

#: More than any test stores.
EVERYTHING = 10_000


def block(*bodies: bytes, keys: Iterable[bytes] | None = None, not_before_ms: int = 0) -> Block:
    """A block of `bodies`, one key each when keys are given."""
    return Block.build(
        bodies,
        sent_ms=1,
        keys=None if keys is None else list(keys),
        not_before_ms=not_before_ms,
    )


def bodies_of(found: Iterable[Delivered]) -> list[bytes]:
    """All bodies of delivered runs, in order."""
    return [body for part in found for piece in part.blocks for body in piece.bodies()]


def offsets_of(found: Iterable[Delivered]) -> list[int]:
    """All offsets of delivered runs, in order."""
    return [offset for part in found for offset in range(part.run.lo, part.run.hi)]


class Driver:
    """One stripe of a store, with every call made blocking and its usual arguments filled in."""

    def __init__(
        self, store: Store, clock: ManualClock, durability: str = "memory", queue: int = 1
    ) -> None:
        self.store = store
        self.clock = clock
        self.durability = durability
        self.stripe = StripeId(queue, 0, 0)
        self.settings = QueueSettings.make(durability=durability)
        self.version = 0

    def make(self, **chosen: Any) -> Driver:
        """Create the stripe with these settings."""
        self.settings = QueueSettings.make(durability=self.durability, **chosen)
        self.version = 1
        run(self.store.create(self.stripe, self.settings, self.version))
        return self

    def beside(self, *, number: int = 0, level: int = 0) -> Driver:
        """Another stripe of the same queue, created with the same settings."""
        other = Driver(self.store, self.clock, self.durability)
        other.stripe = self.stripe._replace(number=number, level=level)
        other.settings, other.version = self.settings, self.version
        run(self.store.create(other.stripe, self.settings, self.version))
        return other

    def change(self, **chosen: Any) -> None:
        """Give the stripe changed settings under the next version."""
        self.settings = self.settings.replace(**chosen)
        self.version += 1
        run(self.store.configure(self.stripe, self.settings, self.version))

    # -- messages -------------------------------------------------------------------------------

    def append(self, *segments: Segment, version: int = 0) -> list[Appended | ClientError]:
        """Append segments in one call."""
        return run(self.store.append(self.stripe, segments, version))

    def send(
        self,
        *bodies: bytes,
        keys: Iterable[bytes] | None = None,
        not_before_ms: int = 0,
        **claim: Any,
    ) -> Appended:
        """Append one block; raises when it is refused."""
        segment = Segment(block(*bodies, keys=keys, not_before_ms=not_before_ms), **claim)
        [answer] = self.append(segment)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def count(self, start: int, stop: int, **options: Any) -> Appended:
        """Append one block whose bodies are the numbers [start, stop)."""
        return self.send(*(b"%d" % number for number in range(start, stop)), **options)

    def lease(
        self,
        want: int = EVERYTHING,
        lease_ms: int = 30_000,
        *,
        sub: str = "default",
        spread: int = 1,
        version: int = 0,
    ) -> Delivery:
        """Lease up to `want` messages."""
        return run(self.store.lease(self.stripe, sub, want, lease_ms, spread, version))

    def take(
        self, want: int = EVERYTHING, lease_ms: int = 30_000, sub: str = "default"
    ) -> LeasedRun:
        """Lease messages that form exactly one run."""
        [delivered] = self.lease(want, lease_ms, sub=sub).runs
        return delivered.run

    def receive(self, want: int = EVERYTHING, sub: str = "default") -> list[bytes]:
        """Lease, and answer only the bodies."""
        return bodies_of(self.lease(want, sub=sub).runs)

    # -- claims ---------------------------------------------------------------------------------

    def claim(self, leased: LeasedRun, lo: int | None = None, hi: int | None = None) -> Claim:
        """The claim for a leased run or for [lo, hi) of it."""
        epoch = run(self.store.stats(self.stripe)).epoch
        return Claim(
            epoch, leased.token, leased.lo if lo is None else lo, leased.hi if hi is None else hi
        )

    def ack(
        self, leased: LeasedRun, lo: int | None = None, hi: int | None = None, sub: str = "default"
    ) -> int:
        """Acknowledge; raises when it is refused."""
        claims = [self.claim(leased, lo, hi)]
        return _only(run(self.store.acknowledge(self.stripe, sub, claims, 0)))

    def extend(
        self, leased: LeasedRun, lease_ms: int, lo: int | None = None, hi: int | None = None
    ) -> int:
        """Extend; raises when it is refused."""
        claims = [self.claim(leased, lo, hi)]
        return _only(run(self.store.extend(self.stripe, "default", claims, lease_ms, 0)))

    def release(
        self,
        leased: LeasedRun,
        delay_ms: int | None = 0,
        lo: int | None = None,
        hi: int | None = None,
    ) -> int:
        """Release; raises when it is refused."""
        claims = [self.claim(leased, lo, hi)]
        return _only(run(self.store.release(self.stripe, "default", claims, delay_ms, 0)))

    def unlease(self, leased: LeasedRun, lo: int | None = None, hi: int | None = None) -> int:
        """Take a lease back; raises when that is refused."""
        claims = [self.claim(leased, lo, hi)]
        return _only(run(self.store.unlease(self.stripe, "default", claims, 0)))

    def send_with_ids(self, times: int, each: int) -> None:
        """Append messages with ids of their own, `each` at a time, a second between two times."""
        for turn in range(times):
            ids = [b"%d-%d" % (turn, number) for number in range(each)]
            self.append(*(Segment(block(b"x"), message_id=own) for own in ids))
            self.clock.sleep_ms(1000)

    def finish(self, want: int = EVERYTHING, sub: str = "default") -> list[bytes]:
        """Lease and acknowledge; answers the bodies."""
        found = self.lease(want, sub=sub).runs
        for delivered in found:
            self.ack(delivered.run, sub=sub)
        return bodies_of(found)

    # -- the rest -------------------------------------------------------------------------------

    def read(
        self, offset: int, messages_max: int = EVERYTHING, bytes_max: int = 1 << 30
    ) -> list[Block]:
        """Read blocks by offset."""
        return run(self.store.read(self.stripe, offset, messages_max, bytes_max))

    def replay(self, offset: int) -> list[bytes]:
        """The bodies stored from `offset` on."""
        return [body for piece in self.read(offset) for body in piece.bodies()]

    def subscribe(self, name: str, kind: str = "earliest", value: int = 0) -> int:
        """Add a subscription."""
        return run(self.store.subscribe(self.stripe, name, Start(kind, value)))

    def trim(self) -> int:
        """Drop what may go; answers the head."""
        return run(self.store.trim(self.stripe))

    def stats(self) -> StripeStats:
        """The state of the stripe."""
        return run(self.store.stats(self.stripe))

    def sub(self, name: str = "default") -> SubscriptionStats:
        """The state of one subscription."""
        [found] = [sub for sub in self.stats().subscriptions if sub.name == name]
        return found

    def watch(self) -> Pending[None]:
        """Done at the next append or release."""
        return self.store.watch(self.stripe)


def _only(answers: list[int | ClientError]) -> int:
    [answer] = answers
    if isinstance(answer, Exception):
        raise answer
    return answer
