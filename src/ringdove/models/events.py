"""Simulated time: things that happen later, in order, and nodes that do one thing at a time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[], None]


class Timeline:
    """A clock that jumps from one event to the next."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Act]] = []
        self._serial = itertools.count()

    @property
    def now_ms(self) -> int:
        """The time as the machines of core/dequeue.py count it."""
        return int(self.now_s * 1_000)

    def after(self, delay_s: float, act: Act) -> None:
        """Have something happen later; of equal times, the first asked for comes first."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._serial), act))

    def run(self, until_s: float) -> None:
        """Let happen what happens until a time."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(events)
            act()
        self.now_s = until_s


class Node:
    """Serves jobs one after the other, in the order they come."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._jobs: deque[tuple[Callable[[], float], Act]] = deque()
        self._busy = False
        #: Seconds of work begun so far.
        self.worked_s = 0.0

    def serve(self, begin: Callable[[], float], end: Act) -> None:
        """Take a job: `begin` says how many seconds it takes, `end` comes after them."""
        self._jobs.append((begin, end))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        begin, end = self._jobs.popleft()
        self._busy = True
        cost_s = begin()
        self.worked_s += cost_s

        def done() -> None:
            end()
            if self._jobs:
                self._next()
            else:
                self._busy = False

        self._timeline.after(cost_s, done)
