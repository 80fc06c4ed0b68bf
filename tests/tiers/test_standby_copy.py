"""A standby's directory is an exact copy of the primary's, key for key, whatever happens there."""

import lmdb
import pytest

from ringdove.core.settings import QueueSettings
from ringdove.errors import FormatUnknown, RemoteProtocolError, StoreLocked, StoreUnavailable
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck
from ringdove.stores.embedded.environment import DATABASES
from ringdove.stores.embedded.replica import Member, Replica
from stores.driver import Driver
from tiers.copying import DirectCopy, Owner, entries

STEPS = 150


def primary_entries(store):
    """What the primary has written, once everything changed so far is."""
    writers = list(store._writers.values())
    for writer in writers:
        with writer.paused():
            while writer.dirty or writer.graves:
                assert writer._commit_queue()
    return entries([writer.env for writer in writers])


def replica_entries(replica):
    return entries(list(replica._environments.values()))


@pytest.mark.parametrize("seed", range(3))
def test_the_copy_equals_the_original_after_anything(tmp_path, clock, seed):
    store = EmbeddedStore(tmp_path / "a", clock, seed=seed)
    owner = Owner(store, clock, seed)
    for _ in range(STEPS):
        owner.step()
    copy = DirectCopy(store, tmp_path / "b")
    pieces = 0
    while copy.step():
        pieces += 1
        for _ in range(3):
            owner.step()
    for step in range(STEPS):
        owner.step()
        if step == STEPS // 2:
            run(store.compact())
    written = primary_entries(store)
    assert replica_entries(copy.replica) == written
    assert pieces > 10
    assert copy.commits > STEPS // 2
    assert {durability for durability, _, _ in written} == {"disk", "memory"}
    run(store.close())
    copy.replica.complete()
    copy.replica.close()
    assert not fsck(tmp_path / "b").faults


def test_the_copy_opens_as_a_store_and_goes_on(tmp_path, clock):
    store = EmbeddedStore(tmp_path / "a", clock)
    driver = Driver(store, clock, "disk").make(delivery="exactly-once")
    driver.count(0, 5, producer=b"p", sequence=0, span=5)
    copy = DirectCopy(store, tmp_path / "b")
    while copy.step():
        driver.ack(driver.take(1))
    driver.count(5, 10, producer=b"p", sequence=5, span=5)
    copy.replica.complete()
    copy.replica.close()
    done = driver.stats().tail - driver.sub().waiting
    run(store.close())

    other = Driver(EmbeddedStore(tmp_path / "b", clock), clock, "disk")
    assert other.count(5, 10, producer=b"p", sequence=5, span=5).duplicate
    assert other.receive() == [b"%d" % number for number in range(done, 10)]
    run(other.store.close())


def test_a_commit_that_fails_here_is_taken_back_there(tmp_path, clock, monkeypatch):
    store = EmbeddedStore(tmp_path / "a", clock)
    driver = Driver(store, clock, "disk").make(delivery="exactly-once")
    driver.count(0, 5, producer=b"p", sequence=0, span=5)
    copy = DirectCopy(store, tmp_path / "b")
    while copy.step():
        pass
    send = copy.send

    def send_and_fail(durability, edits):
        send(durability, edits)
        monkeypatch.setattr(copy, "send", send)
        raise lmdb.DiskError("the disk has failed")

    monkeypatch.setattr(copy, "send", send_and_fail)
    with pytest.raises(StoreUnavailable):
        driver.count(5, 10, producer=b"p", sequence=5, span=5)
    assert replica_entries(copy.replica) == primary_entries(store)
    assert not driver.count(5, 10, producer=b"p", sequence=5, span=5).duplicate
    assert replica_entries(copy.replica) == primary_entries(store)
    run(store.close())
    copy.replica.close()


def test_an_environment_that_comes_later_is_copied_too(tmp_path, clock):
    store = EmbeddedStore(tmp_path / "a", clock)
    copy = DirectCopy(store, tmp_path / "b")
    while copy.step():
        pass
    run(store.create(StripeId(1, 0, 0), QueueSettings.make(durability="memory"), 1))
    assert replica_entries(copy.replica) == primary_entries(store)
    run(store.close())
    copy.replica.close()


def test_half_a_copy_is_never_served(tmp_path, clock):
    store = EmbeddedStore(tmp_path / "a", clock)
    Driver(store, clock, "disk").make().count(0, 100)
    copy = DirectCopy(store, tmp_path / "b")
    copy.step()
    with pytest.raises(StoreLocked):
        Replica(tmp_path / "b")
    copy.replica.close()
    with pytest.raises(FormatUnknown):
        EmbeddedStore(tmp_path / "b", clock)
    run(store.close())

    again = Replica(tmp_path / "b")  # It begins anew, with nothing.
    assert not again.filled
    again.begin(Member("core"))
    again.close()


def test_what_a_later_version_writes_is_refused(tmp_path):
    replica = Replica(tmp_path / "b")
    with pytest.raises(RemoteProtocolError, match="later version"):
        replica.apply("disk", [(len(DATABASES), b"key", b"value")])
    replica.close()


def test_a_copy_that_begins_again_is_another_one(tmp_path):
    replica = Replica(tmp_path / "b")
    replica.begin(Member("core"))
    before = replica.member
    replica.begin(Member("core"))
    replica.close()
    again = Replica(tmp_path / "b")
    assert again.member != before
    again.close()
