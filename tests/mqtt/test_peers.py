"""What gateways of a fabric tell one another, also when the bus was away for a while."""

import asyncio
from types import SimpleNamespace

import pytest

from ringdove.clock import ManualClock
from ringdove.errors import RecordConflict, StoreUnavailable
from ringdove.frontends.mqtt import peers
from ringdove.frontends.mqtt.message import Message
from ringdove.frontends.mqtt.routes import Routes
from ringdove.frontends.mqtt.session import SESSION_PREFIX, WILL_PREFIX, decode_session
from ringdove.frontends.mqtt.sessions import Sessions
from ringdove.frontends.mqtt.wills import Wills
from ringdove.pending import Pending, Runner
from ringdove.protocol.mqtt.packets import Connect, Will
from ringdove.protocol.mqtt.rules import Rules
from ringdove.stores.memory import MemoryStore


class Shared(MemoryStore):
    """As if others had it, too; appends fail while it is away, after a while."""

    away: Pending[None] | None = None

    def node_of(self, _):
        return "node"

    async def append(self, *args):
        if self.away is not None:
            await self.away
            raise StoreUnavailable("The node is gone.")
        return await super().append(*args)


class Pair:
    """Two gateways, and what the second has heard."""

    def __init__(self, store):
        runner = Runner(asyncio.get_running_loop())
        self.one, self.other = (peers.Peers(store, runner, name) for name in ("one", "other"))
        self.heard = []
        self.other.on_session = lambda client: self.heard.append(("session", client))
        self.other.on_publish = lambda message, _: self.heard.append(("publish", message.topic))
        self.runner = runner

    async def do(self, work):
        """Have it driven as a gateway does."""
        done = asyncio.get_running_loop().create_future()
        self.runner.spawn(work, lambda value, error: done.set_result((value, error)))
        value, error = await done
        if error is not None:
            raise error
        return value

    async def __aenter__(self):
        for each in (self.one, self.other):
            await self.do(each.open())
        self.other.subscribed("#")
        await until(lambda: self.one.listening)
        return self

    async def __aexit__(self, *_):
        for each in (self.one, self.other):
            await self.do(each.close())


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  it is not ours to signal
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(peers, "_WAIT_S", 0.001)


def tell(pair, topics):
    for topic in topics:
        pair.one.publish(Message(topic, b"x"), (), [])


def test_everything_is_told_in_its_order_when_the_bus_is_back():
    async def main():
        store = Shared()
        async with Pair(store) as pair:
            store.away = Pending()
            pair.one.session("first")
            await asyncio.sleep(0)
            for number in range(5):
                pair.one.subscribed("news")
                await asyncio.sleep(0)
                pair.one.unsubscribed("news")
                tell(pair, [str(number)])
                await asyncio.sleep(0)
            pair.one.subscribed("news")
            pair.one.session("last")
            failing, store.away = store.away, None
            failing.resolve(None)
            await until(lambda: ("session", "last") in pair.heard)
            told = [("publish", str(number)) for number in range(5)]
            assert pair.heard == [("session", "first"), *told, ("session", "last")]
            assert pair.other._elsewhere.find("news") == [("one", "news")]

    asyncio.run(main())


def test_when_too_much_waits_messages_are_missed_and_nothing_else(monkeypatch):
    monkeypatch.setattr(peers, "_UNSENT_MAX", 20)

    async def main():
        store = Shared()
        async with Pair(store) as pair:
            store.away = Pending()
            for number in range(9):
                pair.one.session(str(number))
                await asyncio.sleep(0)
                tell(pair, ["a", "b", "c"])
            pair.one.subscribed("news")
            failing, store.away = store.away, None
            failing.resolve(None)
            await until(lambda: pair.other._elsewhere.find("news"))
            sessions = [what for what in pair.heard if what[0] == "session"]
            assert sessions == [("session", str(number)) for number in range(9)]

    asyncio.run(main())


@pytest.mark.parametrize("bound", ["_UNSENT_MAX", "_UNSENT_BYTES_MAX"])
def test_room_is_made_for_many_events_at_a_time(monkeypatch, caplog, bound):
    async def main():
        one = peers.Peers(Shared(), Runner(asyncio.get_running_loop()), "one")
        one._telling = True  # The bus is away.
        one._elsewhere.add("#", ("other", "#"))
        one.session("000")
        nbytes = one._unsent_bytes
        monkeypatch.setattr(peers, bound, 100 if bound == "_UNSENT_MAX" else 100 * nbytes)
        for number in range(1, 100):
            one.session(f"{number:03}")
        assert not caplog.records
        one.publish(Message("news", b"x"), (), [])
        assert [record.args for record in caplog.records] == [(1, 50)]
        for number in range(100, 150):
            one.session(f"{number:03}")
        assert len(caplog.records) == 1
        told = [peers._decode(event).text for event, _ in one._unsent]
        assert told == [f"{number:03}" for number in range(50, 150)]
        assert one._unsent_bytes == 100 * nbytes

    asyncio.run(main())


def test_a_session_that_another_gateway_has_by_now_is_left_to_it():
    async def main():
        store = Shared()
        async with Pair(store) as pair:
            here, there = (
                Sessions(store, Routes(Rules()), each) for each in (pair.one, pair.other)
            )
            packet = Connect("device", clean_start=False)
            before, _ = await pair.do(here.open(connection(), packet, "device", 60))
            after, present = await pair.do(there.open(connection(), packet, "device", 60))
            assert present
            with pytest.raises(RecordConflict):
                await pair.do(here.give_stripe(before))
            await pair.do(there.give_stripe(after))
            record = await store.get(f"{SESSION_PREFIX}device")
            assert decode_session(record.value) == after.record()

    asyncio.run(main())


class Willing:
    """What two gateways publish of the wills of clients whose server is gone."""

    def __init__(self, store, pair):
        self.said = []
        publisher = SimpleNamespace(publish_message=self._publish)
        self.here, self.there = (
            Wills(store, pair.runner, publisher, each) for each in (pair.one, pair.other)
        )

    def _publish(self, message, then):
        self.said.append(message.payload)
        then(None)


def in_the_store(store, pair):
    """Have a gateway end that has a client with a will."""
    gone = peers.Peers(store, pair.runner, "gone")
    wills = Wills(store, pair.runner, SimpleNamespace(), gone)
    return wills.begin("device", Will("wills", b"of the past"))


@pytest.mark.parametrize("will", [None, Will("wills", b"new")])
def test_a_client_that_comes_back_to_another_gateway_has_its_will_left_alone(will):
    async def main():
        store = Shared(clock := ManualClock())
        async with Pair(store) as pair:
            found = Willing(store, pair)
            await pair.do(in_the_store(store, pair))
            for each in (found.here, found.there):
                await pair.do(each.load())
            await pair.do(found.here.begin("device", will))
            clock.sleep_ms(60_000)
            for each in (found.here, found.there):
                each.sweep()
            assert found.said == []
            assert (await store.get(f"{WILL_PREFIX}device") is None) == (will is None)

    asyncio.run(main())


def test_a_client_that_comes_back_to_another_gateway_within_the_delay_has_its_will_left_alone():
    async def main():
        store = Shared(clock := ManualClock())
        async with Pair(store) as pair:
            found = Willing(store, pair)
            will = Will("wills", b"late", properties={"will_delay_interval": 5})
            await pair.do(found.there.begin("device", will))
            found.there.lost(SimpleNamespace(client_id="device", expiry_s=60))
            await pair.do(found.here.begin("device", will))
            clock.sleep_ms(60_000)
            found.there.sweep()
            assert found.said == []
            found.here.lost(SimpleNamespace(client_id="device", expiry_s=60))
            found.here.hurry("device")
            assert found.said == [b"late"]

    asyncio.run(main())


def test_a_gateway_that_did_not_publish_a_will_does_so_with_the_next_one():
    async def main():
        store = Shared(clock := ManualClock())
        async with Pair(store) as pair:
            found = Willing(store, pair)
            for time in (1, 2):
                await pair.do(in_the_store(store, pair))
                for each in (found.here, found.there) if time == 1 else (found.there,):
                    await pair.do(each.load())
                clock.sleep_ms(60_000)
                for each in (found.here, found.there):
                    each.sweep()
                assert found.said == [b"of the past"] * time

    asyncio.run(main())


def connection():
    return SimpleNamespace(identity=None, session=None, end=lambda *_: None)


def test_more_than_a_block_is_told_in_several(monkeypatch):
    monkeypatch.setattr(peers, "_WRITE_MESSAGES", 3)

    async def main():
        async with Pair(Shared()) as pair:
            topics = [str(number) for number in range(8)]
            tell(pair, topics)
            await until(lambda: len(pair.heard) == 8)
            assert pair.heard == [("publish", topic) for topic in topics]

    asyncio.run(main())


def test_a_gateway_ends_although_the_others_cannot_be_told(monkeypatch):
    async def main():
        store = Shared()
        async with Pair(store) as pair:
            store.away = Pending()
            store.away.resolve(None)
            pair.one.session("gone")

            async def refuse(*_):
                raise StoreUnavailable("The node is gone.")

            monkeypatch.setattr(store, "remove", refuse)

    asyncio.run(main())
