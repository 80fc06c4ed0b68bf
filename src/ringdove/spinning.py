"""Staying awake: an event loop that looks again for a moment, instead of going to sleep.

A process that waits is put to sleep and has to be woken, which takes tens of microseconds, on some
virtual machines a hundred, and finds its caches cold. Who expects the next request, or an answer,
within a moment may spend processor time instead: the loop looks for it again and again, and lets
others who can run have their turn in between.
"""

from __future__ import annotations

from os import sched_yield
from time import perf_counter
from typing import TYPE_CHECKING

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio

#: Microseconds for which a loop may stay awake after each time that something happened.
SPIN_US_MAX = 100_000


class Spinner:
    """Keeps one event loop awake; used from its own thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, spin_us: int) -> None:
        self._loop = loop
        self._spin_s = spin_us / 1e6
        self._until_s = 0.0
        self.awake = False

    def stay(self) -> None:
        """Something has happened, and more may follow."""
        self._until_s = perf_counter() + self._spin_s
        if not self.awake:
            self.awake = True
            self._loop.call_soon(self._look)

    def rest(self) -> None:
        """Nothing is expected any more."""
        self._until_s = 0.0

    def _look(self) -> None:
        self.awake = perf_counter() < self._until_s
        if self.awake:
            sched_yield()
            self._loop.call_soon(self._look)


def spinner_of(loop: asyncio.AbstractEventLoop, spin_us: int) -> Spinner | None:
    """What keeps a loop awake, if that is wanted."""
    return Spinner(loop, spin_us) if spin_us else None


def check_spin(spin_us: int) -> None:
    """Refuse what is no time to stay awake."""
    if not isinstance(spin_us, int) or not 0 <= spin_us <= SPIN_US_MAX:
        raise InvalidArgument(
            f"spin_us is {spin_us!r}; it must be 0 to {SPIN_US_MAX} microseconds."
        )
