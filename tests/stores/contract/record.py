"""Records: small versioned values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringdove import limits
from ringdove.errors import InvalidArgument, RecordConflict
from ringdove.pending import run
from ringdove.stores.base import Record

if TYPE_CHECKING:
    from stores.driver import Driver


class RecordContract:
    """What records promise."""

    def test_a_missing_record_is_none(self, driver: Driver) -> None:
        assert run(driver.store.get("nothing")) is None

    def test_versions_start_at_one_and_grow_by_one(self, driver: Driver) -> None:
        store = driver.store
        assert run(store.put("a", b"x")) == Record("a", b"x", 1)
        assert run(store.put("a", b"y")) == Record("a", b"y", 2)
        assert run(store.get("a")) == Record("a", b"y", 2)

    def test_a_record_is_written_only_at_the_expected_version(self, driver: Driver) -> None:
        store = driver.store
        run(store.put("a", b"x", expect=0))
        for wrong in (0, 2, 7):
            with pytest.raises(RecordConflict):
                run(store.put("a", b"z", expect=wrong))
        assert run(store.put("a", b"y", expect=1)) == Record("a", b"y", 2)
        assert run(store.get("a")) == Record("a", b"y", 2)

    def test_a_record_that_must_exist_is_not_made(self, driver: Driver) -> None:
        with pytest.raises(RecordConflict):
            run(driver.store.put("a", b"x", expect=1))
        assert run(driver.store.get("a")) is None

    def test_removing_answers_whether_it_was_there(self, driver: Driver) -> None:
        store = driver.store
        run(store.put("a", b"x"))
        assert run(store.remove("a")) is True
        assert run(store.remove("a")) is False
        assert run(store.get("a")) is None

    def test_a_record_is_removed_only_at_the_expected_version(self, driver: Driver) -> None:
        store = driver.store
        run(store.put("a", b"x"))
        with pytest.raises(RecordConflict):
            run(store.remove("a", expect=2))
        assert run(store.get("a")) is not None
        assert run(store.remove("a", expect=1)) is True

    def test_an_expired_record_is_as_good_as_missing(self, driver: Driver) -> None:
        store, clock = driver.store, driver.clock
        run(store.put("a", b"x", expires_ms=clock.now_ms() + 10))
        clock.sleep_ms(9)
        assert run(store.get("a")) == Record("a", b"x", 1, clock.now_ms() + 1)
        clock.sleep_ms(1)
        assert run(store.get("a")) is None
        assert run(store.scan("")) == []
        assert run(store.put("a", b"y", expect=0)) == Record("a", b"y", 1)

    def test_removing_an_expired_record_answers_no(self, driver: Driver) -> None:
        store, clock = driver.store, driver.clock
        run(store.put("a", b"x", expires_ms=clock.now_ms() + 10))
        clock.sleep_ms(10)
        assert run(store.remove("a")) is False

    def test_a_put_replaces_the_expiry(self, driver: Driver) -> None:
        store, clock = driver.store, driver.clock
        run(store.put("a", b"x", expires_ms=clock.now_ms() + 10))
        run(store.put("a", b"x"))
        clock.sleep_ms(1000)
        assert run(store.get("a")) == Record("a", b"x", 2)

    def test_a_scan_gives_a_prefix_in_key_order(self, driver: Driver) -> None:
        store = driver.store
        for key in ("q/b", "q/a", "q", "q/é", "r/a", "q/a/1", "Q/a"):
            run(store.put(key, key.encode()))
        assert [r.key for r in run(store.scan("q/"))] == ["q/a", "q/a/1", "q/b", "q/é"]
        assert [r.key for r in run(store.scan(""))][:2] == ["Q/a", "q"]
        assert run(store.scan("nothing")) == []

    def test_a_scan_is_paged_by_the_last_key(self, driver: Driver) -> None:
        store = driver.store
        keys = [f"k/{n:03}" for n in range(25)]
        for key in keys:
            run(store.put(key, b""))
        pages, after = [], ""
        while page := run(store.scan("k/", after, count_max=10)):
            pages.append([record.key for record in page])
            after = page[-1].key
        assert [len(page) for page in pages] == [10, 10, 5]
        assert sum(pages, []) == keys

    def test_a_scan_may_start_between_or_before_keys(self, driver: Driver) -> None:
        store = driver.store
        for key in ("k/1", "k/3"):
            run(store.put(key, b""))
        assert [r.key for r in run(store.scan("k/", after="k/2"))] == ["k/3"]
        assert [r.key for r in run(store.scan("k/", after="a"))] == ["k/1", "k/3"]
        assert run(store.scan("k/", after="z")) == []

    def test_expired_records_take_no_room_on_a_page(self, driver: Driver) -> None:
        store, clock = driver.store, driver.clock
        for n in range(6):
            run(store.put(f"k/{n}", b"", expires_ms=clock.now_ms() + 5 if n % 2 else 0))
        clock.sleep_ms(5)
        assert [r.key for r in run(store.scan("k/", count_max=2))] == ["k/0", "k/2"]

    def test_a_page_of_nothing_is_empty(self, driver: Driver) -> None:
        run(driver.store.put("a", b""))
        assert run(driver.store.scan("", count_max=0)) == []

    def test_a_record_beyond_its_limits_is_refused(self, driver: Driver) -> None:
        store = driver.store
        run(store.put("a", bytes(limits.RECORD_BYTES_MAX)))
        for key, value in (("b", bytes(limits.RECORD_BYTES_MAX + 1)), ("", b""), ("k" * 600, b"")):
            with pytest.raises(InvalidArgument):
                run(store.put(key, value))
        assert [record.key for record in run(store.scan(""))] == ["a"]
