"""The stateful property test: three stores and the naive model do the same things.

A `Side` is one store with a model of its own. Every operation is done on all sides, each answer is
held against that side's model, and the sides against each other. The embedded store is excused once
it was reopened where that makes a difference: on key queues, because which ready group comes first
depends on how far the scan had come, and where done messages are kept, because their time starts
again. The fabric is excused on key queues, where its groups line up in another order; it forgets
nothing when another store object takes over.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.clock import ManualClock
from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.errors import (
    QueueFull,
    ReceiptStale,
    SequenceRefused,
    SettingsStale,
    SubscriptionBusy,
)
from ringdove.pending import run
from ringdove.stores.base import Claim, Start, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.fabric import FabricStore
from ringdove.stores.memory import MemoryStore
from stores.audit import audit
from stores.driver import EVERYTHING, bodies_of, offsets_of
from stores.model import Model

if TYPE_CHECKING:
    from fabric.redis import RedisProcess
    from ringdove.core.index import Index
    from ringdove.core.settings import QueueSettings
    from ringdove.stores.base import Delivery, Store, StripeStats

STRIPE = StripeId(1, 0, 0)


class Lease(NamedTuple):
    """A run that a side handed out once; it may be over by now."""

    sub: str
    epoch: int
    token: int
    lo: int
    hi: int


class Side:
    """One store, its model, and every lease it ever gave."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self.store = store
        self.clock = store.clock
        self.model = Model(settings)
        self.version = 1
        self.leases: list[Lease] = []
        run(store.create(STRIPE, settings, 1))

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def stats(self) -> StripeStats:
        return run(self.store.stats(STRIPE))

    # -- appending ------------------------------------------------------------------------------

    def append(self, blocks: list[tuple[list[bytes], list[bytes], int]]) -> object:
        """Append blocks of bodies, keys and delays, in one call (I7)."""
        made = []
        for bodies, keys, delay_ms in blocks:
            not_before_ms = self.now_ms + delay_ms if delay_ms else 0
            made.append(Block.build(bodies, sent_ms=1, keys=keys, not_before_ms=not_before_ms))
        segments = [Segment(block) for block in made]
        if not self._make_room(made):
            return self._refused_for_room(segments)
        tail = self.model.tail
        expected = []
        for block in made:
            expected.append(Appended(tail))
            tail += block.count
            self.model.append(block, self.now_ms)
        answers = run(self.store.append(STRIPE, segments, self.version))
        assert answers == expected
        return answers

    def append_judged(self, claim: dict[str, Any]) -> object:
        """Append messages under a producer's sequence, or one under a message id (M2)."""
        bodies = [b"%d" % n for n in range(claim.get("span", 1))]
        block = Block.build(bodies, sent_ms=1, keys=[b"judged"] * len(bodies))
        segment = Segment(block, **claim)
        before = dict(self.model.producers), dict(self.model.ids)
        if segment.producer is not None:
            verdict = self.model.judge_sequence(
                segment.producer, segment.sequence, segment.span, gaps=segment.gaps
            )
        else:
            assert segment.message_id is not None
            verdict = self.model.judge_id(segment.message_id, self.now_ms)
        if verdict == "new" and not self._make_room([block]):
            self.model.producers, self.model.ids = before
            return self._refused_for_room([segment])
        [answer] = run(self.store.append(STRIPE, [segment], 0))
        if verdict == "refused":
            assert isinstance(answer, SequenceRefused)
            return SequenceRefused
        assert isinstance(answer, Appended)
        assert answer.duplicate == (verdict == "repeated")
        if verdict == "new":
            assert answer.base == self.model.tail
            self.model.append(block, self.now_ms)
        return answer

    def _make_room(self, blocks: list[Block]) -> bool:
        """Give up in the model what must go for the blocks to fit; False when they cannot."""
        room = self.model.room(sum(block.nbytes for block in blocks), self.stats().head)
        if room is None:
            return False
        self.model.drop_below(room)
        return True

    def _refused_for_room(self, segments: list[Segment]) -> object:
        try:
            run(self.store.append(STRIPE, segments, self.version))
        except QueueFull:
            return QueueFull
        raise AssertionError("a full queue took more")

    # -- leasing --------------------------------------------------------------------------------

    def lease(self, sub: str, want: int, lease_ms: int, spread: int = 1) -> object:
        """Lease, and hold what came against the model (I2, I3, I4)."""
        now_ms = self.now_ms
        delivery = run(self.store.lease(STRIPE, sub, want, lease_ms, spread, self.version))
        self._judge_lease(sub, want, spread, delivery)
        for delivered in (*delivery.runs, *delivery.dead):
            leased = delivered.run
            assert leased.until_ms == now_ms + lease_ms
            bodies = [self.model.messages[o].body for o in range(leased.lo, leased.hi)]
            assert bodies_of([delivered]) == bodies
            self.model.hand_out(sub, leased.lo, leased.hi, leased.token, leased.until_ms, now_ms)
            for entry in self.model.subs[sub][leased.lo : leased.hi]:
                assert (entry.receives, entry.first_ms) == (leased.receives, leased.first_ms)
            self.leases.append(Lease(sub, delivery.epoch, leased.token, leased.lo, leased.hi))
        return [
            (part.run._replace(token=0), part in delivery.dead)
            for part in (*delivery.runs, *delivery.dead)
        ], None if delivery.runs or delivery.dead else delivery.due_ms

    def _judge_lease(self, sub: str, want: int, spread: int, delivery: Delivery) -> None:
        model, now_ms = self.model, self.now_ms
        live, dead = offsets_of(delivery.runs), offsets_of(delivery.dead)
        assert not delivery.more
        if model.settings.order == "key":
            assert model.faults(sub, want, live, dead, now_ms) == []
        else:
            oldest, expected_dead = model.predict(sub, max(want, spread), now_ms)
            first = oldest.index(live[0]) if live else 0
            assert first <= max(0, min(spread, len(oldest)) - want)
            assert live == oldest[first : first + want]
            if model.settings.order == "strict" and dead:
                assert dead == expected_dead[: len(dead)]
            else:
                assert dead == expected_dead
        times = model.times(sub, now_ms)
        if live or dead:
            assert delivery.due_ms is None or delivery.due_ms >= now_ms
        elif not times:
            assert delivery.due_ms is None
        elif model.settings.ordered:
            assert delivery.due_ms in times
            assert not any(model.free(sub, at) for at in times if at < delivery.due_ms)
        else:
            assert delivery.due_ms == min(times)

    # -- claims ---------------------------------------------------------------------------------

    def settle(
        self, verb: str, picks: list[tuple[int, float, float, str]], wait: int | None
    ) -> object:
        """Acknowledge, extend or release parts of leases, live ones and old ones (I5)."""
        recent = self.leases[::-1]
        picked = [recent[pick % len(recent)] for pick, _, _, _ in picks]
        sub = picked[0].sub
        claims = []
        for lease, (_, start, length, flaw) in zip(picked, picks, strict=True):
            size = lease.hi - lease.lo
            lo = lease.lo + int(start * size)
            hi = min(lease.hi, lo + 1 + int(length * size))
            epoch = lease.epoch + (flaw == "epoch")
            token = lease.token + (flaw == "token")
            claims.append(Claim(epoch, token, lo, hi))
        expected = [self._expect(verb, sub, claim, wait, picked[0].epoch) for claim in claims]
        if verb == "acknowledge":
            call = self.store.acknowledge(STRIPE, sub, claims, self.version)
        elif verb == "extend":
            call = self.store.extend(STRIPE, sub, claims, wait or 0, self.version)
        else:
            call = self.store.release(STRIPE, sub, claims, wait, self.version)
        answers = [a if isinstance(a, int) else type(a) for a in run(call)]
        assert answers == [ReceiptStale if count is None else count for count in expected]
        return answers

    def _expect(
        self, verb: str, sub: str, claim: Claim, wait: int | None, epoch: int
    ) -> int | None:
        if claim.epoch != epoch:
            return None
        held = sub, claim.token, claim.lo, claim.hi
        if verb == "acknowledge":
            return self.model.acknowledge(*held, self.now_ms)
        if verb == "extend":
            return self.model.extend(*held, wait or 0, self.now_ms)
        return self.model.release(*held, wait, self.now_ms)

    # -- positions ------------------------------------------------------------------------------

    def subscribe(self, sub: str, kind: str, value: int) -> object:
        """Subscribe, at the place that the start names."""
        model, head = self.model, self.stats().head
        if kind == "time":
            value += model.messages[0].stored_ms if model.messages else 0
        offset = run(self.store.subscribe(STRIPE, sub, Start(kind, value)))
        if sub in model.subs:
            assert offset == model.floor(sub)
            return offset
        expected = {
            "earliest": head,
            "latest": model.tail,
            "offset": min(max(value, head), model.tail),
            "time": next(
                (o for o in range(head, model.tail) if model.messages[o].stored_ms >= value),
                model.tail,
            ),
        }
        assert offset == expected[kind]
        model.subscribe(sub, offset)
        return offset

    def unsubscribe(self, sub: str) -> None:
        """Remove a subscription and its leases."""
        run(self.store.unsubscribe(STRIPE, sub))
        del self.model.subs[sub]
        self.leases = [lease for lease in self.leases if lease.sub != sub]

    def commit(self, sub: str, share: float) -> None:
        """Commit a position somewhere in the log."""
        offset = int(share * self.model.tail)
        run(self.store.commit(STRIPE, sub, offset))
        self.model.drop_below(offset, sub)

    def purge(self) -> object:
        """Purge, and count what goes."""
        expected = max((len(self.model.undone(sub)) for sub in self.model.subs), default=0)
        count = run(self.store.purge(STRIPE))
        assert count == expected
        self.model.drop_below(self.model.tail)
        return count

    def stream(self, sub: str) -> object:
        """Claim a subscription for streaming and give it up again, if nobody is in the way (M1)."""
        try:
            claimed = run(self.store.claim(STRIPE, sub, b"me", 10))
        except SubscriptionBusy:
            assert not all(entry.done for entry in self.model.subs[sub])
            return SubscriptionBusy
        assert claimed.offset == self.model.floor(sub)
        assert not self.model.leased(sub, self.now_ms)
        run(self.store.hold(STRIPE, sub, claimed.fence, 0))
        return claimed

    def reorder(self, order: str) -> None:
        """Purge, and let another order count from then on."""
        self.purge()
        self.configure({"order": order})

    def configure(self, chosen: dict[str, Any]) -> None:
        """Change settings; the version before is refused from then on."""
        before = self.version
        self.version += 1
        self.model.settings = self.model.settings.replace(**chosen)
        run(self.store.configure(STRIPE, self.model.settings, self.version))
        try:
            run(self.store.lease(STRIPE, "default", 1, 1, 1, before))
        except SettingsStale:
            return
        raise AssertionError("an old settings version was accepted")

    # -- after every step -----------------------------------------------------------------------

    def check(self, indexes: list[Index], *, exact: bool = False) -> StripeStats:
        """Everything that must hold at any time (I2, I6, I7); `exact`: all that is delayed is seen."""
        model = self.model
        model.expire(self.now_ms)
        head = run(self.store.trim(STRIPE))
        stats = self.stats()
        assert (stats.epoch, stats.head, stats.tail) == (1, head, model.tail)
        assert [sub.name for sub in stats.subscriptions] == sorted(model.subs)
        for sub in stats.subscriptions:
            assert sub.floor == model.floor(sub.name)
            assert sub.waiting + sub.leased + sub.delayed == len(model.undone(sub.name))
            assert sub.leased >= len(model.leased(sub.name, self.now_ms))
            if exact:
                assert sub.leased == len(model.leased(sub.name, self.now_ms))
                assert sub.delayed == len(model.delayed(sub.name, self.now_ms))
        for index in indexes:
            assert index.audit(model.tail) == []
        if model.subs:
            expected = model.head(self.now_ms)
            assert head <= expected if model.settings.keep_done_ms else head == expected
        stored = [b for block in run(self.store.read(STRIPE, head, EVERYTHING, 1 << 30))
                  for b in block.bodies()]  # fmt: skip
        assert stored == [message.body for message in model.messages[head:]]
        return stats


class Sides:
    """The three stores side by side, on one clock."""

    def __init__(self, settings: QueueSettings, redis: RedisProcess, *, alike: bool = True) -> None:
        self.clock = ManualClock()
        self._alike = alike
        self._directory = tempfile.TemporaryDirectory(prefix="ringdove-machine-")
        self._redis = redis
        redis.flush()
        self.memory = Side(MemoryStore(self.clock, seed=1), settings)
        self.embedded = Side(self._open(), settings)
        self.fabric = Side(self._connect(), settings)
        #: Whether the embedded store has forgotten what only a process remembers.
        self.reopened = False
        self._kept = self._keyed = False

    def _open(self) -> EmbeddedStore:
        return EmbeddedStore(Path(self._directory.name), self.clock, seed=1)

    def _connect(self) -> FabricStore:
        return FabricStore(self._redis.url, self.clock, seed=1)

    @property
    def all(self) -> list[Side]:
        """Every side."""
        return [self.memory, self.embedded, self.fabric]

    def _alike_now(self, side: Side) -> bool:
        """Whether a side must answer as the memory store does, not only right."""
        settings = self.memory.model.settings
        self._kept |= settings.keep_done_ms > 0
        self._keyed |= settings.order == "key"
        if not self._alike:
            return False
        if side is self.fabric:
            return not self._keyed
        return not self.reopened or not (self._keyed or self._kept)

    def do(self, verb: str, *arguments: Any) -> None:
        """Do the same on all sides."""
        answers = [getattr(side, verb)(*arguments) for side in self.all]
        for side, answer in zip(self.all, answers, strict=True):
            assert answer == answers[0] or not self._alike_now(side)

    def reopen(self) -> None:
        """Close the embedded store and open it again; have another object serve the fabric."""
        run(self.embedded.store.close())
        self.embedded.store = self._open()
        run(self.fabric.store.close())
        self.fabric.store = self._connect()
        self.reopened = True

    def check(self) -> None:
        """Compare everything after a step."""
        assert isinstance(self.memory.store, MemoryStore)
        assert isinstance(self.embedded.store, EmbeddedStore)
        memory = self.memory.store._stripes[STRIPE].stripe
        embedded = self.embedded.store._state(STRIPE).stripe
        first = self.memory.check(list(memory.subscriptions.values()))
        second = self.embedded.check(list(embedded.subscriptions.values()))
        third = self.fabric.check([], exact=True)
        if self._alike and not self.reopened:
            assert first == second
        if self._alike_now(self.fabric):
            assert _undelayed(first) == _undelayed(third)
        assert audit(self._redis, "rd:{1.0.0}:") == []

    def close(self) -> None:
        """Let go of the directory and the connections."""
        run(self.embedded.store.close())
        run(self.fabric.store.close())
        self._directory.cleanup()


def _undelayed(stats: StripeStats) -> StripeStats:
    """Statistics that count what is delayed as waiting: the stores here may have forgotten it."""
    subs = [
        sub._replace(waiting=sub.waiting + sub.delayed, delayed=0) for sub in stats.subscriptions
    ]
    return stats._replace(subscriptions=subs)
