"""Which nodes of a fabric are slow or gone, as far as one controller has seen (T3.5).

A node that has not answered within the slowdown time is excluded for a while: senders who may
choose go elsewhere. Then one request tries it again; if that is answered in time, the node is back.
This is a hint, never a fact: another controller may see it otherwise, and nothing depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class NodeHealth(NamedTuple):
    """What one controller has seen of a node."""

    #: Moving average of the time in which it answers; 0 before the first answer.
    latency_s: float
    excluded: bool


class _Exclusion(NamedTuple):
    until_ms: int
    pause_ms: int


class Health:
    """Remembers by node how fast it answers, and until when it is left alone."""

    def __init__(self, now_ms: Callable[[], int], first_ms: int = 1_000) -> None:
        self._now_ms = now_ms
        self._first_ms = first_ms
        self._excluded: dict[Hashable, _Exclusion] = {}
        self._latency_s: dict[Hashable, float] = {}

    def admits(self, node: Hashable) -> bool:
        """Whether a node may be asked; after its time, one request is let through to try it."""
        known = self._excluded.get(node)
        if known is None:
            return True
        now_ms = self._now_ms()
        if now_ms < known.until_ms:
            return False
        # Whoever asks now finds out for all; the others wait for his answer.
        self._excluded[node] = known._replace(until_ms=now_ms + known.pause_ms)
        return True

    def failed(self, node: Hashable) -> None:
        """A node was slow or gone: leave it alone, longer each time."""
        known = self._excluded.get(node)
        pause_ms = min(2 * known.pause_ms, _PAUSE_MS_MAX) if known else self._first_ms
        self._excluded[node] = _Exclusion(self._now_ms() + pause_ms, pause_ms)

    def answered(self, node: Hashable, elapsed_s: float) -> None:
        """A node has answered in time."""
        self._excluded.pop(node, None)
        known_s = self._latency_s.get(node)
        if known_s is None and len(self._latency_s) >= _NODES_MAX:
            self._latency_s.clear()
        self._latency_s[node] = (
            elapsed_s if known_s is None else known_s + (elapsed_s - known_s) / _AVERAGED
        )

    def excluded(self) -> list[Hashable]:
        """The nodes that are left alone now."""
        now_ms = self._now_ms()
        return [node for node, known in self._excluded.items() if known.until_ms > now_ms]

    def seen(self) -> dict[Hashable, NodeHealth]:
        """What is known of each node."""
        excluded = set(self.excluded())
        return {
            node: NodeHealth(self._latency_s.get(node, 0.0), node in excluded)
            for node in {**self._latency_s, **self._excluded}
        }


_PAUSE_MS_MAX = 10_000

#: Answers that an average is made of, about, and nodes whose average is remembered.
_AVERAGED = 16
_NODES_MAX = 10_000
