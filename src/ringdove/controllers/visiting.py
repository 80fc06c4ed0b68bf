"""What one receive leases, stripe by stripe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.controllers.lobby import Guest, Lobby
from ringdove.core.receipt import Receipt
from ringdove.core.tuples import maker
from ringdove.errors import StoreCorrupted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.pace import Pace
    from ringdove.errors import StoreUnavailable
    from ringdove.pending import Pending
    from ringdove.stores.base import Delivered, Store, StripeId


class Received(NamedTuple):
    """A leased run with its messages and the receipt that settles it."""

    receipt: Receipt
    until_ms: int
    receives: int
    first_ms: int
    delivered: Delivered


_received, _receipt = maker(Received), maker(Receipt)

#: Moves runs that were received too often to the dead-letter queue.
OnDead = Callable[["QueueInfo", list[Received]], Awaitable[None]]

#: Takes a place among those who wait at a subscription of a queue for so many messages.
Enter = Callable[["QueueInfo", str, int], tuple[Lobby, Guest]]


class Visit:
    """One receive's visits, what they have found, and its place among those who wait."""

    __slots__ = (
        "_bytes", "_lease_ms", "_left", "_pace", "_paced", "_place", "_store", "_want", "damage",
        "dues", "failure", "found", "info", "may_line_up", "notes_barren", "on_dead", "order",
        "reached", "subscription", "watches",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        pace: Pace,
        info: QueueInfo,
        subscription: str,
        want: int,
        lease_ms: int | None,
    ) -> None:
        self.found: list[Received] = []
        #: The stripes in the order in which they are visited, and their watches from before.
        self.order: Sequence[StripeId] = ()
        self.watches: dict[StripeId, Pending[None]] = {}
        #: Why a node could not be asked, and whether any could.
        self.failure: StoreUnavailable | None = None
        self.reached = False
        #: What is wrong with a stripe that was visited.
        self.damage: StoreCorrupted | None = None
        #: When each stripe has more that was visited, or known to have nothing yet.
        self.dues: dict[StripeId, int | None] = {}
        self.on_dead: OnDead | None = None
        self.info = info
        self.subscription = subscription
        #: The receiver's place, once it has waited.
        self._place: tuple[Lobby, Guest] | None = None
        settings = info.settings
        #: Whether those who wait show that there is nothing, and stripes where nothing is left are
        #: remembered: not, where a rate may be why.
        self.may_line_up = settings.dequeue == "wake" and settings.receive_rate_max is None
        self.notes_barren = self.may_line_up and settings.stripes + settings.priority > 1
        self._store = store
        self._pace = pace
        self._left = self._want = want
        self._bytes = 0
        self._lease_ms = lease_ms or settings.lease_ms
        self._paced = settings.receive_rate_max is not None or settings.spread == "auto"

    def enter(self, enter: Enter) -> tuple[Lobby, Guest]:
        """The receiver's place among those who wait; the same one each time."""
        if self._place is None:
            self._place = enter(self.info, self.subscription, self._want)
        return self._place

    @property
    def seen(self) -> Collection[Pending[None]] | None:
        """The watches from before the last look, if there was one."""
        return self.watches.values() if self.watches else None

    @property
    def shared(self) -> bool:
        """Whether the receiver was called for several arrivals, or by time."""
        return self._place is not None and self._place[1].shared

    def line_up(self, lobby: Lobby, now_ms: int) -> bool:
        """Take a place behind those who wait, if some do."""
        guest = lobby.line_up(self._want, now_ms)
        if guest is None:
            return False
        self._place = (lobby, guest)
        return True

    def leave(self, found: int, *, interrupted: bool) -> None:
        """Give the place up, if there is one, with so many messages."""
        if self._place is not None:
            lobby, guest = self._place
            lobby.leave(guest, found, interrupted=interrupted)

    def raise_damage(self) -> None:
        """Tell of a stripe that is damaged, if no other had anything."""
        if self.damage is not None and not self.found:
            raise self.damage

    @property
    def due_ms(self) -> int | None:
        """When one of these stripes has more."""
        soonest: int | None = None
        for due_ms in self.dues.values():
            if due_ms is not None and (soonest is None or due_ms < soonest):
                soonest = due_ms
        return soonest

    async def lease(self, stripe: StripeId) -> int:
        """Lease what is still wanted from one stripe; how many. `dues` has when it has more."""
        if self._bytes >= limits.LEASE_BYTES_MAX:
            self.dues[stripe] = self._store.clock.now_ms()  # Not visited: there may be something.
            return 0
        want = self._left
        if self._paced:
            want = await self._lease_paced(stripe, want)
        else:
            want = await self._lease(stripe, want, self._spread())
        self._left -= want
        return want

    def _spread(self) -> int:
        spread = self.info.settings.spread
        if isinstance(spread, int):
            return spread
        return self._pace.spread(self.info, self.subscription)

    async def _lease_paced(self, stripe: StripeId, want: int) -> int:
        info, subscription = self.info, self.subscription
        granted, self.dues[stripe] = self._pace.admit(info, subscription, want)
        if not granted:
            return 0
        count = 0
        self._pace.begin(info, subscription)
        try:
            count = await self._lease(stripe, granted, self._spread())
        finally:
            self._pace.end(info, subscription)
            self._pace.give_back(info, subscription, granted - count)
        return count

    async def _lease(self, stripe: StripeId, want: int, spread: int) -> int:
        info, subscription = self.info, self.subscription
        count = 0
        more = True
        due_ms: int | None = None
        while more and count < want and self._bytes < limits.LEASE_BYTES_MAX:
            try:
                epoch, runs, dead, more, due_ms = await self._store.lease(
                    stripe, subscription, want - count, self._lease_ms, spread, info.version
                )
            except StoreCorrupted:
                if not count:
                    raise
                due_ms = self._store.clock.now_ms()
                break  # Deliver what is in front of the damage.
            for delivered in runs:
                self.found.append(_make(stripe, epoch, subscription, delivered))
                for part in delivered.parts:
                    self._bytes += part.share_bytes
                count += delivered.run.hi - delivered.run.lo
            if dead and self.on_dead is not None:
                await self.on_dead(
                    info, [_make(stripe, epoch, subscription, delivered) for delivered in dead]
                )
            more = more or bool(dead)
        self.dues[stripe] = due_ms
        return count


def _make(stripe: StripeId, epoch: int, subscription: str, delivered: Delivered) -> Received:
    lo, hi, token, until_ms, receives, first_ms = delivered.run
    receipt = _receipt((*stripe, epoch, token, lo, hi, subscription))
    return _received((receipt, until_ms, receives, first_ms, delivered))
