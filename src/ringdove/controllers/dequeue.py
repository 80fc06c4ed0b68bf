"""The dequeue controller (D-Ctrl): visit stripes, hand out leases, hold while there is nothing.

A receive visits stripes, higher priorities first, until it has what it wants; what it does when it
finds nothing is the queue's `dequeue` method, a pure machine (core/dequeue.py) that this module
feeds with what really happens. With `wake`, receivers wait in a lobby (lobby.py) and nothing polls;
with `retry` and `monitor` each looks again after a pause. There are no timers in the store.
"""

from __future__ import annotations

import random
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.controllers.barren import BarrenStripes
from ringdove.controllers.health import Health
from ringdove.controllers.lobby import Lobbies
from ringdove.controllers.pace import Pace
from ringdove.controllers.visiting import OnDead, Received, Visit
from ringdove.core.delays import Delays
from ringdove.core.dequeue import Look, Park, Try, make_call
from ringdove.core.policy import level_order
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import (
    InvalidArgument,
    QueueNotFound,
    RingdoveError,
    SettingsStale,
    StoreCorrupted,
    StoreUnavailable,
)
from ringdove.pending import Pending, Started, together
from ringdove.stores.base import Claim, StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from ringdove.clock import Clock
    from ringdove.controllers.catalog import Catalog, QueueInfo
    from ringdove.controllers.lobby import Guest, Lobby
    from ringdove.core.dequeue import Action, DequeueCall
    from ringdove.core.receipt import Receipt
    from ringdove.core.tally import Tallies
    from ringdove.errors import ClientError
    from ringdove.stores.base import Store


#: Settles receipts when it is awaited; per receipt, how many messages or why it is refused.
Settling = Coroutine[Any, Any, "list[int | ClientError]"]


class Dequeuer:
    """Receives and settles messages of queues of a store."""

    def __init__(
        self, store: Store, catalog: Catalog, tallies: Tallies, seed: int | None = None
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._tallies = tallies
        self._random = random.Random(seed)
        self._turn = 0
        self._pace = Pace(store.clock)
        self._lobbies = Lobbies(store.clock)
        self._barren = BarrenStripes(store)
        self._counters: dict[tuple[int, str], tuple[int, dict[StripeId, int]]] = {}
        #: Visits that found something and that found nothing, messages handed out, receivers held
        #: now, and rounds of reading counters: the figures of T4.
        self.hits = 0
        self.misses = 0
        self.delivered = 0
        self.parked = 0
        self.looks = 0
        #: From the arrival of a run's first message to its delivery, unless it came before.
        self.delays = Delays()
        self.health = Health(store.clock.now_ms)
        #: Takes runs that were received too often; set by the owner, who knows the way to the
        #: dead-letter queue.
        self.on_dead: OnDead | None = None

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
        if lease_ms is not None:
            check_lease(lease_ms)
        check_wait(wait_s)
        now_ms = self._store.clock.now_ms()
        deadline_ms = None if wait_s is None else now_ms + int(wait_s * 1000)

        info = self._catalog.known(queue) or await self._catalog.get(queue)
        unfinished = False
        while True:
            try:
                if unfinished:
                    await self._catalog.finish_change(info)
                return await self._receive(info, subscription, max, deadline_ms, lease_ms)
            except (SettingsStale, QueueNotFound):
                before, info = info, await self._catalog.refresh(queue)
                if unfinished and info == before:
                    raise
                unfinished = info == before

    async def _receive(
        self,
        info: QueueInfo,
        subscription: str,
        want: int,
        deadline_ms: int | None,
        lease_ms: int | None,
    ) -> list[Received]:
        """Let the queue's method (core/dequeue.py) decide, and do what it says."""
        clock = self._store.clock
        visit = Visit(self._store, self._pace, info, subscription, want, lease_ms)
        visit.on_dead = self.on_dead
        call = make_call(info.settings, want, len(info.stripes()), deadline_ms)
        interrupted = True
        now_ms = clock.now_ms()
        action = self._begin(visit, call, now_ms)
        try:
            while True:
                if visit.notes_barren:
                    action = self._skip_barren(visit, call, action)
                if isinstance(action, Try):
                    found, due_ms = await self._try(visit, visit.order[action.stripe])
                    action = call.tried(found, now_ms if found else clock.now_ms(), due_ms)
                    continue
                visit.raise_damage()
                if isinstance(action, Park):
                    await self._park(visit, action)
                    self._plan(visit)
                    now_ms = clock.now_ms()
                    action = call.woken(now_ms)
                elif isinstance(action, Look):
                    depths = await self._depths(info, subscription, visit.order)
                    action = call.looked(depths, clock.now_ms())
                else:
                    break
            interrupted = False
        except BaseException as error:
            self._give_back(visit.found, error)
            raise
        finally:
            visit.leave(call.found, interrupted=interrupted)
        self._pass_on(visit, enough=call.found >= want)
        if visit.failure is not None and not visit.reached:
            raise visit.failure
        if call.found:
            self._note(info.id, visit.found)
        if info.settings.spread == "auto":
            self._pace.learn(info, subscription, found=call.found > 0)
        return visit.found

    def _begin(self, visit: Visit, call: DequeueCall, now_ms: int) -> Action:
        """Line up, where others wait already; on a fabric they may know less."""
        info = visit.info
        if visit.may_line_up and self._store.node_of(info.stripes()[0]) is None:
            lobby = self._lobbies.get((info.id, visit.subscription, info.version))
            if lobby is not None and visit.line_up(lobby, now_ms):
                return call.line_up(now_ms)
        self._plan(visit)
        return call.start(now_ms)

    def _plan(self, visit: Visit) -> None:
        """Choose the order of the stripes, and take their watches before they are looked at."""
        info, watch = visit.info, self._store.watch
        stripes = info.stripes()
        visit.order = stripes if len(stripes) == 1 else self._order(info)
        visit.watches = {stripe: watch(stripe) for stripe in stripes}

    def _note(self, queue: int, received: list[Received]) -> None:
        now_ms = self._store.clock.now_ms()
        tally = self._tallies.of(queue)
        for own, _, receives, _, delivered in received:
            tally.handed_out(own.number, own.level, own.subscription, own.lo, own.hi, receives)
            if receives == 1 and delivered.parts:
                self.delays.add(now_ms - delivered.parts[0].block.stored_ms)

    def _give_back(self, received: list[Received], error: BaseException) -> None:
        """Let others have at once what was leased by a receive that is interrupted or begins anew.

        A receive that is being closed cannot wait for that; it only has it begun.
        """
        if isinstance(error, SettingsStale) or not isinstance(error, Exception):
            self.begin_to_unlease([run.receipt for run in received])

    def _skip_barren(self, visit: Visit, call: DequeueCall, action: Action) -> Action:
        """Go past stripes that have nothing yet."""
        if not isinstance(action, Try):
            return action
        order, start = visit.order, action.stripe
        if start:
            order = (*order[start:], *order[:start])
        now_ms = self._store.clock.now_ms()
        dues = self._barren.among(
            order[: call.tries_left], visit.subscription, visit.watches, now_ms
        )
        if not dues:
            return action
        visit.dues.update(dues)
        due_ms = min((due_ms for due_ms in dues.values() if due_ms is not None), default=None)
        return call.skipped(len(dues), now_ms, due_ms)

    async def _try(self, visit: Visit, stripe: StripeId) -> tuple[int, int | None]:
        """Visit a stripe: how many it gave, and when it has more."""
        try:
            node = self._store.node_of(stripe)
            if node is None:
                found = await visit.lease(stripe)
            else:
                found = await self._visit_node(visit, stripe, node)
        except StoreCorrupted as error:
            visit.damage = error
            return 0, None
        due_ms = visit.dues[stripe]
        if found:
            self.hits += 1
            self.delivered += found
        else:
            self.misses += 1
        if self._counters:
            self._count(visit, stripe, found)
        if visit.notes_barren:
            self._barren.note(stripe, visit.subscription, visit.watches[stripe], due_ms)
        return found, due_ms

    async def _park(self, visit: Visit, park: Park) -> None:
        self.parked += 1
        try:
            if not park.watch:
                await _pause(self._store.clock, park.until_ms)
            else:
                lobby, guest = visit.enter(self._enter)
                await lobby.wait(guest, visit.seen, park.until_ms, park.due_ms)
        finally:
            self.parked -= 1

    async def _visit_node(self, visit: Visit, stripe: StripeId, node: Hashable) -> int:
        """Lease from a stripe of a fabric, unless its node was gone or slow a moment ago."""
        visit.dues[stripe] = self._store.clock.now_ms() + _TRY_AGAIN_MS
        if not self.health.admits(node):
            return 0
        began_s = time.monotonic()
        try:
            found = await visit.lease(stripe)
        except StoreUnavailable as error:
            self.health.failed(node)
            visit.failure = error
            return 0
        self.health.answered(node, time.monotonic() - began_s)
        visit.reached = True
        return found

    def _enter(self, info: QueueInfo, subscription: str, want: int) -> tuple[Lobby, Guest]:
        # By version too: who waits is woken by a change, and then watches other stripes.
        key = (info.id, subscription, info.version)
        watch = self._store.watch
        return self._lobbies.enter(key, want, lambda: tuple(map(watch, info.stripes())))

    def _pass_on(self, visit: Visit, *, enough: bool) -> None:
        """Tell those who wait what a receive has left for them.

        One that was called for several arrivals, or by time, and had enough, has not looked
        everywhere.
        """
        info = visit.info
        lobby = self._lobbies.get((info.id, visit.subscription, info.version))
        if not lobby:
            return
        due_ms = visit.due_ms
        if visit.shared and enough:
            lobby.call_next(shared=True)
        elif due_ms is None:
            return
        elif due_ms <= self._store.clock.now_ms():
            lobby.call_next(shared=visit.shared)
        else:
            lobby.note_due(due_ms)

    async def _depths(
        self, info: QueueInfo, subscription: str, order: Sequence[StripeId]
    ) -> list[int]:
        """How many messages each stripe has, read at most once per period for all receivers."""
        now_ms = self._store.clock.now_ms()
        key = (info.id, subscription)
        read_ms, depths = self._counters.get(key, (0, {}))
        if now_ms - read_ms >= info.settings.dequeue_pause_ms:
            depths = {}
            if len(self._counters) >= limits.SETTINGS_CACHE_MAX:
                self._counters.clear()
            self._counters[key] = (now_ms, depths)
            for stripe in info.stripes():
                depths[stripe] = await self._depth(stripe, subscription)
            self.looks += 1
        return [depths.get(stripe, 0) for stripe in order]

    async def _depth(self, stripe: StripeId, subscription: str) -> int:
        """Messages to be had; 1 where only a visit can tell what is wrong."""
        try:
            stats = await self._store.stats(stripe)
        except StoreUnavailable:
            return 1
        waiting = [own.waiting for own in stats.subscriptions if own.name == subscription]
        return waiting[0] if waiting else 1

    def _count(self, visit: Visit, stripe: StripeId, found: int) -> None:
        counters = self._counters.get((visit.info.id, visit.subscription))
        if counters is not None and stripe in counters[1]:
            left = counters[1][stripe] - found
            counters[1][stripe] = max(0, left) if found else 0

    def _order(self, info: QueueInfo) -> Sequence[StripeId]:
        """The stripes in the order in which this receive visits them."""
        self._turn += 1
        count = info.settings.stripes
        start = self._turn % count
        if info.settings.spread == "infinite":
            start = self._random.randrange(count)
        stripes = info.stripes()
        if not info.settings.priority and self._store.node_of(stripes[0]) is None:
            return stripes[start:] + stripes[:start]
        order: list[StripeId] = []
        for level in level_order(info.settings.priority + 1, self._turn):
            turned = [StripeId(info.id, (start + step) % count, level) for step in range(count)]
            order += self._near_first(turned)
        return order

    def _near_first(self, stripes: list[StripeId]) -> list[StripeId]:
        """Stripes of this machine first (T3.6), most of the time: the others must not starve."""
        if self._store.node_of(stripes[0]) is None:
            return stripes
        if self._turn % _FAR_TURN:
            return sorted(stripes, key=self._store.is_near, reverse=True)
        start = self._random.randrange(len(stripes))
        return sorted(stripes[start:] + stripes[:start], key=self._store.is_near)

    # -- settling -------------------------------------------------------------------------------

    def acknowledge(self, receipts: Sequence[Receipt], *, earlier: bool = False) -> Settling:
        """Mark messages done. Per receipt: how many, or why it is refused.

        Here and below, `earlier` receipts count as well: those from before a message of a loose
        queue was leased again.
        """
        return self._settle(
            receipts, lambda s, sub, claims: self._store.acknowledge(s, sub, claims, 0), earlier
        )

    def extend(
        self, receipts: Sequence[Receipt], lease_ms: int, *, earlier: bool = False
    ) -> Settling:
        """Keep messages leased for `lease_ms` from now."""
        check_lease(lease_ms)
        return self._settle(
            receipts,
            lambda s, sub, claims: self._store.extend(s, sub, claims, lease_ms, 0),
            earlier,
        )

    def release(
        self, receipts: Sequence[Receipt], delay_ms: int | None = None, *, earlier: bool = False
    ) -> Settling:
        """Give messages back after `delay_ms`, by default after the queue's back-off."""
        if delay_ms is not None and not 0 <= delay_ms <= limits.DURATION_MS_MAX:
            raise InvalidArgument(
                f"delay_ms is {delay_ms}; it must be 0 to {limits.DURATION_MS_MAX}."
            )
        return self._settle(
            receipts,
            lambda s, sub, claims: self._store.release(s, sub, claims, delay_ms, 0),
            earlier,
        )

    def begin_to_unlease(self, receipts: Sequence[Receipt]) -> None:
        """End leases, for somebody who cannot wait: each stripe is asked for itself."""
        by_stripe: dict[tuple[int, int, int], list[Receipt]] = {}
        for own in receipts:
            by_stripe.setdefault((own.queue, own.number, own.level), []).append(own)
        for own_receipts in by_stripe.values():
            Started(self.unlease(own_receipts)).begin()

    def unlease(self, receipts: Sequence[Receipt]) -> Settling:
        """Give messages back that nobody has seen: it is as if they had not been leased."""
        return self._settle(
            receipts,
            lambda s, sub, claims: self._store.unlease(s, sub, claims, 0),
            earlier=False,
        )

    async def _settle(
        self,
        receipts: Sequence[Receipt],
        act: Callable[[StripeId, str, list[Claim]], Settling],
        earlier: bool,  # noqa: FBT001
    ) -> list[int | ClientError]:
        """One store call per stripe and subscription; answers in the order of the receipts."""
        groups: dict[tuple[StripeId, str], list[int]] = {}
        for position, receipt in enumerate(receipts):
            stripe = StripeId(receipt.queue, receipt.number, receipt.level)
            groups.setdefault((stripe, receipt.subscription), []).append(position)
        told = await together(
            [
                act(stripe, subscription, [_claim(receipts[p], earlier) for p in positions])
                for (stripe, subscription), positions in groups.items()
            ]
        )
        answers: list[int | ClientError] = [0] * len(receipts)
        for positions, own in zip(groups.values(), told, strict=True):
            for position, answer in zip(positions, own, strict=True):
                answers[position] = answer
        return answers


def _claim(own: Receipt, earlier: bool) -> Claim:  # noqa: FBT001
    return Claim(own.epoch, own.token, own.lo, own.hi, earlier)


def check_lease(lease_ms: int) -> None:
    """Refuse a lease that is no length of time."""
    if not 0 < lease_ms <= limits.DURATION_MS_MAX:
        raise InvalidArgument(f"lease_ms is {lease_ms}; it must be 1 to {limits.DURATION_MS_MAX}.")


def check_wait(wait_s: float | None) -> None:
    """Refuse a wait that is no length of time."""
    longest_s = limits.DURATION_MS_MAX / 1000
    if wait_s is not None and not 0 <= wait_s <= longest_s:
        raise InvalidArgument(
            f"wait is {wait_s}; it must be 0 to {longest_s:.0f} seconds, or None for ever."
        )


def raise_refusals(answers: Iterable[int | RingdoveError]) -> int:
    """The total of the answers, or the first refusal."""
    total = 0
    for answer in answers:
        if isinstance(answer, RingdoveError):
            raise answer
        total += answer
    return total


async def _pause(clock: Clock, until_ms: int | None) -> None:
    never: Pending[None] = Pending()
    await never.until(None if until_ms is None else (until_ms - clock.now_ms()) / 1000)


#: Every so many receives, stripes of other machines come first.
_FAR_TURN = 4

#: Milliseconds after which a receiver that waits tries a node again that was gone.
_TRY_AGAIN_MS = 250
