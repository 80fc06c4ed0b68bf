"""One suite for all stores: inherit `StoreContract`, make the store, and it is tested.

The parts follow stores/base.py: appending, leasing, settling, claims of streams, ordered queues,
the log with its subscriptions, what is trimmed and when, and records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringdove.clock import ManualClock
from stores.contract.append import AppendContract
from stores.contract.claim import ClaimContract
from stores.contract.lease import LeaseContract
from stores.contract.log import LogContract
from stores.contract.order import OrderContract
from stores.contract.record import RecordContract
from stores.contract.settle import SettleContract
from stores.contract.trim import TrimContract
from stores.driver import Driver

if TYPE_CHECKING:
    from ringdove.stores.base import Store


class StoreContract(
    AppendContract,
    LeaseContract,
    SettleContract,
    ClaimContract,
    OrderContract,
    LogContract,
    TrimContract,
    RecordContract,
):
    """Inherit it, and give a fixture `store` that makes a fresh store on the fixture `clock`."""

    #: The durability of the queues that the suite makes.
    durability = "memory"

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def driver(self, store: Store, clock: ManualClock) -> Driver:
        return Driver(store, clock, self.durability)
