"""Leasing: who gets what, for how long, and what the answer says about the future (B2, B3)."""

from __future__ import annotations

from collections import Counter

import pytest

from ringdove import limits
from ringdove.errors import LimitExceeded, QueueNotFound, SettingsStale, SubscriptionNotFound
from stores.driver import Driver, bodies_of, offsets_of


class LeaseContract:
    """What `lease` promises on queues of any order; the tests use loose ones."""

    def test_the_oldest_messages_come_first(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        driver.count(3, 6)
        assert driver.receive(2) == [b"0", b"1"]
        assert driver.receive(2) == [b"2", b"3"]
        assert driver.receive(9) == [b"4", b"5"]

    def test_a_run_may_span_blocks_and_holds_exactly_its_messages(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        driver.count(3, 6)
        driver.lease(1)
        [delivered] = driver.lease(4).runs
        assert (delivered.run.lo, delivered.run.hi) == (1, 5)
        assert [(b.base, b.bodies()) for b in delivered.blocks] == [
            (1, [b"1", b"2"]),
            (3, [b"3", b"4"]),
        ]

    def test_a_leased_message_is_hidden_until_its_time(self, driver: Driver) -> None:
        """I3."""
        driver.make()
        driver.count(0, 1)
        leased = driver.take(lease_ms=1000)
        assert leased.until_ms == driver.clock.now_ms() + 1000
        driver.clock.sleep_ms(999)
        assert driver.receive() == []
        driver.clock.sleep_ms(1)
        assert driver.receive() == [b"0"]

    def test_receives_are_counted_and_the_first_is_remembered(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        started_ms = driver.clock.now_ms()
        for receives in range(1, 5):
            leased = driver.take(lease_ms=1000)
            assert (leased.receives, leased.first_ms) == (receives, started_ms)
            driver.clock.sleep_ms(1000)

    def test_every_lease_has_a_token_of_its_own(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 50)
        tokens = {driver.take(1).token for _ in range(50)}
        driver.clock.sleep_ms(30_000)
        tokens |= {driver.take(1).token for _ in range(50)}
        assert len(tokens) == 100

    def test_expired_messages_come_before_new_ones(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 6)
        driver.lease(3, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        found = driver.lease(5).runs
        assert bodies_of(found) == [b"0", b"1", b"2", b"3", b"4"]
        assert [(d.run.lo, d.run.hi, d.run.receives) for d in found] == [(0, 3, 2), (3, 5, 1)]

    def test_part_of_an_expired_run_may_be_leased_again(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 10)
        driver.lease(10, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        assert offsets_of(driver.lease(3).runs) == [0, 1, 2]
        assert offsets_of(driver.lease(4).runs) == [3, 4, 5, 6]
        assert offsets_of(driver.lease(4).runs) == [7, 8, 9]

    def test_done_is_never_leased_again(self, driver: Driver) -> None:
        """I4."""
        driver.make()
        driver.count(0, 6)
        leased = driver.take(lease_ms=1000)
        driver.ack(leased, 1, 3)
        driver.ack(leased, 4, 5)
        driver.clock.sleep_ms(1000)
        assert offsets_of(driver.lease().runs) == [0, 3, 5]

    def test_a_delayed_block_is_passed_by_and_comes_when_due(self, driver: Driver) -> None:
        driver.make()
        due_ms = driver.clock.now_ms() + 500
        driver.send(b"late", b"later", not_before_ms=due_ms)
        driver.send(b"now")
        assert driver.receive() == [b"now"]
        driver.clock.sleep_ms(499)
        assert driver.receive() == []
        driver.clock.sleep_ms(1)
        assert driver.receive(1) == [b"late"]
        assert driver.receive() == [b"later"]

    def test_delays_may_be_of_any_length(self, driver: Driver) -> None:
        driver.make(retention_ms=limits.DURATION_MS_MAX)
        year_ms = 366 * 24 * 3600 * 1000
        due_ms = driver.clock.now_ms() + 9 * year_ms
        driver.send(b"patient", not_before_ms=due_ms)
        driver.clock.sleep_ms(9 * year_ms - 1)
        assert driver.lease().due_ms == due_ms
        driver.clock.sleep_ms(1)
        assert driver.receive() == [b"patient"]

    # -- what the answer says about the future --------------------------------------------------

    def test_an_empty_queue_has_nothing_due(self, driver: Driver) -> None:
        driver.make()
        delivery = driver.lease()
        assert (delivery.runs, delivery.dead, delivery.more, delivery.due_ms) == (
            [],
            [],
            False,
            None,
        )

    def test_what_is_due_is_said_also_when_something_was_found(self, driver: Driver) -> None:
        driver.make()
        now_ms = driver.clock.now_ms()
        driver.send(b"late", not_before_ms=now_ms + 500)
        driver.count(0, 2)
        delivery = driver.lease(1)
        assert (bodies_of(delivery.runs), delivery.due_ms) == ([b"0"], now_ms)
        delivery = driver.lease()
        assert (bodies_of(delivery.runs), delivery.due_ms) == ([b"1"], now_ms + 500)

    def test_what_is_due_next_is_the_first_lease_or_delay_to_end(self, driver: Driver) -> None:
        driver.make()
        now_ms = driver.clock.now_ms()
        driver.count(0, 2)
        driver.lease(1, lease_ms=700)
        leased = driver.take(1, lease_ms=600)
        driver.send(b"late", not_before_ms=now_ms + 500)
        assert driver.lease().due_ms == now_ms + 500
        driver.clock.sleep_ms(500)
        driver.finish()
        assert driver.lease().due_ms == now_ms + 600
        driver.ack(leased)
        assert driver.lease().due_ms == now_ms + 700

    def test_a_mass_expiry_is_moved_in_bounded_steps(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "PROMOTE_PER_CALL_MAX", 10)
        driver.make()
        driver.count(0, 25)
        for _ in range(25):
            driver.lease(1, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        found, calls, more = [], 0, True
        while more:
            delivery = driver.lease(25)
            found += offsets_of(delivery.runs)
            more, calls = delivery.more, calls + 1
        assert (sorted(found), calls) == (list(range(25)), 3)

    def test_passing_delayed_blocks_is_bounded_per_call(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SCAN_PER_CALL_MAX", 10)
        driver.make()
        for _ in range(5):
            driver.count(0, 5, not_before_ms=driver.clock.now_ms() + 500)
        driver.send(b"now")
        delivery = driver.lease()
        assert (delivery.runs, delivery.more) == ([], True)
        assert not driver.lease().runs
        assert driver.receive() == [b"now"]

    def test_too_many_leases_are_refused_until_some_end(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "LEASES_MAX", 3)
        driver.make()
        driver.count(0, 5)
        first = driver.take(1)
        driver.lease(1)
        driver.lease(1)
        with pytest.raises(LimitExceeded):
            driver.lease(1)
        driver.ack(first)
        assert driver.receive(1) == [b"3"]

    def test_expired_leases_do_not_stand_in_the_way_of_new_ones(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "LEASES_MAX", 3)
        driver.make()
        driver.count(0, 3)
        for _ in range(3):
            driver.lease(1, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        assert driver.receive(1) == [b"0"]

    # -- dead letters ---------------------------------------------------------------------------

    def test_a_message_received_too_often_comes_back_as_dead(self, driver: Driver) -> None:
        driver.make(receives_max=2)
        driver.count(0, 3)
        for _ in range(2):
            driver.lease(1, lease_ms=1000)
            driver.clock.sleep_ms(1000)
        delivery = driver.lease(1)
        assert bodies_of(delivery.runs) == [b"1"]
        [dead] = delivery.dead
        assert (bodies_of([dead]), dead.run.receives) == ([b"0"], 3)

    def test_a_dead_message_is_leased_and_settled_like_any_other(self, driver: Driver) -> None:
        driver.make(receives_max=1)
        driver.count(0, 1)
        driver.lease(lease_ms=1000)
        driver.clock.sleep_ms(1000)
        [dead] = driver.lease(lease_ms=1000).dead
        assert (driver.lease().dead, driver.sub().leased) == ([], 1)
        driver.clock.sleep_ms(1000)
        [again] = driver.lease().dead
        assert again.run.token != dead.run.token
        assert driver.ack(again.run) == 1
        assert driver.sub()[1:] == (1, 0, 0, 0)

    def test_without_a_limit_nothing_is_ever_dead(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        for receives in range(1, 30):
            [delivered] = driver.lease(lease_ms=1).runs
            assert delivered.run.receives == receives
            driver.clock.sleep_ms(1)

    # -- spread ---------------------------------------------------------------------------------

    def test_spread_picks_among_the_oldest_and_loses_nothing(self, driver: Driver) -> None:
        """B3."""
        driver.make()
        driver.count(0, 200)
        seen: Counter[int] = Counter()
        waiting = list(range(200))
        for _ in range(200):
            [offset] = offsets_of(driver.lease(1, spread=10).runs)
            assert offset in waiting[:10]
            waiting.remove(offset)
            seen[offset] += 1
        assert sorted(seen.elements()) == list(range(200))
        assert list(seen) != sorted(seen)

    def test_spread_hands_out_as_many_as_were_wanted(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 100)
        found = offsets_of(driver.lease(7, spread=3).runs)
        assert found == list(range(7))
        rest = [offsets_of(driver.lease(7, spread=20).runs) for _ in range(13)]
        assert [len(part) for part in rest] == [7] * 13
        taken = sum(rest, found)
        assert len(set(taken)) == len(taken)
        assert set(taken) < set(range(100))

    # -- subscriptions and versions -------------------------------------------------------------

    def test_an_unknown_stripe_or_subscription_is_refused(self, driver: Driver) -> None:
        with pytest.raises(QueueNotFound):
            driver.lease()
        driver.make()
        with pytest.raises(SubscriptionNotFound):
            driver.lease(sub="nobody")

    def test_a_stale_settings_version_leases_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        driver.change(lease_ms=5)
        for version in (1, 3):
            with pytest.raises(SettingsStale):
                driver.lease(version=version)
        assert driver.take().receives == 1

    def test_priorities_are_stripes_of_their_own(self, driver: Driver) -> None:
        driver.make(priority=2)
        urgent = driver.beside(level=2)
        driver.send(b"later")
        urgent.send(b"first")
        assert (urgent.receive(), driver.receive()) == ([b"first"], [b"later"])
        assert (urgent.stats().tail, driver.stats().tail) == (1, 1)
