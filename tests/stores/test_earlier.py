"""Receipts from before a message was leased again: refused, unless the caller says they count."""

import pytest

from ringdove.clock import ManualClock
from ringdove.errors import ReceiptStale
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore
from stores.driver import Driver


@pytest.fixture(params=["memory", "embedded"])
def driver(request, tmp_path):
    clock = ManualClock()
    store = MemoryStore(clock) if request.param == "memory" else EmbeddedStore(tmp_path, clock)
    yield Driver(store, clock)
    run(store.close())


def leased_twice(driver: Driver, **settings: object):
    driver.make(**settings)
    driver.send(b"a", b"b")
    [first] = [delivered.run for delivered in driver.lease(2, lease_ms=1).runs]
    driver.release(first, 0)
    driver.lease(2)
    return driver.claim(first)


def test_an_earlier_receipt_is_stale(driver):
    claim = leased_twice(driver)
    [answer] = run(driver.store.acknowledge(driver.stripe, "default", [claim], 0))
    assert isinstance(answer, ReceiptStale)


@pytest.mark.parametrize("act", ["acknowledge", "extend", "release"])
def test_an_earlier_receipt_counts_where_that_is_asked_for(driver, act):
    claim = leased_twice(driver)._replace(earlier=True)
    more = {"acknowledge": (), "extend": (60_000,), "release": (0,)}[act]
    answers = run(getattr(driver.store, act)(driver.stripe, "default", [claim], *more, 0))
    assert answers == [2]


def test_where_order_is_promised_an_earlier_receipt_is_stale_all_the_same(driver):
    claim = leased_twice(driver, order="key")._replace(earlier=True)
    [answer] = run(driver.store.acknowledge(driver.stripe, "default", [claim], 0))
    assert isinstance(answer, ReceiptStale)
