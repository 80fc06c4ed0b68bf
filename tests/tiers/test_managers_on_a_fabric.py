"""Managers in processes of their own share a fabric: here each has its own store on it."""

import asyncio
from contextlib import ExitStack

from fabric.redis import RedisProcess
from ringdove.clock import ManualClock
from ringdove.stores.fabric import FabricStore
from ringdove.tiers.alarms import LAG
from ringdove.tiers.manager import Manager
from ringdove.tiers.registry import LOOK_MS
from ringdove.tiers.reports import BrokerReport, QueueReport, Where, to_wire


def report(name, **fields):
    return {"report": to_wire(BrokerReport(name, 0, "eu", f"ringdove://{name}:1", **fields))}


async def places(manager):
    found = await manager.do("where", to_wire(Where("producer")))
    return [place["name"] for place in found]


def test_what_one_hears_all_know_and_one_of_them_tells(redis, caplog):
    caplog.set_level("INFO", "ringdove.tiers")
    redis.flush()

    async def scenario():
        clock = ManualClock()
        stores = [FabricStore(redis.url, clock) for _ in range(2)]
        first, second = managers = [Manager(store) for store in stores]
        await first.do("beat", report("core", queues=[QueueReport("q", 1, lag_ms=LAG.upper)]))
        await first.registry.flush()
        assert await places(second) == ["core"]
        await asyncio.gather(*(manager.alarms.look() for manager in managers))
        assert [line.split(":")[0] for line in caplog.messages] == ["Alarm raised (lag)"]
        assert await second.do("leave", {"name": "core"})
        clock.sleep_ms(LOOK_MS)
        assert await places(first) == []
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_a_manager_goes_on_while_its_store_is_away(tmp_path):
    with ExitStack() as stack:
        fragile = stack.enter_context(RedisProcess(tmp_path))

        async def scenario():
            clock = ManualClock()
            store = FabricStore(fragile.url, clock)
            manager = Manager(store)
            await manager.do("beat", report("core"))
            stack.close()
            store._cluster.timeout_s = 0.5
            clock.sleep_ms(LOOK_MS)
            assert (await manager.do("beat", report("core")))["go"] == []
            assert await places(manager) == ["core"]
            await store.close()

        asyncio.run(scenario())
