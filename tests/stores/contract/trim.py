"""What goes and what stays: purging, retention, replay, statistics, settings."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ringdove import limits
from ringdove.controllers.catalog import Catalog
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import ClientError, QueueNotFound, SettingsStale
from ringdove.pending import run
from ringdove.stores.base import Start
from stores.driver import Driver, block, offsets_of


class TrimContract:
    """What purging, trimming and newer settings promise."""

    # -- purging and trimming -------------------------------------------------------------------

    def test_purging_marks_everything_done_for_everybody(self, driver: Driver) -> None:
        driver.make()
        driver.subscribe("s")
        driver.count(0, 6)
        driver.finish(3)
        driver.lease(2)
        assert run(driver.store.purge(driver.stripe)) == 6
        assert [s[1:] for s in driver.stats().subscriptions] == [(6, 0, 0, 0)] * 2
        assert (driver.trim(), driver.receive(), run(driver.store.purge(driver.stripe))) == (
            6,
            [],
            0,
        )

    def test_purging_takes_delayed_messages_along(self, driver: Driver) -> None:
        driver.make()
        driver.send(b"late", not_before_ms=driver.clock.now_ms() + 60_000)
        driver.send(b"held")
        driver.release(driver.take(), 50_000)
        run(driver.store.purge(driver.stripe))
        assert driver.sub()[1:] == (2, 0, 0, 0)
        assert driver.lease().due_ms is None
        driver.count(0, 3)
        assert driver.sub()[1:] == (2, 3, 0, 0)

    def test_a_position_passes_delayed_messages(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4, not_before_ms=driver.clock.now_ms() + 60_000)
        driver.lease()
        run(driver.store.commit(driver.stripe, "default", 3))
        sub = driver.sub()
        assert (sub.floor, sub.waiting + sub.delayed) == (3, 1)

    def test_a_purged_receipt_has_nothing_left(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        leased = driver.take()
        run(driver.store.purge(driver.stripe))
        assert driver.ack(leased) == 0

    def test_a_block_is_trimmed_whole(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        driver.finish(3)
        assert (driver.trim(), driver.stats().head) == (0, 0)
        driver.finish(1)
        assert (driver.trim(), driver.stats().nbytes) == (4, 0)

    def test_offsets_are_never_used_again(self, driver: Driver) -> None:
        """I7."""
        driver.make()
        driver.count(0, 4)
        run(driver.store.purge(driver.stripe))
        driver.trim()
        assert driver.count(0, 1).base == 4
        assert driver.stats().tail == 5

    @pytest.mark.parametrize(
        ("fewer", "more"), [({"stripes": 1}, {"stripes": 2}), ({"priority": 0}, {"priority": 1})]
    )
    def test_offsets_go_on_where_a_queue_had_fewer_stripes_meanwhile(
        self, driver: Driver, fewer: dict[str, int], more: dict[str, int]
    ) -> None:
        """I7: their messages' ids are known elsewhere, as positions and against repetition."""
        settings = QueueSettings.make(durability=driver.durability, **more)
        info = run(Catalog(driver.store).create("q", settings))
        driver.stripe = info.stripes()[-1]
        driver.count(0, 3)
        assert driver.finish() == [b"0", b"1", b"2"]
        run(Catalog(driver.store).change("q", fewer))
        with pytest.raises(SettingsStale):
            driver.append(Segment(block(b"late")), version=info.version)
        run(Catalog(driver.store).subscribe("q", "new", Start("latest")))
        info = run(Catalog(driver.store).change("q", more))
        assert driver.stripe in info.stripes()
        assert driver.append(Segment(block(b"3")), version=info.version) == [Appended(3)]
        assert [sub[:3] for sub in driver.stats().subscriptions] == [
            ("default", 3, 1),
            ("new", 3, 1),
        ]
        run(driver.store.purge(driver.stripe))
        run(Catalog(driver.store).change("q", fewer))
        run(Catalog(driver.store).delete("q"))
        with pytest.raises(QueueNotFound):
            driver.stats()

    def test_retention_gives_up_what_nobody_took(self, driver: Driver) -> None:
        """I6."""
        driver.make(retention_ms=1000)
        driver.count(0, 2)
        leased = driver.take(1, lease_ms=9000)
        driver.clock.sleep_ms(500)
        driver.count(2, 4)
        driver.clock.sleep_ms(499)
        assert driver.trim() == 0
        driver.clock.sleep_ms(1)
        assert driver.sub()[1:] == (2, 2, 0, 0)
        assert driver.trim() == 2
        assert driver.ack(leased) == 0
        assert driver.receive() == [b"2", b"3"]
        driver.clock.sleep_ms(500)
        assert (driver.trim(), driver.stats().nbytes) == (4, 0)

    def test_retention_gives_up_delayed_messages_too(self, driver: Driver) -> None:
        driver.make(retention_ms=1000)
        driver.count(0, 2, not_before_ms=driver.clock.now_ms() + 5000)
        driver.lease()
        driver.clock.sleep_ms(1000)
        assert driver.sub()[1:] == (2, 0, 0, 0)

    def test_trimming_drops_all_that_may_go_however_much(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "TRIM_BLOCKS_PER_COMMIT_MAX", 3)
        driver.make(retention_ms=1000)
        for first in range(10):
            driver.count(first, first + 1)
        driver.clock.sleep_ms(1000)
        assert driver.trim() == 10

    def test_done_messages_are_kept_for_replay(self, driver: Driver) -> None:
        driver.make(keep_done_ms=1000)
        driver.count(0, 2)
        driver.count(2, 4)
        driver.finish(2)
        driver.clock.sleep_ms(600)
        driver.finish(2)
        driver.clock.sleep_ms(399)
        assert (driver.trim(), driver.replay(0)) == (0, [b"0", b"1", b"2", b"3"])
        assert driver.subscribe("again", "time", 0) == 0
        run(driver.store.unsubscribe(driver.stripe, "again"))
        driver.clock.sleep_ms(1)
        assert driver.trim() == 2
        driver.clock.sleep_ms(600)
        assert driver.trim() == 4

    def test_a_replay_is_not_trimmed_under_its_reader(self, driver: Driver) -> None:
        """I6: what a new subscription is not done with stays, however long ago others were."""
        driver.make(keep_done_ms=1000)
        for first in range(6):
            driver.count(first, first + 1)
        driver.finish()
        driver.clock.sleep_ms(999)
        driver.subscribe("again", "offset", 2)
        assert driver.finish(1, sub="again") == [b"2"]
        driver.clock.sleep_ms(1)
        assert driver.trim() <= 2
        driver.clock.sleep_ms(5000)
        assert driver.trim() == 3
        assert driver.finish(sub="again") == [b"3", b"4", b"5"]

    def test_a_replay_by_offset_delivers_what_was_done(self, driver: Driver) -> None:
        driver.make(keep_done_ms=1000)
        driver.count(0, 4)
        driver.finish()
        driver.subscribe("again", "offset", 1)
        assert driver.finish(sub="again") == [b"1", b"2", b"3"]
        assert driver.receive() == []

    # -- statistics -----------------------------------------------------------------------------

    def test_statistics_tell_bytes_and_age(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        first_ms = driver.clock.now_ms()
        driver.clock.sleep_ms(10)
        driver.count(3, 5)
        size = block(b"0", b"1", b"2").nbytes, block(b"3", b"4").nbytes
        assert (driver.stats().nbytes, driver.stats().oldest_ms) == (sum(size), first_ms)
        driver.finish(3)
        driver.trim()
        assert (driver.stats().nbytes, driver.stats().oldest_ms) == (size[1], first_ms + 10)

    def test_every_message_is_waiting_leased_or_done(self, driver: Driver) -> None:
        """I2."""
        driver.make()
        driver.count(0, 10)
        first, second = driver.take(3), driver.take(4)
        driver.release(first, 5000, 0, 1)
        driver.ack(second, 4, 6)
        sub = driver.sub()
        assert sub[1:] == (0, 3, 4, 1)
        done = sub.floor + 2
        assert done + sub.waiting + sub.leased + sub.delayed == driver.stats().tail

    # -- settings -------------------------------------------------------------------------------

    def test_newer_settings_count_from_now_on(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.lease(1, lease_ms=1000)
        driver.change(receives_max=1)
        driver.clock.sleep_ms(1000)
        assert offsets_of(driver.lease(version=2).dead) == [0]
        with pytest.raises(SettingsStale):
            driver.lease(version=1)

    def test_version_zero_means_whatever_it_is(self, driver: Driver) -> None:
        driver.make()
        driver.change(lease_ms=5)
        driver.send(b"x")
        assert driver.receive() == [b"x"]

    def test_older_settings_do_not_replace_newer_ones(self, driver: Driver) -> None:
        driver.make()
        driver.change(retention_ms=5000)
        with pytest.raises(SettingsStale):
            run(driver.store.configure(driver.stripe, QueueSettings.make(), 1))
        driver.lease(version=2)

    def test_shorter_retention_applies_to_what_is_stored(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.clock.sleep_ms(2000)
        assert driver.trim() == 0
        driver.change(retention_ms=1000)
        assert driver.trim() == 2

    def test_keeping_done_messages_does_not_put_retention_off(self, driver: Driver) -> None:
        driver.make(retention_ms=1000)
        driver.count(0, 1)
        driver.finish()
        driver.trim()
        driver.count(1, 2)
        driver.clock.sleep_ms(100)
        driver.change(keep_done_ms=300)
        driver.stats()
        driver.clock.sleep_ms(900)
        assert driver.trim() == 2

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_another_order_does_not_bring_back_what_is_done(
        self, driver: Driver, order: str
    ) -> None:
        """I3, I4: changed or refused, what is done stays done and what is leased stays leased."""
        driver.make()
        driver.send(b"0", b"1", b"2", keys=[b"a", b"a", b"a"])
        leased = driver.take(lease_ms=1000)
        driver.ack(leased, 1, 2)
        with suppress(ClientError):
            driver.change(order=order)
        assert driver.receive() == []
        driver.clock.sleep_ms(1000)
        assert driver.receive() == [b"0", b"2"]

    def test_what_is_delayed_is_counted_as_such_before_anybody_asks_for_it(
        self, driver: Driver
    ) -> None:
        driver.make()
        driver.subscribe("other")
        driver.send(b"now")
        driver.count(0, 3, not_before_ms=driver.clock.now_ms() + 1000)
        assert [tuple(sub[2:]) for sub in driver.stats().subscriptions] == [(1, 0, 3)] * 2
        driver.lease()
        assert tuple(driver.sub()[2:]) == (0, 1, 3)
        driver.clock.sleep_ms(1000)
        assert [tuple(sub[2:]) for sub in driver.stats().subscriptions] == [(3, 1, 0), (4, 0, 0)]
