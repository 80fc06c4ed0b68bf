"""Reads that may touch the disk, kept away from event loops."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ringdove.pending import Pending, on_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Threads that read on behalf of an event loop.
_THREADS = 4


class Readers:
    """A few threads, begun when an event loop first needs them."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, read: Callable[[], T]) -> T:
        """Run a read: here for a synchronous caller, else in a thread."""
        if not on_event_loop():
            return read()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "ringdove-reader")
        pending: Pending[T] = Pending()

        def work() -> None:
            try:
                pending.resolve(read())
            except BaseException as error:  # noqa: BLE001  delivered to whoever awaits
                pending.fail(error)

        self._pool.submit(work)
        return await pending

    def close(self) -> None:
        """Finish what was begun."""
        if self._pool is not None:
            self._pool.shutdown()
