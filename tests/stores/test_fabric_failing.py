"""A node that is killed or silent, and comes back with or without what it had."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import ringdove
from fabric.clusters import until
from fabric.redis import RedisProcess
from ringdove.core.dedup import Segment
from ringdove.errors import ConnectionClosed, QueueNotFound, ReceiptStale, StoreUnavailable
from ringdove.pending import run
from ringdove.stores.base import Claim
from ringdove.stores.fabric import FabricStore, watching, wire
from stores.driver import Driver, block, bodies_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringdove.clock import ManualClock

#: Seconds within which a call must end when nobody answers.
PATIENCE_S = 20


class FragileProcess(RedisProcess):
    """A node that is killed and comes back on its port, with what it has on its disk or nothing."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ask("CONFIG", "SET", "appendonly", "yes")
        self.ask("CONFIG", "SET", "appendfsync", "always")
        self._until(lambda: b"aof_rewrite_in_progress:0" in self.ask("INFO", "persistence"))
        self._directory = directory

    def kill(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def pause(self, *, going_on: bool = False) -> None:
        self._process.send_signal(signal.SIGCONT if going_on else signal.SIGSTOP)

    def start(self, *, empty: bool = False) -> None:
        command = list(self._process.args)  # type: ignore[arg-type]
        command[command.index("--appendonly") + 1] = "yes"
        if empty:
            for path in self._directory.glob("appendonlydir/*"):
                path.unlink()
        self._process = type(self._process)(command, stdout=-3)
        assert self._connect(), "redis has ended"
        self._until(lambda: b"cluster_state:ok" in self._told("CLUSTER", "INFO"))

    def keep_file(self) -> None:
        """Remember what the disk has."""
        shutil.copytree(self._directory / "appendonlydir", self._directory / "kept")

    def take_file_back(self) -> None:
        """What was written since was in the disk's cache, and the power was cut."""
        shutil.rmtree(self._directory / "appendonlydir")
        (self._directory / "kept").rename(self._directory / "appendonlydir")

    def _told(self, *words: str) -> bytes:
        reply = self.ask(*words)
        return reply if isinstance(reply, bytes) else b""


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FragileProcess]:
    with FragileProcess(tmp_path_factory.mktemp("fragile")) as process:
        yield process


@pytest.fixture
def fragile(lasting: FragileProcess) -> FragileProcess:
    lasting.flush()
    return lasting


@pytest.fixture
def driver(fragile: FragileProcess, clock: ManualClock) -> Iterator[Driver]:
    store = FabricStore(fragile.url, clock)
    yield Driver(store, clock).make()
    run(store.close())


def test_a_dead_node_is_said_to_be_unavailable_and_serves_again_when_it_is_back(
    driver: Driver, fragile: FragileProcess
) -> None:
    driver.count(0, 3)
    leased = driver.take(1)
    fragile.kill()
    driver.store._cluster.timeout_s = 0.5  # type: ignore[attr-defined]
    began_s = time.monotonic()
    for act in (driver.lease, driver.stats, lambda: driver.send(b"x"), lambda: driver.replay(0)):
        with pytest.raises(StoreUnavailable):
            act()
    with pytest.raises(StoreUnavailable):
        run(driver.store.get("record"))
    assert time.monotonic() - began_s < PATIENCE_S
    fragile.start()
    driver.store._cluster.timeout_s = PATIENCE_S  # type: ignore[attr-defined]
    assert driver.ack(leased) == 1
    assert driver.receive() == [b"1", b"2"]


def test_a_node_that_lost_everything_has_no_queues(driver: Driver, fragile: FragileProcess) -> None:
    driver.count(0, 3)
    leased = driver.take(1)
    run(driver.store.put("record", b"x"))
    fragile.kill()
    fragile.start(empty=True)
    for act in (driver.lease, driver.stats, lambda: driver.send(b"x")):
        with pytest.raises(QueueNotFound):
            act()
    assert run(driver.store.get("record")) is None
    driver.make()
    driver.count(5, 7)
    claim = Claim(1, leased.token, leased.lo, leased.hi)
    [answer] = run(driver.store.acknowledge(driver.stripe, "default", [claim], 0))
    assert isinstance(answer, ReceiptStale)
    assert driver.finish() == [b"5", b"6"]


def test_a_node_that_lost_the_end_of_its_file_gives_no_offset_again(
    driver: Driver, fragile: FragileProcess, clock: ManualClock
) -> None:
    """I7, and what a store remembers of the lost end is not taken for what came later."""
    driver.send(b"kept")
    fragile.keep_file()
    lost = driver.send(b"of the last second")
    epoch = driver.stats().epoch
    fragile.kill()
    fragile.take_file_back()
    fragile.start()
    store = FabricStore(fragile.url, clock)
    try:
        sent = Driver(store, clock).send(b"sent afterwards")
    finally:
        run(store.close())
    assert sent.base > lost.base
    assert driver.stats().epoch == epoch + 1
    assert driver.replay(0) == [b"kept", b"sent afterwards"]
    assert driver.finish() == [b"kept", b"sent afterwards"]
    assert driver.send(b"and more").base == sent.base + 1


def test_a_silent_node_does_not_hold_a_caller_for_ever(
    driver: Driver, fragile: FragileProcess
) -> None:
    driver.count(0, 3)
    driver.store._cluster.timeout_s = 0.5  # type: ignore[attr-defined]
    fragile.pause()
    try:
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            driver.stats()
        assert time.monotonic() - began_s < PATIENCE_S
    finally:
        fragile.pause(going_on=True)
    driver.store._cluster.timeout_s = PATIENCE_S  # type: ignore[attr-defined]
    assert driver.stats().tail == 3


def test_closing_a_store_ends_what_waits_for_a_silent_node(
    driver: Driver, fragile: FragileProcess
) -> None:
    store, stripe = driver.store, driver.stripe
    driver.count(0, 3)
    fragile.pause()
    try:
        segment = Segment(block(b"x"))
        sends = [store.submit_append(stripe, [segment], 0) for _ in range(3)]
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(driver.stats)
            until(lambda: [n for n in store._cluster._nodes.values() if n._wire.expected])  # type: ignore[attr-defined]
            run(store.close())
            with pytest.raises(ConnectionClosed):
                asked.result(PATIENCE_S)
        for sent in sends:
            with pytest.raises(ConnectionClosed):
                sent.wait(PATIENCE_S)
        with pytest.raises(ConnectionClosed):
            store.submit_append(stripe, [segment], 0).wait(PATIENCE_S)
    finally:
        fragile.pause(going_on=True)


def test_a_connection_on_which_a_node_owes_an_answer_for_too_long_is_given_up(
    driver: Driver, fragile: FragileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is gone breaks no connection by itself."""
    driver.count(0, 3)
    monkeypatch.setattr(wire, "_SILENT_S", 0.2)
    cluster = driver.store._cluster  # type: ignore[attr-defined]
    cluster.timeout_s = 2
    [node] = cluster._nodes.values()
    before = node._wire
    fragile.pause()
    try:
        with pytest.raises(StoreUnavailable):
            driver.stats()
    finally:
        fragile.pause(going_on=True)
    assert before.lost
    cluster.timeout_s = PATIENCE_S
    assert driver.stats().tail == 3


def test_a_listening_connection_that_has_gone_silent_is_given_up(
    driver: Driver, fragile: FragileProcess, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks anything there, so a connection that a firewall has forgotten looks quiet."""
    monkeypatch.setattr(wire, "_SILENT_S", 0.2)
    monkeypatch.setattr(watching, "_CHECK_S", 0.05)
    store = driver.store
    driver.count(0, 1)
    store.watch(driver.stripe)
    nodes = store._cluster._watcher._nodes  # type: ignore[attr-defined]
    until(lambda: [node for node in nodes.values() if node._wire is not None])
    [node] = nodes.values()
    deaf = node._wire
    heard_s = deaf.heard_s
    until(lambda: deaf.heard_s > heard_s)  # A node that only listens is heard all the same.
    assert not deaf.lost
    watch = store.watch(driver.stripe)
    store._cluster._loop.loop.call_soon_threadsafe(  # type: ignore[attr-defined]
        deaf._transport.pause_reading
    )
    another = FabricStore(fragile.url, clock)
    try:
        Driver(another, clock).send(b"1")
    finally:
        run(another.close())
    watch.wait(PATIENCE_S)
    until(lambda: node._wire is not deaf and not node._wire.lost)


@pytest.mark.parametrize("more", [b"", b",type=replica"], ids=["redis", "valkey"])
def test_copies_that_follow_are_counted(more: bytes) -> None:
    """What Valkey says, too: a copy that was late for a moment must count again."""
    lines = [
        b"# Replication",
        b"role:master",
        b"connected_slaves:4",
        b"slave0:ip=10.0.0.1,port=7001,state=online,offset=42,lag=0" + more,
        b"slave1:ip=10.0.0.2,port=7001,state=online,offset=42,lag=1" + more,
        b"slave2:ip=10.0.0.3,port=7001,state=online,offset=42,lag=10" + more,
        b"slave3:ip=10.0.0.4,port=7001,state=send_bulk,offset=0,lag=0" + more,
        b"master_repl_offset:42",
    ]
    assert wire._followers(b"\r\n".join(lines)) == 2


def test_what_was_acknowledged_survives_kills_in_the_middle(
    driver: Driver, fragile: FragileProcess
) -> None:
    """I1, I4. A send that met a kill may be there once or twice."""
    driver.store._cluster.timeout_s = PATIENCE_S  # type: ignore[attr-defined]
    stop = threading.Event()
    sent: list[bytes] = []
    done: list[bytes] = []

    def produce() -> None:
        number = 0
        while not stop.is_set():
            driver.send(b"%d" % number)
            sent.append(b"%d" % number)
            number += 1

    def consume() -> None:
        while not stop.is_set():
            # A lease does not wait for a node that is gone; a restart ends those before it.
            with suppress(StoreUnavailable, ReceiptStale):
                found = driver.lease(3).runs
                done.extend(bodies_of(found))
                for delivered in found:
                    driver.ack(delivered.run)

    with ThreadPoolExecutor() as pool:
        work = [pool.submit(produce), pool.submit(consume)]
        for _ in range(3):
            before = len(sent)
            while len(sent) < before + 100 and not any(future.done() for future in work):
                time.sleep(0.01)
            fragile.kill()
            fragile.start()
        stop.set()
        for future in work:
            future.result(2 * PATIENCE_S)
    driver.clock.sleep_ms(60_000)
    while left := driver.finish():
        done += left
    assert not set(sent) - set(done)


def test_a_redis_that_is_no_cluster_is_told_from_one_that_is_away(tmp_path: Path):
    with (
        RedisProcess(tmp_path, "--cluster-enabled", "no", slots=range(0)) as process,
        pytest.raises(StoreUnavailable, match="no node of a cluster, which a fabric needs"),
    ):
        ringdove.connect(process.url)
