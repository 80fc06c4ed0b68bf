"""Receivers that wait at a queue: whatever arrives or becomes due reaches somebody."""

import asyncio
import random

import pytest

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing, Parcel
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.errors import QueueNotFound
from ringdove.pending import Pending, run
from ringdove.stores.memory import MemoryStore

PATIENCE_S = 30


class Opened:
    """A broker over a memory store, with a queue."""

    def __init__(self, store: MemoryStore, **settings: object) -> None:
        self.broker = Broker(store, seed=1)
        run(self.broker.create_queue("q", {"durability": "memory", **settings}))

    async def send(self, *bodies: bytes) -> None:
        await self.broker.send("q", Outgoing(list(bodies)))

    def receive(self, max: int = 1, lease_ms: int | None = None) -> "asyncio.Task[list[bytes]]":
        async def receive() -> list[bytes]:
            # Longer than any test waits: at the end of its time, everybody looks once more.
            found = await self.broker.receive("q", "default", max, 10 * PATIENCE_S, lease_ms)
            return [body for one in found for b in one.delivered.blocks for body in b.bodies()]

        return asyncio.create_task(receive())


async def settle() -> None:
    """Let every task run until it waits for something that nobody here delivers."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("turn", range(2))
def test_who_has_enough_before_it_has_looked_everywhere_leaves_the_rest_to_others(
    turn: int, leased: bool
):
    """Called once for two stripes, it may be content with what it finds on the first."""
    opened = Opened(MemoryStore(), stripes=2)

    async def main() -> None:
        version = (await opened.broker.get_queue("q")).version
        if leased:  # Who waits knows when that ends, and is not told of what ends later.
            await opened.send(b"0")
            assert await opened.receive(lease_ms=20_000) == [b"0"]
        for _ in range(turn):  # Receives begin at each stripe in turn.
            assert not await opened.broker.receive("q", "default", 1, 0, None)
        receiving = [opened.receive(2), opened.receive(2)]
        await settle()
        parcels = [
            Parcel(number, 0, [Segment(Block.build(bodies, sent_ms=0))])
            for number, bodies in enumerate([[b"1", b"2"], [b"3", b"4"]])
        ]
        await asyncio.gather(*(opened.broker.deliver("q", version, one) for one in parcels))
        got = await asyncio.wait_for(asyncio.gather(*receiving), PATIENCE_S)
        assert sorted(got) == [[b"1", b"2"], [b"3", b"4"]]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_receivers_want_nothing_stays_behind(seed: int):
    """Arrivals on many stripes are announced to few: the messages reach everybody all the same."""
    choose = random.Random(seed)
    stripes = choose.choice([2, 5, 9])
    opened = Opened(MemoryStore(), stripes=stripes)

    async def main() -> None:
        version = (await opened.broker.get_queue("q")).version
        wants = [choose.choice([1, 1, 2, 3, 10]) for _ in range(choose.randrange(1, 40))]
        count = choose.randrange(len(wants)) + 1  # Each may answer as soon as it has one.
        receiving = [opened.receive(want) for want in wants]
        await settle()
        bodies = [b"%d" % n for n in range(count)]
        sends = []
        while bodies:
            few = bodies[: choose.randrange(1, 5)]
            del bodies[: len(few)]
            segments = [Segment(Block.build(few, sent_ms=0))]
            sends.append(Parcel(choose.randrange(stripes), 0, segments))
        got: list[bytes] = []
        while sends:
            some = choose.randrange(1, 8)
            await asyncio.gather(
                *(opened.broker.deliver("q", version, parcel) for parcel in sends[:some])
            )
            del sends[:some]
            if choose.random() < 0.3 and len([one for one in receiving if not one.done()]) > 1:
                # One that wants as much, behind the others, makes up for one that gives up.
                last = max(n for n, one in enumerate(receiving) if not one.done())
                receiving[last].cancel()
                receiving.append(opened.receive(wants[last]))
                wants.append(wants[last])
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < count:
                done = [one for one in receiving if one.done()]
                got = [body for one in done if not one.cancelled() for body in one.result()]
                await asyncio.sleep(0.001)
        assert sorted(got) == sorted(b"%d" % n for n in range(count))
        for one in receiving:
            one.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)

    asyncio.run(main())


def test_who_comes_while_others_wait_does_not_visit_in_vain():
    opened = Opened(MemoryStore(), stripes=3)

    async def main() -> None:
        receiving = [opened.receive() for _ in range(20)]
        await settle()
        assert opened.broker.dequeuer.misses == 3  # The first has looked everywhere.
        for number in range(20):
            await opened.send(b"%d" % number)
        got = await asyncio.wait_for(asyncio.gather(*receiving), PATIENCE_S)
        assert sorted(got) == sorted([b"%d" % number] for number in range(20))

    asyncio.run(main())


def test_who_has_no_time_looks_even_while_others_wait():
    opened = Opened(MemoryStore())

    async def main() -> None:
        receiving = opened.receive()
        await settle()
        before = opened.broker.dequeuer.misses
        assert not await opened.broker.receive("q", "default", 1, 0, None)
        assert opened.broker.dequeuer.misses == before + 1
        await opened.send(b"for who waits")
        assert await asyncio.wait_for(receiving, PATIENCE_S) == [b"for who waits"]

    asyncio.run(main())


def test_one_send_of_many_serves_everybody_who_waits():
    opened = Opened(MemoryStore(), stripes=3)

    async def main() -> None:
        waiting = [opened.receive() for _ in range(6)]
        await settle()
        assert opened.broker.dequeuer.parked == 6
        await opened.send(*(b"%d" % n for n in range(6)))
        found = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        assert found == [[b"%d" % n] for n in range(6)]

    asyncio.run(main())


def test_a_deleted_queue_ends_every_wait():
    opened = Opened(MemoryStore(), stripes=2)

    async def main() -> None:
        waiting = [opened.receive() for _ in range(9)]
        await settle()
        await opened.broker.delete_queue("q")
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE_S)
        assert [type(error) for error in ended] == [QueueNotFound] * 9

    asyncio.run(main())


@pytest.mark.parametrize("max", [1, 100])
def test_who_waits_goes_on_however_often_the_settings_change(max: int):
    opened = Opened(MemoryStore(), stripes=3)

    async def main() -> None:
        waiting = [opened.receive(max) for _ in range(5)]
        for turn in range(4):
            await settle()
            await opened.broker.change_queue("q", {"keep_done_ms": 1_000 * (turn + 1)})
        await settle()
        for turn in range(5):
            await opened.send(b"%d" % turn)
            await settle()
        found = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        assert sorted(found) == [[b"%d" % turn] for turn in range(5)]

    asyncio.run(main())


def test_who_waits_gets_what_another_has_not_finished_in_time():
    opened = Opened(MemoryStore(), stripes=1)

    async def main() -> None:
        first, second = opened.receive(lease_ms=50), opened.receive()
        await settle()
        await opened.send(b"x")
        assert await asyncio.wait_for(first, PATIENCE_S) == [b"x"]
        assert await asyncio.wait_for(second, PATIENCE_S) == [b"x"]

    asyncio.run(main())


def test_who_waits_gets_it_also_when_the_other_went_on_to_an_empty_stripe():
    opened = Opened(MemoryStore(), stripes=2)

    async def main() -> None:
        for _ in range(2):  # Each stripe is the first to be visited once.
            first, second = opened.receive(max=2, lease_ms=50), opened.receive()
            await settle()
            await opened.send(b"x")
            assert await asyncio.wait_for(first, PATIENCE_S) == [b"x"]
            assert await asyncio.wait_for(second, 1) == [b"x"]
            await opened.broker.purge_queue("q")

    asyncio.run(main())


@pytest.mark.parametrize("want", [1, 5])
def test_what_becomes_due_on_several_stripes_reaches_everybody(want: int):
    """Who takes the first must not let the others forget when there is a second."""
    opened = Opened(MemoryStore(), stripes=3)

    async def main() -> None:
        version = (await opened.broker.get_queue("q")).version
        for number in range(3):
            segments = [Segment(Block.build([b"%d" % number], sent_ms=0))]
            parcel = Parcel(number, 0, segments, 50 * (number + 1))
            await opened.broker.deliver("q", version, parcel)
        assert not await opened.broker.receive("q", "default", 1, 0, None)
        receiving = [opened.receive(want) for _ in range(3)]
        found = await asyncio.wait_for(asyncio.gather(*receiving), PATIENCE_S)
        assert found == [[b"0"], [b"1"], [b"2"]]

    asyncio.run(main())


@pytest.mark.parametrize("turn", range(2))
def test_what_arrives_when_something_else_becomes_due_reaches_another(turn: int):
    """The front one is called for one stripe and finds enough on the other."""
    clock = ManualClock()
    opened = Opened(MemoryStore(clock), stripes=2)

    async def main() -> None:
        version = (await opened.broker.get_queue("q")).version
        for _ in range(turn):  # Receives begin at each stripe in turn.
            assert not await opened.broker.receive("q", "default", 1, 0, None)
        parcels = [
            Parcel(number, 0, [Segment(Block.build([b"%d" % number], sent_ms=0))], delay_ms)
            for number, delay_ms in enumerate([5_000, None])
        ]
        await opened.broker.deliver("q", version, parcels[0])
        receiving = [opened.receive(lease_ms=3_600_000) for _ in range(2)]
        await settle()
        clock.sleep_ms(5_000)
        await opened.broker.deliver("q", version, parcels[1])
        found = await asyncio.wait_for(asyncio.gather(*receiving), 4)
        assert sorted(found) == [[b"0"], [b"1"]]

    asyncio.run(main())


def test_who_answers_with_nothing_tells_when_there_is_more():
    """A lease ends in the moment in which the front one's time is up; it has been acknowledged."""
    opened = Opened(MemoryStore(), stripes=2)

    async def main() -> None:
        broker = opened.broker
        info = await broker.get_queue("q")
        for number in range(2):
            segments = [Segment(Block.build([b"%d" % number], sent_ms=0))]
            await broker.deliver("q", info.version, Parcel(number, 0, segments))
        leased = await broker.receive("q", "default", 1, 0, 100)
        leased += await broker.receive("q", "default", 1, 0, 200)
        front = asyncio.create_task(
            broker.dequeuer._receive(info, "default", 1, leased[0].until_ms, None)
        )
        await settle()
        behind = opened.receive()
        await settle()
        await broker.acknowledge([leased[0].receipt])
        assert await asyncio.wait_for(front, PATIENCE_S) == []
        assert await asyncio.wait_for(behind, 5) != []

    asyncio.run(main())


class SlowStore(MemoryStore):
    """A store that takes its time to lease, as one does that reads from a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Pending[None] | None = None

    async def lease(self, *arguments: object) -> object:
        if self.gate is not None:
            await self.gate
        return await super().lease(*arguments)


def test_a_receiver_cancelled_at_work_passes_its_call_on():
    store = SlowStore()
    opened = Opened(store)

    async def main() -> None:
        first, second = opened.receive(), opened.receive()
        await settle()
        store.gate = Pending()
        await opened.send(b"x")
        await settle()
        first.cancel()
        await settle()
        gate, store.gate = store.gate, None
        gate.resolve(None)
        assert await asyncio.wait_for(second, 1) == [b"x"]

    asyncio.run(main())
