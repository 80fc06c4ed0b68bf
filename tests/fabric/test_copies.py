"""How many copies a change has before it counts, and what happens when there are fewer (T2.4)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import ringdove
from ringdove.cluster import forming, processes
from ringdove.cluster.asking import demand
from ringdove.cluster.layout import Tuning
from ringdove.cluster.local import LocalCluster
from ringdove.core.ring import Rings
from ringdove.errors import StoreUnavailable
from ringdove.pending import run
from ringdove.stores.base import Start
from ringdove.stores.fabric.cluster import slot_of
from ringdove.stores.fabric.wire import LATE_MS, WAIT_MS, Copies, Loop, Node, NodeLost, Synced

PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three servers: each holds a copy of everything."""
    tuning = Tuning(fsync="always", node_timeout_ms=1_000, memory_bytes=32 * 1024 * 1024)
    cluster = LocalCluster.make(tmp_path_factory.mktemp("copies") / "data", Rings(3), tuning)
    try:
        cluster.up()
        yield cluster
    finally:
        processes.kill(cluster.running())


@pytest.fixture
def connection(cluster):
    with ringdove.connect(cluster.url) as connection:
        yield connection


@pytest.fixture
def name():
    return f"q{time.monotonic_ns()}"


@contextmanager
def killed(cluster, server):
    """A server is gone, and others have taken over; it is back in its place afterwards."""
    cluster.kill(server)
    try:
        assert cluster.await_taken_over(server)
        yield
    finally:
        cluster.restart(server)


@contextmanager
def paused(cluster, *members):
    """Single processes stand still."""
    found = cluster.running([m for m in cluster.blueprint.members if m.name in members])
    processes.pause(found)
    try:
        yield
    finally:
        processes.send_signal(found, processes.signal.SIGCONT)
        forming.await_settled(cluster.blueprint)


def send(queue, numbers):
    for number in numbers:
        queue.send(str(number))


def drain(queue):
    found = []
    while batch := queue.receive(max=1000):
        found += [int(message.body) for message in batch]
        batch.ack()
    return found


def shard_of(cluster, tag):
    """The shard that has the slot of a tag."""
    slot = slot_of(tag.encode())
    rings = cluster.blueprint.rings
    return next(n for n, shard in cluster.blueprint.shards.items() if slot in rings.slots(shard))


def strict_queue(connection, name, **settings):
    """A queue of one stripe, and the tag of its keys."""
    queue = connection.create_queue(name, order="strict", copies=3, **settings)
    return queue, f"{queue.info().id:x}.0.0"


def test_a_server_that_is_down_is_done_without(cluster, connection, name):
    """`degrade`: a stripe goes on with the two copies that are left."""
    queues = [strict_queue(connection, f"{name}-{number}")[0] for number in range(6)]
    with killed(cluster, "C"):
        for queue in queues:
            send(queue, range(20))
    for queue in queues:
        assert drain(queue) == list(range(20))


def test_a_copy_that_stands_still_is_done_without_and_asked_for_again(cluster, connection, name):
    queue, tag = strict_queue(connection, name)
    shard = shard_of(cluster, tag)
    master, late, _ = [member.name for member in cluster.blueprint.holding(shard)]
    with paused(cluster, late):
        send(queue, range(20))
    send(queue, range(20, 40))
    assert drain(queue) == list(range(40))
    assert master != late


def test_a_queue_that_refuses_takes_nothing_while_a_copy_is_missing(cluster, connection, name):
    queue, tag = strict_queue(connection, name, when_short="refuse")
    shard = shard_of(cluster, tag)
    *_, late = [member.name for member in cluster.blueprint.holding(shard)]
    send(queue, range(3))
    with paused(cluster, late):
        with pytest.raises(StoreUnavailable, match="2 of 3 copies"):
            queue.send("3")
        batch = queue.receive(max=1000)
        assert [message.body for message in batch] == [b"0", b"1", b"2"]
    batch.ack()
    send(queue, range(4, 6))
    assert [number for number in drain(queue) if number != 3] == [4, 5]


def test_what_needs_a_copy_that_is_late_does_not_hold_up_what_does_not(cluster, connection, name):
    queues = [strict_queue(connection, f"{name}-{number}") for number in range(7)]
    shards = [shard_of(cluster, tag) for _, tag in queues]
    shard = next(one for one in shards if shards.count(one) > 1)
    refusing, going_on = [queue for queue, tag in queues if shard_of(cluster, tag) == shard][:2]
    refusing.configure(when_short="refuse")
    *_, late = [member.name for member in cluster.blueprint.holding(shard)]
    with paused(cluster, late), ThreadPoolExecutor(1) as pool:
        going_on.send("now the copy is known to be late")
        refused = pool.submit(refusing.send, "x")
        sent = 0
        while not refused.done():
            going_on.send("y")
            sent += 1
        with pytest.raises(StoreUnavailable, match="2 of 3 copies"):
            refused.result()
    assert sent > 2 * WAIT_MS / LATE_MS


def test_what_lacks_a_copy_is_not_taken_for_copied_by_another_connection(cluster):
    """There, copies have everything that came by it: nothing."""
    [shard, *_] = cluster.blueprint.shards
    master, _, late = cluster.blueprint.holding(shard)
    slots = cluster.blueprint.rings.slots(cluster.blueprint.shards[shard])
    key = next(key for n in range(10_000) if slot_of(key := b"%d" % n) in slots)
    loop = Loop()
    node = Node(master.address, loop.loop)
    try:
        synced = Synced(node)
        with paused(cluster, late.name):
            change = synced.ask([("SET", key, "x")], Copies(2, lambda _: 2))
            while not synced._resting:
                assert not change.done
            loop.loop.call_soon_threadsafe(node._wire.close)
            with pytest.raises(NodeLost, match="another meanwhile"):
                change.wait()
    finally:
        loop.loop.call_soon_threadsafe(node.close)
        loop.stop()


def test_a_queue_that_refuses_decides_nothing_while_a_copy_is_missing(cluster, connection, name):
    """What was purged or committed would come back, if the copy that lacks it were promoted."""
    queue, tag = strict_queue(connection, name, when_short="refuse")
    shard = shard_of(cluster, tag)
    *_, late = [member.name for member in cluster.blueprint.holding(shard)]
    send(queue, range(3))
    store, [stripe] = connection.backend.store, queue.info().stripes()
    with paused(cluster, late):
        for act in (
            lambda: run(store.subscribe(stripe, "other", Start("earliest"))),
            lambda: run(store.commit(stripe, "default", 1)),
            lambda: run(store.unsubscribe(stripe, "other")),
            lambda: run(store.purge(stripe)),
            lambda: run(store.claim(stripe, "default", b"me", 1_000)),
        ):
            with pytest.raises(StoreUnavailable, match="2 of 3 copies"):
                act()
        queue.configure(when_short="degrade")
        queue.purge()


def test_with_no_copy_left_nothing_is_acknowledged(cluster, connection, name):
    """A master alone does not acknowledge, whatever the queue's settings."""
    queue, tag = strict_queue(connection, name)
    shard = shard_of(cluster, tag)
    master, *copies = cluster.blueprint.holding(shard)
    send(queue, range(3))
    with paused(cluster, *(member.name for member in copies)), pytest.raises(StoreUnavailable):
        queue.send("3")
    assert demand(master.address, "ROLE")[0] == b"master"
    send(queue, range(4, 6))
    assert [number for number in drain(queue) if number != 3] == [0, 1, 2, 4, 5]


def test_a_sender_who_knows_of_fewer_copies_waits_for_all_that_were_asked_for_since(
    cluster, connection, name
):
    queue = connection.create_queue(name, order="strict", copies=1)
    shard = shard_of(cluster, f"{queue.info().id:x}.0.0")
    _, *copies = [member.name for member in cluster.blueprint.holding(shard)]
    send(queue, range(3))
    with ringdove.connect(cluster.url) as another:
        another.queue(name).configure(copies=3, when_short="refuse")
    with paused(cluster, *copies):
        with pytest.raises(StoreUnavailable, match="1 of 3 copies"):
            queue.send("3")
        assert queue.stats().subscriptions["default"] == (3, 0, 0)  # It is not shown, either.
    send(queue, range(4, 6))
    assert [number for number in drain(queue) if number != 3] == [0, 1, 2, 4, 5]


def test_a_sender_follows_a_master_that_is_handed_over(cluster, connection, name):
    """A node that is no master any more refuses WAIT as well: that must not hide where to go."""
    queue, tag = strict_queue(connection, name)
    home = cluster.blueprint.holding(shard_of(cluster, tag))[0].server
    send(queue, range(3))
    forming.hand_over(cluster.blueprint, home)
    try:
        send(queue, range(3, 6))
        assert drain(queue) == list(range(6))
    finally:
        forming.hand_back(cluster.blueprint, home)


def test_a_queue_that_was_made_survives_the_server_that_made_it(cluster, connection, name):
    """Records and stripes are on a second server before a decision is confirmed."""
    shard = shard_of(cluster, "ringdove-records")
    [home] = [s.master for s in cluster.status().shards if s.shard == shard]
    connection.create_queue(name, stripes=12, receives_max=7)
    with killed(cluster, home), ringdove.connect(cluster.url) as another:
        queue = another.queue(name)
        assert queue.info().settings.receives_max == 7
        send(queue, range(100))
        assert set(drain(queue)) == set(range(100))
