"""What arrives in one turn of the event loop, and after it, keeps its order."""

import asyncio

import pytest

from ringdove.controllers.broker import Broker
from ringdove.core.block import key_hash
from ringdove.errors import MessageTooLarge, StoreUnavailable
from ringdove.frontends.mqtt import turn as turn_module
from ringdove.frontends.mqtt.session import FLIGHT_PREFIX, Session
from ringdove.frontends.mqtt.turn import Turns
from ringdove.pending import Pending, Runner
from ringdove.stores.memory import MemoryStore

STRIPES = 4


class SlowBroker(Broker):
    """Messages are stored at once; while there is a gate, the answer comes when it opens."""

    gate: Pending[None] | None = None
    failing: Exception | None = None
    sends = 0

    async def send(self, queue, outgoing):
        self.sends += 1
        if self.failing is not None:
            failing, self.failing = self.failing, None
            raise failing
        try:
            return await super().send(queue, outgoing)
        finally:
            if self.gate is not None:
                await self.gate


class FarStore(MemoryStore):
    """As if it were on other machines: what is handed over first may be durable last."""

    away: Pending[None] | None = None

    def node_of(self, _):
        return "node"

    async def put(self, *args, **kwargs):
        if self.away is not None and args[0].startswith(FLIGHT_PREFIX):
            await self.away
        return await super().put(*args, **kwargs)


class Bench:
    """Turns over a slow broker, and what they have stored."""

    def __init__(self, store=None, **settings):
        self.broker = SlowBroker(store or MemoryStore())
        self.turns = Turns(self.broker, Runner(asyncio.get_running_loop()))
        self._settings = settings
        self.taken = []

    async def __aenter__(self):
        await self.broker.create_queue("q", self._settings)
        await self.broker.get_queue("q")
        self.broker.gate = Pending()
        return self

    async def __aexit__(self, *_):
        await self.broker.close()

    async def turn(self, *messages, ids=False):
        """Have a turn with these messages: key and body. It is begun, not over."""
        turn = self.turns.now
        for key, body in messages:
            mark = turn.mark()
            self.taken.append((turn, mark, body))
            turn.put(mark, "q", body, key, None, body if ids else None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def over(self):
        """Have everything answered."""
        gate, self.broker.gate = self.broker.gate, None
        gate.resolve(None)
        async with asyncio.timeout(30):
            while not all(turn.over for turn, _, _ in self.taken):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def stored(self, key=None):
        found = []
        while received := await self.broker.receive("q", "default", 100, 0, None):
            for run in received:
                for block in run.delivered.blocks:
                    keys = block.keys() if block.keyed else [b""] * block.count
                    found += [
                        bytes(body)
                        for body, mine in zip(block.bodies(), keys, strict=True)
                        if key in (None, bytes(mine))
                    ]
            await self.broker.acknowledge([run.receipt for run in received])
        return found

    def refused(self):
        return [body for turn, mark, body in self.taken if turn.error_of(mark) is not None]


def keys_of_different_stripes():
    found = {}
    for number in range(99):
        key = b"%d" % number
        found.setdefault(key_hash(key) % STRIPES, key)
    return list(found.values())


@pytest.mark.parametrize("ids", [False, True], ids=["qos 1", "qos 2"])
def test_a_key_keeps_its_order_beside_keys_of_other_stripes(ids):
    async def main():
        *others, key = keys_of_different_stripes()
        async with Bench(order="key", stripes=STRIPES) as bench:
            await bench.turn(*((other, b"other" + other) for other in others), (key, b"1"), ids=ids)
            await bench.turn((key, b"2"), ids=ids)
            await bench.turn((key, b"3"), (others[0], b"last"), ids=ids)
            await bench.over()
            assert bench.refused() == []
            assert await bench.stored(key) == [b"1", b"2", b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("settings", [{"order": "strict"}, {}], ids=["strict", "loose"])
def test_what_comes_beside_too_large_a_message_keeps_its_order(settings):
    async def main():
        async with Bench(body_bytes_max=10, **settings) as bench:
            await bench.turn((b"", b"1"), (b"", b"x" * 11), (b"", b"2"))
            await bench.turn((b"", b"3"), (b"", b"y" * 11), (b"", b"4"))
            await bench.turn((b"", b"5"))
            await bench.over()
            assert bench.refused() == [b"x" * 11, b"y" * 11]
            assert await bench.stored() == [b"1", b"2", b"3", b"4", b"5"]

    asyncio.run(main())


def test_what_a_queue_that_keeps_order_refused_as_one_is_tried_before_what_came_later():
    async def main():
        async with Bench(order="strict") as bench:
            bench.broker.failing = MessageTooLarge("Not as one.")
            await bench.turn((b"", b"1"), (b"", b"2"))
            await bench.turn((b"", b"3"))
            await bench.over()
            assert await bench.stored() == [b"1", b"2", b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ZeroDivisionError("a fault")])
def test_a_send_that_fails_does_not_hold_up_those_behind_it(error, caplog):
    async def main():
        async with Bench(order="strict") as bench:
            await bench.turn((b"", b"1"))
            await bench.turn((b"", b"2"))
            bench.broker.failing = error
            await bench.over()
            bench.broker.gate = Pending()
            await bench.turn((b"", b"3"))
            await bench.over()
            assert bench.refused() == [b"2"]
            assert await bench.stored() == [b"1", b"3"]
            assert not bench.turns._lanes

    asyncio.run(main())
    assert ("could not be stored" in caplog.text) == isinstance(error, ZeroDivisionError)


def test_what_has_waited_for_a_queue_that_keeps_order_is_sent_as_one_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(turn_module, "_LANE_MESSAGES_MAX", 3)

    async def main():
        async with Bench(order="strict") as bench:
            for number in range(7):
                await bench.turn((b"", b"%d" % number))
            await bench.over()
            assert bench.broker.sends == 3
            assert await bench.stored() == [b"%d" % number for number in range(7)]

    asyncio.run(main())


def test_a_queue_that_turns_out_to_be_loose_has_no_lane():
    async def main():
        async with Bench() as bench:
            bench.broker._catalog.forget("q")
            for number in range(3):
                await bench.turn((b"", b"%d" % number))
            await bench.over()
            assert not bench.turns._lanes
            assert await bench.stored() == [b"0", b"1", b"2"]

    asyncio.run(main())


@pytest.mark.parametrize("failing", [False, True], ids=["saved", "not saved"])
def test_messages_do_not_overtake_those_whose_flight_is_being_saved(failing):
    async def main():
        store = FarStore()
        async with Bench(store, order="strict") as bench:
            store.away = Pending()
            bench.turns.now.flights.add(Session("device", "uid", expiry_s=60))
            await bench.turn((b"", b"1"), ids=True)
            await bench.turn((b"", b"2"))
            assert not bench.broker.sends
            if failing:
                store.away.fail(StoreUnavailable("away"))
            else:
                store.away.resolve(None)
            await bench.over()
            assert bench.refused() == ([b"1"] if failing else [])
            assert await bench.stored() == ([b"2"] if failing else [b"1", b"2"])

    asyncio.run(main())
