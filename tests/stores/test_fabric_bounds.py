"""What the fabric's library leaves behind, and what it does at its limits."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import pytest

from ringdove import limits
from ringdove.core.dedup import Segment
from ringdove.errors import (
    InvalidArgument,
    LimitExceeded,
    QueueFull,
    ReceiptStale,
    SequenceRefused,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from ringdove.pending import run
from ringdove.stores.base import Claim
from ringdove.stores.fabric import FabricStore
from stores.audit import alter, audit
from stores.driver import Driver, block, bodies_of, offsets_of
from stores.test_walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.redis import RedisProcess
    from ringdove.clock import ManualClock

PREFIX = "rd:{1.0.0}:"
LIBRARY = resources.files("ringdove.stores.fabric").joinpath("library.lua").read_text()


@pytest.fixture
def store(redis: RedisProcess, clock: ManualClock) -> Iterator[FabricStore]:
    redis.flush()
    store = FabricStore(redis.url, clock, seed=1)
    yield store
    run(store.close())


@pytest.fixture
def driver(store: FabricStore, clock: ManualClock) -> Driver:
    return Driver(store, clock)


def keys_left(redis: RedisProcess) -> set[str]:
    return {key.decode().rpartition(":")[2] for key in redis.ask("KEYS", PREFIX + "*")}


# -- nothing is left behind ---------------------------------------------------------------------


@pytest.mark.parametrize("order", ["loose", "key", "strict"])
def test_a_drained_stripe_keeps_its_state_and_its_senders_only(
    driver: Driver, redis: RedisProcess, order: str
) -> None:
    driver.make(order=order, keep_done_ms=100, receives_max=50)
    driver.subscribe("other")
    for number in range(40):
        key = [b"%d" % (number % 7)]
        driver.send(b"x", keys=key, producer=b"p", sequence=number)
        driver.send(b"y", keys=key, message_id=b"%d" % number)
    driver.send(b"later", keys=[b"z"], not_before_ms=driver.clock.now_ms() + 50)
    for turn in range(300):
        for part in driver.lease(1 + turn % 5, lease_ms=20).runs:
            if turn % 3 == 0:
                driver.release(part.run, 5)
            elif turn % 3 == 1 and len(part.run) > 1:
                driver.ack(part.run, hi=part.run.lo + 1)
            else:
                driver.ack(part.run)
        driver.clock.sleep_ms(turn % 9)
        assert audit(redis, PREFIX) == []
    while driver.finish() or driver.finish(sub="other"):
        driver.clock.sleep_ms(20)
    driver.clock.sleep_ms(100)
    driver.trim()
    assert driver.sub().floor == driver.stats().tail == 81
    assert keys_left(redis) == {"m", "f", "p", "o", "i", "j"}


@pytest.mark.parametrize("how", ["purge", "unsubscribe", "commit", "retention", "reorder"])
@pytest.mark.parametrize("order", ["loose", "key"])
def test_what_was_leased_leaves_nothing_when_it_is_given_up(
    driver: Driver, redis: RedisProcess, order: str, how: str
) -> None:
    """More leases than one call sweeps up."""
    driver.make(order=order, retention_ms=1_000_000)
    driver.subscribe("other", "latest")
    count = 2500
    driver.count(0, count, keys=[b"%d" % n for n in range(count)])
    while driver.lease(500, lease_ms=100).runs:
        pass
    driver.clock.sleep_ms(50)
    driver.count(count, count + 10, keys=[b"new"] * 10, not_before_ms=driver.clock.now_ms() + 10)
    if how == "commit":
        run(driver.store.commit(driver.stripe, "default", count + 10))
        run(driver.store.commit(driver.stripe, "other", count + 10))
    elif how == "unsubscribe":
        run(driver.store.unsubscribe(driver.stripe, "default"))
        run(driver.store.commit(driver.stripe, "other", count + 10))
    elif how == "retention":
        driver.clock.sleep_ms(1_000_000)
    else:
        assert run(driver.store.purge(driver.stripe)) == count + 10
        if how == "reorder":
            driver.change(order="strict")
    driver.trim()
    assert audit(redis, PREFIX) == []
    assert keys_left(redis) == {"m", "f"}
    driver.send(b"next", keys=[b"a"])
    sub = "other" if how == "unsubscribe" else "default"
    assert driver.finish(sub=sub) == [b"next"]


def test_what_is_left_of_a_commit_in_the_middle_is_right(
    driver: Driver, redis: RedisProcess
) -> None:
    """More leases below the offset than one call gives up."""
    driver.make()
    driver.count(0, 6000)
    runs = [driver.take(2, 100) for _ in range(3000)]
    run(driver.store.commit(driver.stripe, "default", 5001))
    assert driver.sub().floor == 5001
    assert driver.sub().leased == 999
    assert audit(redis, PREFIX) == []
    assert driver.ack(runs[2500]) == 1
    driver.clock.sleep_ms(100)
    assert offsets_of(driver.lease(3).runs) == [5002, 5003, 5004]


def test_leases_that_retention_ends_are_given_up_in_several_calls(
    driver: Driver, redis: RedisProcess
) -> None:
    driver.make(retention_ms=1000)
    driver.count(0, 5000)
    for _ in range(5000):
        driver.take(1, 100_000)
    driver.clock.sleep_ms(500)
    driver.count(5000, 5010)
    driver.take(1)
    driver.clock.sleep_ms(500)
    assert driver.lease(1).more
    while (delivery := driver.lease(1)).more:
        assert not delivery.runs
    assert offsets_of(delivery.runs) == [5001]
    assert (driver.sub().floor, driver.sub().leased) == (5000, 2)
    assert audit(redis, PREFIX) == []


def test_a_group_whose_messages_expired_takes_new_ones(driver: Driver, redis: RedisProcess) -> None:
    driver.make(order="key")
    driver.count(0, 4, keys=[b"b", b"a", b"a", b"c"])
    assert driver.receive(1) == [b"0"]
    run(driver.store.commit(driver.stripe, "default", 3))
    driver.count(4, 6, keys=[b"a", b"d"])
    assert sorted(driver.receive(1000)) == [b"3", b"4", b"5"]
    assert audit(redis, PREFIX) == []


def test_a_commit_may_fall_between_messages_of_one_key(driver: Driver, redis: RedisProcess) -> None:
    driver.make(order="key")
    driver.count(0, 6, keys=[b"b", b"a", b"a", b"a", b"c", b"a"])
    assert driver.receive(1) == [b"0"]
    run(driver.store.commit(driver.stripe, "default", 2))
    assert driver.sub().waiting == 4
    assert sorted(driver.receive()) == [b"2", b"3", b"4", b"5"]
    assert audit(redis, PREFIX) == []


def test_what_comes_after_a_purge_is_not_swept_up_with_it(
    driver: Driver, redis: RedisProcess
) -> None:
    driver.make()
    driver.count(0, 2500)
    for _ in range(2500):
        driver.take(1)
    assert run(driver.store.purge(driver.stripe)) == 2500
    driver.count(2500, 2503)
    leased = driver.take(2)
    driver.trim()
    assert (driver.sub().leased, driver.sub().waiting) == (2, 1)
    assert driver.ack(leased) == 2
    assert audit(redis, PREFIX) == []


def test_what_a_new_subscription_wanted_again_is_kept_again(driver: Driver) -> None:
    driver.make(keep_done_ms=100)
    driver.count(0, 3)
    driver.finish()
    driver.clock.sleep_ms(50)
    driver.subscribe("late")
    driver.clock.sleep_ms(10)
    assert driver.finish(sub="late") == [b"0", b"1", b"2"]
    driver.clock.sleep_ms(99)
    assert driver.replay(driver.trim()) == [b"0", b"1", b"2"]
    driver.clock.sleep_ms(1)
    assert driver.trim() == 3


def test_a_time_that_never_comes_delays_for_ever(driver: Driver, redis: RedisProcess) -> None:
    driver.make()
    driver.send(b"never", not_before_ms=2**63 - 1)
    delivery = driver.lease()
    assert delivery.due_ms is not None
    assert delivery.due_ms >= limits.OFFSET_MAX
    assert driver.sub().delayed == 1
    assert audit(redis, PREFIX) == []


def test_expired_records_do_not_stay(
    store: FabricStore, redis: RedisProcess, driver: Driver
) -> None:
    now_ms = driver.clock.now_ms()
    for number in range(30):
        run(store.put(f"beat/{number:02}", b"x", expires_ms=now_ms + 10))
    run(store.put("beat/29", b"for good"))
    driver.clock.sleep_ms(10)
    assert [record.key for record in run(store.scan("beat/"))] == ["beat/29"]
    for _ in range(2):
        run(store.put("other", b"x"))
    assert redis.ask("HLEN", "rd:{ringdove-records}:v") == 2
    assert redis.ask("ZCARD", "rd:{ringdove-records}:k") == 2
    assert redis.ask("ZCARD", "rd:{ringdove-records}:e") == 0


# -- limits -------------------------------------------------------------------------------------


@pytest.fixture
def tight(redis: RedisProcess) -> Iterator[None]:
    """The library with tiny parts, so that every loop goes round."""
    text = LIBRARY
    for before, after in {
        "WORDS_MAX, SOME = 1000, 100": "WORDS_MAX, SOME = 4, 2",
        "SWEEPS_MAX = 1000": "SWEEPS_MAX = 3",
        "DROPS_MAX = 2000": "DROPS_MAX = 2",
        "HASHES_PART = 1024": "HASHES_PART = 3",
    }.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    redis.ask("FUNCTION", "LOAD", "REPLACE", text)
    yield
    redis.ask("FUNCTION", "FLUSH")


@pytest.mark.parametrize("kind", ["loose", "spread", "key", "strict"])
@pytest.mark.usefixtures("tight")
def test_a_walk_with_tiny_parts_keeps_every_promise(kind: str, redis: RedisProcess) -> None:
    spread = kind == "spread"
    walk = Walk("loose" if spread else kind, 7, redis, spread=spread)
    try:
        for _ in range(200):
            walk.step()
            walk.sides.check()
    finally:
        walk.sides.close()


def test_a_subscription_too_many_is_not_added(
    driver: Driver, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_MAX", 2)
    driver.make()
    driver.subscribe("two")
    with pytest.raises(LimitExceeded):
        driver.subscribe("three")
    with pytest.raises(SubscriptionNotFound, match=r"it has: default, two"):
        driver.lease(sub="three")
    assert [sub.name for sub in driver.stats().subscriptions] == ["default", "two"]
    assert audit(redis, PREFIX) == []


def test_subscriptions_never_share_a_number(driver: Driver, redis: RedisProcess) -> None:
    driver.make()
    for number in (2**16 - 2, 2**24 - 2, 2**31 - 2):
        alter(redis, PREFIX, numbered=number)
        driver.subscribe(f"a{number}", "latest")
        driver.subscribe(f"b{number}", "latest")
    driver.count(0, 4)
    names = [sub.name for sub in driver.stats().subscriptions]
    taken = {name: driver.take(2, sub=name) for name in names}
    assert audit(redis, PREFIX) == []
    for name, leased in taken.items():
        assert driver.ack(leased, sub=name) == 2
    assert {sub.floor for sub in driver.stats().subscriptions} == {2}


def test_a_receive_of_very_many_runs_is_answered_in_parts(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROMOTE_PER_CALL_MAX", 10)
    driver.make()
    driver.count(0, 25)
    for _ in range(25):
        driver.take(1, 100)
    driver.clock.sleep_ms(100)
    found = []
    while (delivery := driver.lease()).more:
        assert len(delivery.runs) <= 10
        found += bodies_of(delivery.runs)
    found += bodies_of(delivery.runs)
    assert found == [b"%d" % number for number in range(25)]


def test_statistics_and_claims_notice_any_number_of_ended_leases(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROMOTE_PER_CALL_MAX", 4)
    driver.make()
    driver.subscribe("other")
    driver.count(0, 30)
    for _ in range(30):
        driver.take(1, 100)
        driver.take(1, 100, sub="other")
    driver.clock.sleep_ms(100)
    claimed = run(driver.store.claim(driver.stripe, "other", b"me", 1000))
    assert claimed.offset == 0
    assert [(sub.waiting, sub.leased) for sub in driver.stats().subscriptions] == [(30, 0)] * 2


def test_very_many_claims_are_settled_in_one_call_of_the_store(driver: Driver) -> None:
    driver.make()
    driver.count(0, 2500)
    claims = [driver.claim(driver.take(1)) for _ in range(2500)]
    claims[1200] = claims[1200]._replace(token=1)
    answers = run(driver.store.acknowledge(driver.stripe, "default", claims, 0))
    assert [type(answer) for answer in answers].count(ReceiptStale) == 1
    assert sum(answer for answer in answers if isinstance(answer, int)) == 2499


def test_a_claim_of_more_than_a_lease_can_hold_is_stale(driver: Driver) -> None:
    driver.make()
    driver.count(0, 10)
    token = driver.take().token
    for lo, hi in ((0, 2**64 - 1), (2**63, 2**63 + 1), (0, 100_001), (2**53, 2**53 + 5)):
        [answer] = run(
            driver.store.acknowledge(driver.stripe, "default", [Claim(1, token, lo, hi)], 0)
        )
        assert isinstance(answer, ReceiptStale)
    [answer] = run(driver.store.acknowledge(driver.stripe, "default", [Claim(1, token, 0, 10)], 0))
    assert answer == 10


def test_records_are_scanned_whatever_their_size(store: FabricStore, redis: RedisProcess) -> None:
    big = bytes(limits.RECORD_BYTES_MAX)
    for number in range(9):
        run(store.put(f"big/{number}", big))
    redis.ask("CONFIG", "RESETSTAT")
    found = run(store.scan("big/"))
    assert b"cmdstat_fcall:calls=3," in redis.ask("INFO", "commandstats")
    assert [(record.key, len(record.value)) for record in found] == [
        (f"big/{number}", len(big)) for number in range(9)
    ]
    assert len(run(store.scan("big/", "big/2", 4))) == 4


def test_a_producer_too_many_is_admitted_when_old_ones_can_go(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, redis: RedisProcess
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 3)
    driver.make(retention_ms=1000)
    for name in (b"a", b"b", b"c"):
        driver.send(b"x", producer=name)
        driver.clock.sleep_ms(10)
    driver.send(b"x", producer=b"a", sequence=1)
    with pytest.raises(LimitExceeded):
        driver.send(b"x", producer=b"d")
    driver.clock.sleep_ms(985)
    driver.send(b"x", producer=b"d")
    assert set(redis.ask("HKEYS", PREFIX + "p")) == {b"a", b"c", b"d"}
    assert redis.ask("ZCARD", PREFIX + "o") == 3


def test_message_ids_are_forgotten_as_fast_as_they_come(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, redis: RedisProcess
) -> None:
    monkeypatch.setattr(limits, "FORGET_PER_APPEND_MAX", 1)
    driver.make(dedup_ms=1000)
    driver.send_with_ids(10, 50)
    assert redis.ask("HLEN", PREFIX + "i") == redis.ask("ZCARD", PREFIX + "j") == 50


# -- large numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["loose", "key"])
def test_offsets_are_exact_up_to_their_limit(
    driver: Driver, redis: RedisProcess, order: str
) -> None:
    driver.make(order=order)
    base = limits.OFFSET_MAX - 100
    alter(redis, PREFIX, tail=base, stable=base, head=base)
    alter(redis, PREFIX, "default", floor=base, scan=base)
    assert driver.send(b"0", b"1", b"2", keys=[b"k"] * 3).base == base
    leased = driver.take(2)
    assert (leased.lo, leased.hi) == (base, base + 2)
    assert driver.ack(leased, lo=base + 1) == 1
    assert driver.ack(leased) == 1
    assert driver.stats().subscriptions[0].floor == base + 2
    assert driver.replay(base + 2) == [b"2"]
    assert run(driver.store.find(driver.stripe, driver.clock.now_ms())) == base
    assert audit(redis, PREFIX) == []


def test_sequences_are_exact_up_to_their_limit(driver: Driver) -> None:
    driver.make()
    last = limits.OFFSET_MAX - 1
    first = driver.send(b"x", producer=b"p", sequence=last - 1, gaps=True)
    with pytest.raises(SequenceRefused) as refusal:
        driver.send(b"x", producer=b"p", sequence=last - 2, span=3)
    assert refusal.value.expected == last
    assert driver.send(b"x", producer=b"p", sequence=last - 1) == first._replace(duplicate=True)
    with pytest.raises(InvalidArgument):
        driver.send(b"x", producer=b"p", sequence=last, span=2)
    driver.send(b"x", producer=b"p", sequence=last)


# -- refusals and failovers ---------------------------------------------------------------------


def test_a_refused_append_changes_nothing(driver: Driver, redis: RedisProcess) -> None:
    driver.make(bytes_max=2000, body_bytes_max=1000, retention_ms=1000)
    driver.send(bytes(800), producer=b"p")
    driver.clock.sleep_ms(900)
    driver.send(bytes(800), message_id=b"i")
    driver.clock.sleep_ms(50)
    before = driver.stats()
    with pytest.raises(QueueFull):
        driver.append(
            Segment(block(bytes(900)), producer=b"q"), Segment(block(bytes(900)), message_id=b"j")
        )
    assert driver.stats() == before
    assert audit(redis, PREFIX) == []
    assert not driver.send(b"", producer=b"q").duplicate
    assert not driver.send(b"", message_id=b"j").duplicate


@pytest.mark.parametrize("order", ["loose", "key", "strict"])
def test_after_a_failover_offsets_go_on_far_above(
    driver: Driver, redis: RedisProcess, order: str
) -> None:
    driver.make(order=order)
    driver.subscribe("done", "latest")
    driver.count(0, 6, keys=[b"k"] * 6)
    run(driver.store.commit(driver.stripe, "done", 6))
    leased = driver.take(2)
    alter(redis, PREFIX, owner="somebody else")
    assert run(driver.store.find(driver.stripe, driver.clock.now_ms() + 1)) in (6, 2**32)
    stats = driver.stats()
    assert (stats.epoch, stats.head, stats.tail) == (2, 0, 2**32)
    assert [(sub.floor, sub.waiting, sub.leased) for sub in stats.subscriptions] == [
        (0, 4, 2),
        (2**32, 0, 0),
    ]
    assert audit(redis, PREFIX) == []
    old = Claim(1, leased.token, leased.lo, leased.hi)
    [answer] = run(driver.store.acknowledge(driver.stripe, "default", [old], 0))
    assert isinstance(answer, ReceiptStale)
    assert driver.ack(leased) == 2
    assert driver.send(b"6", keys=[b"k"]).base == 2**32
    assert driver.finish(5) == [b"2", b"3", b"4", b"5", b"6"]
    assert driver.finish(sub="done") == [b"6"]
    assert driver.sub().floor == driver.stats().head == 2**32 + 1
    assert audit(redis, PREFIX) == []


def test_a_stripe_written_by_a_version_that_knew_no_runs_stays_in_its_epoch(
    driver: Driver, redis: RedisProcess
) -> None:
    """T2.9: servers are upgraded one by one, and both versions write."""
    driver.make()
    driver.count(0, 6)
    leased = driver.take(2)
    alter(redis, PREFIX, run=None)
    assert driver.ack(leased) == 2
    stats = driver.stats()
    assert (stats.epoch, stats.tail) == (1, 6)
    assert audit(redis, PREFIX) == []


def test_after_a_failover_an_empty_stripe_is_empty(driver: Driver, redis: RedisProcess) -> None:
    driver.make()
    driver.count(0, 2)
    driver.finish()
    alter(redis, PREFIX, owner="somebody else")
    stats = driver.stats()
    assert stats.head == stats.tail == driver.sub().floor == 2**32
    assert driver.subscribe("new") == 2**32
    assert audit(redis, PREFIX) == []


def test_a_purge_between_failovers_leaves_no_gap(driver: Driver, redis: RedisProcess) -> None:
    driver.make()
    driver.count(0, 6)
    driver.take(1)
    for epoch in (2, 3):
        alter(redis, PREFIX, owner="somebody else")
        run(driver.store.commit(driver.stripe, "default", 3))
        assert driver.stats().epoch == epoch
    run(driver.store.purge(driver.stripe))
    assert driver.sub().floor == driver.stats().tail == 2**33
    assert audit(redis, PREFIX) == []
    assert driver.send(b"x").base == 2**33
    assert driver.finish() == [b"x"]


@pytest.mark.parametrize("order", ["loose", "key", "strict"])
def test_after_a_failover_a_stream_goes_on_in_its_backlog(
    driver: Driver, redis: RedisProcess, order: str
) -> None:
    """Offsets that were skipped are done, but nobody has received them out of order."""
    driver.make(order=order)
    driver.subscribe("read")
    driver.count(0, 6, keys=[b"k"] * 6)
    store, stripe = driver.store, driver.stripe
    claimed = run(store.claim(stripe, "read", b"reader", 1000))
    run(store.commit(stripe, "read", 2, claimed.fence))
    driver.take(3)
    for epoch in (2, 3):
        alter(redis, PREFIX, owner="somebody else")
        claimed = run(store.claim(stripe, "read", b"reader", 1000))
        assert (driver.stats().epoch, claimed.offset) == (epoch, 2)
    driver.clock.sleep_ms(60_000)
    assert run(store.claim(stripe, "default", b"reader", 1000)).offset == 0
    assert driver.send(b"6", keys=[b"k"]).base == 2**33
    assert driver.replay(2) == [b"2", b"3", b"4", b"5", b"6"]
    run(store.commit(stripe, "read", 6, claimed.fence))
    assert driver.sub("read").floor == 2**33
    assert audit(redis, PREFIX) == []


def test_what_is_done_out_of_order_before_a_failover_keeps_streams_out(
    driver: Driver, redis: RedisProcess
) -> None:
    driver.make()
    driver.count(0, 6)
    assert driver.ack(driver.take(), lo=4) == 2
    driver.clock.sleep_ms(60_000)
    alter(redis, PREFIX, owner="somebody else")
    with pytest.raises(SubscriptionBusy, match="some are done out of order"):
        run(driver.store.claim(driver.stripe, "default", b"reader", 1000))


@pytest.mark.parametrize("order", ["loose", "key", "strict"])
def test_a_subscription_made_between_failovers_counts_what_was_skipped_once(
    driver: Driver, redis: RedisProcess, order: str
) -> None:
    driver.make(order=order)
    driver.count(0, 6, keys=[b"k"] * 6)
    for name in ("first", "second"):
        alter(redis, PREFIX, owner="somebody else")
        driver.subscribe(name)
    assert driver.count(6, 12, keys=[b"k"] * 6).base == 2**33
    driver.lease(8, sub="first")
    found = driver.sub("first")
    assert (found.waiting, found.leased) == (4, 8)
    assert audit(redis, PREFIX) == []
