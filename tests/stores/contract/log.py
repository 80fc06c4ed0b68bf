"""The log: making and deleting it, reading, subscriptions, positions, watching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringdove.core.settings import QueueSettings
from ringdove.errors import (
    InvalidArgument,
    OffsetTrimmed,
    QueueNotFound,
    SubscriptionNotFound,
)
from ringdove.pending import run

if TYPE_CHECKING:
    from stores.driver import Driver


class LogContract:
    """What the calls beside append, lease and claims promise."""

    def test_a_new_stripe_is_empty_and_has_one_subscription(self, driver: Driver) -> None:
        driver.make()
        stats = driver.stats()
        assert (stats.head, stats.tail, stats.nbytes, stats.oldest_ms) == (0, 0, 0, 0)
        assert stats.subscriptions == [("default", 0, 0, 0, 0)]

    def test_creating_it_again_changes_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        run(driver.store.create(driver.stripe, driver.settings.replace(order="strict"), 9))
        assert driver.stats().tail == 3
        assert driver.lease(1, version=1).runs
        assert driver.lease(1, version=1).runs

    def test_creating_it_again_with_another_durability_changes_nothing(
        self, driver: Driver
    ) -> None:
        driver.make()
        for durability in ("disk", "memory"):
            other = QueueSettings.make(durability=durability)
            run(driver.store.create(driver.stripe, other, 1))
        run(driver.store.delete(driver.stripe))
        with pytest.raises(QueueNotFound):
            driver.stats()

    def test_a_deleted_stripe_is_gone_for_every_call(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        run(driver.store.delete(driver.stripe))
        store, stripe = driver.store, driver.stripe
        for call in (
            lambda: driver.send(b"x"),
            driver.lease,
            driver.stats,
            driver.trim,
            driver.watch,
            lambda: driver.read(0),
            lambda: driver.subscribe("s"),
            lambda: driver.change(lease_ms=1),
            lambda: run(store.find(stripe, 0)),
            lambda: run(store.purge(stripe)),
            lambda: run(store.commit(stripe, "default", 1)),
            lambda: run(store.unsubscribe(stripe, "default")),
            lambda: run(store.extend(stripe, "default", [], 1, 0)),
        ):
            with pytest.raises(QueueNotFound):
                call()
        run(store.delete(stripe))

    def test_deleting_one_stripe_leaves_the_others(self, driver: Driver) -> None:
        driver.make(stripes=3)
        others = [driver.beside(number=1), driver.beside(number=2), driver.beside(level=1)]
        for other in (driver, *others):
            other.count(0, 2)
        run(driver.store.delete(driver.stripe))
        assert [other.finish() for other in others] == [[b"0", b"1"]] * 3

    # -- reading --------------------------------------------------------------------------------

    def test_reading_starts_at_the_offset_and_stops_at_its_limits(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        driver.count(4, 8)
        driver.count(8, 12)
        assert [(b.base, b.count) for b in driver.read(2)] == [(2, 2), (4, 4), (8, 4)]
        assert [(b.base, b.count) for b in driver.read(2, messages_max=4)] == [(2, 2), (4, 2)]
        assert [(b.base, b.count) for b in driver.read(5, bytes_max=1)] == [(5, 3)]
        assert driver.read(12) == driver.read(99) == []

    def test_reading_leases_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.read(0)
        assert driver.take().receives == 1
        assert driver.replay(0) == [b"0", b"1"]

    def test_what_has_been_trimmed_cannot_be_read(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.count(2, 4)
        driver.finish(2)
        assert driver.trim() == 2
        with pytest.raises(OffsetTrimmed):
            driver.read(1)
        assert driver.replay(2) == [b"2", b"3"]

    def test_finding_by_time(self, driver: Driver) -> None:
        driver.make()
        started_ms = driver.clock.now_ms()
        for first in range(0, 20, 2):
            driver.count(first, first + 2)
            driver.clock.sleep_ms(10)

        def find(after_ms: int) -> int:
            return run(driver.store.find(driver.stripe, started_ms + after_ms))

        assert [find(-5), find(0), find(1), find(10), find(45), find(90), find(91)] == [
            0, 0, 2, 2, 10, 18, 20,
        ]  # fmt: skip
        driver.finish(5)
        assert driver.trim() == 4
        assert (find(0), find(25), find(30)) == (4, 6, 6)

    def test_blocks_of_the_same_time_are_found_from_the_first(self, driver: Driver) -> None:
        driver.make()
        for first in range(9):
            driver.count(first, first + 1)
        assert run(driver.store.find(driver.stripe, driver.clock.now_ms())) == 0
        assert run(driver.store.find(driver.stripe, driver.clock.now_ms() + 1)) == 9

    def test_finding_in_an_empty_stripe_gives_its_tail(self, driver: Driver) -> None:
        driver.make()
        assert run(driver.store.find(driver.stripe, 0)) == 0
        driver.count(0, 3)
        driver.finish()
        driver.trim()
        assert run(driver.store.find(driver.stripe, 0)) == 3

    # -- subscriptions --------------------------------------------------------------------------

    def test_subscriptions_start_where_they_say(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        driver.clock.sleep_ms(10)
        driver.count(4, 8)
        now_ms = driver.clock.now_ms()
        assert driver.subscribe("all", "earliest") == 0
        assert driver.subscribe("new", "latest") == 8
        assert driver.subscribe("from", "offset", 3) == 3
        assert driver.subscribe("since", "time", now_ms) == 4
        driver.count(8, 9)
        starts = {s.name: (s.floor, s.waiting) for s in driver.stats().subscriptions}
        assert starts == {
            "all": (0, 9),
            "default": (0, 9),
            "from": (3, 6),
            "new": (8, 1),
            "since": (4, 5),
        }
        assert driver.receive(2, sub="since") == [b"4", b"5"]

    def test_a_start_outside_the_log_is_moved_into_it(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        driver.count(4, 8)
        driver.finish(4)
        assert driver.trim() == 4
        assert driver.subscribe("early", "offset", 1) == 4
        assert driver.subscribe("late", "offset", 99) == 8
        assert driver.subscribe("future", "time", driver.clock.now_ms() + 1) == 8

    def test_an_unknown_kind_of_start_is_refused(self, driver: Driver) -> None:
        driver.make()
        with pytest.raises(InvalidArgument):
            driver.subscribe("s", "yesterday")
        assert [s.name for s in driver.stats().subscriptions] == ["default"]

    def test_subscribing_again_changes_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        driver.subscribe("s")
        driver.finish(2, sub="s")
        driver.lease(1, sub="s")
        assert driver.subscribe("s", "latest") == 2
        assert driver.sub("s")[1:] == (2, 1, 1, 0)

    def test_subscriptions_are_independent(self, driver: Driver) -> None:
        driver.make()
        driver.subscribe("s")
        driver.count(0, 3)
        mine = driver.take(2)
        theirs = driver.take(3, sub="s")
        assert driver.ack(theirs, sub="s") == 3
        assert driver.ack(mine) == 2
        assert (driver.sub()[1:], driver.sub("s")[1:]) == ((2, 1, 0, 0), (3, 0, 0, 0))

    def test_nothing_is_trimmed_before_every_subscription_is_done(self, driver: Driver) -> None:
        """I6."""
        driver.make()
        driver.subscribe("slow")
        driver.count(0, 2)
        driver.count(2, 4)
        driver.finish()
        assert driver.trim() == 0
        driver.finish(3, sub="slow")
        assert driver.trim() == 2
        assert driver.finish(sub="slow") == [b"3"]
        assert driver.trim() == 4

    def test_an_unsubscribed_reader_holds_nothing_back(self, driver: Driver) -> None:
        driver.make()
        driver.subscribe("slow")
        driver.count(0, 2)
        driver.finish()
        run(driver.store.unsubscribe(driver.stripe, "slow"))
        assert driver.trim() == 2
        with pytest.raises(SubscriptionNotFound):
            driver.lease(sub="slow")
        run(driver.store.unsubscribe(driver.stripe, "slow"))

    def test_a_name_used_again_starts_afresh(self, driver: Driver) -> None:
        driver.make()
        driver.subscribe("s")
        driver.count(0, 4)
        driver.lease(1, sub="s")
        driver.ack(driver.take(1, sub="s"), sub="s")
        run(driver.store.unsubscribe(driver.stripe, "s"))
        driver.subscribe("s")
        assert driver.sub("s")[1:] == (0, 4, 0, 0)
        assert driver.take(sub="s").receives == 1

    def test_without_subscriptions_everything_is_kept(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        run(driver.store.unsubscribe(driver.stripe, "default"))
        driver.count(2, 4)
        assert driver.trim() == 0
        assert driver.subscribe("later") == 0

    # -- positions ------------------------------------------------------------------------------

    def test_committing_a_position_marks_everything_below_done(self, driver: Driver) -> None:
        driver.make()
        for first in range(0, 8, 2):
            driver.count(first, first + 2)
        leased = driver.take(5)
        run(driver.store.commit(driver.stripe, "default", 3))
        assert driver.sub()[1:] == (3, 3, 2, 0)
        assert driver.trim() == 2
        assert driver.ack(leased) == 2
        run(driver.store.commit(driver.stripe, "default", 1))
        assert driver.sub().floor == 5

    def test_committing_beyond_the_tail_stops_there(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        run(driver.store.commit(driver.stripe, "default", 50))
        driver.count(2, 4)
        assert driver.receive() == [b"2", b"3"]

    def test_committing_joins_what_was_done_before(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 10)
        leased = driver.take()
        driver.ack(leased, 4, 7)
        driver.ack(leased, 8, 9)
        run(driver.store.commit(driver.stripe, "default", 4))
        assert driver.sub()[1:] == (7, 0, 2, 0)
        run(driver.store.commit(driver.stripe, "default", 8))
        assert driver.sub()[1:] == (9, 0, 1, 0)

    def test_an_unknown_subscription_has_no_position(self, driver: Driver) -> None:
        driver.make()
        with pytest.raises(SubscriptionNotFound):
            run(driver.store.commit(driver.stripe, "nobody", 1))

    # -- watching -------------------------------------------------------------------------------

    def test_an_append_wakes_who_watches(self, driver: Driver) -> None:
        driver.make()
        watch = driver.watch()
        assert not watch.done
        driver.send(b"x")
        assert watch.done
        assert not driver.watch().done

    def test_a_release_wakes_who_watches(self, driver: Driver) -> None:
        driver.make()
        driver.send(b"x")
        leased = driver.take()
        watch = driver.watch()
        driver.release(leased, 0)
        assert watch.done

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_unlocking_wakes_who_watches(self, driver: Driver, order: str) -> None:
        driver.make(order=order)
        driver.send(b"x", b"y", keys=[b"a", b"a"])
        leased = driver.take(1)
        watch = driver.watch()
        assert driver.receive() == []
        driver.ack(leased)
        assert watch.done
        assert driver.receive() == [b"y"]

    def test_deleting_wakes_who_watches(self, driver: Driver) -> None:
        driver.make()
        watch = driver.watch()
        run(driver.store.delete(driver.stripe))
        assert watch.done

    def test_a_watch_is_of_its_stripe(self, driver: Driver) -> None:
        driver.make(stripes=2)
        other = driver.beside(number=1)
        watch = driver.watch()
        other.send(b"x")
        assert not watch.done

    def test_closing_twice_is_harmless(self, driver: Driver) -> None:
        driver.make()
        run(driver.store.close())
        run(driver.store.close())
