"""What takes long, done by threads: looks at a fabric and at a pipeline, and plans."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from ringdove.errors import InvalidArgument
from ringdove.frontends.rest.problems import Throttled
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.clock import Clock

T = TypeVar("T")

#: Milliseconds for which what was seen is good enough.
_FRESH_MS = 1_500

#: Threads, and work that they have or that waits for them.
_THREADS = 2
_WORK_MAX = 16


class Asides:
    """Does work aside; looks have names, and each is done once at a time for all who ask."""

    def __init__(self, clock: Clock, looks: dict[str, Callable[[], Any]]) -> None:
        self._clock = clock
        self._looks = looks
        self._under_way: dict[str, tuple[int, Pending[Any]]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._work: set[Pending[Any]] = set()

    @property
    def names(self) -> list[str]:
        """What can be looked at."""
        return sorted(self._looks)

    async def look(self, name: str) -> Any:
        """What there is to see, now or a moment ago."""
        if name not in self._looks:
            raise InvalidArgument(f"This server has no {name} to look at.")
        now_ms = self._clock.now_ms()
        begun_ms, pending = self._under_way.get(name, (-_FRESH_MS, None))
        if pending is None or (pending.done and now_ms - begun_ms >= _FRESH_MS):
            pending = self.run(self._looks[name])
            self._under_way[name] = (now_ms, pending)
        return await pending

    def run(self, work: Callable[[], T]) -> Pending[T]:
        """Have work done; Throttled when there is much of it."""
        self._work = {pending for pending in self._work if not pending.done}
        if len(self._work) >= _WORK_MAX:
            raise Throttled("Too much is asked for at once: try again in a moment.")
        pending: Pending[T] = Pending()

        def do() -> None:
            try:
                found = work()
            except BaseException as error:  # noqa: BLE001  delivered to whoever waits
                pending.fail(error)
            else:
                pending.resolve(found)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "ringdove-console")
        self._threads.submit(do)
        self._work.add(pending)
        return pending

    def close(self) -> None:
        """Begin nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
