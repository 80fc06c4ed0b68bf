"""Readers of streams: how they are replaced, crash, refuse, and are not run over (M1)."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import ringdove
from ringdove import limits
from ringdove.errors import FenceStale, SubscriptionBusy
from ringdove.protocol.messages import Verb
from server.bad_network import BadNetwork, Chance, no_harm
from server.crashing_reader import DIED, open_database
from server.known_places import Log, Reader
from server.running import wait_for

CRASHING_READER = Path(__file__).parent / "crashing_reader.py"


@pytest.fixture
def other(network: BadNetwork) -> Iterator[ringdove.Connection]:
    """A second client, whose network can be harmed."""
    with ringdove.connect(network.url, silence_s=1) as connection:
        yield connection


def floor(queue: ringdove.Queue) -> int:
    """The position of the only subscription on the only stripe."""
    [stripe] = queue.stats().stripes.values()
    return stripe.subscriptions[0].floor


def exhaust(stream: Iterable[object]) -> None:
    """Take whatever still comes."""
    for _ in stream:
        continue


# -- crashes ------------------------------------------------------------------------------------


def crash_and_resume(url: str, path: Path, stripes: int) -> int:
    """Run readers until one comes to the end; answers how many died."""
    for seed in range(60):
        arguments = [url, str(path), str(stripes), str(seed), "0.06"]
        code = subprocess.run(
            [sys.executable, str(CRASHING_READER), *arguments], timeout=60, check=False
        ).returncode
        if code != DIED:
            assert code == 0
            return seed
    raise AssertionError("no reader came to the end")


def effects(path: Path, stripes: int) -> dict[int, list[tuple[int, bytes]]]:
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT stripe, place, body FROM seen ORDER BY rowid").fetchall()
    database.close()
    return {
        n: [(place, body) for stripe, place, body in rows if stripe == n] for n in range(stripes)
    }


@pytest.mark.parametrize("stripes", [1, 3])
def test_a_reader_that_crashes_has_each_effect_once(rd, network, tmp_path, stripes):
    """M1: the position is kept in the transaction of the effect; cuts and repetitions beside it."""
    log = Log(rd, stripes)
    log.send(30)
    log.end()
    path = tmp_path / "effects.sqlite"
    database = open_database(str(path))
    database.execute("INSERT INTO kept VALUES (?, 0)", (log.start,))
    database.close()
    network.harm = Chance(5, once=True, cut=0.03, duplicate=0.1, delay=0.1)
    assert crash_and_resume(network.url, path, stripes) >= 2
    assert effects(path, stripes) == log.expected


# -- one reader at a time -----------------------------------------------------------------------


def test_a_second_reader_is_refused_while_the_first_one_lives(rd, other):
    log = Log(rd)
    with rd.queue("q").stream(lease_ms=200):
        refused_until_s = time.monotonic() + 0.5
        while time.monotonic() < refused_until_s:
            with pytest.raises(SubscriptionBusy), other.queue("q").stream():
                pass
    with other.queue("q").stream(wait=5) as stream:
        log.end()
        assert next(iter(stream)).bodies() == [b"end"]


def test_a_receive_is_refused_while_a_stream_is_open(rd, other):
    Log(rd)
    with other.queue("q").stream(), pytest.raises(SubscriptionBusy):
        rd.queue("q").receive()
    assert not rd.queue("q").receive()


def test_a_reader_replaced_by_its_own_successor_is_told_and_moves_nothing(rd, other):
    """M1: the same owner takes over at once; the fence of the first is stale."""
    log = Log(rd)
    log.send(6)
    with other.queue("q").stream(owner="me", ack="manual", wait=5) as old:
        batches = [next(iter(old)) for _ in range(4)]
        with rd.queue("q").stream(owner="me", ack="manual", wait=5) as new:
            assert new.fence > old.fence
            first = next(iter(new))
            assert first.bodies() == [b"0"]
            old.ack(batches[3])
            with pytest.raises(FenceStale):
                exhaust(old)
            with pytest.raises(FenceStale):
                old.ack(batches[3])
            assert floor(log.queue) == 0
            new.ack(first)
            wait_for(lambda: floor(log.queue) == 1, "the new reader's position", 10)


def test_a_reader_that_is_cut_off_is_replaced_when_its_claim_has_ended(rd, network, other):
    log = Log(rd)
    log.send(4)
    with other.queue("q").stream(lease_ms=300, ack="manual", wait=5) as old:
        batch = next(iter(old))
        network.closed = True
        network.cut()

        def replaced() -> object:
            try:
                return rd.queue("q").stream(wait=5).__enter__()
            except SubscriptionBusy:
                return None

        new = wait_for(replaced, "the claim to end", 10)
        assert next(iter(new)).bodies() == [b"0"]
        network.closed = False
        with pytest.raises((SubscriptionBusy, FenceStale)):
            exhaust(old)
        with pytest.raises((SubscriptionBusy, FenceStale)):
            old.ack(batch)
        assert floor(log.queue) == 0
        new.__exit__(None, None, None)


def test_a_reader_goes_on_with_a_new_fence_after_the_server_has_restarted(rd, server):
    log = Log(rd)
    log.send(3)
    with (
        ringdove.connect(server.url, silence_s=1) as client,
        client.queue("q").stream(wait=20) as stream,
    ):
        batches = iter(stream)
        assert next(batches).bodies() == [b"0"]
        fence = stream.fence
        server.stop()
        server.start()
        log.end()
        assert [next(batches).bodies() for _ in range(3)] == [[b"1"], [b"2"], [b"end"]]
        assert stream.fence > fence


def test_an_acknowledgement_lost_with_its_connection_is_repeated(rd, network, other):
    log = Log(rd)
    log.send(1)
    with other.queue("q").stream(ack="manual", wait=5) as stream:
        batch = next(iter(stream))
        network.harm = Chance(1, inward=True, verbs=(Verb.STREAM_ACK,), cut=1.0)
        stream.ack(batch)
        wait_for(lambda: network.harmed["cut"], "the acknowledgement on its way", 10)
        network.harm = no_harm
        wait_for(lambda: network.connections == 2, "a new connection", 10)
        wait_for(lambda: floor(log.queue) == 1, "the position", 1)


# -- refusing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize(
    "ack",
    [
        "auto",
        "manual",
    ],
)
def test_a_refused_batch_comes_again_and_everything_after_it(rd, network, ack, stripes):
    """M1: failed processing; resent in order."""
    log = Log(rd, stripes)
    reader = Reader(network.url, stripes, position=log.start, ack=ack)
    reader.refuse_at = lambda turn: turn % 5 in (1, 2)
    log.send(60)
    log.end()
    assert reader.result() == log.expected


def test_refusing_the_same_batch_many_times_changes_nothing(rd, other):
    log = Log(rd)
    log.send(3)
    with other.queue("q").stream(wait=5, ack="manual") as stream:
        batches = iter(stream)
        for _ in range(10):
            batch = next(batches)
            assert batch.bodies() == [b"0"]
            stream.refuse(batch)
        assert [next(batches).bodies() for _ in range(3)] == [[b"0"], [b"1"], [b"2"]]
        assert floor(log.queue) == 0


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads take turns so often that every unguarded moment is hit."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_refusing_while_blocks_arrive_loses_nothing(rd, network):
    """M1, with a reader in a thread: the link's loop is another. A race, hence several rounds."""
    for _ in range(4):
        log = Log(rd, 3)
        reader = Reader(network.url, 3, position=log.start, ack="manual", wait=2)
        reader.refuse_at = lambda turn: bool(turn % 2)
        log.send(1_000)
        log.end()
        assert reader.result() == log.expected
        rd.delete_queue("q")


# -- the window ---------------------------------------------------------------------------------


WINDOW_BYTES = 10_000


def test_the_server_runs_ahead_no_further_than_the_window(rd, network, other, monkeypatch):
    """M1: it never runs ahead unacknowledged without bound."""
    monkeypatch.setattr(limits, "STREAM_WINDOW_BYTES", WINDOW_BYTES)
    log = Log(rd)
    log.send(60, body_bytes=1_000)
    block_bytes = log.queue.stats().nbytes // 60
    with other.queue("q").stream(wait=5, ack="manual") as stream:
        batches = iter(stream)
        for ahead in (0, 5, 20):
            for _ in range(ahead):
                stream.ack(next(batches))
            wanted = WINDOW_BYTES + ahead * block_bytes
            freed = WINDOW_BYTES + (ahead + 5 * (ahead == 20)) * block_bytes
            wait_for(lambda: network.block_bytes[Verb.BLOCK] >= wanted, "a full window", 10)
            for _ in range(5):
                other.queue("q").stats()  # Behind whatever the server would push.
            assert network.block_bytes[Verb.BLOCK] <= freed + 2 * block_bytes


def test_lost_blocks_do_not_use_the_window_up(rd, network, monkeypatch):
    monkeypatch.setattr(limits, "STREAM_WINDOW_BYTES", WINDOW_BYTES)
    log = Log(rd)
    log.send(60, body_bytes=1_000)
    network.harm = Chance(6, once=True, drop=0.5)
    log.end()
    assert Reader(network.url, 1, position=log.start).result() == log.expected


# -- gaps ---------------------------------------------------------------------------------------


def test_what_has_expired_before_the_stream_began_is_skipped(rd, other):
    log = Log(rd, retention_ms=300)
    log.send(5)
    wait_for(lambda: not log.queue.stats().messages, "expiry", 20)
    log.queue.configure(retention_ms=600_000)
    log.end()
    with other.queue("q").stream(position=log.start, wait=5) as stream:
        batch = next(iter(stream))
        assert [(chunk.lo, chunk.hi) for chunk in batch.chunks()] == [(5, 6)]


def test_what_expires_while_a_reader_is_slow_is_skipped(rd, other, monkeypatch):
    monkeypatch.setattr(limits, "STREAM_WINDOW_BYTES", 1)
    log = Log(rd, retention_ms=500)
    log.send(5)
    with other.queue("q").stream(wait=5, ack="manual") as stream:
        batches = iter(stream)
        first = next(batches)
        wait_for(lambda: not log.queue.stats().messages, "expiry", 20)
        log.queue.configure(retention_ms=600_000)
        log.end()
        found = [first.bodies()[0]]
        stream.ack(first)
        while found[-1] != b"end":
            batch = next(batches)
            found += batch.bodies()
            stream.ack(batch)
        # At most one block was on its way when it expired.
        assert found in ([b"0", b"end"], [b"0", b"1", b"end"])
        wait_for(lambda: floor(log.queue) == 6, "the position", 10)
