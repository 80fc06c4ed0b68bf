"""A controller prefers stripes of its own machine, and starves no other (T3.6)."""

from __future__ import annotations

import asyncio
from collections import Counter

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.stores.fabric.near import Near
from ringdove.stores.memory import MemoryStore


class TwoMachines(MemoryStore):
    """Stripes 0 and 2 are here, 1 and 3 elsewhere."""

    def node_of(self, stripe):
        return stripe.number

    def is_near(self, stripe):
        return stripe.number % 2 == 0


def receive_all(store, count):
    async def work():
        broker = Broker(store)
        await broker.create_queue("q", {"stripes": 4})
        for _ in range(count):
            await broker.send("q", Outgoing([b"x"]))
        return [
            (await broker.receive("q", "default", 1, 0, None))[0].receipt.number
            for _ in range(count)
        ]

    return asyncio.run(work())


def test_stripes_of_this_machine_come_first_and_the_others_now_and_then():
    visited = receive_all(TwoMachines(ManualClock()), 400)
    early = Counter(number % 2 for number in visited[:200])
    assert early[0] > early[1] > 0
    assert Counter(visited) == dict.fromkeys(range(4), 100)


def test_without_a_preference_all_are_visited_alike():
    visited = receive_all(MemoryStore(ManualClock()), 400)
    assert Counter(number % 2 for number in visited[:200]) == {0: 100, 1: 100}


def test_this_machine_is_told_from_others():
    assert Near(None).has("127.0.0.1")
    assert Near(None).has("localhost")
    assert not Near(None).has("192.0.2.1")
    assert not Near(None).has("no such host")
    assert Near(frozenset({"10.0.0.7"})).has("10.0.0.7")
    assert not Near(frozenset({"10.0.0.7"})).has("127.0.0.1")
