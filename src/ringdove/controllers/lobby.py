"""The lobby: receivers parked at one subscription, called in the order they came.

An arrival calls the first one only; if that finds more than it wants, it calls the next. So ten
thousand parked receivers cost memory and nothing else, and none overtakes another. Only the front
one also watches the time at which a lease or delay ends.

Receivers wait on pendings, so threads and coroutines of any event loop may share a lobby.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ringdove.errors import RingdoveError
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringdove.clock import Clock


class Guest:
    """A receiver in a lobby."""

    __slots__ = ("called", "signal")

    def __init__(self) -> None:
        #: Called, and at work on what there may be.
        self.called = True
        self.signal: Pending[None] = Pending()


class Lobby:
    """Who waits at one subscription of a queue."""

    def __init__(self, clock: Clock, watches: Callable[[], Sequence[Pending[None]]]) -> None:
        self._clock = clock
        self._watches = watches
        self._lock = threading.Lock()
        self._guests: OrderedDict[Guest, None] = OrderedDict()
        self._armed: list[Pending[None]] = []
        self._due_ms: int | None = None

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self) -> Guest:
        """Take a place behind everybody who waits."""
        guest = Guest()
        with self._lock:
            self._guests[guest] = None
        return guest

    async def wait(
        self,
        guest: Guest,
        seen: Sequence[Pending[None]],
        until_ms: int | None,
        due_ms: int | None,
    ) -> None:
        """Wait until called, or the time is up.

        `seen` are the stripes' watches from before the caller last looked: if one of them is done,
        something may have come meanwhile.
        """
        guest.signal = Pending()
        guest.called = False
        self._arm()
        self.note_due(due_ms)
        while not guest.called and not any(watch.done for watch in seen):
            now_ms = self._clock.now_ms()
            ends_ms = [ms for ms in (until_ms, self._due_for(guest)) if ms is not None]
            timeout_s = (min(ends_ms) - now_ms) / 1000 if ends_ms else None
            if timeout_s is not None and timeout_s <= 0:
                break
            if await guest.signal.until(timeout_s):
                guest.signal = Pending()
        guest.called = True
        if self._due_ms is not None and self._due_ms <= self._clock.now_ms():
            self._due_ms = None  # Whoever looks now learns the next one.

    def leave(self, guest: Guest, *, interrupted: bool) -> None:
        """Give the place up; the call of one that was interrupted goes to the next."""
        with self._lock:
            self._guests.pop(guest, None)
            front = next(iter(self._guests), None)
            due = self._due_ms is not None
        if interrupted and guest.called:
            self.call_next()
        if front is not None and due:
            _nudge(front)

    def note_due(self, due_ms: int | None) -> None:
        """Something becomes deliverable at `due_ms`: the front guest must know."""
        if due_ms is None or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        with self._lock:
            front = next(iter(self._guests), None)
        if front is not None:
            _nudge(front)

    def call_next(self) -> None:
        """Something may be deliverable: call the first guest that is not at work."""
        with self._lock:
            for guest in self._guests:
                if not guest.called:
                    guest.called = True
                    break
            else:
                return
        _nudge(guest)

    def _due_for(self, guest: Guest) -> int | None:
        with self._lock:
            return self._due_ms if next(iter(self._guests), None) is guest else None

    def _arm(self) -> None:
        """Have arrivals announced, as long as somebody waits."""
        if self._armed:
            return
        self._armed = list(self._watches())
        for watch in self._armed:
            watch.when_done(self._arrived)

    def _arrived(self) -> None:
        armed, self._armed = self._armed, []
        try:
            if self._guests:
                self._arm()
        except RingdoveError:
            # The queue is gone, or the store has closed: everybody must learn of it.
            for _ in range(len(self._guests)):
                self.call_next()
        for watch in armed:
            watch.forget(self._arrived)  # Only now: one of them may have arrived meanwhile.
        self.call_next()


def _nudge(guest: Guest) -> None:
    signal = guest.signal
    if not signal.done:
        signal.resolve(None)
