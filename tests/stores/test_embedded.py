"""The embedded store keeps the contract: unsynced, synced, on a loop, restarted at each call."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from ringdove import limits
from ringdove.clock import ManualClock
from ringdove.core.dedup import Appended
from ringdove.errors import (
    ClientError,
    FenceStale,
    FormatUnknown,
    QueueNotFound,
    ReceiptStale,
    SettingsStale,
    StoreLocked,
    StoreUnavailable,
)
from ringdove.pending import run
from ringdove.stores.base import Record
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck
from ringdove.stores.embedded.commit import GroupCommit
from stores.conformance import StoreContract
from stores.copies import CopyContract
from stores.driver import Driver, bodies_of, offsets_of
from stores.looped import LoopedStore
from stores.restless import RestlessStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestEmbeddedStore(CopyContract, StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Iterator[EmbeddedStore]:
        store = EmbeddedStore(tmp_path, clock, seed=1)
        yield store
        run(store.close())


class TestEmbeddedStoreOnDisk(TestEmbeddedStore):
    durability = "disk"


class TestEmbeddedStoreOnAnEventLoop(CopyContract, StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Iterator[LoopedStore]:
        store = LoopedStore(EmbeddedStore(tmp_path, clock, seed=1))
        yield store
        run(store.close())


class TestEmbeddedStoreRestarted(CopyContract, StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Iterator[RestlessStore]:
        store = RestlessStore(tmp_path, clock)
        yield store
        run(store.close())

    # A watch belongs to its process.
    test_an_append_wakes_who_watches = None
    test_a_release_wakes_who_watches = None
    test_unlocking_wakes_who_watches = None
    test_deleting_wakes_who_watches = None
    # What a bounded search has passed over is not stored, so each restart searches from the floor.
    test_passing_delayed_blocks_is_bounded_per_call = None
    test_looking_at_many_locked_messages_is_bounded_per_call = None
    # A claim belongs to its process: after a restart its reader must begin again.
    test_a_claim_excludes_other_readers = None
    test_a_claim_excludes_leases = None
    test_the_same_owner_may_claim_again_at_once = None
    test_a_claim_ends_with_its_time = None
    test_holding_prolongs_a_claim = None
    test_a_claim_that_nobody_took_over_can_be_held_again = None
    test_holding_for_no_time_gives_the_claim_up = None
    test_an_older_fence_neither_commits_nor_holds = None
    test_a_commit_under_a_claim_moves_the_position_and_never_back = None
    test_a_lazy_commit_counts_at_once = None
    test_a_claim_survives_new_settings = None
    test_purging_leaves_a_claim = None
    # Which group was free first is not stored, so the oldest goes first.
    test_a_group_that_is_free_again_goes_behind_the_others = None
    # When something became done is not stored, so the replay window starts again.
    test_done_messages_are_kept_for_replay = None
    test_a_replay_is_not_trimmed_under_its_reader = None
    # Nor what is delayed behind the scan, until a receive comes to it.
    test_what_is_delayed_is_counted_as_such_before_anybody_asks_for_it = None


class Reopened:
    """A directory that a test closes and opens again when it likes."""

    def __init__(self, path: Path, durability: str) -> None:
        self.path = path
        self.durability = durability
        self.store: EmbeddedStore | None = None

    def __call__(self, clock: ManualClock | None = None) -> Driver:
        """Open the directory, again if need be; the clock stands where it stood."""
        if self.store is not None:
            clock = clock or ManualClock(self.store.clock.now_ms())
            run(self.store.close())
        clock = clock or ManualClock()
        self.store = EmbeddedStore(self.path, clock, seed=1)
        return Driver(self.store, clock, self.durability)


@pytest.fixture(params=["memory", "disk"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopened]:
    """Each call opens the directory in use again."""
    reopened = Reopened(tmp_path, request.param)
    yield reopened
    if reopened.store is not None:
        run(reopened.store.close())


def stored(reopen: Reopened, database: str) -> int:
    """How many entries a database has."""
    assert reopen.store is not None
    env = reopen.store._writers[reopen.durability].env
    with env.lmdb.begin() as txn:
        return int(txn.stat(env.db[database])["entries"])


class TestReopening:
    def test_fences_grow_across_restarts(self, reopen: Reopened) -> None:
        """M1: a reader from before a restart cannot move the position."""
        driver = reopen().make()
        driver.count(0, 4)
        fences = []
        for _ in range(3):
            claimed = run(driver.store.claim(driver.stripe, "default", b"a", 60_000))
            fences.append(claimed.fence)
            driver = reopen()
            with pytest.raises(FenceStale):
                run(driver.store.commit(driver.stripe, "default", 4, claimed.fence))
        assert fences == sorted(set(fences))
        assert driver.sub().floor == 0

    def test_a_claim_from_before_a_restart_is_stale(self, reopen: Reopened) -> None:
        """What is forgotten with a process must not come back under the same fence."""
        driver = reopen().make()
        driver.count(0, 4)
        old = run(driver.store.claim(driver.stripe, "default", b"a", 60_000))
        driver = reopen()
        new = run(driver.store.claim(driver.stripe, "default", b"b", 60_000))
        assert new.fence > old.fence
        with pytest.raises(FenceStale):
            run(driver.store.hold(driver.stripe, "default", old.fence, 60_000))
        run(driver.store.commit(driver.stripe, "default", 1, new.fence))
        assert reopen().sub().floor == 1

    def test_a_lazy_commit_is_durable_after_closing(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.count(0, 4)
        claimed = run(driver.store.claim(driver.stripe, "default", b"a", 60_000))
        run(driver.store.commit(driver.stripe, "default", 3, claimed.fence, lazy=True))
        driver = reopen()
        assert driver.sub()[1:] == (3, 1, 0, 0)
        assert run(driver.store.claim(driver.stripe, "default", b"b", 60_000)).offset == 3

    def test_a_fence_survives_a_commit_of_the_position(self, reopen: Reopened) -> None:
        """Writing the floor back must keep the fence beside it."""
        driver = reopen().make()
        driver.count(0, 4)
        first = run(driver.store.claim(driver.stripe, "default", b"a", 60_000))
        run(driver.store.commit(driver.stripe, "default", 2, first.fence))
        driver = reopen()
        second = run(driver.store.claim(driver.stripe, "default", b"a", 60_000))
        assert (second.fence > first.fence, second.offset) == (True, 2)

    def test_done_stays_done(self, reopen: Reopened) -> None:
        """I4."""
        driver = reopen().make()
        driver.count(0, 20)
        leased = driver.take()
        for lo, hi in ((0, 3), (5, 6), (8, 12), (19, 20)):
            driver.ack(leased, lo, hi)
        driver = reopen()
        driver.clock.sleep_ms(60_000)
        assert offsets_of(driver.lease().runs) == [3, 4, 6, 7, *range(12, 19)]

    def test_leases_receipts_and_counts_survive(self, reopen: Reopened) -> None:
        """I3, I5."""
        driver = reopen().make()
        driver.count(0, 10)
        started_ms = driver.clock.now_ms()
        driver.lease(4, lease_ms=1000)
        driver.clock.sleep_ms(1000)
        old = driver.take(2)
        driver.ack(old, 1, 2)
        driver = reopen()
        assert driver.sub()[1:] == (0, 8, 1, 0)
        [first, second] = driver.lease(lease_ms=5000).runs
        assert (first.run.lo, first.run.hi, first.run.receives, first.run.first_ms) == (
            2, 4, 2, started_ms,
        )  # fmt: skip
        assert (second.run.lo, second.run.receives) == (4, 1)
        assert driver.ack(old) == 1
        driver = reopen()
        assert driver.ack(first.run, 2, 3) == 1
        assert driver.sub()[1:] == (3, 0, 7, 0)

    def test_an_expired_receipt_is_worth_as_much_as_before(self, reopen: Reopened) -> None:
        """I5."""
        driver = reopen().make()
        driver.count(0, 2)
        leased = driver.take(lease_ms=1000)
        driver.clock.sleep_ms(2000)
        driver = reopen()
        assert driver.ack(leased, 0, 1) == 1
        new = driver.take()
        driver = reopen()
        with pytest.raises(ReceiptStale):
            driver.ack(leased, 1, 2)
        assert driver.ack(new) == 1

    def test_the_tail_never_goes_back(self, reopen: Reopened) -> None:
        """I7."""
        driver = reopen().make()
        driver.count(0, 5)
        driver.finish()
        assert driver.trim() == 5
        driver = reopen()
        assert (driver.stats().head, driver.stats().tail, driver.stats().nbytes) == (5, 5, 0)
        assert driver.count(5, 6).base == 5
        run(driver.store.purge(driver.stripe))
        driver.trim()
        assert reopen().count(6, 7).base == 6

    def test_senders_are_remembered(self, reopen: Reopened) -> None:
        """M2."""
        driver = reopen().make(dedup_ms=1000)
        driver.send(b"a", producer=b"p", sequence=0)
        driver.send(b"b", message_id=b"id")
        run(driver.store.purge(driver.stripe))
        driver = reopen()
        assert driver.send(b"a", producer=b"p", sequence=0) == Appended(0, duplicate=True)
        assert driver.send(b"b", message_id=b"id") == Appended(1, duplicate=True)
        driver.clock.sleep_ms(1000)
        driver = reopen()
        assert driver.send(b"b", message_id=b"id") == Appended(2)
        assert driver.send(b"c", producer=b"p", sequence=1) == Appended(3)

    def test_settings_and_their_version_survive(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.change(receives_max=1)
        driver.count(0, 1)
        driver = reopen()
        with pytest.raises(SettingsStale):
            driver.lease(version=1)
        driver.lease(lease_ms=10, version=2)
        driver.clock.sleep_ms(10)
        assert offsets_of(driver.lease(version=2).dead) == [0]

    def test_subscriptions_and_positions_survive(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.count(0, 8)
        driver.subscribe("new", "latest")
        driver.subscribe("gone")
        driver.subscribe("reader")
        run(driver.store.commit(driver.stripe, "reader", 3))
        run(driver.store.unsubscribe(driver.stripe, "gone"))
        driver.finish(2)
        driver = reopen()
        assert [s[:3] for s in driver.stats().subscriptions] == [
            ("default", 2, 6),
            ("new", 8, 0),
            ("reader", 3, 5),
        ]
        assert driver.subscribe("gone") == 0

    def test_time_never_goes_back(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.count(0, 1)
        driver.clock.sleep_ms(50_000)
        driver.count(1, 2)
        last_ms = driver.clock.now_ms()
        leased = driver.take(lease_ms=1000)
        driver = reopen(ManualClock(last_ms - 40_000))
        assert driver.clock.now_ms() >= last_ms
        assert driver.lease().due_ms == leased.until_ms
        driver.clock.sleep_ms(1000)
        assert driver.receive() == [b"0", b"1"]

    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_what_was_locked_stays_locked(self, reopen: Reopened, order: str) -> None:
        driver = reopen().make(order=order)
        driver.send(b"0", b"1", b"2", b"3", keys=[b"a", b"a", b"b", b"a"])
        leased = driver.take(1)
        driver = reopen()
        others = driver.lease().runs
        assert bodies_of(others) == ([b"2"] if order == "key" else [])
        assert driver.ack(leased) == 1
        driver = reopen()
        assert bodies_of(driver.lease().runs)[0] == b"1"

    def test_delays_and_back_offs_survive(self, reopen: Reopened) -> None:
        driver = reopen().make(backoff_ms=500)
        now_ms = driver.clock.now_ms()
        driver.send(b"late", not_before_ms=now_ms + 900)
        driver.send(b"held")
        driver.release(driver.take(), None)
        driver = reopen()
        assert driver.lease().due_ms == now_ms + 500
        driver.clock.sleep_ms(500)
        assert driver.take().receives == 2
        driver = reopen()
        assert driver.lease().due_ms == now_ms + 900

    def test_the_oldest_still_comes_first(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.send(b"late", not_before_ms=driver.clock.now_ms() + 500)
        driver.send(b"soon")
        driver.take(lease_ms=500)
        driver = reopen()
        driver.clock.sleep_ms(500)
        assert driver.receive(1) == [b"late"]
        assert driver.receive(1) == [b"soon"]

    def test_a_replay_is_not_trimmed_under_its_reader(self, reopen: Reopened) -> None:
        """I6."""
        driver = reopen().make(keep_done_ms=1000)
        for first in range(6):
            driver.count(first, first + 1)
        driver.finish()
        driver = reopen()
        driver.trim()
        driver.subscribe("again", "offset", 2)
        driver.clock.sleep_ms(1000)
        driver.trim()
        driver = reopen()
        driver.trim()
        assert driver.finish(sub="again") == [b"2", b"3", b"4", b"5"]

    def test_another_order_leaves_a_sound_store(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.count(0, 6)
        driver.ack(driver.take(), 1, 3)
        with suppress(ClientError):
            driver.change(order="strict")
        driver.clock.sleep_ms(30_000)
        driver.take(1)
        driver = reopen()
        driver.clock.sleep_ms(30_000)
        assert [*driver.finish(), *driver.finish()] == [b"0", b"3", b"4", b"5"]

    @pytest.mark.parametrize("fails", [False, True])
    @pytest.mark.parametrize("order", ["key", "strict"])
    def test_another_order_in_the_commit_that_makes_all_done(
        self, reopen: Reopened, monkeypatch: pytest.MonkeyPatch, order: str, fails: bool
    ) -> None:
        """What the former order's index had still to write is written, now or later."""
        driver = reopen().make()
        driver.count(0, 6)
        first, rest = driver.take(2), driver.take()
        driver.ack(rest, 3, 5)  # The leases are stored now.
        claims = [driver.claim(first), driver.claim(rest)]
        acknowledgement = driver.store.acknowledge(driver.stripe, "default", claims, 0)
        acknowledgement.send(None)
        if fails:
            write = GroupCommit.write

            def fail(_commit: GroupCommit, _txn: Any) -> None:
                monkeypatch.setattr(GroupCommit, "write", write)
                raise OSError("no")

            monkeypatch.setattr(GroupCommit, "write", fail)
            with pytest.raises(StoreUnavailable):
                driver.change(order=order)
            driver.lease(version=1)
        else:
            driver.change(order=order)
        acknowledgement.close()
        driver.count(6, 7)
        driver = reopen()
        assert driver.finish() == [b"6"]
        run(driver.store.close())
        assert fsck(reopen.path).faults == []

    def test_a_released_message_is_not_leased_after_a_restart(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.count(0, 3)
        driver.release(driver.take(2), 5000)
        before = driver.sub()
        assert reopen().sub() == before

    def test_kept_messages_stay_readable(self, reopen: Reopened) -> None:
        driver = reopen().make(keep_done_ms=1000)
        driver.count(0, 2)
        driver.finish()
        driver = reopen()
        assert driver.replay(0) == [b"0", b"1"]
        driver.trim()
        driver.clock.sleep_ms(1000)
        assert driver.trim() == 2

    def test_what_was_given_up_stays_given_up(self, reopen: Reopened) -> None:
        driver = reopen().make(retention_ms=1000)
        driver.count(0, 2)
        driver.clock.sleep_ms(600)
        driver.count(2, 5)
        driver.clock.sleep_ms(400)
        driver.take(1)
        driver = reopen()
        assert driver.sub()[1:] == (2, 2, 1, 0)
        run(driver.store.purge(driver.stripe))
        assert reopen().sub()[1:] == (5, 0, 0, 0)

    def test_deleted_stripes_stay_deleted(self, reopen: Reopened) -> None:
        driver = reopen().make()
        other = driver.beside(level=1)
        driver.count(0, 100)
        other.count(0, 1)
        run(driver.store.delete(driver.stripe))
        driver = reopen()
        with pytest.raises(QueueNotFound):
            driver.stats()
        other.store = driver.store
        assert other.receive() == [b"0"]

    def test_what_is_left_of_a_deleted_queue_goes_after_a_restart(
        self, reopen: Reopened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = reopen().make()
        for number in range(50):
            driver.send(b"%d" % number)
        driver.trim()  # The tree has them now.
        monkeypatch.setattr(limits, "TRIM_BLOCKS_PER_COMMIT_MAX", 1)
        run(driver.store.delete(driver.stripe))
        driver = reopen()
        assert stored(reopen, "log") > 0, "nothing is left"
        monkeypatch.undo()
        # Whatever is committed next takes it along.
        run(driver.store.create(driver.stripe._replace(queue=2), driver.settings, 1))
        assert (stored(reopen, "log"), stored(reopen, "graves")) == (0, 0)

    def test_records_survive(self, reopen: Reopened) -> None:
        driver = reopen()
        run(driver.store.put("a", b"1"))
        run(driver.store.put("a", b"2"))
        run(driver.store.put("b", b"3"))
        run(driver.store.remove("b"))
        assert run(reopen().store.scan("")) == [Record("a", b"2", 2)]

    def test_a_receipt_survives_many_restarts(self, reopen: Reopened) -> None:
        driver = reopen().make()
        driver.count(0, 6)
        leased = driver.take()
        for offset in (4, 1, 5, 0, 3, 2):
            driver = reopen()
            assert driver.ack(leased, offset, offset + 1) == 1
        assert reopen().sub()[1:] == (6, 0, 0, 0)

    def test_one_process_at_a_time(self, reopen: Reopened) -> None:
        reopen()
        with pytest.raises(StoreLocked, match="is open in this process"):
            EmbeddedStore(reopen.path)

    def test_an_unknown_format_is_refused(self, reopen: Reopened) -> None:
        reopen().make()
        assert reopen.store is not None
        run(reopen.store.close())
        (reopen.path / "format").write_text("ringdove 999\n")
        with pytest.raises(FormatUnknown):
            EmbeddedStore(reopen.path)
