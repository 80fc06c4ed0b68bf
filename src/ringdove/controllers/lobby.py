"""The lobby: receivers parked at one subscription, called in the order they came.

An arrival calls the first one only; if that finds more than it wants, it calls the next. What
arrives before a called one has looked is for it, too, as far as it wants more than one message: the
busier the queue is, the more each receiver gets. Where receivers find several messages at a time, a
called one that wants more than one lets what has reached the server by then be stored first. So ten
thousand parked receivers cost memory and nothing else, and none overtakes another: who comes while
others wait lines up behind them without a look. Only the front one also watches the time at which a
lease or delay ends.

Receivers wait on pendings, so threads and coroutines of any event loop may share a lobby.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import zip_longest
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.errors import RingdoveError
from ringdove.pending import Pending, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from ringdove.clock import Clock


class Guest:
    """A receiver in a lobby."""

    __slots__ = ("called", "ends_ms", "room", "shared", "signal", "want")

    def __init__(self, want: int, *, called: bool = True) -> None:
        self.want = want
        #: Called, and at work on what there may be.
        self.called = called
        #: How many more arrivals are for it before it looks; and whether it was called for several,
        #: or by time: if it has enough before it has looked everywhere, it calls the next.
        self.room = 0
        self.shared = False
        #: When it goes on by itself, if ever.
        self.ends_ms: int | None = None
        #: What a guest that is not at work waits for.
        self.signal: Pending[None] | None = None


class Lobby:
    """Who waits at one subscription of a queue."""

    def __init__(self, clock: Clock, watches: Callable[[], Sequence[Pending[None]]]) -> None:
        self._clock = clock
        self._watches = watches
        self._lock = threading.Lock()
        self._guests: OrderedDict[Guest, None] = OrderedDict()
        #: Who was called last, until it looks.
        self._called: Guest | None = None
        #: The watches that were asked to announce arrivals, and whether some have done so.
        self._armed: Sequence[Pending[None]] = ()
        self._spent = True
        self._due_ms: int | None = None
        #: Whether the last who left had found several messages.
        self._busy = False

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, want: int = 1) -> Guest:
        """Take a place behind everybody who waits, to receive up to `want` messages."""
        guest = Guest(want)
        with self._lock:
            self._guests[guest] = None
        return guest

    def line_up(self, want: int, now_ms: int) -> Guest | None:
        """Take a place, if somebody waits: there is nothing then, and looking would be in vain."""
        guest = Guest(want, called=False)
        with self._lock:
            last = next(reversed(self._guests), None)
            if last is None or last.called or (self._spent and self._called is None):
                return None
            if self._due_ms is not None and self._due_ms <= now_ms:
                return None
            self._guests[guest] = None
        return guest

    async def wait(
        self,
        guest: Guest,
        seen: Collection[Pending[None]] | None,
        until_ms: int | None,
        due_ms: int | None,
    ) -> None:
        """Wait until called, or the time is up.

        `seen` are the stripes' watches from before the caller last looked: if one of them is done,
        something may have come meanwhile. None from who has lined up.
        """
        if seen is not None:
            guest.shared = guest.called = False
        if self._spent and self._called is None:
            self._arm()
        self.note_due(due_ms)
        while True:
            signal: Pending[None] = Pending()
            guest.signal = signal  # First: who changes what follows, nudges then.
            if guest.called or (seen and _any_done(seen)):
                break
            end_ms = self._plan(guest, until_ms)
            timeout_s = None if end_ms is None else (end_ms - self._clock.now_ms()) / 1000
            if timeout_s is not None and timeout_s <= 0:
                break
            await signal.until(timeout_s)
            if guest.called:
                await self._linger(guest)
                break
        with self._lock:
            guest.called = True
            if self._called is guest:
                self._called = None  # It looks now: what arrives from here on is for others.
        if self._spent and len(self._guests) > 1:
            self._arm()
        if self._due_ms is not None and self._due_ms <= self._clock.now_ms():
            self._due_ms = None  # Whoever looks now learns the next one,
            guest.shared = True  # but not where it does not look.

    async def _linger(self, guest: Guest) -> None:
        """Let more come for a guest that was called."""
        if self._busy:
            for _ in range(limits.LINGER_TURNS):
                if guest.room > 0:
                    await Turn()

    def leave(self, guest: Guest, found: int = 0, *, interrupted: bool) -> None:
        """Give the place up, with so many messages; who was interrupted calls the next."""
        self._busy = found > 1
        with self._lock:
            self._guests.pop(guest, None)
            if self._called is guest:
                self._called = None
            front = self._late_front()
        if interrupted and guest.called:
            self.call_next(shared=guest.shared)
        if front is not None:
            _nudge(front)

    def close(self) -> None:
        """Have nothing announced any more: nobody is there, and nobody will come."""
        armed, self._armed = self._armed, ()
        for watch in armed:
            watch.forget(self._arrived)

    def note_due(self, due_ms: int | None) -> None:
        """Something becomes deliverable at `due_ms`: the front guest must know."""
        if due_ms is None or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        with self._lock:
            front = self._late_front()
        if front is not None:
            _nudge(front)

    def call_next(self, *, shared: bool = False) -> None:
        """Something may be deliverable, `shared`: in several places; call who is first to be."""
        with self._lock:
            for guest in self._guests:
                if not guest.called:
                    guest.called = True
                    guest.shared = shared
                    guest.room = guest.want - 1
                    self._called = guest
                    break
            else:
                return
        _nudge(guest)

    def _plan(self, guest: Guest, until_ms: int | None) -> int | None:
        """Until when a guest waits: the front one not beyond what becomes deliverable."""
        with self._lock:
            front = next(iter(self._guests), None) is guest
            due_ms = self._due_ms if front else None
            early = due_ms is not None and (until_ms is None or due_ms < until_ms)
            guest.ends_ms = due_ms if early else until_ms
            return guest.ends_ms

    def _late_front(self) -> Guest | None:
        """The front guest, if it would go on too late for what becomes deliverable."""
        front = next(iter(self._guests), None)
        if front is None or self._due_ms is None:
            return None
        return front if front.ends_ms is None or self._due_ms < front.ends_ms else None

    def _arm(self) -> None:
        """Have arrivals announced: wherever there was one, the next."""
        self._spent = False
        before, self._armed = self._armed, self._watches()
        for watch, old in zip_longest(self._armed, before):
            if watch is not old and watch is not None:
                watch.when_done(self._arrived)

    def _arrived(self) -> None:
        self._spent = True
        with self._lock:
            called = self._called
            if called is not None and called.room > 0:
                called.room -= 1
                called.shared = True
                return
        self.call_next()
        called = self._called
        if called is not None and called.room > 0:
            return  # It arms the lobby before it looks; whatever comes until then is for it.
        try:
            if len(self._guests) > 1:
                self._arm()
        except RingdoveError:
            # The queue is gone, or the store has closed: everybody must learn of it.
            for _ in range(len(self._guests)):
                self.call_next()


class Lobbies:
    """The lobbies of one controller, by subscription; empty ones go when there is a new one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lobbies: dict[Hashable, Lobby] = {}

    def get(self, key: Hashable) -> Lobby | None:
        """Where those who wait are, if there are some."""
        return self._lobbies.get(key)

    def enter(
        self, key: Hashable, want: int, watches: Callable[[], Sequence[Pending[None]]]
    ) -> tuple[Lobby, Guest]:
        """Take a place in a lobby, perhaps a new one with these watches."""
        with self._lock:
            lobby = self._lobbies.get(key)
            if lobby is None:
                for empty in [k for k, known in self._lobbies.items() if not len(known)]:
                    self._lobbies.pop(empty).close()
                lobby = self._lobbies[key] = Lobby(self._clock, watches)
            return lobby, lobby.enter(want)


def _any_done(watches: Collection[Pending[None]]) -> bool:
    for watch in watches:  # noqa: SIM110  a generator costs more than all of it
        if watch.done:
            return True
    return False


def _nudge(guest: Guest) -> None:
    signal = guest.signal
    if signal is not None and not signal.done:
        signal.resolve(None)
