"""The embedded store's inside: commits, closing, eviction, what one bad call may do to others."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from ringdove import errors, limits
from ringdove.clock import ManualClock
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import (
    ClientError,
    ConnectionClosed,
    QueueFull,
    QueueNotFound,
    RingdoveError,
    StoreUnavailable,
)
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import EmbeddedStore, append
from ringdove.stores.embedded.commit import GroupCommit
from ringdove.stores.embedded.journal import Draft
from ringdove.stores.embedded.state import under
from stores.driver import Driver, block, offsets_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_full_stripe_reads_its_producers_only_when_one_may_be_forgotten(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def counted(txn: Any, *arguments: Any) -> Any:
        if not isinstance(txn, Draft):  # Nobody goes through those.
            looks.append(arguments)
        return under(txn, *arguments)

    monkeypatch.setattr(append, "under", counted)
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 2)
    driver.make(retention_ms=limits.PRODUCERS_LOOK_MS // 2)
    for name in (b"a", b"b"):
        driver.send(b"x", producer=name)
        driver.clock.sleep_ms(10)
    looks.clear()
    for _ in range(3):
        with pytest.raises(errors.LimitExceeded):
            driver.send(b"x", producer=b"c")
    assert len(looks) == 1
    driver.clock.sleep_ms(limits.PRODUCERS_LOOK_MS // 2 - 20)
    driver.send(b"x", producer=b"c")
    assert len(looks) == 2


def embedded(driver: Driver) -> EmbeddedStore:
    assert isinstance(driver.store, EmbeddedStore)
    return driver.store


def rows(driver: Driver) -> dict[str, int]:
    """How many rows each database holds for the driver's stripe."""
    counts = {}
    env = embedded(driver)._writers["memory"].env
    with env.lmdb.begin() as txn:
        for name, db in env.db.items():
            keys = txn.cursor(db).iternext(keys=True, values=False)
            counts[name] = sum(key.startswith(driver.stripe.key()) for key in keys)
    return {name: count for name, count in counts.items() if count}


# -- one commit for many --------------------------------------------------------------------------


def test_appends_that_wait_together_are_committed_together(driver: Driver) -> None:
    driver.make()
    store = embedded(driver)
    first, second, third = (
        store.submit_append(driver.stripe, [Segment(block(b"%d" % n), b"p", n)], 0)
        for n in range(3)
    )
    assert third.block()
    assert first.done
    assert [p.result() for p in (first, second, third)] == [[Appended(n)] for n in range(3)]


def test_a_refused_append_does_not_stop_others_in_its_commit(driver: Driver) -> None:
    driver.make(bytes_max=2000, body_bytes_max=1000)
    store = embedded(driver)
    big = [Segment(block(b"x" * 5000))]
    pendings = [
        store.submit_append(driver.stripe, segments, 0)
        for segments in ([Segment(block(b"a"))], big, [Segment(block(b"b"))])
    ]
    assert pendings[-1].block()
    assert [type(p.error()).__name__ for p in pendings] == ["NoneType", "QueueFull", "NoneType"]
    assert driver.receive() == [b"a", b"b"]


def test_room_is_shared_by_the_appends_of_one_commit(driver: Driver) -> None:
    size = block(b"x").nbytes
    driver.make(bytes_max=2 * size, body_bytes_max=1, when_full="drop-oldest")
    driver.send(b"0")
    pendings = [
        embedded(driver).submit_append(driver.stripe, [Segment(block(b"%d" % n))], 0)
        for n in range(1, 4)
    ]
    assert pendings[-1].block()
    assert driver.stats().nbytes <= 2 * size
    kept = driver.receive()
    assert len(kept) == 2
    assert kept == sorted(kept)


def test_a_queue_that_drops_its_oldest_takes_any_number_of_sends_at_once(driver: Driver) -> None:
    """What is not stored yet cannot be dropped: it takes several commits, in order."""
    size = block(b"x").nbytes
    driver.make(bytes_max=3 * size, body_bytes_max=1, when_full="drop-oldest")
    other = driver.beside(number=1)
    store = embedded(driver)
    pendings = [
        store.submit_append(driver.stripe, [Segment(block(b"%d" % n), b"p", n)], 0)
        for n in range(8)
    ]
    too_big = store.submit_append(driver.stripe, [Segment(block(b"x" * 5000))], 0)
    beside = store.submit_append(other.stripe, [Segment(block(b"y"))], 0)
    assert too_big.block()
    assert isinstance(too_big.error(), QueueFull)
    assert beside.result() == [Appended(0)]
    assert [pending.result() for pending in pendings] == [[Appended(n)] for n in range(8)]
    assert not store._writers["memory"]._queue
    assert driver.receive() == [b"5", b"6", b"7"]


def test_who_may_not_commit_does_not_look_at_the_queue(driver: Driver) -> None:
    """The leader takes operations away meanwhile; a send that met that would never be answered."""
    driver.make()
    store = embedded(driver)
    writer = store._writers["memory"]

    class Emptied(deque[Any]):
        def __getitem__(self, position: Any) -> Any:
            raise IndexError(position)

    with writer.paused():
        pending = store.submit_append(driver.stripe, [Segment(block(b"a"))], 0)
        queue, writer._queue = writer._queue, Emptied(writer._queue)
        pending.start(inline=True)
        writer._queue = queue
    assert pending.block(10)
    assert driver.receive() == [b"a"]


def test_a_malformed_producer_is_refused_and_harms_nobody(driver: Driver) -> None:
    driver.make()
    refused = embedded(driver).submit_append(
        driver.stripe, [Segment(block(b"a"), b"p" * 600, 0)], 0
    )
    neighbour = embedded(driver).submit_append(driver.stripe, [Segment(block(b"b"))], 0)
    assert refused.block()
    assert neighbour.block()
    assert neighbour.error() is None
    with pytest.raises(ClientError):
        raise _refusal(refused)
    assert driver.receive() == [b"b"]


def test_a_malformed_subscription_is_refused_and_harms_nobody(driver: Driver) -> None:
    driver.make()
    with pytest.raises(ClientError):
        driver.subscribe("s" * 600)
    driver.send(b"a")
    assert driver.receive() == [b"a"]


def test_subscriptions_may_come_and_go_for_ever(driver: Driver) -> None:
    driver.make()
    store = embedded(driver)
    driver.subscribe("0")
    state = store._state(driver.stripe)
    with store._lock:
        state.numbers["0"] = 65_535
    driver.subscribe("1")
    driver.count(0, 2)
    assert driver.finish(sub="1") == [b"0", b"1"]


def _refusal(pending: Any) -> BaseException:
    if pending.error() is not None:
        return pending.error()
    [answer] = pending.result()
    return answer


@pytest.mark.parametrize("step", ["apply", "write", "record", "publish"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_leader_leaves_nobody_waiting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    """Ctrl-C may strike while a thread commits for others: all happens once, or is tried again."""
    driver.make()
    whole = getattr(GroupCommit, step)

    def interrupted(commit: GroupCommit, *arguments: Any) -> None:
        monkeypatch.setattr(GroupCommit, step, whole)
        if when == "after":
            whole(commit, *arguments)
        raise KeyboardInterrupt

    others = embedded(driver).submit_append(driver.stripe, [Segment(block(b"theirs"))], 0)
    monkeypatch.setattr(GroupCommit, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.send(b"mine")
    assert others.block(10)
    assert driver.send(b"later")
    assert driver.receive() == [b"theirs", b"mine", b"later"]
    assert embedded(driver)._state(driver.stripe).stripe.nbytes == sum(
        found.nbytes for found in driver.read(0)
    )


def test_what_an_interrupted_commit_had_taken_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: an acknowledgement shares its commit with others, whose fate must not be its own."""
    clock = ManualClock()
    driver = Driver(EmbeddedStore(tmp_path, clock), clock).make()
    driver.count(0, 4)
    first, second = driver.take(1), driver.take(1)
    write = GroupCommit.write

    def interrupted(commit: GroupCommit, txn: Any) -> None:
        monkeypatch.setattr(GroupCommit, "write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupCommit, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.ack(second)
    assert driver.sub().leased == 1
    assert driver.ack(first) == 1
    run(driver.store.close())
    driver.store = EmbeddedStore(tmp_path, clock)
    assert driver.sub()[1:] == (2, 2, 0, 0)
    run(driver.store.close())


# -- between commit and publication ---------------------------------------------------------------


@pytest.mark.parametrize("call", ["stats", "read", "find", "lease"])
def test_what_a_commit_has_trimmed_is_not_missed_before_it_is_published(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    driver.make(retention_ms=1000)
    driver.count(0, 2)
    leased = driver.take()
    driver.clock.sleep_ms(999)
    publish = GroupCommit.publish
    seen: list[object] = []

    def look_then_publish(commit: GroupCommit) -> None:
        state = embedded(driver)._state(driver.stripe)
        state._hot = state.newest = None
        embedded(driver)._cache._blocks.clear()
        driver.clock.sleep_ms(1)
        calls = {
            "stats": driver.stats,
            "read": lambda: driver.read(0),
            "find": lambda: run(driver.store.find(driver.stripe, 0)),
            "lease": driver.lease,
        }
        try:
            seen.append(calls[call]())
        except RingdoveError as error:
            seen.append(error)
        publish(commit)

    monkeypatch.setattr(GroupCommit, "publish", look_then_publish)
    driver.ack(leased)
    monkeypatch.undo()
    assert seen
    assert [
        e for e in seen if isinstance(e, RingdoveError) and not isinstance(e, ClientError)
    ] == []


# -- deleting -------------------------------------------------------------------------------------


def test_a_deleted_stripe_leaves_no_rows(driver: Driver) -> None:
    driver.make()
    driver.subscribe("s")
    for n in range(20):
        driver.send(b"%d" % n, producer=b"%d" % n, sequence=0)
        driver.send(b"%d" % n, message_id=b"%d" % n)
    leased = driver.take()
    driver.ack(leased, 3, 4)
    run(driver.store.delete(driver.stripe))
    run(driver.store.put("next commit", b""))
    Driver(driver.store, driver.clock, queue=9).make()
    assert rows(driver) == {}


def test_an_append_in_the_commit_that_deletes_leaves_no_rows(driver: Driver) -> None:
    driver.make()
    pending = embedded(driver).submit_append(driver.stripe, [Segment(block(b"a"))], 0)
    run(driver.store.delete(driver.stripe))
    assert pending.done
    Driver(driver.store, driver.clock, queue=9).make()
    assert rows(driver) == {}


@pytest.mark.parametrize("moment", ["write", "publish"])
def test_a_send_while_the_deletion_is_committed_finds_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It must not be told that it was stored where nobody looks any more."""
    driver.make()
    driver.count(0, 3)
    whole = getattr(GroupCommit, moment)
    refused: list[Any] = []

    def send_meanwhile(commit: GroupCommit, *arguments: Any) -> None:
        monkeypatch.undo()
        for call in (lambda: driver.store.watch(driver.stripe), submit_append):
            with pytest.raises(QueueNotFound) as caught:
                call()
            refused.append(caught.value)
        whole(commit, *arguments)

    def submit_append() -> None:
        embedded(driver).submit_append(driver.stripe, [Segment(block(b"late"))], 0)

    monkeypatch.setattr(GroupCommit, moment, send_meanwhile)
    run(driver.store.delete(driver.stripe))
    assert len(refused) == 2
    run(driver.store.put("next commit", b""))
    Driver(driver.store, driver.clock, queue=9).make()
    assert rows(driver) == {}
    with pytest.raises(QueueNotFound):
        driver.count(0, 1)


def test_a_deletion_that_fails_leaves_the_stripe(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.make()
    driver.count(0, 3)

    def fail(_commit: GroupCommit, _txn: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(GroupCommit, "write", fail)
    with pytest.raises(StoreUnavailable):
        run(driver.store.delete(driver.stripe))
    monkeypatch.undo()
    driver.count(3, 4)
    assert driver.receive() == [b"0", b"1", b"2", b"3"]


def test_a_deletion_that_nobody_waits_for_any_more_is_finished(driver: Driver) -> None:
    driver.make()
    watch = driver.watch()
    deletion = driver.store.delete(driver.stripe)
    pending, _ = deletion.send(None)
    deletion.close()
    assert pending.block()
    assert watch.done
    assert driver.stripe not in embedded(driver)._states
    with pytest.raises(QueueNotFound):
        driver.count(0, 1)


def test_what_is_left_of_a_deleted_stripe_does_not_harm_another_of_its_name(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is made anew has the ids of the one before."""
    monkeypatch.setattr(limits, "TRIM_BLOCKS_PER_COMMIT_MAX", 3)
    driver.make(dedup_ms=60_000)
    for n in range(20):
        driver.send(b"old", message_id=b"%d" % n)
    run(driver.store.delete(driver.stripe))
    driver.make(dedup_ms=60_000)
    assert rows(driver) == {"stripes": 1, "tails": 1, "subs": 1}
    driver.send(*[b"new"] * 4, message_id=b"1")
    run(driver.store.put("next commit", b""))
    assert driver.replay(1) == [b"new"] * 3
    assert driver.receive() == [b"new"] * 4


def test_done_messages_leave_no_rows(driver: Driver) -> None:
    driver.make()
    driver.subscribe("s")
    driver.count(0, 50)
    for sub in ("default", "s"):
        leased = driver.take(sub=sub)
        for offset in [*range(0, 50, 2), *range(1, 50, 2)]:
            driver.ack(leased, offset, offset + 1, sub=sub)
    assert driver.trim() == 50
    assert rows(driver) == {"stripes": 1, "tails": 1, "subs": 2}


# -- closing --------------------------------------------------------------------------------------


def test_closing_finishes_what_was_accepted(tmp_path: Path) -> None:
    clock = ManualClock()
    store = EmbeddedStore(tmp_path, clock)
    driver = Driver(store, clock).make()
    pendings = [
        store.submit_append(driver.stripe, [Segment(block(b"%d" % n))], 0) for n in range(100)
    ]
    run(store.close())
    assert [p.result() for p in pendings] == [[Appended(n)] for n in range(100)]
    again = EmbeddedStore(tmp_path, clock)
    assert run(again.stats(driver.stripe)).tail == 100
    run(again.close())


@pytest.mark.parametrize(
    "call",
    ["append", "lease", "ack", "stats", "read", "subscribe", "create", "get", "put", "scan"],
)
def test_a_closed_store_says_so(tmp_path: Path, call: str) -> None:
    clock = ManualClock()
    store = EmbeddedStore(tmp_path, clock)
    driver = Driver(store, clock).make()
    driver.count(0, 5)
    claim = driver.claim(driver.take(1))
    run(store.close())
    calls = {
        "append": lambda: driver.send(b"x"),
        "lease": lambda: driver.lease(1),
        "ack": lambda: run(store.acknowledge(driver.stripe, "default", [claim], 0)),
        "stats": driver.stats,
        "read": lambda: driver.read(0),
        "subscribe": lambda: driver.subscribe("s"),
        "create": lambda: run(store.create(StripeId(2, 0, 0), QueueSettings.make(), 1)),
        "get": lambda: run(store.get("a")),
        "put": lambda: run(store.put("a", b"")),
        "scan": lambda: run(store.scan("")),
    }
    with pytest.raises(ConnectionClosed):
        calls[call]()


# -- many stripes ---------------------------------------------------------------------------------


def test_stripes_beyond_the_limit_are_dropped_and_read_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRIPES_LOADED_MAX", 4)
    drivers = [Driver(driver.store, driver.clock, queue=n).make() for n in range(1, 30)]
    for one in drivers:
        one.count(0, 6)
    leases = [one.take(3) for one in drivers]
    for one, leased in zip(drivers, leases, strict=True):
        assert one.ack(leased, 1, 3) == 2
        assert one.receive(1) == [b"3"]
    for one, leased in zip(drivers, leases, strict=True):
        assert one.sub()[1:] == (0, 2, 2, 0)
        assert one.ack(leased, 0, 1) == 1
    driver.clock.sleep_ms(30_000)
    assert all(offsets_of(one.lease().runs) == [3, 4, 5] for one in drivers)


def test_many_threads_may_make_the_first_queue_of_a_kind(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    gate = threading.Barrier(8)
    failures: list[BaseException] = []

    def create(number: int) -> None:
        gate.wait()
        try:
            run(store.create(StripeId(number, 0, 0), QueueSettings.make(durability="memory"), 1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert failures == []
        assert [run(store.stats(StripeId(n, 0, 0))).tail for n in range(8)] == [0] * 8
    finally:
        run(store.close())


# -- what nobody asks for -------------------------------------------------------------------------


def test_expired_records_leave_the_disk(driver: Driver) -> None:
    store = embedded(driver)
    now_ms = driver.clock.now_ms()
    run(store.put("short", b"1", expires_ms=now_ms + 10))
    run(store.put("long", b"2"))
    driver.clock.sleep_ms(10)
    writer = store._writers["disk"]
    writer.on_sweep()
    run(store.put("later", b"3"))
    with writer.env.lmdb.begin(db=writer.env.db["records"]) as txn:
        assert sorted(key for key, _ in txn.cursor()) == [b"later", b"long"]


def test_message_ids_are_forgotten_as_fast_as_they_come(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORGET_PER_APPEND_MAX", 1)
    driver.make(dedup_ms=1000)
    driver.send_with_ids(10, 50)
    found = rows(driver)
    assert (found["ids"], found["id_times"]) == (50, 50)


def test_retention_reaches_queues_that_nobody_uses(tmp_path: Path) -> None:
    clock = ManualClock()
    driver = Driver(EmbeddedStore(tmp_path, clock), clock).make(retention_ms=1000)
    driver.count(0, 5)
    run(driver.store.close())
    clock.sleep_ms(1000)
    driver.store = store = EmbeddedStore(tmp_path, clock)
    writer = store._writers["disk"]
    writer.on_sweep()
    run(store.put("any", b""))  # Waits for a commit, which takes the sweep's finds along.
    with writer.env.lmdb.begin(db=writer.env.db["log"]) as txn:
        assert txn.stat(writer.env.db["log"])["entries"] == 0
    run(store.close())


def test_what_is_submitted_while_the_store_closes_is_answered(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.make()
    store = embedded(driver)
    writer = store._writers["disk"]

    class Closing(deque[Any]):
        """Somebody closes the store between the question whether it is closed and this."""

        def append(self, operation: Any) -> None:
            writer._queue = deque()
            run(store.close())
            writer._queue.append(operation)

    writer._queue = Closing()
    late = writer.barrier()
    assert late.block(10)
    with pytest.raises(ConnectionClosed):
        late.result()
