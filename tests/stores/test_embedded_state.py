"""Stripes of the embedded store between calls: who is told what, what is in use, what goes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from ringdove import limits
from ringdove.clock import ManualClock
from ringdove.errors import StoreCorrupted
from ringdove.pending import Started, run
from ringdove.stores.embedded import EmbeddedStore, records
from stores.driver import Driver

if TYPE_CHECKING:
    from pathlib import Path


def embedded(driver: Driver) -> EmbeddedStore:
    assert isinstance(driver.store, EmbeddedStore)
    return driver.store


def test_an_acknowledgement_that_is_interrupted_wakes_who_watches(driver: Driver) -> None:
    driver.make(order="strict").count(0, 2)
    claim = driver.claim(driver.take(1))
    watch = driver.watch()
    acknowledging = driver.store.acknowledge(driver.stripe, "default", [claim], 0)
    acknowledging.send(None)
    acknowledging.close()
    assert watch.done
    assert driver.receive() == [b"1"]


@pytest.mark.parametrize("when_full", ["refuse", "drop-oldest"])
def test_what_is_about_to_be_removed_leaves_its_room(driver: Driver, when_full: str) -> None:
    """It is out of sight as soon as somebody looks, and removed by the next commit."""
    large = bytes(4_000)
    driver.make(bytes_max=12_500, body_bytes_max=4_000, keep_done_ms=1_000, when_full=when_full)
    for _ in range(3):
        driver.send(large)
    driver.finish(1)
    driver.clock.sleep_ms(1_000)
    assert driver.stats().head == 1
    driver.send(large)
    assert driver.sub()[1:3] == (1, 3)


def test_a_damaged_record_fails_alone(driver: Driver) -> None:
    """Not with all that happens to be committed together."""
    driver.make()
    env = embedded(driver)._writers["disk"].env
    with env.lmdb.begin(write=True, db=env.db["records"]) as txn:
        txn.put(b"bad", b"\xc1")
    bad = Started(driver.store.put("bad", b"new"))
    good = Started(driver.store.put("good", b"new"))
    with pytest.raises(StoreCorrupted, match="fsck"):
        bad.finish()
    assert good.finish().version == 1


def test_a_page_of_records_costs_what_is_on_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"a/{number:02}" for number in range(30)]
    for key in [*keys, "b/"]:
        run(driver.store.put(key, b""))
    decoded = []
    decode = records._decode
    monkeypatch.setattr(records, "_decode", lambda raw: decoded.append(raw) or decode(raw))
    found: list[str] = []
    while page := run(driver.store.scan("a/", found[-1] if found else "", 7)):
        found += [record.key for record in page]
    assert found == keys
    assert len(decoded) == len(keys)


def test_a_stripe_that_somebody_uses_is_not_dropped(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim is only in memory, and who waits need not be woken."""
    monkeypatch.setattr(limits, "STRIPES_LOADED_MAX", 4)
    driver.make()
    claimed = run(driver.store.claim(driver.stripe, "default", b"reader", 60_000))
    watched = Driver(driver.store, driver.clock, queue=2).make()
    woken: list[int] = []
    watched.watch().when_done(partial(woken.append, 1))
    others = [Driver(driver.store, driver.clock, queue=n).make() for n in range(3, 30)]
    for other in others:
        assert other.stats().tail == 0
    run(driver.store.hold(driver.stripe, "default", claimed.fence, 60_000))
    assert not woken
    assert len(embedded(driver)._states) < 10


def test_a_subscription_that_is_removed_leaves_nothing(driver: Driver) -> None:
    driver.make(keep_done_ms=1_000).count(0, 3)
    for number in range(3):
        driver.subscribe(f"s{number}")
        driver.trim()
        run(driver.store.unsubscribe(driver.stripe, f"s{number}"))
    assert set(embedded(driver)._state(driver.stripe).stripe._done_marks) == {"", "default"}


def test_what_an_interrupted_leader_has_collected_is_written_by_the_next(tmp_path: Path) -> None:
    """Ctrl-C strikes between two steps of the collecting: others' acknowledgements are in it."""

    class Striking(set[int]):
        def clear(self) -> None:
            super().clear()
            raise KeyboardInterrupt

    clock = ManualClock()
    driver = Driver(EmbeddedStore(tmp_path, clock), clock, "disk").make()
    driver.count(0, 6)
    leased = driver.take()
    done = embedded(driver)._state(driver.stripe).stripe.subscription("default").done
    done.changed = Striking()
    with pytest.raises(KeyboardInterrupt):
        driver.ack(leased, 1, 2)
    done.changed = set(done.changed)
    driver.ack(leased, 4, 5)
    run(driver.store.close())
    driver = Driver(EmbeddedStore(tmp_path, clock), clock, "disk")
    clock.sleep_ms(30_000)
    assert driver.receive() == [b"0", b"2", b"3", b"5"]
    run(driver.store.close())
