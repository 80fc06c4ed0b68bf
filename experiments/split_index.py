"""A message index whose receive takes two steps: what B2 looks like on a store without atomic ones.

The index of a queue is a sorted set of message numbers by the time T at which each becomes visible.
A receive reads the K oldest visible entries and picks one at random; then, in a second request,
sets its T to now + timeout. Whoever reads in between may pick the same entry: that is where the
duplicates of BlueDove come from, and why a larger K means fewer.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from ringdove.stores.fabric.cluster import Cluster, slot_of
from ringdove.stores.fabric.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S = 10
#: Entries among which "no order" picks.
_INFINITE = 1_000


class SplitIndex:
    """One queue."""

    def __init__(self, cluster: Cluster, name: str, spread: int | str, seed: int = 0) -> None:
        self._cluster = cluster
        self._index, self._bodies = f"split:{{{name}}}:t", f"split:{{{name}}}:b"
        self._slot = slot_of(name.encode())
        self._spread = spread if isinstance(spread, int) else _INFINITE
        self._random = random.Random(seed)

    async def send_many(self, bodies: Sequence[bytes]) -> None:
        """Put in messages, each visible at once and behind those before it."""
        now_s = time.time()
        for number, body in enumerate(bodies):
            await self._ask("HSET", self._bodies, number, body)
            visible_s = now_s - 1 + number * 1e-6
            await self._ask("ZADD", self._index, f"{visible_s:.6f}", number)

    async def receive(self) -> tuple[bytes, bytes] | None:
        """A message's number and body; None when none is visible."""
        now_s = time.time()
        found = await self._ask(
            "ZRANGE", self._index, "-inf", f"{now_s:.6f}", "BYSCORE", "LIMIT", 0, self._spread
        )
        if not found:
            return None
        number = self._random.choice(found)
        until_s = now_s + _TIMEOUT_S
        await self._ask("ZADD", self._index, "XX", f"{until_s:.6f}", number)
        body = await self._ask("HGET", self._bodies, number)
        return None if body is None else (number, body)

    async def delete(self, number: bytes) -> None:
        """Be done with a message."""
        await self._ask("ZREM", self._index, number)
        await self._ask("HDEL", self._bodies, number)

    async def is_empty(self) -> bool:
        """Whether every message was deleted."""
        return bool(await self._ask("ZCARD", self._index) == 0)

    async def _ask(self, *words: Any) -> Any:
        reply, _ = await self._cluster.ask(self._slot, words)
        return reply


async def open_cluster(url: str) -> Cluster:
    """The cluster at a store's URL."""
    cluster = Cluster(parse_url(url).nodes)
    await cluster.open()
    return cluster
