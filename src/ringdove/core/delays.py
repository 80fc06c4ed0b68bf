"""How long messages waited, as counts by powers of two of a millisecond.

Adding is one increment, so that everything may be counted; two looks at the counts tell the
percentiles of what happened between them, to within a factor of two.
"""

from __future__ import annotations

#: Bounds of the counts, in milliseconds: below 1, 2, 4, ... and above all of them.
BOUNDS_MS = tuple(1 << power for power in range(31))


class Delays:
    """Counts since the start."""

    __slots__ = ("counts", "total_ms")

    def __init__(self) -> None:
        #: How many were below each bound and not below the one before; the last: above all.
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total_ms = 0

    def add(self, delay_ms: int) -> None:
        """Count one; a clock that went back counts as no delay."""
        delay_ms = max(0, delay_ms)
        self.counts[min(delay_ms.bit_length(), len(BOUNDS_MS))] += 1
        self.total_ms += delay_ms
