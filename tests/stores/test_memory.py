"""The memory store keeps the contract."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from ringdove.clock import ManualClock
from ringdove.errors import RecordConflict
from ringdove.pending import run
from ringdove.stores.memory import MemoryStore
from stores.conformance import StoreContract
from stores.copies import CopyContract


class TestMemoryStore(CopyContract, StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock, seed=1)


def test_threads_do_not_get_into_each_others_operations() -> None:
    """One looks at the clock in the middle of its own; the other gets a moment to go wrong."""
    made: list[str] = []

    def make() -> None:
        with suppress(RecordConflict):
            run(store.put("k", b"", expect=0))
            made.append(threading.current_thread().name)

    other = threading.Thread(target=make, name="other")

    class Slow(ManualClock):
        def now_ms(self) -> int:
            if threading.current_thread() is not other and not other.ident:
                other.start()
                other.join(0.2)
            return super().now_ms()

    store = MemoryStore(Slow())
    make()
    other.join()
    assert len(made) == 1
