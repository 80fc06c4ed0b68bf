"""A store whose every call runs on an event loop, in a thread of its own.

The same code serves synchronous callers and asyncio; on a loop, reads that may touch the disk leave
it and commits are led by the writer thread. So the suite runs there too.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ringdove.stores.base import Store


class LoopedStore:
    """Forwards each call to a store through an event loop."""

    def __init__(self, store: Store) -> None:
        self.clock = store.clock
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def close(self) -> None:
        """Close the store, then the loop."""
        if self._loop.is_closed():
            return
        self._on_loop(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        if name == "watch":
            return method

        async def call(*arguments: Any, **options: Any) -> Any:
            return self._on_loop(method(*arguments, **options))

        return call
