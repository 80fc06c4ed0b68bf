"""The asynchronous library: the same behaviour, without blocking the loop."""

import asyncio

import pytest

import ringdove.aio
from ringdove import errors


def test_a_message_goes_through_and_is_done(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", dead_letter="dead")
            await queue.send(b"0", attributes={"a": 1})
            await queue.send_many([b"1", b"2", b"3"])
            zero, one, two, three = await queue.receive(max=4)
            assert zero.attributes == {"a": 1}
            await zero.ack()
            await one.release(delay_ms=0)
            await two.bury("no")
            await three.extend(lease_ms=60_000)
            assert (await queue.receive(max=4)).bodies() == [b"1"]
            assert (await queue.stats()).subscriptions["default"] == (0, 2, 0)
            assert [q.name for q in await rd.queues()] == ["dead", "q"]

    asyncio.run(main())


def test_many_tasks_send_and_receive_at_once(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q")
            found = []

            async def receive():
                while batch := await queue.receive(max=20, wait=1):
                    found.extend(int(body) for body in batch.bodies())
                    await batch.ack()

            async def send(start):
                for number in range(start, start + 20):
                    await queue.send(b"%d" % number)

            receivers = [asyncio.create_task(receive()) for _ in range(5)]
            await asyncio.gather(*(send(20 * n) for n in range(50)))
            await asyncio.gather(*receivers)
            assert sorted(found) == list(range(1000))

    asyncio.run(main())


def test_a_parked_receive_wakes_and_can_be_cancelled(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", stripes=3)
            parked = asyncio.create_task(queue.receive(wait=None))
            await asyncio.sleep(0)
            await queue.send(b"x")
            assert (await asyncio.wait_for(parked, 30)).bodies() == [b"x"]
            parked = asyncio.create_task(queue.receive(wait=None))
            await asyncio.sleep(0.01)
            parked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await parked
            await queue.send(b"y")
            assert (await queue.receive()).bodies() == [b"y"]

    asyncio.run(main())


def test_a_producer_and_a_consumer_keep_everything(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", delivery="exactly-once")
            async with queue.producer(block_messages=64, name="p") as producer:
                tickets = [await producer.send(b"%d" % n) for n in range(1000)]
            assert len(await tickets[0]) == 64
            found = []
            async with queue.consumer(max=150, wait=0.05) as consumer:
                async for message in consumer:
                    found.append(int(message.body))
            assert found == list(range(1000))
            assert (await queue.stats()).messages == 0

    asyncio.run(main())


def test_leaving_the_async_loop_gives_the_rest_back(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", lease_ms=600_000)
            await queue.send_many([b"0", b"1", b"2"])
            async with queue.consumer(max=3) as consumer:
                async for message in consumer:
                    if message.body == b"1":
                        break
            assert (await queue.receive(max=3)).bodies() == [b"1", b"2"]

    asyncio.run(main())


def test_a_send_that_is_cancelled_takes_no_block_with_it(url, monkeypatch):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q")
            producer = queue.producer(block_messages=10, in_flight_max=1, linger_ms=1)
            may_go, send = asyncio.Event(), queue.backend.send

            async def slowly(*arguments):
                await may_go.wait()
                return await send(*arguments)

            monkeypatch.setattr(queue.backend, "send", slowly)
            for number in range(19):
                await producer.send(b"%d" % number)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send(b"19"), 0.01)
            may_go.set()
            await producer.flush()
            assert sorted(map(int, (await queue.receive(max=100)).bodies())) == list(range(20))

    asyncio.run(main())


def test_a_lingering_block_and_a_failed_one(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", body_bytes_max=10)
            producer = queue.producer(linger_ms=1)
            assert len(await (await producer.send(b"alone"))) == 1
            ticket = await producer.send(b"x" * 11)
            with pytest.raises(errors.MessageTooLarge):
                await producer.flush()
            with pytest.raises(errors.MessageTooLarge):
                await ticket

    asyncio.run(main())


def test_replay_subscriptions_and_settle_work_the_same(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", keep_done_ms=60_000)
            await queue.send_many([b"0", b"1"])
            await queue.subscribe("s", "earliest")
            batch = await queue.receive(max=2, subscription="s")
            await rd.settle(batch[0].receipt)
            await batch.extend(60_000)
            assert await batch.ack() == 1
            assert [m.body async for m in queue.replay()] == [b"0", b"1"]
            assert (await queue.peek(subscription="s")).bodies() == []
            with pytest.raises(errors.SubscriptionNotFound, match="it has: s"):
                await queue.peek(subscription="t")
            with pytest.raises(errors.InvalidArgument, match="max is 0"):
                await queue.peek(0)
            await queue.unsubscribe("s")
            assert await queue.purge() == 0
            await rd.delete_queue("q")

    asyncio.run(main())


def test_a_peek_begins_with_the_highest_priority(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", priority=2)
            for priority in (0, 2, 1):
                await queue.send(b"%d" % priority, priority=priority)
            assert (await queue.peek()).bodies() == [b"2", b"1", b"0"]

    asyncio.run(main())
