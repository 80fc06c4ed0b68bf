"""What a server remembers of requests, so that one that comes again is answered and not done again.

A confirmable request is repeated until its acknowledgement arrives; RFC 7252 (4.8.2) reckons with
repetitions for 247 s. Each request costs its sender's address and message id, and the answer behind
the token: one byte for a plain 2.04. Nothing is forgotten early, because then a message could be
stored twice: when the memory is full, new requests are refused until the oldest have gone.

There are no timers: requests of one period of time are kept, and forgotten, together.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Seconds for which a request may be repeated: EXCHANGE_LIFETIME.
LIFETIME_S = 247.0

#: Periods that a lifetime is divided into.
_PERIODS = 4


class Answer(NamedTuple):
    """What to say when a request comes again."""

    #: Code, options and payload of the acknowledgement; empty for one without a response; None
    #: while there is nothing to say yet.
    said: bytes | None


class Exchanges:
    """See the module. Times are seconds of any clock that only goes forward."""

    def __init__(self, entries_max: int, bytes_max: int, lifetime_s: float = LIFETIME_S) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._period_s = lifetime_s / _PERIODS
        #: Per period its start, its requests and the bytes of their answers; the latest is last.
        self._periods: deque[_Period] = deque()
        self.entries = 0
        self.nbytes = 0

    def find(self, key: bytes, now_s: float) -> Answer | None:
        """What is known of a request; None when it is new."""
        self._expire(now_s)
        for period in reversed(self._periods):
            if key in period.answers:
                return Answer(period.answers[key])
        return None

    def wait_s(self, now_s: float) -> float:
        """Seconds until another request can be remembered; 0 when it can be now."""
        if self.entries < self._entries_max and self.nbytes < self._bytes_max:
            return 0
        return self._periods[0].begun_s + self._period_s * (_PERIODS + 1) - now_s

    def begin(self, key: bytes, now_s: float) -> None:
        """Remember a request that is under way."""
        if not self._periods or now_s >= self._periods[-1].begun_s + self._period_s:
            self._periods.append(_Period(now_s))
        self._periods[-1].answers[key] = None
        self.entries += 1

    def answered(self, key: bytes, said: bytes) -> None:
        """Remember what was answered; see Answer."""
        for period in reversed(self._periods):
            if key in period.answers:
                grown = len(said) - len(period.answers[key] or b"")
                period.answers[key] = said
                period.nbytes += grown
                self.nbytes += grown
                return

    def forget(self, key: bytes) -> None:
        """A request was not done: if it comes again, it is tried again."""
        for period in reversed(self._periods):
            if key in period.answers:
                said = period.answers.pop(key)
                period.nbytes -= len(said or b"")
                self.nbytes -= len(said or b"")
                self.entries -= 1
                return

    def _expire(self, now_s: float) -> None:
        while self._periods and now_s >= (
            self._periods[0].begun_s + self._period_s * (_PERIODS + 1)
        ):
            gone = self._periods.popleft()
            self.entries -= len(gone.answers)
            self.nbytes -= gone.nbytes


class _Period:
    __slots__ = ("answers", "begun_s", "nbytes")

    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.answers: dict[bytes, bytes | None] = {}
        self.nbytes = 0
