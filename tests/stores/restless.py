"""A store that is closed and opened again before every call.

What the contract promises, it promises across a clean restart too; so the whole suite runs once
more on this one. Watches belong to a process and are not tried here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.clock import Clock


class RestlessStore:
    """Forwards each call to a fresh `EmbeddedStore` on the same directory."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self._path = path
        self._store = EmbeddedStore(path, clock, seed=1)

    def reopen(self) -> None:
        """Close the directory and open it again."""
        run(self._store.close())
        self._store = EmbeddedStore(self._path, self.clock, seed=1)

    async def close(self) -> None:
        """Close for good."""
        await self._store.close()

    def __getattr__(self, name: str) -> Any:
        self.reopen()
        return getattr(self._store, name)
