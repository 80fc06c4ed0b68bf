"""Several stores on one cluster, and a cluster that forgets or fills up."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fabric.clusters import until
from ringdove import limits
from ringdove.clock import SystemClock
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import (
    InvalidArgument,
    OffsetTrimmed,
    QueueNotFound,
    RecordConflict,
    SettingsStale,
    StoreFull,
    StoreUnavailable,
    SubscriptionBusy,
)
from ringdove.pending import Pending, run
from ringdove.stores.base import StripeId
from ringdove.stores.fabric import FabricStore, library, places, wire
from ringdove.stores.fabric import store as fabric_store
from ringdove.stores.fabric.cluster import Cluster
from stores.audit import alter, audit
from stores.driver import Driver, block, bodies_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.redis import RedisProcess
    from ringdove.clock import ManualClock
    from ringdove.stores.fabric.places import Place

STRIPE = StripeId(1, 0, 0)

#: Seconds within which a call must end when nobody answers.
PATIENCE_S = 20


@pytest.fixture
def stores(redis: RedisProcess, clock: ManualClock) -> Iterator[list[FabricStore]]:
    """Two stores that know nothing of each other."""
    redis.flush()
    stores = [FabricStore(redis.url, clock, seed=seed) for seed in range(2)]
    yield stores
    for store in stores:
        run(store.close())


@pytest.fixture
def drivers(stores: list[FabricStore], clock: ManualClock) -> list[Driver]:
    first, second = (Driver(store, clock) for store in stores)
    first.make()
    return [first, second]


@pytest.fixture
def unshown(drivers: list[Driver], redis: RedisProcess) -> Driver:
    """Whoever appended the last of five messages, and saw that it had its copies, is gone."""
    one, other = drivers
    one.count(0, 3)
    one.count(3, 5)
    alter(redis, "rd:{1.0.0}:", stable=3)
    return other


# -- several stores -----------------------------------------------------------------------------


def test_a_receipt_given_by_one_store_is_honoured_by_another(drivers: list[Driver]) -> None:
    """I5."""
    one, other = drivers
    one.count(0, 6)
    leased = one.take(4)
    assert bodies_of(other.lease().runs) == [b"4", b"5"]
    assert other.ack(leased, hi=1) == 1
    assert other.extend(leased, 60_000, lo=1, hi=3) == 2
    assert other.release(leased, 0, lo=3) == 1
    assert one.receive() == [b"3"]
    assert one.ack(leased, lo=1, hi=3) == 2
    assert other.sub().floor == 3


def test_a_stream_of_one_store_keeps_the_others_out(drivers: list[Driver]) -> None:
    one, other = drivers
    one.count(0, 3)
    claimed = run(one.store.claim(one.stripe, "default", b"me", 1000))
    with pytest.raises(SubscriptionBusy):
        other.lease()
    with pytest.raises(SubscriptionBusy):
        run(other.store.claim(other.stripe, "default", b"you", 1000))
    run(other.store.commit(other.stripe, "default", 2, claimed.fence))
    run(one.store.hold(one.stripe, "default", claimed.fence, 0))
    assert other.receive() == [b"2"]


@pytest.mark.parametrize("trimmed", [3, 5])
def test_what_is_trimmed_while_it_is_read_is_not_passed_over(
    drivers: list[Driver], monkeypatch: pytest.MonkeyPatch, trimmed: int
) -> None:
    one, other = drivers
    one.count(0, 3)
    one.count(3, 5)
    bounds, looks = FabricStore._bounds, []

    async def bounds_and_trim(store: FabricStore, place: Place) -> tuple[int, int, bool]:
        found = await bounds(store, place)
        if not looks:
            await one.store.commit(STRIPE, "default", trimmed)
        looks.append(found)
        return found

    monkeypatch.setattr(FabricStore, "_bounds", bounds_and_trim)
    with pytest.raises(OffsetTrimmed, match=f"the oldest one stored is {trimmed}"):
        other.replay(1)


def test_a_reader_by_offset_sees_to_what_was_not_shown(unshown: Driver) -> None:
    assert unshown.replay(3) == [b"3", b"4"]


def test_statistics_see_to_what_was_not_shown(unshown: Driver) -> None:
    assert (unshown.stats().tail, unshown.sub().waiting) == (5, 5)


def test_what_was_read_is_done_although_it_is_not_shown_any_more(
    unshown: Driver, redis: RedisProcess
) -> None:
    """After a failover the mark of what is shown may be lower than readers have come."""
    run(unshown.store.commit(unshown.stripe, "default", 5))
    assert (unshown.sub().floor, unshown.stats().head) == (5, 5)
    assert unshown.send(b"5").base == 5
    assert unshown.finish() == [b"5"]
    assert audit(redis, "rd:{1.0.0}:") == []


def test_a_reader_who_waits_is_told_when_late_copies_have_what_was_not_shown(
    unshown: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_store, "_SETTLE_PAUSE_S", 0.01)
    monkeypatch.setattr(fabric_store, "_SETTLE_S", 0)
    settle, tried = FabricStore._settle_tail, threading.Event()
    late = [True]

    async def settle_late(store: FabricStore, place: Place) -> None:
        tried.set()
        if late:
            raise StoreUnavailable("Only 2 of 3 copies could be reached.")
        await settle(store, place)

    monkeypatch.setattr(FabricStore, "_settle_tail", settle_late)
    watch = unshown.watch()
    assert unshown.replay(3) == []
    assert tried.wait(PATIENCE_S)
    late.clear()
    watch.wait(PATIENCE_S)
    assert unshown.replay(3) == [b"3", b"4"]


def test_settings_that_one_store_has_changed_are_stale_at_the_other(drivers: list[Driver]) -> None:
    one, other = drivers
    one.change(retention_ms=5000)
    with pytest.raises(SettingsStale):
        other.lease(version=1)
    assert other.lease(version=2).runs == []


def test_a_stripe_that_one_store_deletes_is_gone_for_the_other(drivers: list[Driver]) -> None:
    one, other = drivers
    one.count(0, 3)
    assert other.receive(1) == [b"0"]
    run(one.store.delete(one.stripe))
    for act in (other.lease, other.stats, lambda: other.send(b"x"), lambda: other.read(0)):
        with pytest.raises(QueueNotFound):
            act()


def test_of_two_who_write_a_record_one_wins(stores: list[FabricStore]) -> None:
    run(stores[0].put("counter", b"0"))

    def count(store: FabricStore) -> int:
        lost = 0
        for _ in range(100):
            while True:
                record = run(store.get("counter"))
                assert record is not None
                following = b"%d" % (int(record.value) + 1)
                try:
                    run(store.put("counter", following, record.version))
                    break
                except RecordConflict:
                    lost += 1
        return lost

    with ThreadPoolExecutor() as pool:
        list(pool.map(count, stores))
    record = run(stores[0].get("counter"))
    assert record is not None
    assert (record.value, record.version) == (b"200", 201)


def test_a_record_whose_first_answer_was_lost_is_written_all_the_same(
    stores: list[FabricStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    ask_once, lost = Cluster._ask_once, []

    async def ask_and_lose(cluster: Cluster, *arguments: Any) -> Any:
        answer = await ask_once(cluster, *arguments)
        if losing and not lost:
            lost.append(answer)
            raise wire.NodeLost("The connection broke.")
        return answer

    run(one.get("key"))
    monkeypatch.setattr(Cluster, "_ask_once", ask_and_lose)
    losing = True
    record = run(one.put("key", b"mine", expect=0))
    assert lost
    assert run(other.get("key")) == record
    losing = False
    with pytest.raises(RecordConflict):
        run(other.put("key", b"theirs", expect=0))
    record = run(other.put("key", b"theirs", expect=record.version))
    lost.clear()
    losing = True
    with pytest.raises(RecordConflict):
        run(one.put("key", b"mine", expect=0))
    lost.clear()
    assert run(one.remove("key", expect=record.version))
    assert run(other.get("key")) is None


def test_no_message_is_leased_twice_by_stores_at_work_together(drivers: list[Driver]) -> None:
    """I3."""
    one, _ = drivers
    one.count(0, 600)

    def consume(driver: Driver) -> list[bytes]:
        found = []
        while runs := driver.lease(7).runs:
            found += bodies_of(runs)
            for delivered in runs:
                driver.ack(delivered.run)
        return found

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(consume, drivers)
    assert sorted(first + second, key=int) == [b"%d" % number for number in range(600)]
    assert one.sub().floor == 600


class OtherClock(SystemClock):
    """The clock of a machine that is ahead of the node's, or behind it."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


@pytest.mark.parametrize("ahead_ms", [-600_000, 600_000])
def test_the_end_of_a_lease_is_told_by_the_clock_of_who_asks(
    redis: RedisProcess, ahead_ms: int
) -> None:
    """Else a receiver whose clock is ahead asks all the time, and one that is behind waits."""
    redis.flush()
    store = FabricStore(redis.url)
    store.clock = OtherClock(ahead_ms)
    try:
        run(store.create(STRIPE, QueueSettings.make(), 1))
        run(store.append(STRIPE, [Segment(block(b"x"))], 1))
        before_ms = store.clock.now_ms()
        run(store.lease(STRIPE, "default", 1, 60_000, 1, 1))
        due_ms = run(store.lease(STRIPE, "default", 1, 60_000, 1, 1)).due_ms
        assert due_ms is not None
        assert before_ms + 30_000 < due_ms < store.clock.now_ms() + 90_000
    finally:
        run(store.close())


def test_those_who_wait_for_a_slot_read_the_map_of_the_cluster_together(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    one, _ = drivers
    store = one.store
    one.stats()
    slot = store._place(one.stripe).slot  # type: ignore[attr-defined]
    redis.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    redis.ask("CLUSTER", "DELSLOTS", slot)
    redis.ask("CONFIG", "RESETSTAT")
    store._cluster.timeout_s = 0.5  # type: ignore[attr-defined]
    try:

        async def wait() -> list[object]:
            waiting = [store.stats(one.stripe) for _ in range(200)]
            return await asyncio.gather(*waiting, return_exceptions=True)

        answers = asyncio.run(wait())
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        told = redis.ask("INFO", "commandstats").decode()
        [reads] = re.findall(r"cmdstat_cluster\|slots:calls=(\d+)", told)
        assert int(reads) < 200
    finally:
        redis.ask("CLUSTER", "ADDSLOTS", slot)
        redis.ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        redis.await_ready()


# -- watches ------------------------------------------------------------------------------------


def listened_to(redis: RedisProcess) -> int:
    return len(redis.ask("PUBSUB", "SHARDCHANNELS"))


def test_what_comes_before_a_channel_is_joined_is_told_when_it_is(
    drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits has looked by then, over a connection that was there already."""
    one, other = drivers
    assert other.receive() == []
    joining: Pending[None] = Pending()
    connect = wire.Node._connect

    async def connect_late(node: wire.Node) -> None:
        if node.on_message is not None:
            await joining
        await connect(node)

    monkeypatch.setattr(wire.Node, "_connect", connect_late)
    other.watch()
    watcher = other.store._cluster._watcher  # type: ignore[attr-defined]
    until(lambda: watcher._joined)
    watch = other.watch()
    assert other.receive() == []
    one.send(b"x")
    joining.resolve(None)
    watch.wait(PATIENCE_S)
    assert other.receive() == [b"x"]


def test_nobody_listens_to_stripes_that_were_deleted(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    one, other = drivers
    store, another = one.store, other.store
    watcher = store._cluster._watcher  # type: ignore[attr-defined]
    for number in range(20):
        stripe = StripeId(2, number, 0)
        run(store.create(stripe, QueueSettings.make(), 1))
        store.watch(stripe)
        deleter = store if number % 2 else another
        run(deleter.delete(stripe))
        with pytest.raises(QueueNotFound):
            run(store.stats(stripe))
    store.watch(one.stripe)
    until(lambda: listened_to(redis) == 1)
    until(lambda: len(watcher._joined) == 1)
    assert len(store._places._channels) == len(watcher._wanted) == 1  # type: ignore[attr-defined]
    [node] = watcher._nodes.values()
    assert not node._wire.lost
    watch = store.watch(one.stripe)
    other.send(b"x")
    watch.wait(PATIENCE_S)


def test_a_stripe_that_others_have_deleted_wakes_who_waits_there(drivers: list[Driver]) -> None:
    one, other = drivers
    one.stats()
    watch = one.store.watch(one.stripe)
    run(other.store.delete(one.stripe))
    with pytest.raises(QueueNotFound):
        one.stats()
    watch.wait(PATIENCE_S)
    with pytest.raises(QueueNotFound):
        one.store.watch(one.stripe)


def test_stripes_where_somebody_waits_are_not_forgotten(
    drivers: list[Driver], redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_STRIPES_MAX", 5)
    one, other = drivers
    store = one.store
    one.stats()
    woken: list[int] = []

    def park(number: int) -> None:
        watch = store.watch(StripeId(3, number, 0))
        watch.when_done(lambda: (woken.append(number), park(number)))

    for number in range(10):
        park(number)
    until(lambda: listened_to(redis) == 10)
    joined = len(woken)  # That a channel was joined counts as a notice.
    assert joined <= 10
    for number in range(100):
        store.watch(StripeId(4, number, 0))
    until(lambda: len(store._places._channels) <= 20)  # type: ignore[attr-defined]
    until(lambda: listened_to(redis) == len(store._places._channels))  # type: ignore[attr-defined]
    other.stats()
    assert len(woken) == joined


# -- nodes that forget --------------------------------------------------------------------------


def test_functions_are_loaded_again_where_they_are_missing(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    one, other = drivers
    one.count(0, 3)
    redis.ask("FUNCTION", "FLUSH")
    leased = other.take(2)
    redis.ask("FUNCTION", "FLUSH")
    assert one.ack(leased) == 2
    redis.ask("FUNCTION", "FLUSH")
    with ThreadPoolExecutor() as pool:
        assert [stats.tail for stats in pool.map(Driver.stats, drivers * 4)] == [3] * 8


def test_a_block_whose_append_found_no_function_is_not_left_behind(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    one, other = drivers
    one.send(b"0")
    redis.ask("FUNCTION", "FLUSH")
    one.send(b"1")
    assert other.finish() == [b"0", b"1"]
    one.send(b"2")
    place = one.store._place(one.stripe)  # type: ignore[attr-defined]
    assert redis.ask("HLEN", place.log) == redis.ask("ZCARD", place.notes) == 1


def test_a_node_that_cannot_take_the_functions_now_is_asked_again_after_a_pause(
    redis: RedisProcess, clock: ManualClock
) -> None:
    """As while a new master has no copy yet: it must not be asked all the time."""
    redis.ask("FUNCTION", "FLUSH")
    redis.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    redis.ask("CONFIG", "RESETSTAT")
    store = FabricStore(redis.url, clock)
    try:
        store._cluster.timeout_s = 0.3
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            run(store.get("record"))
        told = redis.ask("INFO", "commandstats").decode()
        [calls] = re.findall(r"cmdstat_fcall:calls=(\d+)", told)
        assert 1 < int(calls) < 50
        redis.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        assert run(store.get("record")) is None
    finally:
        redis.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        run(store.close())


def test_another_version_of_the_functions_goes_on_beside_ours(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    """T2.9: servers are upgraded one by one."""
    one, _ = drivers
    one.send(b"0")
    older = library.TEXT.replace(library.NAME.rpartition("_")[2], "older")
    assert redis.ask("FUNCTION", "LOAD", older) == b"ringdove_older"
    one.send(b"1")
    assert one.finish() == [b"0", b"1"]
    names = {dict(zip(found[::2], found[1::2], strict=True))[b"library_name"]
             for found in redis.ask("FUNCTION", "LIST")}  # fmt: skip
    assert names >= {b"ringdove_older", library.NAME.encode()}
    redis.ask("FUNCTION", "DELETE", "ringdove_older")


# -- large values, full nodes -------------------------------------------------------------------


def test_large_values_pass_and_larger_ones_are_refused_before_they_are_sent(
    drivers: list[Driver],
) -> None:
    one, other = drivers
    one.change(body_bytes_max=limits.BODY_BYTES_MAX)
    body = bytes(range(256)) * (limits.BODY_BYTES_MAX // 256)
    one.send(body, b"small")
    assert other.finish() == [body, b"small"]
    value = bytes(limits.RECORD_BYTES_MAX)
    run(one.store.put("record", value))
    record = run(other.store.get("record"))
    assert record is not None
    assert record.value == value
    for key, refused in (("record", value + b"x"), ("k" * 501, b""), ("", b"")):
        with pytest.raises(InvalidArgument):
            run(one.store.put(key, refused))


def test_every_master_is_given_the_functions_at_the_beginning(redis: RedisProcess) -> None:
    """One that is full later on could not take them any more."""
    redis.flush()
    redis.ask("FUNCTION", "FLUSH")
    store = FabricStore(redis.url)
    try:
        run(store._cluster.open())
        until(lambda: redis.ask("FUNCTION", "LIST", "LIBRARYNAME", library.NAME))
        redis.ask("CONFIG", "SET", "maxmemory", 1)
        assert run(store.get("record")) is None
    finally:
        redis.ask("CONFIG", "SET", "maxmemory", 0)
        run(store.close())


def test_a_full_node_without_the_functions_says_what_to_do(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    one, _ = drivers
    one.count(0, 3)
    redis.ask("FUNCTION", "FLUSH")
    redis.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="raise its maxmemory for a moment"):
            one.lease()
    finally:
        redis.ask("CONFIG", "SET", "maxmemory", 0)
    assert one.finish() == [b"0", b"1", b"2"]


def test_a_full_node_refuses_sends_and_lets_receivers_go_on(
    drivers: list[Driver], redis: RedisProcess
) -> None:
    one, other = drivers
    one.count(0, 10)
    leased = one.take(2)
    redis.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        for act in (
            lambda: one.send(b"x"),
            lambda: run(one.store.put("record", b"x")),
            lambda: run(one.store.create(StripeId(9, 0, 0), QueueSettings.make(), 1)),
        ):
            with pytest.raises(StoreFull, match="maxmemory"):
                act()
        assert other.extend(leased, 60_000) == 2
        assert other.ack(leased) == 2
        assert other.finish(3) == [b"2", b"3", b"4"]
        assert other.replay(other.stats().head) == [b"%d" % number for number in range(10)]
        other.subscribe("late")
        assert run(other.store.purge(other.stripe)) == 10
    finally:
        redis.ask("CONFIG", "SET", "maxmemory", 0)
    assert one.send(b"x").base == 10
