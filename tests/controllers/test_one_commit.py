"""What comes to a server in one turn of its loop is one commit, whatever its stripes (T2.3, T3.1)."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import ANY_STRIPE, Parcel
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.pending import Runner
from ringdove.stores.embedded import EmbeddedStore

PATIENCE_S = 30
STRIPES = 8


class Opened:
    """A broker on a directory, its requests driven as a server drives them."""

    def __init__(self, path: Path) -> None:
        self.store = EmbeddedStore(path)
        self.broker = Broker(self.store, seed=1)
        self.runner = Runner(asyncio.get_running_loop())

    def commits(self) -> int:
        """How many there were so far."""
        writer = self.store._writers["memory"]
        in_the_tree: int = writer.env.lmdb.info()["last_txnid"]
        return in_the_tree + writer.journal.number

    async def at_once(self, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
        """Begin all of them in one turn of the loop; their results."""
        ends: list[asyncio.Future[Any]] = []
        for request in requests:
            end = self.runner.loop.create_future()
            ends.append(end)
            self.runner.spawn(request, _settle(end))
        return await asyncio.wait_for(asyncio.gather(*ends), PATIENCE_S)


def _settle(end: "asyncio.Future[Any]") -> Callable[[Any, BaseException | None], None]:
    def settle(value: Any, error: BaseException | None) -> None:
        if error is not None:
            end.set_exception(error)
        else:
            end.set_result(value)

    return settle


def parcel(number: int, body: bytes = b"x") -> Parcel:
    return Parcel(number, 0, [Segment(Block.build([body], sent_ms=0))])


@pytest.fixture
def with_queue(
    tmp_path: Path,
) -> Callable[[Callable[[Opened, int], Coroutine[Any, Any, None]]], None]:
    """Run a test with a queue of many stripes, and the version of its settings."""

    def run(test: Callable[[Opened, int], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            opened = Opened(tmp_path / "data")
            settings = {"durability": "memory", "stripes": STRIPES, "lease_ms": 600_000}
            info = await opened.broker.create_queue("q", settings)
            try:
                await test(opened, info.version)
            finally:
                await opened.broker.close()

        asyncio.run(main())

    return run


def test_sends_to_many_stripes_are_one_commit(with_queue):
    async def test(opened: Opened, version: int) -> None:
        before = opened.commits()
        deliver = opened.broker.deliver
        sent = await opened.at_once(*(deliver("q", version, parcel(n)) for n in range(STRIPES)))
        assert [stripe.number for stripe, _ in sent] == list(range(STRIPES))
        assert opened.commits() == before + 1
        assert opened.broker.enqueuer.blocks == STRIPES

    with_queue(test)


def test_sends_that_may_go_anywhere_share_a_stripe_and_a_block(with_queue):
    async def test(opened: Opened, version: int) -> None:
        deliver = opened.broker.deliver
        numbers = []
        for turn in range(2 * STRIPES):
            bodies = [b"%d %d" % (turn, n) for n in range(5)]
            sent = await opened.at_once(
                *(deliver("q", version, parcel(ANY_STRIPE, body)) for body in bodies)
            )
            [stripe] = {stripe for stripe, _ in sent}
            numbers.append(stripe.number)
            first = sent[0][1][0].base
            [block] = await opened.broker.read(stripe, first, 100)
            assert block.bodies() == bodies
        assert sorted(numbers) == sorted([*range(STRIPES), *range(STRIPES)])

    with_queue(test)


def test_acknowledging_messages_of_many_stripes_is_one_commit(with_queue):
    async def test(opened: Opened, version: int) -> None:
        broker = opened.broker
        await opened.at_once(*(broker.deliver("q", version, parcel(n)) for n in range(STRIPES)))
        [received] = await opened.at_once(broker.receive("q", "default", 100, 0, None))
        assert len(received) == STRIPES
        before = opened.commits()
        [told] = await opened.at_once(broker.acknowledge([run.receipt for run in received]))
        assert told == [1] * STRIPES
        assert opened.commits() == before + 1
        stats = await broker.queue_stats("q")
        assert stats.subscriptions["default"] == (0, 0, 0)

    with_queue(test)


def test_a_stripe_that_refuses_does_not_keep_the_others_from_being_acknowledged(with_queue):
    async def test(opened: Opened, version: int) -> None:
        broker = opened.broker
        await opened.at_once(*(broker.deliver("q", version, parcel(n)) for n in range(3)))
        [received] = await opened.at_once(broker.receive("q", "default", 100, 0, None))
        receipts = [run.receipt for run in received]
        receipts[1] = receipts[1]._replace(token=receipts[1].token ^ 2)
        [told] = await opened.at_once(broker.acknowledge(receipts))
        assert [isinstance(answer, int) for answer in told] == [True, False, True]

    with_queue(test)


def test_sends_and_acknowledgements_of_one_turn_are_one_commit(with_queue):
    async def test(opened: Opened, version: int) -> None:
        broker = opened.broker
        await opened.at_once(*(broker.deliver("q", version, parcel(n)) for n in range(3)))
        [received] = await opened.at_once(broker.receive("q", "default", 100, 0, None))
        before = opened.commits()
        await opened.at_once(
            broker.acknowledge([received[0].receipt]),
            broker.deliver("q", version, parcel(5)),
            broker.acknowledge([received[1].receipt]),
            broker.deliver("q", version, parcel(6)),
            broker.acknowledge([received[2].receipt]),
        )
        assert opened.commits() == before + 1

    with_queue(test)
