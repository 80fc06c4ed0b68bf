"""Looking queues up, and changing them."""

import asyncio

from ringdove import limits
from ringdove.controllers.broker import Broker
from ringdove.pending import run
from ringdove.stores.memory import MemoryStore


def test_all_queues_are_listed_however_many_there_are(monkeypatch):
    monkeypatch.setattr(limits, "SETTINGS_CACHE_MAX", 3)
    broker = Broker(MemoryStore())
    names = [f"q{number}" for number in range(9)]
    for name in names:
        run(broker.create_queue(name, {}))
    assert [info.name for info in run(broker.list_queues())] == names
    assert [info.name for info in run(broker.list_queues(after="q6"))] == ["q7", "q8"]
    assert [info.name for info in run(broker.list_queues(max=2))] == ["q0", "q1"]


def test_brokers_of_one_store_keep_each_others_notes():
    store = MemoryStore()
    one, other = Broker(store), Broker(store)
    run(one.create_queue("q", {}))
    run(other.get_queue("q"))
    run(one.change_queue("q", {}, {"a": "1", "b": "2"}))
    run(other.change_queue("q", {"lease_ms": 5000}, {"c": "3", "b": None}))
    one.forget_queue("q")
    settings = run(one.get_queue("q")).settings
    assert (settings.notes, settings.lease_ms) == ({"a": "1", "c": "3"}, 5000)


def test_changes_at_the_same_time_are_all_made():
    async def main() -> None:
        broker = Broker(MemoryStore())
        await broker.create_queue("q", {})
        await asyncio.gather(
            *(broker.change_queue("q", {}, {f"n{number}": "x"}) for number in range(10))
        )
        assert len((await broker.get_queue("q")).settings.notes) == 10

    asyncio.run(main())
