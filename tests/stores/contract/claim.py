"""Claims: one reader at a time takes a subscription by offset, and fences keep out the others (M1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ringdove.errors import FenceStale, QueueNotFound, SubscriptionBusy, SubscriptionNotFound
from ringdove.pending import run

if TYPE_CHECKING:
    from ringdove.stores.base import Claimed
    from stores.driver import Driver

LEASE_MS = 1_000


def claim(driver: Driver, owner: bytes = b"a", sub: str = "default") -> Claimed:
    """Claim a subscription for a second."""
    return run(driver.store.claim(driver.stripe, sub, owner, LEASE_MS))


def hold(driver: Driver, fence: int, lease_ms: int = LEASE_MS) -> None:
    """Keep a claim on `default`, or give it up."""
    run(driver.store.hold(driver.stripe, "default", fence, lease_ms))


def commit(driver: Driver, offset: int, fence: int, *, lazy: bool = False) -> None:
    """Move the position of `default`."""
    run(driver.store.commit(driver.stripe, "default", offset, fence, lazy=lazy))


class ClaimContract:
    """What `claim`, `hold` and `commit` with a fence promise."""

    def test_a_claim_starts_where_the_subscription_is(self, driver: Driver) -> None:
        """M1."""
        driver.make()
        driver.count(0, 6)
        driver.finish(4)
        assert claim(driver).offset == 4

    def test_a_claim_excludes_other_readers(self, driver: Driver) -> None:
        driver.make()
        fence = claim(driver, b"a").fence
        for _ in range(2):
            with pytest.raises(SubscriptionBusy):
                claim(driver, b"b")
        hold(driver, fence)
        commit(driver, 0, fence)

    def test_a_claim_excludes_leases(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        claim(driver)
        for _ in range(2):
            with pytest.raises(SubscriptionBusy):
                driver.lease()
        assert driver.sub()[1:] == (0, 2, 0, 0)

    def test_a_claim_is_of_one_subscription_and_one_stripe(self, driver: Driver) -> None:
        driver.make(stripes=2)
        other = driver.beside(number=1)
        driver.subscribe("s")
        driver.count(0, 2)
        claim(driver)
        assert claim(driver, b"b", "s").offset == 0
        assert claim(other, b"b").offset == 0

    def test_fences_only_grow(self, driver: Driver) -> None:
        driver.make()
        fences = []
        for owner in (b"a", b"b", b"a", b"c"):
            fences.append(claim(driver, owner).fence)
            driver.clock.sleep_ms(LEASE_MS)
        assert fences == sorted(set(fences))
        assert fences[0] > 0

    def test_the_same_owner_may_claim_again_at_once(self, driver: Driver) -> None:
        driver.make()
        first = claim(driver).fence
        second = claim(driver).fence
        assert second > first
        with pytest.raises(FenceStale):
            hold(driver, first)
        hold(driver, second)
        with pytest.raises(SubscriptionBusy):
            claim(driver, b"b")

    def test_a_claim_ends_with_its_time(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        claim(driver, b"a")
        driver.clock.sleep_ms(LEASE_MS - 1)
        with pytest.raises(SubscriptionBusy):
            claim(driver, b"b")
        driver.clock.sleep_ms(1)
        assert claim(driver, b"b").offset == 0

    def test_leases_go_on_when_a_claim_has_ended(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        claim(driver)
        driver.clock.sleep_ms(LEASE_MS)
        assert driver.finish() == [b"0", b"1"]

    def test_holding_prolongs_a_claim(self, driver: Driver) -> None:
        driver.make()
        fence = claim(driver, b"a").fence
        driver.clock.sleep_ms(LEASE_MS - 1)
        hold(driver, fence)
        driver.clock.sleep_ms(LEASE_MS - 1)
        with pytest.raises(SubscriptionBusy):
            claim(driver, b"b")

    def test_a_claim_that_nobody_took_over_can_be_held_again(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        fence = claim(driver, b"a").fence
        driver.clock.sleep_ms(10 * LEASE_MS)
        commit(driver, 1, fence)
        hold(driver, fence)
        with pytest.raises(SubscriptionBusy):
            claim(driver, b"b")
        assert driver.sub().floor == 1

    def test_holding_for_no_time_gives_the_claim_up(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        fence = claim(driver, b"a").fence
        hold(driver, fence, 0)
        for stale in (lambda: hold(driver, fence), lambda: commit(driver, 1, fence)):
            with pytest.raises(FenceStale):
                stale()
        assert driver.receive(1) == [b"0"]

    def test_an_older_fence_neither_commits_nor_holds(self, driver: Driver) -> None:
        """M1: a reader that was cut off and replaced cannot move the position."""
        driver.make()
        driver.count(0, 8)
        old = claim(driver, b"a").fence
        driver.clock.sleep_ms(LEASE_MS)
        new = claim(driver, b"b").fence
        for lazy in (False, True):
            with pytest.raises(FenceStale):
                commit(driver, 4, old, lazy=lazy)
        for lease_ms in (LEASE_MS, 0):
            with pytest.raises(FenceStale):
                hold(driver, old, lease_ms)
        assert driver.sub().floor == 0
        commit(driver, 2, new)
        assert driver.sub().floor == 2

    def test_a_fence_from_nowhere_is_refused(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        for fence in (1, 7):
            with pytest.raises(FenceStale):
                commit(driver, 1, fence)
            with pytest.raises(FenceStale):
                hold(driver, fence)
        assert driver.sub().floor == 0

    def test_a_commit_under_a_claim_moves_the_position_and_never_back(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        driver.count(4, 8)
        fence = claim(driver).fence
        commit(driver, 5, fence)
        commit(driver, 3, fence, lazy=True)
        assert driver.sub()[1:] == (5, 3, 0, 0)
        assert driver.trim() == 4
        assert claim(driver).offset == 5

    def test_a_lazy_commit_counts_at_once(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        commit(driver, 3, claim(driver).fence, lazy=True)
        assert driver.sub()[1:] == (3, 1, 0, 0)

    # -- what is received from cannot be streamed -----------------------------------------------

    def test_what_is_leased_cannot_be_claimed(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        leased = driver.take(1, lease_ms=500)
        with pytest.raises(SubscriptionBusy):
            claim(driver)
        driver.ack(leased)
        assert claim(driver).offset == 1

    def test_what_was_leased_can_be_claimed_when_the_lease_has_ended(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.take(1, lease_ms=500)
        driver.clock.sleep_ms(500)
        assert claim(driver).offset == 0

    def test_what_was_released_with_a_delay_cannot_be_claimed_before(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.release(driver.take(1), 500)
        with pytest.raises(SubscriptionBusy):
            claim(driver)
        driver.clock.sleep_ms(500)
        assert claim(driver).offset == 0

    def test_what_is_done_out_of_order_cannot_be_claimed(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        leased = driver.take(lease_ms=500)
        driver.ack(leased, 2, 3)
        driver.clock.sleep_ms(500)
        with pytest.raises(SubscriptionBusy):
            claim(driver)
        driver.finish(2)
        assert claim(driver).offset == 3

    def test_a_refused_claim_changes_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 3)
        leased = driver.take(1)
        with pytest.raises(SubscriptionBusy):
            claim(driver)
        assert driver.sub()[1:] == (0, 2, 1, 0)
        assert driver.receive() == [b"1", b"2"]
        assert driver.ack(leased) == 1

    def test_a_claim_needs_its_subscription_and_stripe(self, driver: Driver) -> None:
        driver.make()
        with pytest.raises(SubscriptionNotFound):
            claim(driver, sub="nobody")
        run(driver.store.delete(driver.stripe))
        for call in (lambda: claim(driver), lambda: hold(driver, 1), lambda: commit(driver, 1, 1)):
            with pytest.raises(QueueNotFound):
                call()

    def test_a_claim_survives_new_settings(self, driver: Driver) -> None:
        driver.make()
        fence = claim(driver).fence
        driver.change(lease_ms=5)
        driver.change(order="key")
        hold(driver, fence)
        with pytest.raises(SubscriptionBusy):
            claim(driver, b"b")

    def test_purging_leaves_a_claim(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 4)
        fence = claim(driver).fence
        run(driver.store.purge(driver.stripe))
        driver.count(4, 6)
        commit(driver, 5, fence)
        assert driver.sub()[1:] == (5, 1, 0, 0)
