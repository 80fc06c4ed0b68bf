"""The stripe that tests of the embedded store's insides drive; contracts bring their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringdove.clock import ManualClock
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore
from stores.driver import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    clock = ManualClock()
    store = EmbeddedStore(tmp_path, clock, seed=1)
    yield Driver(store, clock)
    run(store.close())
