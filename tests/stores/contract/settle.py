"""Settling claims: acknowledge, extend, release, and what an old receipt is still worth (I5)."""

from __future__ import annotations

import pytest

from ringdove import limits
from ringdove.errors import QueueNotFound, ReceiptStale, SettingsStale, SubscriptionNotFound
from ringdove.pending import run
from ringdove.stores.base import Claim
from stores.driver import Driver, offsets_of


class SettleContract:
    """What `acknowledge`, `extend` and `release` promise; ordered queues have their own part."""

    def test_acknowledging_answers_how_many(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 5)
        leased = driver.take(4)
        assert driver.ack(leased) == 4
        assert driver.sub()[1:] == (4, 1, 0, 0)

    @pytest.mark.parametrize(("lo", "hi"), [(0, 3), (3, 6), (7, 10), (0, 10), (4, 5)])
    def test_any_part_of_a_lease_may_be_acknowledged(
        self, driver: Driver, lo: int, hi: int
    ) -> None:
        """I2."""
        driver.make()
        driver.count(0, 10)
        leased = driver.take(lease_ms=1000)
        assert driver.ack(leased, lo, hi) == hi - lo
        sub = driver.sub()
        assert (sub.floor, sub.leased, sub.waiting) == (hi if lo == 0 else 0, 10 - hi + lo, 0)
        driver.clock.sleep_ms(1000)
        assert offsets_of(driver.lease().runs) == [*range(lo), *range(hi, 10)]

    def test_a_lease_may_be_acknowledged_message_by_message_in_any_order(
        self, driver: Driver
    ) -> None:
        driver.make()
        driver.count(0, 10)
        leased = driver.take()
        for offset in (5, 9, 0, 1, 7, 6, 3, 8, 2, 4):
            assert driver.ack(leased, offset, offset + 1) == 1
        assert driver.sub()[1:] == (10, 0, 0, 0)
        assert driver.trim() == 10

    def test_only_what_is_still_held_is_acknowledged(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 11)
        driver.take(1)
        leased = driver.take()
        driver.ack(leased, 3, 6)
        assert driver.ack(leased, 2, 8) == 3

    def test_acknowledging_twice_counts_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        first, second = driver.take(1), driver.take(1)
        driver.ack(second)
        assert driver.ack(second) == 0
        driver.ack(first)
        assert driver.ack(first) == 0
        assert driver.sub()[1:] == (2, 1, 0, 0)

    def test_a_claim_beyond_its_lease_is_cut_to_it(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 10)
        driver.take(2)
        leased = driver.take(3)
        assert driver.ack(leased, 0, 10) == 3
        assert driver.sub()[1:] == (0, 5, 2, 0)

    def test_a_token_that_was_never_given_is_refused(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        forged = driver.take()._replace(token=12345)
        for act in (driver.ack, driver.release, lambda leased: driver.extend(leased, 10)):
            with pytest.raises(ReceiptStale):
                act(forged)
        assert driver.sub().leased == 3

    @pytest.mark.parametrize(("lo", "hi"), [(2, 2), (3, 1), (5, 9), (-4, 0)])
    def test_a_claim_of_nothing_changes_nothing(self, driver: Driver, lo: int, hi: int) -> None:
        driver.make()
        driver.count(0, 4)
        claim = driver.claim(driver.take(), lo, hi)
        driver.count(4, 10)
        [answer] = run(driver.store.acknowledge(driver.stripe, "default", [claim], 0))
        assert answer == 0 or isinstance(answer, ReceiptStale)
        assert driver.sub()[1:] == (0, 6, 4, 0)

    def test_claims_are_judged_one_by_one(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 6)
        claims = [driver.claim(driver.take(2)) for _ in range(3)]
        claims[1] = claims[1]._replace(token=99)
        answers = run(driver.store.acknowledge(driver.stripe, "default", claims, 0))
        assert (answers[0], answers[2]) == (2, 2)
        assert isinstance(answers[1], ReceiptStale)

    def test_a_receipt_of_another_epoch_is_refused(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        claim = driver.claim(driver.take())
        assert driver.stats().epoch == claim.epoch == driver.lease().epoch
        store, stripe = driver.store, driver.stripe
        for epoch in (claim.epoch - 1, claim.epoch + 1):
            wrong = [claim._replace(epoch=epoch)]
            for answers in (
                run(store.acknowledge(stripe, "default", wrong, 0)),
                run(store.extend(stripe, "default", wrong, 10, 0)),
                run(store.release(stripe, "default", wrong, 0, 0)),
            ):
                assert isinstance(answers[0], ReceiptStale)
        assert run(store.acknowledge(stripe, "default", [claim], 0)) == [2]

    def test_an_unknown_stripe_or_subscription_is_refused_to_claims(self, driver: Driver) -> None:
        claims = [Claim(1, 1, 0, 1)]
        with pytest.raises(QueueNotFound):
            run(driver.store.acknowledge(driver.stripe, "default", claims, 0))
        driver.make()
        with pytest.raises(SubscriptionNotFound):
            run(driver.store.release(driver.stripe, "nobody", claims, 0, 0))

    def test_a_stale_settings_version_settles_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        claims = [driver.claim(driver.take())]
        driver.change(lease_ms=5)
        store, stripe = driver.store, driver.stripe
        with pytest.raises(SettingsStale):
            run(store.acknowledge(stripe, "default", claims, 1))
        with pytest.raises(SettingsStale):
            run(store.extend(stripe, "default", claims, 10, 1))
        with pytest.raises(SettingsStale):
            run(store.release(stripe, "default", claims, 0, 1))
        assert driver.sub().leased == 2
        assert run(store.acknowledge(stripe, "default", claims, 2)) == [2]

    # -- old receipts on loose queues -----------------------------------------------------------

    def test_an_expired_receipt_still_acknowledges(self, driver: Driver) -> None:
        """I5."""
        driver.make()
        driver.count(0, 3)
        leased = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(5000)
        assert driver.ack(leased, 0, 1) == 1
        driver.count(3, 4)
        driver.take(1, lease_ms=1000)
        assert driver.ack(leased, 2, 3) == 1
        assert driver.sub().floor == 1

    def test_an_expired_receipt_is_stale_once_its_messages_are_leased_again(
        self, driver: Driver
    ) -> None:
        """I5."""
        driver.make()
        driver.count(0, 3)
        old = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(1000)
        new = driver.take(2)
        for refused in (
            lambda: driver.ack(old, 0, 2),
            lambda: driver.release(old, 0, 0, 2),
            lambda: driver.extend(old, 10, 0, 2),
        ):
            with pytest.raises(ReceiptStale):
                refused()
        assert driver.ack(old) == 1
        assert driver.ack(new) == 2

    def test_a_released_receipt_still_acknowledges_until_leased_again(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        leased = driver.take()
        driver.release(leased, 1000)
        assert driver.ack(leased, 0, 1) == 1
        driver.clock.sleep_ms(1000)
        driver.take()
        with pytest.raises(ReceiptStale):
            driver.ack(leased, 1, 2)

    # -- extend ---------------------------------------------------------------------------------

    def test_extending_counts_from_now_and_may_shorten(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        leased = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(900)
        assert driver.extend(leased, 1000) == 1
        driver.clock.sleep_ms(999)
        assert driver.receive() == []
        assert driver.extend(leased, 0) == 1
        assert driver.receive() == [b"0"]

    def test_part_of_a_lease_may_be_extended(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 6)
        leased = driver.take(lease_ms=1000)
        assert driver.extend(leased, 5000, 2, 4) == 2
        driver.clock.sleep_ms(1000)
        assert offsets_of(driver.lease().runs) == [0, 1, 4, 5]
        assert driver.ack(leased, 2, 4) == 2

    def test_an_expired_lease_revives_when_extended_in_time(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        leased = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(1500)
        assert driver.extend(leased, 1000) == 2
        assert driver.receive() == []
        driver.clock.sleep_ms(1000)
        assert driver.take().receives == 2

    def test_a_released_message_cannot_be_extended(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        kept, given_back = driver.take(1, lease_ms=1000), driver.take(1)
        driver.release(given_back, 500)
        with pytest.raises(ReceiptStale):
            driver.extend(given_back, 5000)
        driver.clock.sleep_ms(1000)
        with pytest.raises(ReceiptStale):
            driver.extend(given_back, 5000)
        assert driver.take(1).lo == kept.lo
        with pytest.raises(ReceiptStale):
            driver.extend(given_back, 5000)
        assert driver.take(1).lo == given_back.lo

    # -- release --------------------------------------------------------------------------------

    def test_a_released_message_comes_back_after_its_delay(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        leased = driver.take()
        assert driver.release(leased, 500, 1, 3) == 2
        assert driver.sub()[1:] == (0, 0, 2, 2)
        assert driver.lease().due_ms == driver.clock.now_ms() + 500
        driver.clock.sleep_ms(500)
        assert offsets_of(driver.lease().runs) == [1, 2]

    def test_a_release_without_delay_is_deliverable_at_once(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.release(driver.take(), 0)
        again = driver.take()
        assert (again.lo, again.hi, again.receives) == (0, 2, 2)

    def test_back_off_doubles_up_to_its_limit(self, driver: Driver) -> None:
        driver.make(backoff_ms=100, backoff_ms_max=500)
        driver.count(0, 1)
        waits = []
        for _ in range(5):
            leased = driver.take()
            driver.release(leased, None)
            due_ms = driver.lease().due_ms
            assert due_ms is not None
            waits.append(due_ms - driver.clock.now_ms())
            driver.clock.advance_to(due_ms)
        assert waits == [100, 200, 400, 500, 500]

    def test_an_expired_lease_may_still_be_released(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        leased = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(1000)
        assert driver.release(leased, 700) == 1
        assert driver.lease().due_ms == driver.clock.now_ms() + 700

    # -- unlease --------------------------------------------------------------------------------

    def test_what_nobody_has_seen_was_not_received(self, driver: Driver) -> None:
        driver.make(receives_max=1)
        driver.count(0, 3)
        for _ in range(3):
            leased = driver.take()
            assert (leased.lo, leased.hi, leased.receives) == (0, 3, 1)
            assert driver.unlease(leased) == 3
        kept = driver.take()
        assert driver.unlease(kept, 1, 3) == 2
        assert driver.ack(kept, 0, 1) == 1
        assert offsets_of(driver.lease().runs) == [1, 2]

    def test_of_what_was_received_before_one_receive_is_taken_back(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        first = driver.take()
        driver.release(first, 0)
        driver.unlease(driver.take())
        again = driver.take()
        assert (again.receives, again.first_ms) == (2, first.first_ms)

    def test_a_lease_that_is_taken_back_twice_is_taken_back_once(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        driver.release(driver.take(), 0)
        leased = driver.take()
        assert (driver.unlease(leased), driver.unlease(leased)) == (1, 1)
        assert driver.take().receives == 2

    def test_a_lease_that_others_have_cannot_be_taken_back(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 1)
        leased = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(1000)
        assert driver.take().receives == 2
        with pytest.raises(ReceiptStale):
            driver.unlease(leased)

    @pytest.mark.parametrize("order", ["loose", "key", "strict"])
    def test_order_holds_where_a_lease_is_taken_back(self, driver: Driver, order: str) -> None:
        driver.make(order=order)
        driver.send(b"0", b"1", b"2", keys=[b"k"] * 3)
        leased = driver.take()
        driver.unlease(leased, 1, 3)
        driver.ack(leased, 0, 1)
        assert driver.receive() == [b"1", b"2"]

    def test_a_lease_is_bounded_in_bytes(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is too large to be held together is not leased, and not counted."""
        monkeypatch.setattr(limits, "LEASE_BYTES_MAX", 2_500)
        driver.make(receives_max=1)
        for _ in range(6):
            driver.send(bytes(1000))
        seen = []
        while runs := driver.lease().runs:
            assert len(offsets_of(runs)) == 3
            seen += offsets_of(runs)
        assert seen == [0, 1, 2, 3, 4, 5]
