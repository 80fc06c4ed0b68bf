"""The manager over its records: on both local stores, and several managers over one."""

import asyncio

import pytest

from ringdove.clock import ManualClock
from ringdove.errors import InvalidArgument
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore
from ringdove.tiers import alarming
from ringdove.tiers.alarms import CLEAR_AFTER_MS, LAG
from ringdove.tiers.manager import Manager
from ringdove.tiers.registry import BROKER_EXPIRES_MS, CLIENT_EXPIRES_MS, LOOK_MS
from ringdove.tiers.reports import (
    BrokerReport,
    ClientReport,
    Load,
    QueueReport,
    Where,
    to_wire,
)


def run(scenario):
    """Run a coroutine on an event loop of its own."""
    return asyncio.run(scenario)


@pytest.fixture(params=["memory", "embedded"])
def store(request, tmp_path):
    clock = ManualClock()
    store = MemoryStore(clock) if request.param == "memory" else EmbeddedStore(tmp_path, clock)
    yield store
    run(store.close())


@pytest.fixture
def manager(store):
    return Manager(store)


def report(name, level=0, region="", **fields):
    return BrokerReport(name, level, region, f"ringdove://{name}:7117", **fields)


async def beat(manager, *reports):
    return [await manager.do("beat", {"report": to_wire(each)}) for each in reports]


async def places(manager, role, **where):
    found = await manager.do("where", to_wire(Where(role, **where)))
    return [place["name"] for place in found]


def pass_time(manager, ms=LOOK_MS):
    """Let what is known of other managers be old."""
    manager.registry.store.clock.sleep_ms(ms)


def test_a_broker_is_known_from_its_first_report(manager):
    async def scenario():
        [answer] = await beat(manager, report("core"))
        assert answer["expires_ms"] == BROKER_EXPIRES_MS
        assert answer["now_ms"] == manager.registry.store.clock.now_ms()
        assert await places(manager, "producer") == ["core"]

    run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"networks": ["10.1.0.0/16", "nowhere"]},
        {"load": Load(cpu=float("nan"))},
        {"load": Load(cpu=float("inf"))},
        {"load": Load(disk=float("nan"))},
    ],
)
def test_a_report_that_cannot_be_used_harms_only_its_sender(manager, fields):
    async def scenario():
        await beat(manager, report("core"))
        with pytest.raises(InvalidArgument):
            await beat(manager, report("odd", **fields))
        pass_time(manager)
        assert await places(manager, "producer") == ["core"]
        assert await places(manager, "consumer", addresses=["10.1.2.3"]) == ["core"]

    run(scenario())


def test_a_broker_that_falls_silent_is_no_place_any_more(manager):
    async def scenario():
        await beat(manager, report("core"), report("spare"))
        pass_time(manager, BROKER_EXPIRES_MS - 1)
        await beat(manager, report("spare"))
        assert sorted(await places(manager, "producer")) == ["core", "spare"]
        pass_time(manager)
        assert await places(manager, "producer") == ["spare"]
        states = {view["name"]: view["state"] for view in await manager.do("brokers", {})}
        assert states == {"core": "lost", "spare": "up"}

    run(scenario())


def test_a_first_report_that_is_written_during_a_look_is_not_missed(manager, monkeypatch):
    """What is read meanwhile lacks it; that is no reason to take it for silent."""
    store = manager.registry.store
    scan = store.scan

    async def scan_slowly(prefix, after="", count_max=1000):
        found = await scan(prefix, after, count_max)
        await manager.registry.flush()
        return found

    async def scenario():
        await beat(manager, report("core"))
        pass_time(manager)
        monkeypatch.setattr(store, "scan", scan_slowly)
        assert await places(manager, "producer") == ["core"]
        assert await manager.registry.missing() == {}

    run(scenario())


def test_a_look_that_is_interrupted_interrupts_nobody_else(manager, monkeypatch):
    store = manager.registry.store
    scan = store.scan

    async def scenario():
        await beat(manager, report("core"))
        pass_time(manager)
        looking = asyncio.Event()

        async def scan_for_ever(*_args):
            looking.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(store, "scan", scan_for_ever)
        first = asyncio.create_task(manager.registry.brokers())
        await looking.wait()
        second = asyncio.create_task(manager.registry.brokers())
        await asyncio.sleep(0)
        monkeypatch.setattr(store, "scan", scan)
        first.cancel()
        assert list(await second) == ["core"]
        assert first.cancelled()

    run(scenario())


def test_managers_of_one_store_know_the_same(store):
    async def scenario():
        first, second = Manager(store), Manager(store)
        await beat(first, report("core"))
        await first.registry.flush()
        assert await places(second, "producer") == ["core"]
        pass_time(first)
        await beat(second, report("spare"))
        await second.registry.flush()
        assert sorted(await places(first, "producer")) == ["core", "spare"]
        assert await second.do("leave", {"name": "core"})
        pass_time(first)
        assert await places(first, "producer") == ["spare"]

    run(scenario())


def test_the_newest_report_counts_whoever_heard_it(store):
    async def scenario():
        first, second = Manager(store), Manager(store)
        await beat(first, report("core", load=Load(connections=1_000)))
        await first.registry.flush()
        pass_time(first)
        await beat(second, report("core", load=Load(connections=2_000)))
        await second.registry.flush()
        pass_time(first)
        [view] = await first.do("brokers", {})
        assert view["load"] == 0.2

    run(scenario())


def test_many_heartbeats_are_written_together(tmp_path):
    async def scenario():
        store = EmbeddedStore(tmp_path, ManualClock())
        manager = Manager(store)
        reports = [report(f"b{number}") for number in range(300)]
        await beat(manager, *reports)  # From now on they are known.
        await manager.registry.flush()
        writer = store._writers["disk"]
        before = writer.env.lmdb.info()["last_txnid"]
        pass_time(manager, 1_000)
        await beat(manager, *reports)
        await manager.registry.flush()
        assert writer.env.lmdb.info()["last_txnid"] - before <= 10
        pass_time(manager)
        assert len(await Manager(store).registry.brokers()) == 300
        await store.close()

    run(scenario())


def test_a_relay_that_should_move_is_told_where(manager):
    async def scenario():
        edge = report("edge", 2, "eu", upstream="hub-us")
        await beat(manager, report("hub-us", 1, "us"), edge)
        for _ in range(12):
            pass_time(manager, 1_000)
            hubs = report("hub-us", 1, "us"), report("hub-eu", 1, "eu")
            *_, told = await beat(manager, *hubs, edge)
        assert [place["name"] for place in told["go"]] == ["hub-eu"]
        edge.upstream = "hub-eu"
        [told] = await beat(manager, edge)
        assert told["go"] == []

    run(scenario())


def test_a_client_whose_broker_drains_is_told_where(manager):
    async def scenario():
        async def told(at):
            client = ClientReport("c1", "producer", at=at)
            answer = await manager.do("beat_client", {"report": to_wire(client)})
            assert answer["expires_ms"] == CLIENT_EXPIRES_MS
            return [place["name"] for place in answer["go"]]

        await beat(manager, report("core"), report("spare"))
        assert await told("core") == []
        await beat(manager, report("core", serving=False))
        assert await told("core") == ["spare"]

    run(scenario())


def test_who_is_at_a_broker_that_is_silent_may_stay(manager):
    """The manager may have just come, or be the one that is cut off."""

    async def scenario():
        await beat(manager, report("core"))
        for client in (ClientReport("c1", "producer", at="silent"), ClientReport("c2", "producer")):
            answer = await manager.do("beat_client", {"report": to_wire(client)})
            assert answer["go"] == []

    run(scenario())


def test_clients_are_known_until_they_fall_silent(manager):
    async def scenario():
        for name, role in (("c2", "consumer"), ("c1", "producer")):
            client = ClientReport(name, role, at="core")
            await manager.do("beat_client", {"report": to_wire(client)})
        await manager.registry.flush()
        found = await manager.do("clients", {})
        assert [client["report"]["name"] for client in found] == ["c1", "c2"]
        assert (await manager.tiers()).clients == {"producer": 1, "consumer": 1}
        assert await manager.do("leave_client", {"name": "c2"})
        assert not await manager.do("leave_client", {"name": "c2"})
        assert (await manager.tiers()).clients == {"producer": 1}
        pass_time(manager, CLIENT_EXPIRES_MS)
        assert await manager.do("clients", {}) == []

    run(scenario())


def test_a_second_broker_of_the_same_name_is_refused(manager):
    async def scenario():
        await beat(manager, report("core", started_ms=2))
        with pytest.raises(InvalidArgument, match="Another broker"):
            await beat(manager, report("core", started_ms=1))
        await beat(manager, report("core", started_ms=3))

    run(scenario())


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("dance", {}),
        ("beat", {"report": {"name": "core"}}),
        ("beat", {"report": to_wire(report("a/b"))}),
        ("where", {"role": "king"}),
        ("where", {"role": "producer", "mood": "good"}),
        ("leave", {}),
        ("brokers", {"all": True}),
    ],
)
def test_what_makes_no_sense_is_refused(manager, command, arguments):
    with pytest.raises(InvalidArgument):
        run(manager.do(command, arguments))


def test_metadata_tells_what_was_produced_relayed_and_consumed(manager):
    async def scenario():
        def holding(name, level, region, **queue):
            return report(name, level, region, queues=[QueueReport("readings", 7, **queue)])

        await beat(
            manager,
            holding("core", 0, "", stored=100, messages=60, consumed={"relay.west": 90}),
            holding("west", 1, "eu", stored=90, consumed={"billing": 80}, behind=10, lag_ms=250),
            holding("south", 1, "us", stored=70, consumed={"billing": 20}, behind=30, lag_ms=900),
        )
        [queue] = await manager.do("metadata", {"queue": "readings"})
        assert queue["produced"] == 100
        assert queue["relayed"] == [{"level": 1, "brokers": 2, "least": 70, "furthest": 90}]
        assert queue["consumed"] == {"billing": 80}
        assert queue["lag"] == 0.9
        copies = [(copy["broker"], copy["region"], copy["stored"]) for copy in queue["copies"]]
        assert copies == [("core", "", 100), ("west", "eu", 90), ("south", "us", 70)]
        assert await manager.do("metadata", {"queue": "others"}) == []

    run(scenario())


def test_a_lost_broker_raises_an_alarm_that_is_cleared_when_it_is_back(manager):
    async def scenario():
        await beat(manager, report("core"))
        pass_time(manager, BROKER_EXPIRES_MS)
        await manager.alarms.look()
        [alarm] = (await manager.do("alarms", {}))["now"]
        assert (alarm["kind"], alarm["broker"]) == ("lost", "core")
        for _ in range(CLEAR_AFTER_MS // 1_000 + 1):
            await beat(manager, report("core"))
            await manager.alarms.look()
            pass_time(manager, 1_000)
        found = await manager.do("alarms", {"past": 5})
        assert found["now"] == []
        [past] = found["past"]
        assert past["kind"] == "lost"
        assert past["cleared_ms"] > past["raised_ms"] > 0

    run(scenario())


def test_a_broker_that_leaves_is_not_missed(manager):
    async def scenario():
        await beat(manager, report("west", 2))
        assert await manager.do("leave", {"name": "west"})
        assert not await manager.do("leave", {"name": "west"})
        pass_time(manager, BROKER_EXPIRES_MS)
        await manager.alarms.look()
        assert await manager.alarms.now() == []

    run(scenario())


def test_a_manager_that_has_just_come_misses_nobody(store):
    async def scenario():
        await beat(Manager(store), report("west", 2))
        pass_time(Manager(store), 10 * BROKER_EXPIRES_MS)
        late = Manager(store)
        await late.alarms.look()
        assert await late.alarms.now() == []
        pass_time(late, BROKER_EXPIRES_MS)
        await late.alarms.look()
        assert [alarm.kind for alarm in await late.alarms.now()] == ["lost"]

    run(scenario())


def test_one_of_several_managers_tells_of_an_alarm(store, caplog):
    caplog.set_level("INFO", "ringdove.tiers")

    async def scenario():
        managers = [Manager(store), Manager(store)]
        late = report("west", queues=[QueueReport("q", 1, lag_ms=LAG.upper)])
        await beat(managers[0], late)
        await managers[0].registry.flush()
        await asyncio.gather(*(manager.alarms.look() for manager in managers))
        assert [line.split(":")[0] for line in caplog.messages] == ["Alarm raised (lag)"]
        pass_time(managers[0], CLEAR_AFTER_MS)
        await beat(managers[0], report("west"))
        await managers[0].registry.flush()
        await asyncio.gather(*(manager.alarms.look() for manager in managers))
        assert [line.split(":")[0] for line in caplog.messages[1:]] == ["Alarm cleared (lag)"]
        assert len(await managers[1].alarms.past()) == 1

    run(scenario())


def test_history_is_bounded(manager, monkeypatch):
    monkeypatch.setattr(alarming, "PAST_MAX", 3)

    async def scenario():
        for number in range(5):
            late = report(f"b{number}", queues=[QueueReport("q", 1, lag_ms=LAG.upper)])
            await beat(manager, late)
            await manager.alarms.look()
            await beat(manager, report(f"b{number}"))
            pass_time(manager, CLEAR_AFTER_MS)
            await manager.do("leave", {"name": f"b{number}"})
            await manager.alarms.look()
        latest = [alarm.broker for alarm in await manager.alarms.past()]
        assert latest == ["b4", "b3", "b2"]

    run(scenario())
