"""The lobby: receivers parked at a subscription are called one by one, in the order they came."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence

import pytest

from ringdove.clock import ManualClock, SystemClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.lobby import Guest, Lobbies, Lobby
from ringdove.controllers.sending import Outgoing, Parcel
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.errors import QueueNotFound
from ringdove.pending import Pending, run
from ringdove.stores.memory import MemoryStore

PATIENCE_S = 30


class Stripes:
    """Where things arrive: one watch per stripe, as a store gives them."""

    def __init__(self, count: int = 1) -> None:
        self.watches: list[Pending[None]] = [Pending() for _ in range(count)]
        self.gone = False
        #: Called once, when the lobby next asks for the watches.
        self.meanwhile: Callable[[], None] | None = None
        self.asked = 0

    def __call__(self) -> Sequence[Pending[None]]:
        self.asked += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.gone:
            raise QueueNotFound("The queue was deleted.")
        return list(self.watches)

    def arrive(self, stripe: int = 0) -> None:
        watch, self.watches[stripe] = self.watches[stripe], Pending()
        watch.resolve(None)


class Parked:
    """Guests of one lobby, as tasks of this loop; `called` are those whose wait has ended."""

    def __init__(self, stripes: Stripes) -> None:
        self.lobby = Lobby(SystemClock(), stripes)
        self.stripes = stripes
        self.guests: list[Guest] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.called: list[int] = []

    async def park(
        self, count: int, until_ms: int | None = None, due_ms: int | None = None, want: int = 1
    ) -> None:
        for _ in range(count):
            guest = self.lobby.enter(want)
            number = len(self.guests)
            self.guests.append(guest)
            self.tasks.append(asyncio.create_task(self._wait(number, guest, until_ms, due_ms)))
        await settle()

    async def _wait(
        self, number: int, guest: Guest, until_ms: int | None, due_ms: int | None
    ) -> None:
        try:
            await self.lobby.wait(guest, self.stripes.watches, until_ms, due_ms)
            self.called.append(number)
        except asyncio.CancelledError:
            self.lobby.leave(guest, interrupted=True)
            raise

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settle() -> None:
    """Let every task run until it waits for something that nobody here delivers."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_came_first_is_called_first():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(4)
        for number in range(4):
            parked.stripes.arrive()
            await settle()
            assert parked.called == list(range(number + 1))

    asyncio.run(main())


def test_one_arrival_calls_one():
    async def main() -> None:
        parked = Parked(Stripes(3))
        await parked.park(5)
        parked.stripes.arrive(2)
        await settle()
        assert parked.called == [0]
        await parked.end()

    asyncio.run(main())


def test_who_found_more_passes_the_baton():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(3)
        parked.stripes.arrive()
        await settle()
        parked.lobby.call_next()
        await settle()
        assert parked.called == [0, 1]
        await parked.end()

    asyncio.run(main())


def test_a_guest_that_gives_up_passes_its_call_on():
    """Called and cancelled in the same turn of the loop: nobody else would learn of the arrival."""

    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(3)
        parked.stripes.arrive()
        parked.tasks[0].cancel()
        await settle()
        assert parked.called == [1]
        await parked.end()

    asyncio.run(main())


def test_who_left_is_not_called():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(3)
        parked.tasks[0].cancel()
        await settle()
        assert len(parked.lobby) == 2
        parked.stripes.arrive()
        await settle()
        assert parked.called == [1]
        await parked.end()

    asyncio.run(main())


def test_what_came_between_looking_and_waiting_is_not_missed():
    stripes = Stripes(2)
    lobby = Lobby(SystemClock(), stripes)
    guest = lobby.enter()
    seen = list(stripes.watches)
    stripes.arrive(1)
    run(lobby.wait(guest, seen, None, None))


def test_a_wait_ends_at_its_time():
    clock = SystemClock()
    lobby = Lobby(clock, Stripes())
    until_ms = clock.now_ms() + 20
    run(lobby.wait(lobby.enter(), [], until_ms, None))
    assert clock.now_ms() >= until_ms


def test_only_the_front_one_watches_the_time():
    async def main() -> None:
        parked = Parked(Stripes())
        due_ms = SystemClock().now_ms() + 30
        await parked.park(3, due_ms=due_ms)
        await asyncio.wait(parked.tasks, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        await settle()
        assert parked.called == [0]
        await parked.end()

    asyncio.run(main())


def test_the_next_one_watches_the_time_when_the_front_one_leaves():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(3)
        parked.lobby.note_due(SystemClock().now_ms() + 30)
        await settle()
        parked.tasks[0].cancel()
        await asyncio.wait(parked.tasks[1:], timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
        await settle()
        assert parked.called == [1]
        await parked.end()

    asyncio.run(main())


def test_an_earlier_time_replaces_a_later_one():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(2, due_ms=SystemClock().now_ms() + 3_600_000)
        parked.lobby.note_due(SystemClock().now_ms() + 20)
        parked.lobby.note_due(SystemClock().now_ms() + 1_800_000)
        await asyncio.wait(parked.tasks, timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
        assert parked.called == [0]
        await parked.end()

    asyncio.run(main())


def test_ten_thousand_guests_cost_an_arrival_nothing(monkeypatch: pytest.MonkeyPatch):
    nudges: list[Guest] = []
    original = Pending.resolve

    def resolve(self: Pending[None], value: None) -> None:
        nudges.extend(guest for guest in guests if guest.signal is self)
        original(self, value)

    async def main() -> None:
        await parked.park(10_000)
        guests.update(dict.fromkeys(parked.guests))
        asked = parked.stripes.asked
        monkeypatch.setattr(Pending, "resolve", resolve)
        parked.stripes.arrive()
        await settle()
        monkeypatch.undo()
        assert parked.called == [0]
        assert nudges == parked.guests[:1]
        assert parked.stripes.asked == asked + 1
        await parked.end()

    guests: dict[Guest, None] = {}
    parked = Parked(Stripes())
    asyncio.run(main())
    assert len(parked.lobby) == 1  # The one that was called stays until it says that it leaves.


def test_everybody_learns_that_the_queue_is_gone():
    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(20)
        parked.stripes.gone = True
        parked.stripes.arrive(1)
        await settle()
        assert sorted(parked.called) == list(range(20))

    asyncio.run(main())


def test_threads_and_event_loops_share_a_lobby():
    stripes = Stripes()
    lobby = Lobby(SystemClock(), stripes)
    guests = [lobby.enter() for _ in range(12)]
    ended = [threading.Event() for _ in guests]
    parked = threading.Barrier(len(guests) + 1)

    def in_thread(number: int) -> None:
        seen = list(stripes.watches)
        parked.wait(PATIENCE_S)
        run(lobby.wait(guests[number], seen, None, None))
        ended[number].set()

    def on_loop(number: int) -> None:
        async def main() -> None:
            seen = list(stripes.watches)
            parked.wait(PATIENCE_S)
            await lobby.wait(guests[number], seen, None, None)
            ended[number].set()

        asyncio.run(main())

    threads = [
        threading.Thread(target=on_loop if number % 2 else in_thread, args=(number,), daemon=True)
        for number in range(len(guests))
    ]
    for thread in threads:
        thread.start()
    parked.wait(PATIENCE_S)
    # One arrival each, made only when the one before has been answered.
    while not all(event.is_set() for event in ended):
        first = next((event for event in ended if not event.is_set()), ended[0])
        stripes.arrive()
        assert first.wait(PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_an_arrival_on_another_stripe_at_the_same_moment_calls_another_guest():
    """Another thread appends to stripe 1 while an arrival on stripe 0 is being announced."""

    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(2)
        parked.stripes.meanwhile = lambda: parked.stripes.arrive(1)
        parked.stripes.arrive(0)
        await settle()
        called = list(parked.called)
        await parked.end()
        assert called == [0, 1]

    asyncio.run(main())


def test_what_arrives_before_the_called_one_looks_is_for_it_as_far_as_it_wants_more():
    async def main() -> None:
        parked = Parked(Stripes(5))
        await parked.park(3, want=3)
        for stripe in range(4):
            parked.stripes.arrive(stripe)
        await settle()
        assert parked.called == [0, 1]  # The fourth was more than the first wants.
        parked.stripes.arrive(4)
        await settle()
        assert parked.called == [0, 1, 2]  # The others have looked by now.

    asyncio.run(main())


def test_on_the_stripe_that_called_too():
    """Nothing is announced twice there before the called one looks; afterwards it is again."""

    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(2, want=10)
        for _ in range(3):
            parked.stripes.arrive(0)
        await settle()
        assert parked.called == [0]
        parked.stripes.arrive(0)
        await settle()
        assert parked.called == [0, 1]

    asyncio.run(main())


def test_who_is_called_for_several_and_gives_up_calls_the_next_for_several():
    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(3, want=2)
        parked.stripes.arrive(0)
        parked.stripes.arrive(1)
        parked.tasks[0].cancel()
        await settle()
        assert parked.called == [1]
        assert parked.guests[1].shared
        await parked.end()

    asyncio.run(main())


def test_the_front_one_is_nudged_only_for_what_comes_before_it_goes_on_by_itself():
    async def main() -> None:
        parked = Parked(Stripes())
        now_ms = SystemClock().now_ms()
        await parked.park(2, until_ms=now_ms + 60_000)
        signals = [guest.signal for guest in parked.guests]
        parked.lobby.note_due(now_ms + 90_000)
        await settle()
        assert [guest.signal for guest in parked.guests] == signals
        parked.lobby.note_due(now_ms + 30_000)
        await settle()
        assert parked.guests[0].signal is not signals[0]
        assert parked.guests[0].ends_ms == now_ms + 30_000
        assert parked.guests[1].signal is signals[1]
        assert not parked.called
        await parked.end()

    asyncio.run(main())


def test_who_waits_again_is_called_again():
    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(1, want=5)
        parked.stripes.arrive(0)
        parked.stripes.arrive(1)
        await settle()
        [guest] = parked.guests
        again = asyncio.create_task(parked.lobby.wait(guest, parked.stripes.watches, None, None))
        await settle()
        assert not again.done()
        parked.stripes.arrive(1)
        await asyncio.wait_for(again, PATIENCE_S)

    asyncio.run(main())


class Noisy(Pending[None]):
    """A watch; while it is asked to announce an arrival, another thread does something."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def when_done(self, callback: Callable[[], None]) -> None:
        super().when_done(callback)
        self.meanwhile()


def test_what_arrives_just_before_the_called_one_looks_is_not_the_last_that_is_announced():
    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(2, want=10)
        parked.stripes.arrive(0)
        parked.stripes.watches[0] = Noisy(lambda: parked.stripes.arrive(1))
        await settle()
        assert 0 in parked.called
        parked.stripes.arrive(1)
        await settle()
        called = sorted(parked.called)
        await parked.end()
        assert called == [0, 1]

    asyncio.run(main())


def test_lobbies_where_nobody_waits_leave_nothing_behind():
    stripes = Stripes(3)
    lobbies = Lobbies(SystemClock())
    for turn in range(20):
        lobby, guest = lobbies.enter(turn % 2, 1, stripes)
        run(lobby.wait(guest, [], SystemClock().now_ms() + 1, None))
        lobby.leave(guest, interrupted=False)
    assert [len(watch._callbacks) for watch in stripes.watches] == [1, 1, 1]


# -- with the dequeue controller ----------------------------------------------------------------


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
