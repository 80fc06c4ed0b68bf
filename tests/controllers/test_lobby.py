"""The lobby: receivers parked at a subscription are called one by one, in the order they came."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from ringdove.clock import SystemClock
from ringdove.controllers.lobby import Guest, Lobbies, Lobby
from ringdove.errors import QueueNotFound
from ringdove.pending import Pending, run

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


def test_who_comes_while_others_wait_lines_up_behind_them():
    async def main() -> None:
        parked = Parked(Stripes())
        now_ms = SystemClock().now_ms()
        assert parked.lobby.line_up(1, now_ms) is None  # Nobody waits.
        await parked.park(1)
        guest = parked.lobby.line_up(1, now_ms)
        assert guest is not None
        waiting = asyncio.create_task(parked.lobby.wait(guest, None, None, None))
        parked.stripes.arrive()
        await settle()
        assert parked.called == [0]
        assert not waiting.done()
        parked.stripes.arrive()
        await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(main())


def test_who_lined_up_may_be_called_before_it_waits():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(1)
        guest = parked.lobby.line_up(1, SystemClock().now_ms())
        assert guest is not None
        for _ in range(2):
            parked.stripes.arrive()
        await settle()
        await asyncio.wait_for(parked.lobby.wait(guest, None, None, None), PATIENCE_S)

    asyncio.run(main())


def test_nobody_lines_up_where_there_may_be_something():
    async def main() -> None:
        parked = Parked(Stripes())
        now_ms = SystemClock().now_ms()
        await parked.park(2)
        parked.lobby.note_due(now_ms + 60_000)
        assert parked.lobby.line_up(1, now_ms + 60_000) is None
        for _ in range(2):
            parked.stripes.arrive()
            await settle()
        assert parked.called == [0, 1]
        assert parked.lobby.line_up(1, now_ms) is None  # Those who are there look themselves.

    asyncio.run(main())


@pytest.mark.parametrize(("found", "called"), [(2, [0]), (1, [0, 1])])
def test_where_receivers_find_several_the_called_one_waits_for_more(found: int, called: list[int]):
    async def main() -> None:
        parked = Parked(Stripes(2))
        await parked.park(2, want=10)
        parked.lobby.leave(parked.lobby.enter(), found, interrupted=False)
        parked.stripes.arrive(0)
        for _ in range(2):  # It would have looked by now.
            await asyncio.sleep(0)
        parked.stripes.arrive(1)
        for _ in range(2):
            await settle()
        assert parked.called == called
        assert parked.guests[0].shared == (called == [0])
        await parked.end()

    asyncio.run(main())


def test_one_that_wants_a_single_message_does_not_wait_for_more():
    async def main() -> None:
        parked = Parked(Stripes())
        await parked.park(1, want=1)
        parked.lobby.leave(parked.lobby.enter(), 2, interrupted=False)
        parked.stripes.arrive()
        for _ in range(2):
            await asyncio.sleep(0)
        assert parked.called == [0]

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


def test_threads_may_be_the_first_to_wait_in_the_same_moment(monkeypatch: pytest.MonkeyPatch):
    stripes = Stripes()
    lobbies = Lobbies(SystemClock())
    threads: list[threading.Thread] = []

    def count(lobby: Lobby) -> int:
        if not threads:
            threads.append(threading.Thread(target=lobbies.enter, args=("third", 1, stripes)))
            threads[0].start()
            threads[0].join(0.05)
        return len(lobby._guests)

    for key in ("first", "second"):
        lobbies.enter(key, 1, stripes)
    threads.clear()
    monkeypatch.setattr(Lobby, "__len__", count)
    lobbies.enter("fourth", 1, stripes)
    threads[0].join(PATIENCE_S)
    assert all(lobbies.get(key) for key in ("first", "second", "third", "fourth"))
