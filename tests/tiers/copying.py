"""A standby without a network, and a restless owner of a store for it to follow."""

from pathlib import Path
from random import Random
from typing import Any

from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import RingdoveError
from ringdove.pending import run
from ringdove.stores.base import Claim, Start, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.environment import DATABASES, Environment
from ringdove.stores.embedded.replica import Member, Replica
from ringdove.stores.embedded.shipping import END, START, Progress, attach, read_on

#: So small that a copy of a busy store takes many pieces.
PIECE_BYTES = 1_500


class DirectCopy:
    """Applies commits to a replica where they happen; copies a piece whenever told."""

    def __init__(self, store: EmbeddedStore, path: Path) -> None:
        self.replica = Replica(path)
        self.replica.begin(Member("core"))
        self.progress = Progress()
        self.commits = 0
        self._left = [(writer, START) for writer in attach(store, self, self.progress)]

    def send(self, durability: Any, edits: list[Any]) -> None:
        self.commits += 1
        due = self.progress.due(durability, edits)
        # As they would arrive: values are bytes, and no longer the primary's memory.
        self.replica.apply(durability, [(n, bytes(k), v and bytes(v)) for n, k, v in due])

    def confirm(self, durability: Any) -> None:
        """It has arrived already."""

    def step(self) -> bool:
        """Copy the next piece; False when there is none."""
        if not self._left:
            return False
        writer, place = self._left.pop()
        with writer.paused():
            edits, place = read_on(writer.env, place, PIECE_BYTES)
            self.progress.advance(writer.env.durability, place)
            self.replica.apply(writer.env.durability, edits)
        if place is not END:
            self._left.append((writer, place))
        return True


def entries(environments: list[Environment]) -> dict[tuple[str, str, bytes], bytes]:
    """Everything that is in a directory: durability, database, key, value."""
    found = {}
    for env in environments:
        with env.lmdb.begin() as txn:
            for name in DATABASES:
                for key, value in txn.cursor(env.db[name]):
                    found[env.durability, name, key] = value
    return found


class Owner:
    """Does at random whatever can be done with a store."""

    def __init__(self, store: EmbeddedStore, clock: Any, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.rng = Random(seed)
        self.stripes: list[StripeId] = []
        self.held: list[tuple[StripeId, str, Claim]] = []
        self.sequences: dict[StripeId, int] = {}
        self.created = 0
        self._acts: list[tuple[int, Any]] = [
            (20, self._send), (8, self._send_once), (4, self._send_id), (12, self._lease),
            (12, self._settle), (2, self._purge), (3, self._trim), (3, self._subscribe),
            (2, self._unsubscribe), (2, self._claim), (2, self._configure), (1, self._delete),
            (6, self._record), (2, self._forget_record), (2, self._create), (1, self._wait),
        ]  # fmt: skip

    def step(self) -> None:
        """One act; that it may be refused is part of life."""
        if not self.stripes:
            self._create(StripeId(0, 0, 0))
        weights, acts = zip(*self._acts, strict=True)
        act = self.rng.choices(acts, weights)[0]
        try:
            act(self.rng.choice(self.stripes))
        except RingdoveError:
            self.refused = True

    def _settings(self) -> QueueSettings:
        return QueueSettings.make(
            durability=self.rng.choice(["disk", "disk", "memory"]),
            order=self.rng.choice(["loose", "key", "strict"]),
            keep_done_ms=self.rng.choice([0, 50]),
            retention_ms=self.rng.choice([1_000, 10**8]),
        )

    def _create(self, _: StripeId) -> None:
        self.created += 1
        stripe = StripeId(self.created, 0, 0)
        run(self.store.create(stripe, self._settings(), 1))
        self.stripes.append(stripe)

    def _block(self, count: int = 0) -> Block:
        count = count or self.rng.randrange(1, 20)
        bodies = [self.rng.randbytes(self.rng.randrange(200)) for _ in range(count)]
        return Block.build(bodies, sent_ms=1, keys=[b"%d" % (n % 3) for n in range(count)])

    def _send(self, stripe: StripeId) -> None:
        segments = [Segment(self._block()) for _ in range(self.rng.randrange(1, 4))]
        run(self.store.append(stripe, segments, 0))

    def _send_once(self, stripe: StripeId) -> None:
        block = self._block()
        at = self.sequences.get(stripe, 0)
        if self.rng.random() < 0.2:
            at = max(0, at - 1)
        run(self.store.append(stripe, [Segment(block, b"producer", at)], 0))
        self.sequences[stripe] = at + block.count

    def _send_id(self, stripe: StripeId) -> None:
        message_id = b"%d" % self.rng.randrange(30)
        run(self.store.append(stripe, [Segment(self._block(1), message_id=message_id)], 0))

    def _sub(self) -> str:
        return self.rng.choice(["default", "default", "other"])

    def _lease(self, stripe: StripeId) -> None:
        sub = self._sub()
        delivery = run(self.store.lease(stripe, sub, self.rng.randrange(1, 40), 500, 3, 0))
        for delivered in delivery.runs:
            leased = delivered.run
            claim = Claim(delivery.epoch, leased.token, leased.lo, leased.hi)
            self.held.append((stripe, sub, claim))

    def _settle(self, _: StripeId) -> None:
        if not self.held:
            return
        stripe, sub, claim = self.held.pop(self.rng.randrange(len(self.held)))
        if self.rng.random() < 0.3:
            claim = claim._replace(hi=self.rng.randrange(claim.lo, claim.hi) + 1)
        if self.rng.random() < 0.2:
            run(self.store.release(stripe, sub, [claim], 10, 0))
        else:
            run(self.store.acknowledge(stripe, sub, [claim], 0))

    def _purge(self, stripe: StripeId) -> None:
        run(self.store.purge(stripe))

    def _trim(self, stripe: StripeId) -> None:
        run(self.store.trim(stripe))

    def _subscribe(self, stripe: StripeId) -> None:
        run(self.store.subscribe(stripe, "other", Start("earliest")))

    def _unsubscribe(self, stripe: StripeId) -> None:
        run(self.store.unsubscribe(stripe, "other"))

    def _claim(self, stripe: StripeId) -> None:
        claimed = run(self.store.claim(stripe, "other", b"me", 10))
        run(self.store.commit(stripe, "other", claimed.offset + 1, claimed.fence))

    def _configure(self, stripe: StripeId) -> None:
        version = self.rng.randrange(2, 10**6)
        run(self.store.configure(stripe, self._settings(), version))

    def _delete(self, stripe: StripeId) -> None:
        self.stripes.remove(stripe)
        run(self.store.delete(stripe))

    def _record(self, _: StripeId) -> None:
        expires_ms = self.clock.now_ms() + 100 if self.rng.random() < 0.2 else 0
        value = self.rng.randbytes(self.rng.randrange(100))
        run(self.store.put(f"record/{self.rng.randrange(40)}", value, expires_ms=expires_ms))

    def _forget_record(self, _: StripeId) -> None:
        run(self.store.remove(f"record/{self.rng.randrange(40)}"))

    def _wait(self, _: StripeId) -> None:
        self.clock.sleep_ms(self.rng.randrange(400))
