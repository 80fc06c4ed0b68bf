"""Ordered queues: exact locking of groups (order key) and of the stripe (order strict) (T3.7)."""

from __future__ import annotations

import pytest

from ringdove import limits
from ringdove.errors import ReceiptStale
from stores.driver import Driver, bodies_of, offsets_of


def send_keys(driver: Driver, letters: str, **options: int) -> None:
    """One message per letter, its key; bodies are letter and offset."""
    base = driver.stats().tail
    bodies = [f"{letter}{base + at}".encode() for at, letter in enumerate(letters)]
    driver.send(*bodies, keys=[letter.encode() for letter in letters], **options)


class OrderContract:
    """What leases and claims promise where order is promised."""

    def test_a_group_is_leased_to_one_receiver_at_a_time(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aaa")
        leased = driver.take(1)
        assert driver.receive() == []
        driver.ack(leased)
        assert driver.receive() == [b"a1", b"a2"]

    def test_no_group_waits_for_another(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "abacbd")
        assert driver.receive(1) == [b"a0"]
        assert driver.receive(1) == [b"b1"]
        assert sorted(driver.receive()) == [b"c3", b"d5"]

    def test_a_receiver_gets_a_group_s_messages_together_and_in_order(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "abababc")
        found = driver.lease().runs
        assert [b for b in bodies_of(found) if b[:1] == b"a"] == [b"a0", b"a2", b"a4"]
        assert sorted(offsets_of(found)) == list(range(7))

    def test_neighbours_of_one_group_are_one_run(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aaab")
        send_keys(driver, "bb")
        runs = [delivered.run for delivered in driver.lease().runs]
        assert [(leased.lo, leased.hi) for leased in runs] == [(0, 3), (3, 6)]

    def test_a_group_stays_locked_while_any_of_it_is_out(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aaba")
        leased = driver.take(2)
        driver.ack(leased, 0, 1)
        assert driver.receive() == [b"b2"]
        assert driver.receive() == []
        driver.ack(leased, 1, 2)
        assert driver.receive() == [b"a3"]

    def test_an_expired_group_comes_back_in_order(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aabaa")
        driver.lease(2, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        found = driver.receive(3)
        group = [body for body in found if body != b"b2"]
        assert group == [b"a0", b"a1", b"a3"][: len(group)]
        assert found + driver.receive() in ([b"b2", *group], [*group, b"b2"])

    def test_a_small_receive_takes_from_one_group_before_the_next(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "abacab")
        assert driver.receive(4) == [b"a0", b"a2", b"a4", b"b1"]
        assert driver.receive() == [b"c3"]

    def test_what_came_meanwhile_is_taken_with_the_rest_of_its_group(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aab")
        driver.ack(driver.take(1))
        send_keys(driver, "ca")
        assert sorted(driver.receive(3)) == [b"a1", b"a4", b"b2"]

    def test_a_group_that_is_free_again_goes_behind_the_others(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aaabbc")
        driver.ack(driver.take(1))
        assert driver.receive(3) == [b"b3", b"b4", b"c5"]

    def test_a_released_message_holds_its_group_until_it_is_back(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "aab")
        driver.release(driver.take(1), 1000)
        assert driver.receive() == [b"b2"]
        assert driver.lease().due_ms == driver.clock.now_ms() + 1000
        driver.clock.sleep_ms(1000)
        assert [*driver.finish(), *driver.finish()] == [b"a0", b"a1"]

    def test_a_group_split_over_leases_waits_for_all_of_them(self, driver: Driver) -> None:
        driver.make(order="key")
        send_keys(driver, "abaca")
        found = {bodies_of([d])[0]: d.run for d in driver.lease(5, lease_ms=1000).runs}
        driver.extend(found[b"a4"], 9000)
        driver.ack(found[b"a0"])
        driver.clock.sleep_ms(1000)
        assert sorted(driver.receive()) == [b"b1", b"c3"]
        driver.ack(found[b"a4"])
        assert driver.receive() == [b"a2"]

    def test_messages_without_key_form_one_group(self, driver: Driver) -> None:
        driver.make(order="key")
        driver.send(b"1", b"2", b"3", keys=[b"", b"k", b""])
        assert driver.receive(1) == [b"1"]
        assert driver.receive() == [b"2"]

    def test_a_block_without_keys_is_of_the_group_without_key(self, driver: Driver) -> None:
        driver.make(order="key")
        driver.send(b"", b"", b"", b"")
        assert offsets_of(driver.lease(1).runs) == [0]
        assert offsets_of(driver.lease(4).runs) == []

    def test_a_dead_message_locks_its_group_until_it_has_moved(self, driver: Driver) -> None:
        driver.make(order="key", receives_max=1)
        send_keys(driver, "aab")
        driver.lease(1, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        delivery = driver.lease()
        assert (bodies_of(delivery.dead), bodies_of(delivery.runs)) == ([b"a0"], [b"b2"])
        assert driver.receive() == []
        driver.ack(delivery.dead[0].run)
        assert driver.receive() == [b"a1"]

    def test_looking_at_many_locked_messages_is_bounded_per_call(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SCAN_PER_CALL_MAX", 10)
        driver.make(order="key")
        send_keys(driver, "a" * 35 + "b")
        driver.lease(1)  # Looks at ten messages as well.
        calls = 0
        while (delivery := driver.lease()).more:
            assert not delivery.runs
            calls += 1
        assert (calls, bodies_of(delivery.runs)) == (2, [b"b35"])

    def test_spread_never_breaks_order(self, driver: Driver) -> None:
        for order in ("key", "strict"):
            ordered = Driver(driver.store, driver.clock, driver.durability, queue=len(order))
            ordered.make(order=order)
            send_keys(ordered, "abcd" * 5)
            taken = []
            for _ in range(20):
                found = ordered.lease(1, spread=10).runs
                taken += offsets_of(found)
                for delivered in found:
                    ordered.ack(delivered.run)
            assert taken == list(range(20))

    # -- strict ---------------------------------------------------------------------------------

    def test_strict_gives_one_lease_at_a_time(self, driver: Driver) -> None:
        driver.make(order="strict")
        driver.count(0, 4)
        leased = driver.take(2)
        assert driver.receive() == []
        driver.ack(leased, 0, 1)
        assert driver.receive() == []
        driver.ack(leased, 1, 2)
        assert driver.receive() == [b"2", b"3"]

    def test_strict_holds_while_a_release_waits(self, driver: Driver) -> None:
        driver.make(order="strict")
        driver.count(0, 3)
        driver.release(driver.take(1), 1000)
        delivery = driver.lease()
        assert (delivery.runs, delivery.due_ms) == ([], driver.clock.now_ms() + 1000)
        driver.clock.sleep_ms(1000)
        assert driver.receive() == [b"0", b"1", b"2"]

    def test_strict_waits_for_every_part_of_a_lease(self, driver: Driver) -> None:
        driver.make(order="strict")
        driver.count(0, 4)
        leased = driver.take(3, lease_ms=1000)
        driver.extend(leased, 5000, 2, 3)
        driver.clock.sleep_ms(1000)
        assert driver.receive() == []
        driver.clock.sleep_ms(4000)
        assert driver.receive() == [b"0", b"1", b"2", b"3"]

    # -- both -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_a_delayed_block_holds_what_comes_after_it(self, driver: Driver, order: str) -> None:
        driver.make(order=order)
        due_ms = driver.clock.now_ms() + 500
        driver.send(b"0", keys=[b"a"])
        driver.send(b"1", keys=[b"b"], not_before_ms=due_ms)
        driver.send(b"2", keys=[b"c"])
        assert driver.finish() == [b"0"]
        delivery = driver.lease()
        assert (delivery.runs, delivery.due_ms) == ([], due_ms)
        driver.clock.sleep_ms(500)
        assert driver.finish() == [b"1", b"2"]

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_an_expired_receipt_is_refused_where_order_is_promised(
        self, driver: Driver, order: str
    ) -> None:
        """I5."""
        driver.make(order=order)
        send_keys(driver, "aa")
        leased = driver.take(lease_ms=1000)
        driver.ack(leased, 0, 1)
        driver.clock.sleep_ms(1000)
        for refused in (
            lambda: driver.ack(leased, 1, 2),
            lambda: driver.extend(leased, 1000, 1, 2),
            lambda: driver.release(leased, 0, 1, 2),
        ):
            with pytest.raises(ReceiptStale):
                refused()
        assert driver.receive() == [b"a1"]

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_a_released_receipt_is_refused_where_order_is_promised(
        self, driver: Driver, order: str
    ) -> None:
        driver.make(order=order)
        send_keys(driver, "a")
        leased = driver.take()
        driver.release(leased, 1000)
        for refused in (lambda: driver.ack(leased), lambda: driver.extend(leased, 1000)):
            with pytest.raises(ReceiptStale):
                refused()

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_a_live_receipt_settles_any_part(self, driver: Driver, order: str) -> None:
        driver.make(order=order)
        send_keys(driver, "aaaaaa")
        leased = driver.take(lease_ms=1000)
        assert driver.extend(leased, 5000, 4, 6) == 2
        assert driver.ack(leased, 2, 3) == 1
        assert driver.release(leased, 0, 0, 2) == 2
        assert driver.ack(leased, 3, 6) == 3
        again = [(d.run.lo, d.run.hi, d.run.receives) for d in driver.lease().runs]
        assert again == [(0, 2, 2)]

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_giving_up_a_leased_message_unlocks_what_comes_after(
        self, driver: Driver, order: str
    ) -> None:
        driver.make(order=order, retention_ms=5000)
        send_keys(driver, "aa")
        driver.lease(1, lease_ms=60_000)
        driver.clock.sleep_ms(1000)
        send_keys(driver, "a")
        driver.clock.sleep_ms(4000)
        assert driver.receive() == [b"a2"]

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_dead_messages_keep_their_order(self, driver: Driver, order: str) -> None:
        driver.make(order=order, receives_max=1)
        send_keys(driver, "aaa")
        driver.lease(2, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        delivery = driver.lease()
        assert offsets_of(delivery.dead) == [0, 1]
        assert offsets_of(delivery.runs) == []
        for dead in delivery.dead:
            driver.ack(dead.run)
        assert driver.receive() == [b"a2"]
