"""Confirmable messages on their way: repeated, ever more rarely, until somebody says he has them.

RFC 7252, section 4.2: the first repetition after 2 to 3 s, then twice as long each time; after four
repetitions the message is given up. Used by both sides: by clients for requests, by servers for
notifications and responses that come late.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable

P = TypeVar("P", bound="Hashable")
N = TypeVar("N")

#: ACK_TIMEOUT in seconds, ACK_RANDOM_FACTOR and MAX_RETRANSMIT.
ACK_TIMEOUT_S = 2.0
ACK_RANDOM_FACTOR = 1.5
REPETITIONS_MAX = 4


class Due(NamedTuple, Generic[P, N]):
    """A message whose time has come: to be sent again, or given up when `data` is None."""

    peer: P
    data: bytes | None
    note: N


class _Sent(Generic[N]):
    __slots__ = ("data", "note", "repetitions", "timeout_s")

    def __init__(self, data: bytes, note: N, timeout_s: float) -> None:
        self.data = data
        self.note = note
        self.timeout_s = timeout_s
        self.repetitions = 0


class Outbox(Generic[P, N]):
    """Messages by peer and message id, each with a note of whoever sent it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._sent: dict[tuple[P, int], _Sent[N]] = {}
        self._times: list[tuple[float, int, tuple[P, int], _Sent[N]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, peer: P, mid: int, data: bytes, note: N, now_s: float) -> None:
        """A message was sent for the first time."""
        timeout_s = ACK_TIMEOUT_S * self._chance.uniform(1, ACK_RANDOM_FACTOR)
        sent = self._sent[peer, mid] = _Sent(data, note, timeout_s)
        self._schedule((peer, mid), sent, now_s)

    def settle(self, peer: P, mid: int) -> N | None:
        """The other side has the message, or wants it no more; its note, if it was on its way."""
        sent = self._sent.pop((peer, mid), None)
        return None if sent is None else sent.note

    def next_s(self) -> float | None:
        """When `due` has something to say at the earliest."""
        while self._times and self._sent.get(self._times[0][2]) is not self._times[0][3]:
            heappop(self._times)
        return self._times[0][0] if self._times else None

    def due(self, now_s: float) -> list[Due[P, N]]:
        """What is to be done by now."""
        found: list[Due[P, N]] = []
        while (next_s := self.next_s()) is not None and next_s <= now_s:
            _, _, key, sent = heappop(self._times)
            if sent.repetitions == REPETITIONS_MAX:
                del self._sent[key]
                found.append(Due(key[0], None, sent.note))
                continue
            sent.repetitions += 1
            sent.timeout_s *= 2
            self._schedule(key, sent, now_s)
            found.append(Due(key[0], sent.data, sent.note))
        return found

    def _schedule(self, key: tuple[P, int], sent: _Sent[N], now_s: float) -> None:
        self._count += 1
        heappush(self._times, (now_s + sent.timeout_s, self._count, key, sent))
