"""A relay keeps a true copy of its upstream's queues (M1, M2, M4)."""

import asyncio
import random
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import ringdove
from ringdove.client.remote import RemoteBackend
from ringdove.errors import ConnectionClosed, InvalidArgument, QueueIsCopy, QueueNotFound
from ringdove.pending import run
from ringdove.stores.base import StripeId, StripeStats, SubscriptionStats
from ringdove.stores.embedded import EmbeddedStore
from ringdove.tiers.pulling import Compared, Pulled, QueuePull
from ringdove.tiers.relay import Relay
from server.bad_network import BadNetwork, Chance
from server.running import ServerProcess, ServerThread, wait_for
from tiers.brokers import bodies, copied, core_and_edge, drain, finds_it_has_more


def _lose_place(near: ringdove.Connection, edge: ServerThread) -> tuple[ringdove.Queue, StripeId]:
    """A queue of twenty, of which an edge that is down has ten, and no place for the rest."""
    origin = near.create_queue("readings", keep_done_ms=0)
    origin.subscribe("local")
    origin.send_many(bodies(0, 10))
    with ringdove.connect(edge.url) as far:
        copied(far, "readings", 10)
    edge.stop()
    origin.unsubscribe("relay.edge")
    origin.send_many(bodies(10, 20))
    [stripe] = origin.stats().stripes
    return origin, stripe


def _state(edge: ServerThread, queue: str) -> str:
    pulled = edge.server.relay.pulled.get(queue)
    return pulled.state if pulled is not None else ""


def test_a_copy_has_the_messages_of_its_origin_at_their_offsets(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        origin = near.create_queue("readings", order="key", stripes=3)
        origin.send_many(
            [ringdove.NewMessage(b"%d" % n, key=b"%d" % (n % 17)) for n in range(1000)]
        )
        copy = copied(far, "readings", 1000)
        assert {stripe: stats.tail for stripe, stats in copy.stats().stripes.items()} == {
            stripe: stats.tail for stripe, stats in origin.stats().stripes.items()
        }
        got = sorted(int(message.body) for message in copy.receive(max=1000, wait=10))
        assert got == list(range(1000))


def test_order_holds_and_late_queues_are_found(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        for name in ("early", "late"):
            queue = near.create_queue(name, order="strict", delivery="exactly-once")
            queue.send_many(bodies(0, 500))
            queue.send_many(bodies(500, 700))
            assert drain(copied(far, name, 700), "default", 700) == bodies(0, 700)


def test_only_the_queues_asked_for_are_copied(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path, relay_queues="meter.*,alarms") as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        for name in ("meter.1", "other", "alarms"):
            near.create_queue(name).send(b"x")
        copied(far, "meter.1", 1)
        copied(far, "alarms", 1)
        with pytest.raises(QueueNotFound):
            far.queue("other").stats()


def test_a_copy_refuses_senders(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        near.create_queue("readings").send(b"x")
        with pytest.raises(QueueIsCopy, match="origin"):
            copied(far, "readings", 1).send(b"y")


def test_three_levels(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path) as (core, middle),
        ServerThread(tmp_path / "far", level=2, upstream=middle.url, name="far") as last,
        ringdove.connect(core.url) as near,
        ringdove.connect(last.url) as far,
    ):
        near.create_queue("readings", order="strict").send_many(bodies(0, 2000))
        assert drain(copied(far, "readings", 2000), "default", 2000) == bodies(0, 2000)


def test_upstream_keeps_what_a_relay_has_not_stored(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "core") as core, ringdove.connect(core.url) as near:
        queue = near.create_queue("readings", order="strict")
        edge = ServerThread(tmp_path / "edge", level=1, upstream=core.url, name="edge")
        queue.send_many(bodies(0, 10))
        with ringdove.connect(edge.url) as far:
            copied(far, "readings", 10)
        edge.stop()
        queue.send_many(bodies(10, 500))
        assert queue.stats().waiting("relay.edge") == 490
        edge.start()
        with edge, ringdove.connect(edge.url) as far:
            assert drain(copied(far, "readings", 500), "default", 500) == bodies(0, 500)
        wait_for(lambda: not queue.stats().messages, "the core to let go of what is stored")


def test_done_when_consumed_holds_messages_upstream_until_then(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path, relay_keep_ms=0) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        origin = near.create_queue("readings", order="strict", relay_done="consumed")
        origin.send_many(bodies(0, 300))
        copy = copied(far, "readings", 300)
        batch = copy.receive(max=100, wait=10)
        assert origin.stats().waiting("relay.edge") == 300
        batch.release(0)
        assert drain(copy, "default", 300) == bodies(0, 300)
        wait_for(lambda: not origin.stats().messages, "word of what was consumed")


def test_a_full_spool_stops_the_pull_says_so_and_goes_on(tmp_path: Path) -> None:
    """Nothing is dropped, and the link is quiet while there is no room."""
    total = 60
    with (
        ServerThread(tmp_path / "core") as core,
        BadNetwork(core.port) as network,
        ServerThread(
            tmp_path / "edge", level=1, upstream=network.url, name="edge",
            spool_bytes=2 << 20, relay_keep_ms=0,
        ) as edge,
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):  # fmt: skip
        origin = near.create_queue("readings", order="strict", body_bytes_max=200_000)
        sent = [random.Random(n).randbytes(100_000) for n in range(total)]
        for body in sent:
            origin.send(body)
        wait_for(lambda: _state(edge, "readings") == "full", "a full spool")
        copy = copied(far, "readings", 1)
        assert copy.stats().nbytes <= 2 << 20
        assert "bytes_max" in edge.server.relay.pulled["readings"].reason
        assert drain(copy, "default", total) == sent
        wait_for(lambda: _state(edge, "readings") == "pulling", "the pull to go on")


def test_damaged_blocks_are_asked_for_again_and_never_delivered(tmp_path: Path) -> None:
    """M2, on a link that loses, damages, repeats and delays, and is cut."""
    with (
        ServerThread(tmp_path / "core") as core,
        BadNetwork(core.port) as network,
        ringdove.connect(core.url) as near,
    ):
        network.harm = Chance(
            seed=7, once=True, corrupt=0.1, drop=0.05, duplicate=0.05, delay=0.05, cut=0.02
        )
        origin = near.create_queue("readings", order="strict", delivery="exactly-once")
        for start in range(0, 6000, 20):
            origin.send_many(bodies(start, start + 20))
        with (
            ServerThread(tmp_path / "edge", level=1, upstream=network.url, name="edge") as edge,
            ringdove.connect(edge.url) as far,
        ):
            assert drain(copied(far, "readings", 6000), "default", 6000) == bodies(0, 6000)
            mismatches = edge.server.relay.pulled["readings"].mismatches
        assert network.harmed["corrupt"] > 5
        assert mismatches > 5


@pytest.mark.parametrize(
    ("behind", "quiet_s", "lag_ms"),
    [(0, 60, 0), (0, 1, 60_000), (3, 60, 60_000), (2**32 - 10, 60, 60_000)],
)
def test_nothing_is_late_when_nothing_has_come_for_a_while(
    behind: int, quiet_s: float, lag_ms: int
) -> None:
    """The last message of a producer that has ended came late, and no other will.

    Offsets that a fabric has skipped since do not count.
    """
    stripe = StripeId(1, 0, 0)
    name = "relay.edge" if behind < 2**31 else "another"
    subscription = SubscriptionStats(name, 10, behind, 0, 0)

    async def stats(_: StripeId) -> SimpleNamespace:
        return SimpleNamespace(tail=10)

    async def queue_stats(_: str) -> SimpleNamespace:
        return SimpleNamespace(stripes={stripe: StripeStats(2, 0, 2**32, 0, 0, [subscription])})

    broker = SimpleNamespace(store=SimpleNamespace(stats=stats))
    upstream, origin = SimpleNamespace(queue_stats=queue_stats), SimpleNamespace(name="readings")
    pulled = Pulled(lag_ms=60_000, came_s=time.monotonic() - quiet_s)
    run(QueuePull(broker, upstream, origin, "edge", "none", pulled).look_behind())
    assert (pulled.behind, pulled.lag_ms) == (behind, lag_ms)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_link_carries_fewer_bytes(tmp_path: Path, compression: str) -> None:
    with (
        ServerThread(tmp_path / "core") as core,
        BadNetwork(core.port) as network,
        ServerThread(
            tmp_path / "edge", level=1, upstream=network.url, relay_compression=compression
        ) as edge,
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        sent = [b'{"meter": %d, "kwh": 12.5, "state": "normal"}' % n for n in range(5000)]
        near.create_queue("readings", order="strict").send_many(sent)
        assert drain(copied(far, "readings", 5000), "default", 5000) == sent
        carried = sum(network.block_bytes.values())
        assert carried < sum(map(len, sent)) / 2


def test_kills_of_either_side_lose_and_double_nothing(tmp_path: Path) -> None:
    """kill -9 of the core and of the relay in turn, under load (M3)."""
    total, step = 4000, 50
    core = ServerProcess(tmp_path / "core")
    edge = ServerProcess(
        tmp_path / "edge", "--level", "1", "--upstream", core.url, "--name", "edge"
    )
    try:
        with ringdove.connect(core.url) as near, ringdove.connect(edge.url) as far:
            queue = near.create_queue("readings", order="strict", delivery="exactly-once")
            with queue.producer(name="meter") as producer:
                for start in range(0, total, step):
                    for body in bodies(start, start + step):
                        producer.send(body)
                    producer.flush()
                    if start % 1000 == 500:
                        victim = core if start % 2000 == 500 else edge
                        victim.kill()
                        victim.start()
            assert drain(copied(far, "readings", total), "default", total) == bodies(0, total)
    finally:
        core.close()
        edge.close()


def test_an_upstream_that_has_lost_messages_is_noticed(tmp_path: Path) -> None:
    """Such as one that was restored from a backup older than the copy."""
    core = ServerThread(tmp_path / "core")
    with ringdove.connect(core.url) as near:
        near.create_queue("readings").send_many(bodies(0, 3))
    core.stop()
    shutil.copytree(tmp_path / "core", tmp_path / "backup")
    core.start()
    with ServerThread(tmp_path / "edge", level=1, upstream=core.url, name="edge") as edge:
        with ringdove.connect(core.url) as near, ringdove.connect(edge.url) as far:
            near.queue("readings").send_many(bodies(3, 10))
            copied(far, "readings", 10)
        core.stop()
        shutil.rmtree(tmp_path / "core")
        (tmp_path / "backup").rename(tmp_path / "core")
        core.start()
        wait_for(lambda: _state(edge, "readings") == "diverged", "the alarm")
        assert "lost" in edge.server.relay.pulled["readings"].reason
        core.stop()


def test_another_name_for_the_same_upstream_does_not_cost_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    async def unsubscribe(_: RemoteBackend, queue: str, subscription: str) -> None:
        left.append(f"{queue} {subscription}")

    with ServerThread(tmp_path / "core") as core, ringdove.connect(core.url) as near:
        origin = near.create_queue("readings")
        chosen = {"level": 1, "name": "edge"}
        origin.send_many(bodies(0, 10))
        with (
            ServerThread(tmp_path / "edge", upstream=core.url, **chosen) as edge,
            ringdove.connect(edge.url) as far,
        ):
            copied(far, "readings", 10)
        store = EmbeddedStore(tmp_path / "edge")
        run(store.put("tier/left/alias", core.url.encode()))
        run(store.close())
        monkeypatch.setattr(RemoteBackend, "unsubscribe", unsubscribe)
        both = f"{core.url},127.0.0.1:1"
        with ServerThread(tmp_path / "edge", upstream=both, **chosen) as edge:
            kept = edge.server.broker.store
            wait_for(lambda: not edge.call(kept.get("tier/left/alias")), "both to be told apart")
            [record] = edge.call(kept.scan("tier/left/"))
            assert record.value.decode() == both
            assert not left
            assert "relay.edge" in origin.subscriptions()


def test_a_place_is_given_up_when_there_is_one_at_the_next_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    take_place, unsubscribe = QueuePull._take_place, RemoteBackend.unsubscribe

    async def placed(pull: QueuePull) -> Compared:
        positions = await take_place(pull)
        if pull.subscription == "relay.last":
            events.append(pull._origin.name)
        return positions

    async def left(backend: RemoteBackend, queue: str, subscription: str) -> None:
        events.append(f"left {queue}")
        await unsubscribe(backend, queue, subscription)

    chosen = {"level": 2, "name": "last"}
    with (
        core_and_edge(tmp_path) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        queues = [near.create_queue(name) for name in ("one", "two")]
        for queue in queues:
            queue.subscribe("local")  # So that the core keeps them for the last one.
            queue.send_many(bodies(0, 10))
            copied(far, queue.name, 10)
        with (
            ServerThread(tmp_path / "last", upstream=core.url, **chosen) as last,
            ringdove.connect(last.url) as end,
        ):
            for queue in queues:
                copied(end, queue.name, 10)
        monkeypatch.setattr(QueuePull, "_take_place", placed)
        monkeypatch.setattr(RemoteBackend, "unsubscribe", left)
        with ServerThread(tmp_path / "last", upstream=edge.url, **chosen):
            for queue in queues:
                wait_for(lambda q=queue: "relay.last" not in q.subscriptions(), "it to leave")
        for name in ("one", "two"):
            assert events.index(name) < events.index(f"left {name}")


def test_an_upstream_that_trimmed_what_the_copy_lacks_stays_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay takes no place there: with one, it would pass over what is missing."""
    looks = []
    take_place = QueuePull._take_place

    async def counted(pull: QueuePull) -> Compared:
        looks.append(pull)
        return await take_place(pull)

    with core_and_edge(tmp_path) as (core, edge), ringdove.connect(core.url) as near:
        origin, stripe = _lose_place(near, edge)
        origin.receive(max=100, wait=10, subscription="local").ack()
        origin.send_many(bodies(20, 25))
        wait_for(lambda: origin.stats().stripes[stripe].head >= 20, "the core to trim")
        monkeypatch.setattr(QueuePull, "_take_place", counted)
        edge.start()
        wait_for(lambda: len(looks) > 2, "several looks")
        assert _state(edge, "readings") == "diverged"
        assert "trimmed" in edge.server.relay.pulled["readings"].reason
        assert "relay.edge" not in origin.subscriptions()
        with ringdove.connect(edge.url) as far:
            assert far.queue("readings").stats().stripes[stripe].tail == 10


def test_a_break_while_a_place_is_taken_hides_nothing_that_was_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream trims before there is a place, and is lost before that is noticed."""
    compare, looks = QueuePull._compare, []

    async def compare_and_break(pull: QueuePull, *, known: bool) -> Compared:
        looks.append(pull)
        if len(looks) == 2:
            raise ConnectionClosed("The connection broke.")
        positions = await compare(pull, known=known)
        if len(looks) == 1:
            await asyncio.to_thread(trim)
        return positions

    def trim() -> None:
        origin.receive(max=100, wait=10, subscription="local").ack()
        origin.send_many(bodies(20, 25))
        wait_for(lambda: origin.stats().stripes[stripe].head >= 20, "the core to trim")

    with core_and_edge(tmp_path) as (core, edge), ringdove.connect(core.url) as near:
        origin, stripe = _lose_place(near, edge)
        monkeypatch.setattr(QueuePull, "_compare", compare_and_break)
        edge.start()
        wait_for(lambda: _state(edge, "readings") == "diverged", "the gap to be noticed")
        assert "trimmed" in edge.server.relay.pulled["readings"].reason
        with ringdove.connect(edge.url) as far:
            assert far.queue("readings").stats().stripes[stripe].tail == 10
        wait_for(lambda: "relay.edge" not in origin.subscriptions(), "the place to be given up")


def test_a_relay_whose_next_upstream_has_less_so_far_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upstream that is a copy itself has not lost what it does not have yet."""
    states: list[str] = []
    judge = Relay._judge

    def judged(relay: Relay, name: str, task: asyncio.Task[None], *, gone: bool) -> None:
        judge(relay, name, task, gone=gone)
        states.append(relay.pulled[name].state)

    monkeypatch.setattr(Relay, "_judge", judged)
    chosen = {"level": 2, "name": "last"}
    with (
        ServerThread(tmp_path / "core") as core,
        BadNetwork(core.port) as network,
        ServerThread(tmp_path / "edge", level=1, upstream=network.url, name="edge") as edge,
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        origin = near.create_queue("readings", order="strict")
        origin.subscribe("local")  # So that the core keeps all for the last one.
        origin.send_many(bodies(0, 5))
        copied(far, "readings", 5)
        network.closed = True
        network.cut()
        origin.send_many(bodies(5, 10))
        with (
            ServerThread(tmp_path / "last", upstream=core.url, **chosen) as last,
            ringdove.connect(last.url) as end,
        ):
            copied(end, "readings", 10)
        with (
            ServerThread(tmp_path / "last", upstream=edge.url, **chosen) as last,
            ringdove.connect(last.url) as end,
        ):
            finds_it_has_more(last, "readings")
            assert "relay.last" in far.queue("readings").subscriptions()
            network.closed = False
            origin.send_many(bodies(10, 20))
            assert drain(copied(end, "readings", 20), "default", 20) == bodies(0, 20)
    assert "diverged" not in states


@pytest.mark.parametrize("running", [False, True])
def test_an_upstream_that_lost_its_tail_and_has_grown_again_is_noticed(
    tmp_path: Path,
    running: bool,
) -> None:
    """A power cut took a memory queue; new messages have the offsets of the old ones."""
    core = ServerThread(tmp_path / "core")
    with BadNetwork(core.port) as network:
        edge = ServerThread(tmp_path / "edge", level=1, upstream=network.url, name="edge")
        with ringdove.connect(core.url) as near, ringdove.connect(edge.url) as far:
            near.create_queue("readings", durability="memory").send_many(bodies(0, 10))
            copied(far, "readings", 10)
        network.closed = True
        network.cut()
        if not running:
            edge.stop()
        core.stop()
        (tmp_path / "core" / "memory.boot").write_text("another boot")
        core.start()
        with ringdove.connect(core.url) as near:
            near.queue("readings").send_many(bodies(100, 115))
        network.closed = False
        if not running:
            edge.start()
        wait_for(lambda: _state(edge, "readings") == "diverged", "the alarm")
        assert "another message" in edge.server.relay.pulled["readings"].reason
        with ringdove.connect(edge.url) as far:
            got = far.queue("readings").receive(max=100, wait=10)
            assert [message.body for message in got] == bodies(0, 10)
        edge.stop()
    core.stop()


def test_a_copy_in_memory_is_pulled_again_after_a_power_cut_of_its_broker(tmp_path: Path) -> None:
    with core_and_edge(tmp_path) as (core, edge), ringdove.connect(core.url) as near:
        origin = near.create_queue("readings", durability="memory")
        origin.send(b"0")
        with ringdove.connect(edge.url) as far:
            copied(far, "readings", 1)
        wait_for(lambda: not origin.stats().messages, "the core to let go")
        edge.stop()
        (tmp_path / "edge" / "memory.boot").write_text("another boot")
        origin.send(b"1")
        edge.start()
        with ringdove.connect(edge.url) as far:
            [message] = copied(far, "readings", 2).receive(max=10, wait=10)
            assert message.body == b"1"


def test_a_queue_made_anew_upstream_replaces_its_copy_when_that_is_done(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path, relay_keep_ms=0) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        near.create_queue("readings").send(b"old")
        copy = copied(far, "readings", 1)
        near.delete_queue("readings")
        near.create_queue("readings").send_many([b"new", b"newer"])
        wait_for(lambda: _state(edge, "readings") == "diverged", "the old copy to be kept")
        [old] = copy.receive(wait=10)
        assert old.body == b"old"
        old.ack()
        renewed = copied(far, "readings", 2)
        assert [message.body for message in renewed.receive(max=2, wait=10)] == [b"new", b"newer"]


def test_changed_settings_reach_the_copy(tmp_path: Path) -> None:
    with (
        core_and_edge(tmp_path) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        origin = near.create_queue("readings")
        origin.send(b"x")
        copy = copied(far, "readings", 1)
        origin.configure(lease_ms=1234, stripes=2)
        wait_for(lambda: far.queue("readings").settings().lease_ms == 1234, "the new settings")
        origin.send_many(bodies(0, 50))
        copied(far, "readings", 51)
        assert len(copy.stats().stripes) == 2


def test_a_queue_that_cannot_follow_stops_no_other(tmp_path: Path) -> None:
    """A copy with messages cannot change its order yet; its origin, which has none left, could."""
    with (
        core_and_edge(tmp_path, relay_keep_ms=0) as (core, edge),
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):
        turned = near.create_queue("turned", order="strict")
        turned.send(b"before")
        copy = copied(far, "turned", 1)
        wait_for(lambda: not turned.stats().messages, "the core to let go")
        turned.configure(order="loose")
        wait_for(lambda: _state(edge, "turned") == "diverged", "the refusal")
        assert "order" in edge.server.relay.pulled["turned"].reason
        near.create_queue("other").send(b"x")
        copied(far, "other", 1)
        [before] = copy.receive(wait=10)
        before.ack()
        wait_for(lambda: far.queue("turned").settings().order == "loose", "the copy to follow")
        turned.send(b"after")
        copied(far, "turned", 2)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"level": 1}, "say where"),
        ({"upstream": "ringdove://127.0.0.1:1"}, "level 1 and more"),
        ({"level": 1, "upstream": "manager"}, "--managers"),
        ({"level": 1, "upstream": "core:7117"}, "names no server"),
        ({"managers": "core:7117"}, "names no server"),
        ({"managers": "ringdove://core:port"}, "'port' is no port"),
        ({"public_url": "https://core:7117"}, "names no server"),
        ({"level": -1}, "0 or more"),
        ({"name": "a b"}, "broker name"),
        ({"networks": "10.1.0.0/16,nowhere"}, "nowhere"),
        ({"level": 1, "upstream": "ringdove://x", "relay_compression": "gzip"}, "zstd"),
        ({"level": 1, "upstream": "ringdove://x", "spool_bytes": 0}, "spool_bytes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tmp_path: Path, flags: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        ServerThread(tmp_path / "edge", **flags)
