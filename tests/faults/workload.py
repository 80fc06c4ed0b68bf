"""What a process under test does with a store: send, lease, acknowledge, release, trim, look.

Every step is drawn at random and written down (history.py) before and after. A step is complete in
itself, so threads and tasks may take steps at the same time, and the process may die within any of
them. Threads drive steps with `ringdove.pending.run`, tasks await them.
"""

import itertools
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from faults.events import (
    Acknowledged,
    Acknowledging,
    Event,
    Leased,
    Put,
    Putting,
    Refused,
    Releasing,
    Sending,
    Sent,
    Stripe,
    bodies,
    digest,
    keys,
)
from faults.history import LEASE_MS
from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import StoreFull
from ringdove.pending import Pending, run
from ringdove.stores.base import Claim, Start, StripeId
from ringdove.stores.embedded import EmbeddedStore

LOOSE: Stripe = (1, 0, 0)
KEY: Stripe = (2, 0, 0)
STRICT: Stripe = (3, 0, 0)
ONCE: Stripe = (4, 0, 0)
SHARED: Stripe = (5, 0, 0)
KEPT: Stripe = (6, 0, 0)
MEMORY: Stripe = (7, 0, 0)
MEMORY_ONCE: Stripe = (8, 0, 0)

QUEUES: dict[Stripe, QueueSettings] = {
    LOOSE: QueueSettings.make(spread=4),
    KEY: QueueSettings.make(order="key"),
    STRICT: QueueSettings.make(order="strict"),
    ONCE: QueueSettings.make(delivery="exactly-once"),
    SHARED: QueueSettings.make(),
    KEPT: QueueSettings.make(keep_done_ms=20),
    MEMORY: QueueSettings.make(durability="memory"),
    MEMORY_ONCE: QueueSettings.make(durability="memory", delivery="exactly-once", order="key"),
}
SUBSCRIPTIONS = {
    stripe: ["default", "other"] if stripe == SHARED else ["default"] for stripe in QUEUES
}
#: In which order they deliver; of those left out, in any.
ORDERS = {stripe: s.order for stripe, s in QUEUES.items() if s.ordered}

SYNCED = {s: names for s, names in SUBSCRIPTIONS.items() if QUEUES[s].durability == "disk"}

#: Producers of each exactly-once queue; each has one operation after the other, or a few in flight.
PRODUCERS = 3

#: Waiting messages of a stripe beyond which nothing is sent to it, so that a long run stays small.
WAITING_MAX = 400


def create_queues(store: EmbeddedStore) -> None:
    """Make the queues, or see that they are there."""
    for stripe, settings in QUEUES.items():
        run(store.create(StripeId(*stripe), settings, 1))
    run(store.subscribe(StripeId(*SHARED), "other", Start("earliest")))


class Producer:
    """A sender to an exactly-once queue, which has one sequence for ever."""

    def __init__(self, stripe: Stripe, name: str) -> None:
        self.stripe = stripe
        self.name = name
        self.sequence = 0
        #: Operations that were begun in an earlier life and never answered.
        self.retries: list[Sending] = []


class Workload:
    """Random steps on a store, written down by `note`."""

    def __init__(
        self,
        store: EmbeddedStore,
        note: Callable[[Event], None],
        life: int,
        large_bytes: int = 300_000,
        compacts: bool = True,
    ) -> None:
        self.store = store
        self.note = note
        self.large_bytes = large_bytes
        self.compacts = compacts
        self._ops = itertools.count(life << 32)
        #: Messages that were sent and not acknowledged, roughly.
        self._waiting: dict[Stripe, float] = {s: self._count(s) for s in QUEUES}

    # -- sending --------------------------------------------------------------------------------

    async def send(self, rng: Random, stripe: Stripe) -> None:
        """Append one operation of a few segments, and wait for it."""
        if self._waiting[stripe] < WAITING_MAX:
            sending = Sending(next(self._ops), stripe, self._sizes(rng))
            self.note(sending)
            await self._finish(sending, self._submit(sending))

    async def send_in_sequence(self, rng: Random, producer: Producer) -> None:
        """Append what an earlier life left unanswered, or a few operations at once; then wait."""
        again, producer.retries = producer.retries, []
        busy = again or self._waiting[producer.stripe] >= WAITING_MAX
        for _ in range(0 if busy else rng.randrange(1, 6)):
            sizes = self._sizes(rng)[:1]
            op = next(self._ops)
            again.append(Sending(op, producer.stripe, sizes, producer.name, producer.sequence))
            producer.sequence += len(sizes[0])
            self.note(again[-1])
        pendings = [self._submit(sending) for sending in again]
        for sending, pending in zip(again, pendings, strict=True):
            await self._finish(sending, pending)

    def _sizes(self, rng: Random) -> list[list[int]]:
        if rng.random() < 0.05:
            return [[rng.randrange(5_000, self.large_bytes)]]
        longest = rng.choice((40, 400, 3_000))
        return [
            [rng.randrange(8, longest) for _ in range(rng.choice((1, 1, 3, 12)))]
            for _ in range(rng.choice((1, 1, 2, 4)))
        ]

    def _submit(self, sending: Sending) -> Pending[Any]:
        segments = []
        keyed = QUEUES[sending.stripe].order == "key"
        for contents, names in zip(bodies(sending), keys(sending), strict=True):
            block = Block.build(contents, sent_ms=1, keys=names if keyed else None)
            if sending.producer:
                name = sending.producer.encode()
                segments.append(Segment(block, name, sending.sequence, len(contents)))
            else:
                segments.append(Segment(block))
        return self.store.submit_append(StripeId(*sending.stripe), segments, 1)

    async def _finish(self, sending: Sending, pending: Pending[Any]) -> None:
        try:
            answers = await pending
        except StoreFull:
            self.note(Refused(sending.op))
            raise
        for answer in answers:
            if not isinstance(answer, Appended):
                raise answer
        self.note(Sent(sending.op, [answer.base for answer in answers]))
        self._waiting[sending.stripe] += sum(map(len, sending.sizes))

    def _count(self, stripe: Stripe) -> int:
        stats = run(self.store.stats(StripeId(*stripe)))
        return max(subscription.waiting for subscription in stats.subscriptions)

    # -- receiving ------------------------------------------------------------------------------

    async def receive(self, rng: Random, stripe: Stripe, subscription: str) -> None:
        """Lease some messages; acknowledge all, some or none; release the rest, or keep it."""
        store, where = self.store, StripeId(*stripe)
        want = rng.choice((1, 10, 100, 1_000))
        spread = 1 if QUEUES[stripe].ordered else rng.choice((1, 4))
        delivery = await store.lease(where, subscription, want, LEASE_MS, spread, 1)
        done, back = [], []
        number = next(self._ops)
        for leased in delivery.runs:
            lo, hi, token = leased.run.lo, leased.run.hi, leased.run.token
            contents = [content for block in leased.blocks for content in block.bodies()]
            digests = [digest(content) for content in contents]
            self.note(Leased(stripe, subscription, lo, digests, number))
            cut = rng.choice((lo, hi, hi, hi, hi, rng.randint(lo, hi)))
            done.append(Claim(delivery.epoch, token, lo, cut))
            if rng.random() < 0.9:
                back.append(Claim(delivery.epoch, token, cut, hi))
        await self._settle(stripe, subscription, [claim for claim in done if claim.lo < claim.hi])
        back = [claim for claim in back if claim.lo < claim.hi]
        for claim in back:
            self.note(Releasing(stripe, subscription, claim.lo, claim.hi))
        if back:
            _insist(await store.release(where, subscription, back, 0, 1))

    async def _settle(self, stripe: Stripe, subscription: str, claims: list[Claim]) -> None:
        for claim in claims:
            self.note(Acknowledging(stripe, subscription, claim.lo, claim.hi))
        if claims:
            _insist(await self.store.acknowledge(StripeId(*stripe), subscription, claims, 1))
        for claim in claims:
            self.note(Acknowledged(stripe, subscription, claim.lo, claim.hi))
            self._waiting[stripe] -= (claim.hi - claim.lo) / len(SUBSCRIPTIONS[stripe])

    async def look(self, rng: Random, stripe: Stripe) -> None:
        """What is done beside the main business: records, trimming, searching and so on."""
        await self._put(f"record {rng.randrange(5)}", rng.randbytes(rng.randrange(8, 3_000)))
        await self.store.trim(StripeId(*stripe))
        await self.store.find(StripeId(*stripe), 0)
        await self.store.stats(StripeId(*stripe))
        if self.compacts and rng.random() < 0.1:
            await self.store.compact()

    async def _put(self, key: str, value: bytes) -> None:
        self.note(Putting(key, digest(value)))
        record = await self.store.put(key, value)
        self.note(Put(key, digest(value), record.version))

    async def step(self, rng: Random, producers: Iterable[Producer], stripes: list[Stripe]) -> None:
        """One of the above, on any of `stripes`; the producers belong to the calling thread."""
        chance = rng.random()
        stripe = rng.choice(stripes)
        if chance < 0.5:
            subscription = rng.choice(SUBSCRIPTIONS[stripe])
            await self.receive(rng, stripe, subscription)
        elif chance < 0.55:
            await self.look(rng, stripe)
        elif QUEUES[stripe].exactly_once:
            own = [producer for producer in producers if producer.stripe == stripe]
            await self.send_in_sequence(rng, rng.choice(own))
        else:
            await self.send(rng, stripe)


def _insist(answers: list[Any]) -> None:
    """Every claim must have been honoured, because no lease has ended."""
    for answer in answers:
        if not isinstance(answer, int):
            raise answer
