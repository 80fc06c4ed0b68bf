"""Small decisions of controllers, as pure functions: which level, which K, how fast."""

from __future__ import annotations

from ringdove import limits

#: Every so many receives start at another than the highest level, in turn, so that none starves.
_FAIR_TURN_EVERY = 8

#: Visits without a collision after which an automatic spread narrows by one.
_CALM_VISITS = 16


def level_order(levels: int, turn: int) -> list[int]:
    """The priority levels in the order in which receive number `turn` visits them (T4.6).

    Highest first, but one receive in eight starts at another level, each level in turn; so the
    lowest of ten levels is still first once in eighty receives.
    """
    order = list(range(levels - 1, -1, -1))
    if levels > 1 and turn % _FAIR_TURN_EVERY == _FAIR_TURN_EVERY - 1:
        first = (turn // _FAIR_TURN_EVERY) % levels
        order.remove(first)
        order.insert(0, first)
    return order


class SpreadGauge:
    """An automatic K: wider while receivers get in each other's way, else narrower (B8)."""

    def __init__(self) -> None:
        self.spread = 1
        self._calm = 0

    def collided(self) -> None:
        """A visit found another receiver at work, or nothing where messages were expected."""
        self.spread = min(self.spread * 2, limits.SPREAD_MAX)
        self._calm = 0

    def succeeded(self) -> None:
        """A visit found what it came for."""
        self._calm += 1
        if self._calm >= _CALM_VISITS:
            self._calm = 0
            self.spread = max(1, self.spread - 1)


class TokenBucket:
    """At most `rate_per_s` on average, one second's worth at once (T2.8)."""

    def __init__(self, rate_per_s: float, now_ms: int) -> None:
        self.rate_per_s = rate_per_s
        self._burst = max(1.0, rate_per_s)
        self._tokens = self._burst
        self._at_ms = now_ms

    def take(self, want: int, now_ms: int) -> int:
        """How many of `want` may go now; they are counted as gone."""
        self._refill(now_ms)
        granted = min(want, int(self._tokens))
        self._tokens -= granted
        return granted

    def give_back(self, count: int) -> None:
        """Return what was granted and not used."""
        self._tokens = min(self._burst, self._tokens + count)

    def next_ms(self, now_ms: int) -> int:
        """When at least one may go."""
        self._refill(now_ms)
        missing = 1.0 - self._tokens
        return now_ms if missing <= 0 else now_ms + int(missing / self.rate_per_s * 1000) + 1

    def _refill(self, now_ms: int) -> None:
        gained = (now_ms - self._at_ms) / 1000 * self.rate_per_s
        self._tokens = min(self._burst, self._tokens + max(0.0, gained))
        self._at_ms = max(now_ms, self._at_ms)
