"""The memory store keeps the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringdove.stores.memory import MemoryStore
from stores.conformance import StoreContract
from stores.copies import CopyContract

if TYPE_CHECKING:
    from ringdove.clock import ManualClock


class TestMemoryStore(CopyContract, StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock, seed=1)
