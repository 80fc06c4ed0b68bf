"""Messages that front ends put one by one share a block and a commit."""

import asyncio

import pytest

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.errors import QueueNotFound, SettingsStale
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore


@pytest.fixture
def broker():
    return Broker(MemoryStore(ManualClock()))


def put_all(broker, info, messages):
    async def work():
        pendings = [broker.enqueuer.put(info, *message) for message in messages]
        return [(stripe, await pending) for stripe, pending in pendings]

    return asyncio.run(work())


def received(broker, queue):
    found = asyncio.run(broker.receive(queue, "default", 100, 0, None))
    return [
        (body, key, attributes)
        for run in found
        for block in run.delivered.blocks
        for body, key, attributes in zip(
            block.bodies(), block.keys(), block.attributes(), strict=True
        )
    ]


def test_messages_put_together_are_one_block_in_order(tmp_path):
    async def work():
        broker = Broker(EmbeddedStore(tmp_path))
        info = await broker.create_queue("q", {})
        puts = [broker.enqueuer.put(info, b"%d" % n, b"k" if n == 3 else b"") for n in range(5)]
        offsets = [(await pending)[0].base for _, pending in puts]
        blocks = broker.enqueuer.blocks
        [run] = await broker.receive("q", "default", 10, 0, None)
        await broker.close()
        return offsets, blocks, run.delivered.blocks

    offsets, count, [block] = asyncio.run(work())
    assert (offsets, count) == ([0, 1, 2, 3, 4], 1)
    assert block.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    assert block.keys() == [b"", b"", b"", b"k", b""]


def test_attributes_and_keys_come_along(broker):
    info = asyncio.run(broker.create_queue("q", {}))
    put_all(broker, info, [(b"a", b"", {"n": 1}), (b"b", b"key", None)])
    assert received(broker, "q") == [(b"a", b"", {"n": 1}), (b"b", b"key", {})]


def test_blocks_and_messages_mix(broker):
    async def work():
        info = await broker.create_queue("q", {})
        first = broker.enqueuer.put(info, b"1")
        second = asyncio.ensure_future(broker.send("q", Outgoing([b"2", b"3"])))
        await asyncio.sleep(0)
        third = broker.enqueuer.put(info, b"4")
        return [(await first[1])[0].base, (await second)[0].offset, (await third[1])[0].base]

    offsets = asyncio.run(work())
    assert sorted(offsets) == offsets
    assert sorted(body for body, _, _ in received(broker, "q")) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("order", ["loose", "key"])
def test_stripes_are_chosen_as_by_any_send(broker, order):
    info = asyncio.run(broker.create_queue("q", {"stripes": 4, "order": order}))
    numbers = []
    for _ in range(8):  # What is put together shares a stripe, and a block.
        placed = put_all(broker, info, [(b"x", b"same")] * 3)
        [number] = {stripe.number for stripe, _ in placed}
        numbers.append(number)
    assert len(set(numbers)) == (1 if order == "key" else 4)


def test_queues_that_take_turns_use_all_their_stripes(broker):
    infos = [asyncio.run(broker.create_queue(name, {"stripes": 4})) for name in ("a", "b")]
    placed = [put_all(broker, infos[n % 2], [(b"x",)])[0][0] for n in range(16)]
    assert len(set(placed)) == 8


def test_a_stripe_that_rests_is_not_chosen_for_the_company_that_waits_there(broker):
    async def work():
        info = await broker.create_queue("q", {"stripes": 4})
        while (first := broker.enqueuer.put(info, b"old"))[0].number < 2:
            await first[1]
        for run in await broker.receive("q", "default", 100, 0, None):
            await broker.acknowledge([run.receipt])
        fewer = await broker.change_queue("q", {"stripes": 2})
        await broker.enqueuer.put(fewer, b"new")[1]
        with pytest.raises(SettingsStale):
            await first[1]

    asyncio.run(work())
    assert received(broker, "q") == [(b"new", b"", {})]


def test_what_is_large_or_delayed_goes_the_usual_way(broker):
    info = asyncio.run(broker.create_queue("q", {}))
    assert broker.enqueuer.put(info, bytes(100_000)) is None
    late = asyncio.run(broker.create_queue("late", {"delay_ms": 5}))
    assert broker.enqueuer.put(late, b"x") is None


def test_a_queue_that_is_not_what_it_was_refuses(broker):
    info = asyncio.run(broker.create_queue("q", {}))
    asyncio.run(broker.change_queue("q", {"lease_ms": 5}))
    with pytest.raises(SettingsStale):
        put_all(broker, info, [(b"x",)])
    asyncio.run(broker.delete_queue("q"))
    with pytest.raises(QueueNotFound):
        put_all(broker, info, [(b"x",)])
