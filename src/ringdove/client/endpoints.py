"""Where a link connects next: from a fixed list here, from managers of tiers in roaming.py."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.client.address import Endpoint


class Endpoints(Protocol):
    """What a link asks for places, and tells what became of them. On the link's loop."""

    #: Whether places differ in what they hold, so that a stream must take its position along.
    differ: bool

    def __str__(self) -> str:
        """All places, for people."""
        ...

    @property
    def count(self) -> int:
        """Places to try, which share the time for the first one."""
        ...

    async def next(self) -> Endpoint:
        """The next place to try; raises when none is known."""
        ...

    def welcomed(self, endpoint: Endpoint) -> None:
        """The place has taken the client in."""
        ...

    def ended(self, endpoint: Endpoint) -> None:
        """The place could not be reached, or the connection to it has ended."""
        ...

    async def close(self) -> None:
        """Nobody will ask any more. Idempotent."""
        ...


class FixedEndpoints:
    """Places that all serve the same: one after the other, from a random one on."""

    differ = False

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = list(endpoints)
        random.Random().shuffle(self._endpoints)

    def __str__(self) -> str:
        return ", ".join(map(str, self._endpoints))

    @property
    def count(self) -> int:
        """See Endpoints."""
        return len(self._endpoints)

    async def next(self) -> Endpoint:
        """See Endpoints."""
        endpoint = self._endpoints.pop(0)
        self._endpoints.append(endpoint)
        return endpoint

    def welcomed(self, endpoint: Endpoint) -> None:
        """See Endpoints."""

    def ended(self, endpoint: Endpoint) -> None:
        """See Endpoints."""

    async def close(self) -> None:
        """See Endpoints."""
