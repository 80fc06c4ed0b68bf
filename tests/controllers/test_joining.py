"""The enqueue controller joins small sends that come together into few blocks (T2.1, T2.3, T3.1)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import ringdove.aio
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing, Sent, Sequencer
from ringdove.errors import QueueFull, RingdoveError, StoreUnavailable
from ringdove.pending import Pending, run
from ringdove.stores.memory import MemoryStore

PATIENCE_S = 30


class GatedStore(MemoryStore):
    """A store whose appends end when the test says so, in order, perhaps with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[tuple[Callable[[], None], Pending[Any]]] = []
        #: Messages by segment, by append.
        self.appended: list[list[int]] = []
        self.open = False

    def submit_append(self, stripe: Any, segments: Sequence[Any], version: int) -> Pending[Any]:
        self.appended.append([segment.block.count for segment in segments])
        pending: Pending[Any] = Pending()

        def finish() -> None:
            try:
                pending.resolve(self._append(stripe, segments, version))
            except RingdoveError as error:
                pending.fail(error)

        if self.open:
            finish()
        else:
            self.gates.append((finish, pending))
        return pending

    def let_one_through(self) -> None:
        self.gates.pop(0)[0]()

    def fail_one(self, error: Exception) -> None:
        self.gates.pop(0)[1].fail(error)


def gated(**settings: Any) -> tuple[GatedStore, Broker]:
    store = GatedStore()
    broker = Broker(store, seed=1)
    run(broker.create_queue("q", {"durability": "memory", **settings}))
    return store, broker


def begin(
    broker: Broker, *bodies: bytes, producer: Sequencer | None = None, **columns: Any
) -> "asyncio.Task[list[Sent]]":
    async def send() -> list[Sent]:
        return list(await broker.send("q", Outgoing(list(bodies), producer=producer, **columns)))

    return asyncio.create_task(send())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def stored(broker: Broker) -> list[bytes]:
    """Every body of the queue, by offset."""
    [stripe] = (await broker.get_queue("q")).stripes()
    return [body for b in await broker.read(stripe, 0, 100_000) for body in b.bodies()]


async def all_of(tasks: list["asyncio.Task[list[Sent]]"]) -> list[list[Sent]]:
    return await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)


# -- on a real store ----------------------------------------------------------------------------


@pytest.mark.parametrize("stripes", [1, 3])
def test_many_small_sends_at_once_become_few_blocks(file_url: str, stripes: int):
    """T2.3: what has arrived meanwhile goes together."""
    senders, each = 50, 20

    async def main() -> None:
        async with ringdove.aio.connect(file_url) as rd:
            queue = await rd.create_queue("q", stripes=stripes)
            places: dict[tuple[int, int], bytes] = {}

            async def send(sender: int) -> None:
                for number in range(each):
                    body = b"%d %d" % (sender, number)
                    sent = await queue.send(body)
                    assert not sent.duplicate
                    assert places.setdefault((sent.stripe.number, sent.offset), body) == body

            await asyncio.gather(*(send(sender) for sender in range(senders)))
            enqueuer = rd.backend.enqueuer
            assert len(places) == senders * each
            assert enqueuer.blocks < senders * each / 4
            assert 0 < enqueuer.joined <= enqueuer.blocks
            for stripe in (await queue.info()).stripes():
                for block in await rd.backend.read(stripe, 0, 100_000):
                    for offset, body in enumerate(block.bodies(), block.base):
                        assert places.pop((stripe.number, offset)) == body
            assert places == {}

    asyncio.run(main())


def test_the_order_of_each_sender_is_kept(file_url: str):
    async def main() -> None:
        async with ringdove.aio.connect(file_url) as rd:
            queue = await rd.create_queue("q")

            async def send(sender: int) -> None:
                for number in range(30):
                    await queue.send_many([b"%d %d" % (sender, 2 * number + n) for n in range(2)])

            await asyncio.gather(*(send(sender) for sender in range(20)))
            seen: dict[bytes, int] = dict.fromkeys((b"%d" % n for n in range(20)), -1)
            async for message in queue.replay():
                sender, number = message.body.split()
                assert int(number) == seen[sender] + 1
                seen[sender] += 1
            assert set(seen.values()) == {59}

    asyncio.run(main())


def test_keys_attributes_and_times_survive_the_joining(file_url: str):
    async def main() -> None:
        async with ringdove.aio.connect(file_url) as rd:
            queue = await rd.create_queue("q")
            await asyncio.gather(
                queue.send(b"plain"),
                *(queue.send(b"%d" % n, key=f"k{n}", attributes={"n": n}) for n in range(20)),
                *(queue.send(b"%d" % n, key=f"k{n}") for n in range(20, 40)),
            )
            assert rd.backend.enqueuer.joined
            found = {m.body: (m.key, m.attributes) for m in await queue.receive(max=100)}
            assert found.pop(b"plain") == (b"", {})
            for n in range(40):
                assert found[b"%d" % n] == (f"k{n}".encode(), {"n": n} if n < 20 else {})

    asyncio.run(main())


# -- step by step -------------------------------------------------------------------------------


def test_a_sender_whose_clock_is_years_behind_disturbs_nobody():
    store, broker = gated()

    async def main() -> None:
        first = begin(broker, b"first")
        await settle()
        waiting = [
            begin(broker, body, sent_ms=[sent_ms])
            for body, sent_ms in (
                (b"old", 1_000),
                (b"new", store.clock.now_ms()),
                (b"far", 2**63 - 1),
            )
        ]
        await settle()
        store.open = True
        store.let_one_through()

        sent = await all_of([first, *waiting])

        assert [where[0].offset for where in sent] == [0, 1, 2, 3]
        assert await stored(broker) == [b"first", b"old", b"new", b"far"]
        assert store.appended == [[1], [1, 1, 1]]

    asyncio.run(main())


def test_what_comes_during_an_append_goes_with_the_next():
    store, broker = gated()

    async def main() -> None:
        sends = [begin(broker, b"%d" % n) for n in range(5)]
        await settle()
        assert store.appended == [[1]]
        store.let_one_through()
        await settle()
        assert store.appended == [[1], [4]]
        sends.append(begin(broker, b"5"))
        await settle()
        store.let_one_through()
        await settle()
        store.let_one_through()
        answers = await all_of(sends)
        assert [answer.offset for [answer] in answers] == list(range(6))
        assert await stored(broker) == [b"%d" % n for n in range(6)]
        assert (broker.enqueuer.blocks, broker.enqueuer.joined) == (3, 1)

    asyncio.run(main())


def test_a_failed_append_reaches_everybody_who_was_joined():
    """T2.1: an error reply to its sender, never silence; and the next sends go on."""
    store, broker = gated()

    async def main() -> None:
        first, *joined = [begin(broker, b"%d" % n) for n in range(4)]
        await settle()
        store.let_one_through()
        await settle()
        store.fail_one(StoreUnavailable("No."))
        answers = await asyncio.wait_for(
            asyncio.gather(first, *joined, return_exceptions=True), PATIENCE_S
        )
        assert isinstance(answers[0], list)
        assert [type(answer) for answer in answers[1:]] == [StoreUnavailable] * 3
        store.open = True
        [[again]] = await all_of([begin(broker, b"again")])
        assert again.offset == 1
        assert await stored(broker) == [b"0", b"again"]

    asyncio.run(main())


def test_a_full_queue_refuses_everybody_who_was_joined():
    store, broker = gated(bytes_max=600, body_bytes_max=400)

    async def main() -> None:
        sends = [begin(broker, b"x" * 200) for _ in range(4)]
        await settle()
        store.open = True
        store.let_one_through()
        answers = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), PATIENCE_S)
        assert [isinstance(answer, QueueFull) for answer in answers] == [False, True, True, True]
        assert len(await stored(broker)) == 1

    asyncio.run(main())


def test_exactly_once_sends_stay_apart():
    """Repetition is judged per segment, so these share the commit and not the block (M2)."""
    store, broker = gated(delivery="exactly-once")
    store.open = True

    async def main() -> None:
        producer = Sequencer(b"p")
        sends = [begin(broker, b"%d" % n, producer=producer) for n in range(9)]
        answers = await all_of(sends)
        assert [answer.offset for [answer] in answers] == list(range(9))
        assert store.appended == [[1]] * 9
        assert broker.enqueuer.joined == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "columns",
    [{"ids": [b"id"]}, {"delay_ms": 5}, {"compression": "zstd"}],
    ids=["message id", "delay", "compressed"],
)
def test_what_needs_a_block_of_its_own_stays_apart(columns: dict[str, Any]):
    store, broker = gated()

    async def main() -> None:
        body = b"x" * 1000
        special = [begin(broker, body, **columns) for _ in range(2)]
        plain = [begin(broker, b"p") for _ in range(3)]
        await settle()
        store.open = True
        while store.gates:
            store.let_one_through()
            await settle()
        await all_of(special + plain)
        assert sorted(count for [count] in store.appended) == [1, 1, 1, 2]

    asyncio.run(main())


def test_a_large_send_stays_apart():
    store, broker = gated()

    async def main() -> None:
        first, large, small = (
            begin(broker, b"a"),
            begin(broker, *[b"x"] * 101),
            begin(broker, b"b"),
        )
        await settle()
        assert store.appended == [[1], [101]]
        store.open = True
        while store.gates:
            store.let_one_through()
            await settle()
        await all_of([first, large, small])
        assert store.appended == [[1], [101], [1]]

    asyncio.run(main())


def test_a_pile_is_split_into_blocks_of_a_good_size():
    store, broker = gated()

    async def main() -> None:
        sends = [begin(broker, b"%d" % n, b"x" * 60_000) for n in range(40)]
        await settle()
        store.open = True
        store.let_one_through()
        answers = await all_of(sends)
        assert [sent[0].offset for sent in answers] == list(range(0, 80, 2))
        sizes = [count for [count] in store.appended]
        assert sum(sizes) == 80
        assert 3 <= len(sizes) <= 5

    asyncio.run(main())


def test_a_send_given_up_while_it_waits_is_stored_or_not_and_the_others_are():
    """The second in line is cancelled: it is not the one to lead."""
    store, broker = gated()

    async def main() -> None:
        sends = [begin(broker, b"%d" % n) for n in range(4)]
        await settle()
        sends.pop(2).cancel()
        store.open = True
        store.let_one_through()
        answers = await all_of(sends)
        bodies = await stored(broker)
        assert [bodies[answer.offset] for [answer] in answers] == [b"0", b"1", b"3"]

    asyncio.run(main())


def test_the_next_in_line_given_up_does_not_stop_the_others():
    store, broker = gated()

    async def main() -> None:
        first, second, third = [begin(broker, b"%d" % n) for n in range(3)]
        await settle()
        second.cancel()
        await settle()
        store.open = True
        store.let_one_through()
        done, _ = await asyncio.wait([first, third], timeout=1)
        assert done == {first, third}

    asyncio.run(main())


def test_a_cancelled_leader_does_not_duplicate_the_messages_of_others(file_url: str):
    async def main() -> None:
        async with ringdove.aio.connect(file_url) as rd:
            queue = await rd.create_queue("q")
            store = rd.backend.store
            loop, append, joined = asyncio.get_running_loop(), store.submit_append, asyncio.Event()

            def notice(stripe: Any, segments: Sequence[Any], version: int) -> Pending[Any]:
                if segments[0].block.count > 1:
                    loop.call_soon_threadsafe(joined.set)
                return append(stripe, segments, version)

            store.submit_append = notice
            sends = [asyncio.create_task(queue.send(b"%d" % n)) for n in range(5)]
            await asyncio.wait_for(joined.wait(), PATIENCE_S)
            sends[1].cancel()
            await asyncio.wait(sends, timeout=PATIENCE_S)
            bodies = [message.body async for message in queue.replay()]
            assert set(bodies) | {b"1"} == {b"%d" % n for n in range(5)}
            assert len(bodies) == len(set(bodies))

    asyncio.run(main())


# -- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["key", "strict"])
@pytest.mark.parametrize("columns", [{}, {"ids": [b"%d" % n for n in range(101)]}])
def test_where_an_append_may_be_repeated_the_next_waits_for_it_if_order_is_kept(
    order: str, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """A fabric tries again by itself: of two under way, the later one could come first."""
    store, broker = gated(order=order)
    monkeypatch.setattr(store, "node_of", lambda _stripe: "node")

    async def main() -> None:
        large = [b"x"] * 101
        keys = [b"k"] * 101
        sends = [
            begin(broker, *large, keys=keys, **columns),
            begin(broker, b"1", keys=keys[:1]),
            begin(broker, b"2", keys=keys[:1]),
            begin(broker, *large, keys=keys),
            begin(broker, b"3", keys=keys[:1]),
        ]
        await settle()
        whole = [1] * 101 if columns else [101]
        assert store.appended == [whole]
        store.let_one_through()
        await settle()
        assert store.appended == [whole, [2, 101, 1]]
        store.let_one_through()
        answers = await all_of(sends)
        assert [answer[0].offset for answer in answers] == [0, 101, 102, 103, 204]
        assert [len(answer) for answer in answers] == [101, 1, 1, 101, 1]

    asyncio.run(main())


def test_a_large_send_does_not_overtake_small_ones_if_order_is_kept():
    store, broker = gated(order="strict")

    async def main() -> None:
        sends = [
            begin(broker, b"a"),
            begin(broker, b"b"),
            begin(broker, *[b"x"] * 101),
            begin(broker, b"c"),
        ]
        await settle()
        assert store.appended == [[1], [1], [101]]
        while store.gates:
            store.let_one_through()
            await settle()
        answers = await all_of(sends)
        assert [answer[0].offset for answer in answers] == [0, 1, 2, 103]

    asyncio.run(main())


class Interrupted(list[Any]):
    """What waits; another thread submits it just when one more is added."""

    def __init__(self, gathering: Any) -> None:
        super().__init__(gathering.waiting)
        self._gathering = gathering

    def append(self, single: Any) -> None:
        self._gathering.submit()
        super().append(single)


def test_what_is_added_while_another_thread_submits_is_stored_before_it_is_answered():
    store, broker = gated()
    put = broker.enqueuer.put

    async def main() -> None:
        info = await broker.get_queue("q")
        stripe, first = put(info, b"a")
        gathering = broker.enqueuer._gatherings[stripe]
        gathering.waiting = Interrupted(gathering)
        _, second = put(info, b"b")
        store.let_one_through()
        assert (first.done, second.done) == (True, False)
        store.let_one_through()
        assert [pending.result()[0].base for pending in (first, second)] == [0, 1]
        assert await stored(broker) == [b"a", b"b"]

    asyncio.run(main())


class KickedStore(GatedStore):
    """A store that does of its appends only those that it was told to begin."""

    def submit_append(self, stripe: Any, segments: Sequence[Any], version: int) -> Pending[Any]:
        pending = super().submit_append(stripe, segments, version)
        gate = self.gates.pop()
        pending.kick = lambda _inline: self.gates.append(gate)
        return pending


def test_what_another_thread_submits_at_the_end_of_an_append_is_begun():
    store = KickedStore()
    broker = Broker(store, seed=1)

    async def main() -> None:
        info = await broker.create_queue("q", {"durability": "memory"})
        _, first = broker.enqueuer.put(info, b"a")
        first.start()
        _, second = broker.enqueuer.put(info, b"b")
        second.start()
        # As a runner does that has the first in its list, which is answered meanwhile.
        first.when_done(first.prepare)
        store.let_one_through()
        store.let_one_through()
        assert second.result()[0].base == 1

    asyncio.run(main())
