"""Many users of one embedded store at once: nothing lost, nothing doubled, nothing out of order."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import OffsetTrimmed, QueueNotFound
from ringdove.pending import run
from ringdove.stores.base import Claim, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded import state as state_module
from stores.driver import block, bodies_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.pending import Pending
    from ringdove.stores.base import Delivery

STRIPE = StripeId(1, 0, 0)
THREADS = 8
BLOCKS = 100
TOTAL = THREADS // 2 * BLOCKS * 5


class Tally:
    """What all senders and receivers together have done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: Counter[int] = Counter()
        self.got: list[tuple[int, bytes]] = []
        self.acked = 0

    def send(self, answers: list[object], size: int) -> None:
        with self.lock:
            for answer in answers:
                assert isinstance(answer, Appended)
                self.sent.update(range(answer.base, answer.base + size))

    def receive(self, delivery: Delivery) -> list[Claim]:
        with self.lock:
            for delivered in delivery.runs:
                offsets = range(delivered.run.lo, delivered.run.hi)
                self.got += zip(offsets, bodies_of([delivered]), strict=True)
        return [
            Claim(delivery.epoch, leased.token, leased.lo, leased.hi) for leased, _ in delivery.runs
        ]

    def finish(self, answers: list[object]) -> bool:
        """Count what is done; whether that is everything."""
        with self.lock:
            for answer in answers:
                assert isinstance(answer, int)
                self.acked += answer
            return self.acked >= TOTAL

    def check(self) -> None:
        assert sorted(self.sent.elements()) == list(range(TOTAL))
        assert sorted(offset for offset, _ in self.got) == list(range(TOTAL))
        assert self.acked == TOTAL
        assert len({body for _, body in self.got}) == TOTAL


def bodies(sender: int, number: int) -> list[bytes]:
    """Five bodies that nobody else sends."""
    return [b"%d-%d-%d" % (sender, number, n) for n in range(5)]


def in_threads(workers: list[Callable[[], None]]) -> None:
    """Run all at once; raise what any of them raised."""
    failures: list[BaseException] = []
    gate = threading.Barrier(len(workers))

    def guarded(worker: Callable[[], None]) -> None:
        gate.wait()
        try:
            worker()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("durability", ["memory", "disk"])
@pytest.mark.parametrize("order", ["loose", "key"])
def test_eight_threads_lose_and_double_nothing(tmp_path: Path, durability: str, order: str) -> None:
    """I2, I3, I4: half of them send, half receive and acknowledge, all on one stripe."""
    store = EmbeddedStore(tmp_path)
    run(store.create(STRIPE, QueueSettings.make(durability=durability, order=order), 1))
    tally, over = Tally(), threading.Event()

    def send(sender: int) -> None:
        for number in range(BLOCKS):
            keys = [b"%d" % ((sender + n) % 7) for n in range(5)]
            segment = Segment(block(*bodies(sender, number), keys=keys), b"%d" % sender, number)
            tally.send(run(store.append(STRIPE, [segment], 1)), 5)

    def receive() -> None:
        while not over.is_set():
            watch = store.watch(STRIPE)
            delivery = run(store.lease(STRIPE, "default", 7, 60_000, 1, 1))
            claims = tally.receive(delivery)
            if claims:
                if tally.finish(run(store.acknowledge(STRIPE, "default", claims, 1))):
                    over.set()
            elif not delivery.more:
                watch.block(0.05)

    try:
        workers = [lambda sender=n: send(sender) for n in range(THREADS // 2)]
        in_threads([*workers, *([receive] * (THREADS // 2))])
        tally.check()
        stats = run(store.stats(STRIPE))
        assert (stats.tail, stats.subscriptions) == (TOTAL, [("default", TOTAL, 0, 0, 0)])
    finally:
        run(store.close())


def test_threads_that_look_on_see_a_consistent_stripe(tmp_path: Path) -> None:
    """I6, I7: statistics, reads and searches while others append, acknowledge and trim."""
    store = EmbeddedStore(tmp_path)
    run(store.create(STRIPE, QueueSettings.make(durability="memory"), 1))
    over = threading.Event()

    def work() -> None:
        try:
            for number in range(300):
                run(store.append(STRIPE, [Segment(block(b"%d" % number))], 0))
                delivery = run(store.lease(STRIPE, "default", 1, 60_000, 1, 0))
                claims = [Claim(1, d.run.token, d.run.lo, d.run.hi) for d in delivery.runs]
                assert run(store.acknowledge(STRIPE, "default", claims, 0)) == [1]
        finally:
            over.set()

    def look() -> None:
        tail = 0
        while not over.is_set():
            stats = run(store.stats(STRIPE))
            [sub] = stats.subscriptions
            assert stats.head <= sub.floor <= stats.tail
            assert sub.floor + sub.waiting + sub.leased == stats.tail >= tail
            tail = stats.tail
            assert run(store.find(STRIPE, 0)) <= run(store.stats(STRIPE)).tail
            with suppress(OffsetTrimmed):
                for found in run(store.read(STRIPE, tail - 1, 10, 1 << 20)):
                    assert found.bodies()[0] == b"%d" % found.base

    try:
        in_threads([work, look, look])
        assert run(store.stats(STRIPE)).tail == 300
    finally:
        run(store.close())


def test_retries_from_many_threads_are_stored_once(tmp_path: Path) -> None:
    """M2: the same segments sent by everybody, in order, appear once."""
    store = EmbeddedStore(tmp_path)
    run(store.create(STRIPE, QueueSettings.make(durability="memory"), 1))
    answers: list[list[Appended]] = [[] for _ in range(THREADS)]

    def send(mine: list[Appended]) -> None:
        for number in range(50):
            segment = Segment(block(b"%d" % number), b"everybody", number)
            [answer] = run(store.append(STRIPE, [segment], 0))
            assert isinstance(answer, Appended)
            mine.append(answer)

    try:
        in_threads([lambda mine=mine: send(mine) for mine in answers])
        first = [sum(not mine[n].duplicate for mine in answers) for n in range(50)]
        assert first == [1] * 50
        assert run(store.stats(STRIPE)).tail == 50
    finally:
        run(store.close())


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_many_tasks_lose_and_double_nothing(tmp_path: Path, durability: str) -> None:
    """The same under asyncio: 100 senders, 20 receivers, one event loop."""

    async def everything() -> None:
        store = EmbeddedStore(tmp_path)
        await store.create(STRIPE, QueueSettings.make(durability=durability), 1)
        tally, over = Tally(), asyncio.Event()
        senders = TOTAL // 5 // 8

        async def send(sender: int) -> None:
            for number in range(8):
                segment = Segment(block(*bodies(sender, number)))
                tally.send(await store.append(STRIPE, [segment], 1), 5)

        async def receive() -> None:
            while not over.is_set():
                watch = store.watch(STRIPE)
                delivery = await store.lease(STRIPE, "default", 7, 60_000, 1, 1)
                claims = tally.receive(delivery)
                if claims:
                    if tally.finish(await store.acknowledge(STRIPE, "default", claims, 1)):
                        over.set()
                else:
                    await watch.until(0.05)

        async with asyncio.TaskGroup() as group:
            for sender in range(senders):
                group.create_task(send(sender))
            for _ in range(20):
                group.create_task(receive())
        tally.check()
        stats = await store.stats(STRIPE)
        assert stats.subscriptions == [("default", TOTAL, 0, 0, 0)]
        assert await store.read(STRIPE, TOTAL, 10, 1000) == []
        await store.close()

    asyncio.run(everything())


def test_closing_under_asyncio_finishes_what_was_accepted(tmp_path: Path) -> None:
    async def everything() -> list[object]:
        store = EmbeddedStore(tmp_path)
        await store.create(STRIPE, QueueSettings.make(), 1)
        tasks = [
            asyncio.ensure_future(store.append(STRIPE, [Segment(block(b"%d" % n))], 0))
            for n in range(50)
        ]
        await asyncio.sleep(0)
        await store.close()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(everything())
    assert answers == [[Appended(n)] for n in range(50)]


def test_a_cancelled_wait_harms_nobody(tmp_path: Path) -> None:
    async def everything() -> None:
        store = EmbeddedStore(tmp_path)
        await store.create(STRIPE, QueueSettings.make(), 1)
        waiting = asyncio.ensure_future(store.append(STRIPE, [Segment(block(b"a"))], 0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await store.append(STRIPE, [Segment(block(b"b"))], 0) == [Appended(1)]
        assert [b.bodies() for b in await store.read(STRIPE, 0, 10, 1000)] == [[b"a"], [b"b"]]
        await store.close()

    asyncio.run(everything())


def test_a_deletion_is_complete_although_nobody_waits_for_it(tmp_path: Path) -> None:
    async def everything() -> None:
        store = EmbeddedStore(tmp_path)
        await store.create(STRIPE, QueueSettings.make(), 1)
        await store.append(STRIPE, [Segment(block(b"a"))], 0)
        deleting = asyncio.ensure_future(store.delete(STRIPE))
        await asyncio.sleep(0)
        deleting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        await store.put("a later commit", b"")
        with pytest.raises(QueueNotFound):
            await store.stats(STRIPE)
        await store.close()

    asyncio.run(everything())


def test_no_watch_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch taken while two announce at once still wakes: else a receiver sleeps for ever."""
    store = EmbeddedStore(tmp_path)
    run(store.create(STRIPE, QueueSettings.make(durability="memory"), 1))
    state = store._state(STRIPE)
    make = state_module.Pending
    taken: list[Pending[None]] = [store.watch(STRIPE)]
    other = threading.Thread(target=state.announce)

    def interrupted() -> Pending[None]:
        """Another thread announces between two steps of the first one, unless it has to wait."""
        monkeypatch.setattr(state_module, "Pending", make)
        other.start()
        other.join(0.2)
        taken.append(store.watch(STRIPE))
        return make()

    monkeypatch.setattr(state_module, "Pending", interrupted)
    state.announce()
    other.join()
    state.announce()
    assert [pending.done for pending in taken] == [True, True]
    run(store.close())
