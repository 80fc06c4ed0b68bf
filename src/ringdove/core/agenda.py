"""When the runs of an index become deliverable: the order of time, and the list of what is ready.

A run is in one of two heaps, or in none while it is being handed out. Heap entries are never
searched for: a run that moves on takes a new `place`, which makes its old entry a left-over that is
skipped when it comes to the top. There are no timers: `_promote` moves what has come due.
"""

from __future__ import annotations

import heapq

from ringdove import limits
from ringdove.core.runs import LEASED, READY, WAITING, DoneSet, Run

#: Left-over entries that the time order may hold beyond twice its live ones.
_STALE_ENTRIES_MAX = 10_000


class Agenda:
    """The part of an index that knows what is to be handed out next, and how much waits."""

    def __init__(self, floor: int) -> None:
        self.done = DoneSet(floor)
        #: Messages in leased runs, and in runs that wait for a time.
        self.leased = 0
        self.delayed = 0
        self._timed: list[tuple[int, int, Run]] = []
        self._timed_max = _STALE_ENTRIES_MAX
        self._ready: list[tuple[int, int, Run]] = []
        self._place = 0

    def _promote(self, now_ms: int) -> bool:
        """Make ready what has come due; False when the limit per call stopped it."""
        timed = self._timed
        for _ in range(limits.PROMOTE_PER_CALL_MAX):
            if not timed or timed[0][0] > now_ms:
                return True
            _, place, run = heapq.heappop(timed)
            if run.place == place:
                self._account(run, -1)
                self._make_ready(run)
        return False

    def _account(self, run: Run, sign: int) -> None:
        """Count a run in (+1) or out (-1) of the totals for its state."""
        if run.state == LEASED:
            self.leased += sign * (run.hi - run.lo)
        elif run.state == WAITING:
            self.delayed += sign * (run.hi - run.lo)

    def _wait(self, run: Run, until_ms: int) -> None:
        """Put a run into the time order until `until_ms`."""
        run.until_ms = until_ms
        self._account(run, 1)
        self._enter(run)

    def _enter(self, run: Run) -> None:
        self._place = run.place = self._place + 1
        heapq.heappush(self._timed, (run.until_ms, run.place, run))
        if len(self._timed) > self._timed_max:
            self._timed = [entry for entry in self._timed if entry[2].place == entry[1]]
            heapq.heapify(self._timed)
            self._timed_max = 2 * len(self._timed) + _STALE_ENTRIES_MAX

    def _make_ready(self, run: Run) -> None:
        """Put a run into the ready list, in offset order."""
        run.state = READY
        self._place = run.place = self._place + 1
        heapq.heappush(self._ready, (run.lo, run.place, run))

    def _pop_ready(self) -> Run | None:
        """The oldest ready run, out of the heap, clipped to what is not done by expiry."""
        while self._ready:
            _, place, run = heapq.heappop(self._ready)
            if run.place != place:
                continue
            run.place = 0
            run.lo = max(run.lo, self.done.floor)
            if run.lo < run.hi:
                return run
        return None

    def _something_ready(self) -> bool:
        while self._ready and (
            self._ready[0][2].place != self._ready[0][1] or self._ready[0][2].hi <= self.done.floor
        ):
            heapq.heappop(self._ready)
        return bool(self._ready)
