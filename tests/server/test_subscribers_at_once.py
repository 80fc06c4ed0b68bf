"""Subscriptions that are made and removed at the same time are all recorded."""

import asyncio

import ringdove.aio


def test_nobody_overwrites_the_names_of_others(server):
    async def all_at_once() -> tuple[str, ...]:
        async with ringdove.aio.connect(server.url) as connection:
            queue = await connection.create_queue("readings")
            await queue.subscribe("first")
            await asyncio.gather(*(queue.subscribe(f"reader{n}") for n in range(50)))
            await asyncio.gather(*(queue.unsubscribe(f"reader{n}") for n in range(0, 50, 2)))
            return await queue.subscriptions()

    names = asyncio.run(all_at_once())
    assert set(names) == {"first", *(f"reader{n}" for n in range(1, 50, 2))}
