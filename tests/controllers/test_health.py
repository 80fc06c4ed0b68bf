"""Nodes that are slow are left alone for a while, and senders who may choose go elsewhere (T3.5)."""

import asyncio

import pytest

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.health import Health
from ringdove.controllers.sending import ANY_STRIPE, Outgoing, Parcel
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.errors import StoreUnavailable
from ringdove.pending import Pending
from ringdove.stores.memory import MemoryStore


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def health(clock):
    return Health(clock.now_ms)


def test_a_node_is_asked_until_it_fails(health):
    assert health.admits("a")
    health.failed("a")
    assert not health.admits("a")
    assert health.excluded() == ["a"]
    assert health.admits("b")


def test_after_a_while_one_request_tries_it_again(health, clock):
    health.failed("a")
    clock.sleep_ms(1000)
    assert health.admits("a")
    assert not health.admits("a")
    health.answered("a", 0.1)
    assert health.admits("a")
    assert health.admits("a")
    assert health.seen()["a"] == (0.1, False)


def test_latency_is_averaged(health):
    health.answered("a", 0.1)
    for _ in range(100):
        health.answered("a", 0.2)
    assert health.seen()["a"].latency_s == pytest.approx(0.2, rel=0.01)
    health.failed("a")
    assert health.seen()["a"].excluded


def test_a_node_that_fails_again_is_left_alone_for_longer(health, clock):
    pauses = []
    for _ in range(6):
        health.failed("a")
        waited = 0
        while not health.admits("a"):
            clock.sleep_ms(500)
            waited += 500
        pauses.append(waited)
    assert pauses == [1000, 2000, 4000, 8000, 10_000, 10_000]


class PatchyStore(MemoryStore):
    """Each stripe is on a node of its own; some nodes do not answer, some refuse."""

    def __init__(self, clock):
        super().__init__(clock)
        self.silent: set[int] = set()
        self.broken: set[int] = set()
        self.asked: list[int] = []
        self._unanswered: list = []

    def node_of(self, stripe):
        return stripe.number

    def submit_append(self, stripe, segments, version):
        self.asked.append(stripe.number)
        if stripe.number in self.silent:
            self._unanswered.append((Pending(), stripe, segments, version))
            return self._unanswered[-1][0]
        if stripe.number in self.broken:
            failed: Pending = Pending()
            failed.fail(StoreUnavailable("gone"))
            return failed
        return super().submit_append(stripe, segments, version)

    def answer_all(self):
        """The nodes come back, and do what they were asked for."""
        self.silent.clear()
        for pending, *request in self._unanswered:
            pending.resolve(super().submit_append(*request).wait())


@pytest.fixture
def store(clock):
    return PatchyStore(clock)


@pytest.fixture
def broker(store):
    broker = Broker(store)
    broker.enqueuer.slowdown_s = 0.02
    return broker


def send(broker, count):
    async def work():
        await broker.create_queue("q", {"stripes": 4})
        return [(await broker.send("q", Outgoing([b"x"])))[0].stripe.number for _ in range(count)]

    return asyncio.run(work())


def test_sends_go_round(broker, store):
    assert sorted(send(broker, 8)) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("way", ["begin", "put"])
def test_a_send_that_was_tried_without_waiting_has_one_turn(broker, store, way):
    """A front end asks first whether a send goes without waiting; on a fabric it does not."""

    async def work():
        info = await broker.create_queue("q", {"stripes": 4})
        numbers = []
        for _ in range(8):
            parcel = Parcel(ANY_STRIPE, 0, [Segment(Block.build([b"x"], sent_ms=0))])
            begun = (
                broker.begin_to_deliver("q", info.version, parcel)
                if way == "begin"
                else broker.enqueuer.put(info, b"x")
            )
            assert begun is None
            stripe, _ = await broker.deliver("q", info.version, parcel)
            numbers.append(stripe.number)
        return numbers

    assert sorted(asyncio.run(work())) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_slow_node_does_not_draw_more_sends_than_the_others(broker, store):
    store.silent.add(2)
    broker.enqueuer.slowdown_s = 30

    async def work():
        await broker.create_queue("q", {"stripes": 4})
        sends = []
        for _ in range(40):
            sends.append(asyncio.create_task(broker.send("q", Outgoing([b"x"]))))
            await asyncio.sleep(0.001)
        late = [send for send in sends if not send.done()]
        store.answer_all()
        await asyncio.gather(*sends)
        return len(late)

    assert asyncio.run(work()) == 10


@pytest.mark.parametrize("trouble", ["silent", "broken"])
def test_a_send_goes_elsewhere_and_the_node_is_left_alone(broker, store, trouble):
    getattr(store, trouble).add(2)
    placed = send(broker, 12)
    assert len(placed) == 12
    assert 2 not in placed
    assert store.asked.count(2) == 1
    assert broker.enqueuer.health.excluded() == [2]


def test_what_waits_behind_a_slow_append_is_taken_back_when_it_goes_elsewhere(broker, store):
    """Only what a slow node has been asked for can be stored twice."""
    store.silent.add(2)

    async def work():
        await broker.create_queue("q", {"stripes": 4})
        return await asyncio.gather(*(broker.send("q", Outgoing([b"x"])) for _ in range(40)))

    placed = [sent.stripe.number for [sent] in asyncio.run(work())]
    assert len(placed) == 40
    assert 2 not in placed
    assert not [g for g in broker.enqueuer._gatherings.values() if g.waiting]


def test_when_all_are_slow_the_sender_waits(broker, store):
    store.silent |= {0, 1, 2, 3}

    async def work():
        await broker.create_queue("q", {"stripes": 4})
        sends = [asyncio.create_task(broker.send("q", Outgoing([b"x"]))) for _ in range(10)]
        await asyncio.wait(sends, timeout=0.3)
        assert not any(send.done() for send in sends)
        store.answer_all()
        return await asyncio.gather(*sends)

    assert len(asyncio.run(work())) == 10


def test_when_all_are_gone_the_sender_is_told(broker, store):
    store.broken |= {0, 1, 2, 3}
    with pytest.raises(StoreUnavailable, match="gone"):
        send(broker, 1)


def test_what_must_go_to_one_stripe_waits_for_it(broker, store):
    async def work():
        await broker.create_queue("k", {"stripes": 4, "order": "key"})
        [sent] = await broker.send("k", Outgoing([b"x"], keys=[b"a"]))
        store.broken.add(sent.stripe.number)
        with pytest.raises(StoreUnavailable):
            await broker.send("k", Outgoing([b"x"], keys=[b"a"]))

    asyncio.run(work())
    assert len(set(store.asked)) == 1


# -- receiving -----------------------------------------------------------------------------------


class DeafStore(PatchyStore):
    """Some nodes cannot be received from."""

    def __init__(self, clock):
        super().__init__(clock)
        self.deaf: set[int] = set()

    async def lease(self, stripe, *rest):
        self.asked.append(stripe.number)
        if stripe.number in self.deaf:
            raise StoreUnavailable("gone")
        return await super().lease(stripe, *rest)


def test_a_receive_goes_on_with_the_nodes_that_answer(clock):
    store = DeafStore(clock)
    broker = Broker(store)

    async def work():
        await broker.create_queue("q", {"stripes": 4})
        for _ in range(8):
            await broker.send("q", Outgoing([b"x"]))
        store.deaf.add(1)
        found = []
        for _ in range(8):
            for run in await broker.receive("q", "default", 1, 0, None):
                found.append(run.receipt.number)
        return found

    assert sorted(asyncio.run(work())) == [0, 0, 2, 2, 3, 3]
    assert broker.dequeuer.health.excluded() == [1]


def test_a_receive_that_reaches_nobody_says_so(clock):
    store = DeafStore(clock)
    broker = Broker(store)

    async def work():
        await broker.create_queue("q", {"stripes": 2})
        store.deaf |= {0, 1}
        with pytest.raises(StoreUnavailable, match="gone"):
            await broker.receive("q", "default", 1, 0, None)

    asyncio.run(work())


def test_a_stripe_where_nothing_was_left_is_visited_again_though_no_notice_came(clock, monkeypatch):
    """Notices come over a connection of their own, which may be dead for a while."""
    store = PatchyStore(clock)
    broker = Broker(store)
    never: Pending = Pending()

    async def work():
        await broker.create_queue("q", {"stripes": 2})
        monkeypatch.setattr(store, "watch", lambda _stripe: never)
        assert await broker.receive("q", "default", 1, 0, None) == []
        await broker.send("q", Outgoing([b"x"]))
        assert await broker.receive("q", "default", 1, 0, None) == []
        clock.sleep_ms(2_000)
        return len(await broker.receive("q", "default", 1, 0, None))

    assert asyncio.run(work()) == 1
