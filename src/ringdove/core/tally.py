"""What a server has seen of each queue's order and duplicates, in messages, since it began.

Counted as it happens, one step for a run of messages however long it is; the exact metrics, which
need to know every message, are those of `ringdove.core.consistency`.
"""

from __future__ import annotations

from ringdove import limits


class Tally:
    """One queue's."""

    __slots__ = ("_ends", "again", "delivered", "late", "repeated")

    def __init__(self) -> None:
        #: Messages handed out; of these, those that had been handed out before, and those handed
        #: out for the first time, but after a later one of their stripe and subscription.
        self.delivered = 0
        self.again = 0
        self.late = 0
        #: Messages that were sent again, recognised, and not stored a second time.
        self.repeated = 0
        #: Behind the last message handed out, by stripe and subscription.
        self._ends: dict[tuple[int, int, str], int] = {}

    def handed_out(
        self, number: int, level: int, subscription: str, lo: int, hi: int, receives: int
    ) -> None:
        """Messages `lo` to `hi` of a stripe go to a receiver, `receives` times by now."""
        self.delivered += hi - lo
        where = (number, level, subscription)
        end = self._ends.get(where, 0)
        if receives > 1:
            self.again += hi - lo
        elif lo < end:
            self.late += hi - lo
        self._note_end(where, max(hi, end))

    def streamed(self, number: int, level: int, subscription: str, lo: int, hi: int) -> None:
        """Messages `lo` to `hi` of a stripe go to a stream, in order wherever it began."""
        self.delivered += hi - lo
        where = (number, level, subscription)
        end = self._ends.get(where, 0)
        self.again += max(0, min(hi, end) - lo)
        self._note_end(where, max(hi, end))

    def _note_end(self, where: tuple[int, int, str], end: int) -> None:
        if len(self._ends) >= limits.SETTINGS_CACHE_MAX and where not in self._ends:
            self._ends.clear()  # Of subscriptions that come and go.
        self._ends[where] = end


class Tallies:
    """All queues', by id: if there are very many, of those that came last."""

    def __init__(self) -> None:
        self._tallies: dict[int, Tally] = {}

    def of(self, queue: int) -> Tally:
        """The tally of a queue."""
        tally = self._tallies.get(queue)
        if tally is None:
            while len(self._tallies) >= limits.SETTINGS_CACHE_MAX:
                self._tallies.pop(next(iter(self._tallies)), None)
            tally = self._tallies.setdefault(queue, Tally())
        return tally
