"""How fast and how wide a subscription is received from: rate limits and the K hint (T2.8, B3)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from ringdove import limits
from ringdove.core.policy import SpreadGauge, TokenBucket

if TYPE_CHECKING:
    from ringdove.clock import Clock
    from ringdove.controllers.catalog import QueueInfo

T = TypeVar("T")


class Pace:
    """What one controller knows of the pace of its subscriptions; it may forget it at any time.

    Receivers of several threads share it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._gauges: dict[tuple[int, str], SpreadGauge] = {}
        self._buckets: dict[tuple[int, str], TokenBucket] = {}
        self._busy: dict[tuple[int, str], int] = {}

    def admit(self, info: QueueInfo, subscription: str, want: int) -> tuple[int, int | None]:
        """How many messages the subscription's rate allows now, and when it allows more."""
        rate = info.settings.receive_rate_max
        if rate is None:
            return want, None
        key = (info.id, subscription)
        with self._lock:
            now_ms = self._clock.now_ms()
            bucket = self._buckets.get(key)
            if bucket is None or bucket.rate_per_s != rate:
                bucket = _remember(self._buckets, key, TokenBucket(rate, now_ms))
            granted = bucket.take(want, now_ms)
            return granted, None if granted else bucket.next_ms(now_ms)

    def give_back(self, info: QueueInfo, subscription: str, count: int) -> None:
        """Return what was admitted and not used."""
        bucket = self._buckets.get((info.id, subscription))
        if bucket is not None and count > 0:
            with self._lock:
                bucket.give_back(count)

    def spread(self, info: QueueInfo, subscription: str) -> int:
        """The K of the next visit."""
        spread = info.settings.spread
        if spread == "infinite":
            return limits.SPREAD_MAX
        if spread == "auto":
            key = (info.id, subscription)
            gauge = self._gauges.get(key) or _remember(self._gauges, key, SpreadGauge())
            return gauge.spread
        return spread

    def begin(self, info: QueueInfo, subscription: str) -> None:
        """A receiver is at work on the subscription, until `end`."""
        if info.settings.spread != "auto":
            return  # Nobody learns from it.
        key = (info.id, subscription)
        with self._lock:
            self._busy[key] = self._busy.get(key, 0) + 1

    def end(self, info: QueueInfo, subscription: str) -> None:
        """A receiver has finished its visit."""
        if info.settings.spread != "auto":
            return
        key = (info.id, subscription)
        with self._lock:
            left = self._busy.pop(key) - 1
            if left:
                self._busy[key] = left

    def learn(self, info: QueueInfo, subscription: str, *, found: bool) -> None:
        """Teach an automatic spread: receivers at work at the same time, or an empty visit."""
        gauge = self._gauges.get((info.id, subscription))
        if gauge is None:
            return
        if not found or self._busy.get((info.id, subscription), 0) > 0:
            gauge.collided()
        else:
            gauge.succeeded()


def _remember(known: dict[tuple[int, str], T], key: tuple[int, str], new: T) -> T:
    if len(known) >= limits.SETTINGS_CACHE_MAX:
        known.clear()  # Of subscriptions that come and go.
    known[key] = new
    return new
