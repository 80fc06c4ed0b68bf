"""How fast and how wide a subscription is received from: rate limits and the K hint (T2.8, B3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.core.policy import SpreadGauge, TokenBucket

if TYPE_CHECKING:
    from ringdove.clock import Clock
    from ringdove.controllers.catalog import QueueInfo


class Pace:
    """What one controller knows of the pace of its subscriptions; it may forget it at any time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gauges: dict[tuple[int, str], SpreadGauge] = {}
        self._buckets: dict[tuple[int, str], TokenBucket] = {}
        self._busy: dict[tuple[int, str], int] = {}

    def admit(self, info: QueueInfo, subscription: str, want: int) -> tuple[int, int | None]:
        """How many messages the subscription's rate allows now, and when it allows more."""
        rate = info.settings.receive_rate_max
        if rate is None:
            return want, None
        now_ms = self._clock.now_ms()
        key = (info.id, subscription)
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate_per_s != rate:
            bucket = self._buckets[key] = TokenBucket(rate, now_ms)
        granted = bucket.take(want, now_ms)
        return granted, None if granted else bucket.next_ms(now_ms)

    def give_back(self, info: QueueInfo, subscription: str, count: int) -> None:
        """Return what was admitted and not used."""
        bucket = self._buckets.get((info.id, subscription))
        if bucket is not None and count > 0:
            bucket.give_back(count)

    def spread(self, info: QueueInfo, subscription: str) -> int:
        """The K of the next visit."""
        spread = info.settings.spread
        if spread == "infinite":
            return limits.SPREAD_MAX
        if spread == "auto":
            return self._gauges.setdefault((info.id, subscription), SpreadGauge()).spread
        return spread

    def begin(self, info: QueueInfo, subscription: str) -> None:
        """A receiver is at work on the subscription, until `end`."""
        key = (info.id, subscription)
        self._busy[key] = self._busy.get(key, 0) + 1

    def end(self, info: QueueInfo, subscription: str) -> None:
        """A receiver has finished its visit."""
        key = (info.id, subscription)
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
