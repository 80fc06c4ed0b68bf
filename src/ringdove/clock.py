"""Time, passed in.

A store compares times that it wrote earlier, perhaps before a restart, so its clock must never run
backwards and never stand still. `SystemClock` therefore starts from the later of the wall clock and
the last time the store remembers, and from there on follows the monotonic clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What every part of Ringdove that needs the time is given."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, never less than an earlier answer."""
        ...

    def advance_to(self, at_least_ms: int) -> None:
        """Never answer less than `at_least_ms` from now on."""
        ...


class SystemClock:
    """The real clock: wall time at the start, monotonic from then on."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since 1970, never less than an earlier answer."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def advance_to(self, at_least_ms: int) -> None:
        """Never answer less than `at_least_ms` from now on."""
        behind_ms = at_least_ms - self.now_ms()
        if behind_ms > 0:
            self._offset_ns += behind_ms * 1_000_000


class ManualClock:
    """A clock that moves only when told: for tests and simulations."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970 as last set."""
        return self._now_ms

    def advance_to(self, at_least_ms: int) -> None:
        """Move forward to `at_least_ms`, never back."""
        self._now_ms = max(self._now_ms, at_least_ms)

    def sleep_ms(self, duration_ms: int) -> None:
        """Move forward by `duration_ms`."""
        self._now_ms += duration_ms
