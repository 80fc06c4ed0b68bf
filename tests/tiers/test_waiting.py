"""A relay whose upstream is a copy that has less so far: it waits, and stops nobody."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ringdove
from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.streaming import StreamedBlock
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.errors import ConnectionClosed
from ringdove.stores.base import Start, StripeId
from ringdove.stores.memory import MemoryStore
from ringdove.tiers.pulling import Diverged, Pulled, QueuePull
from server.bad_network import BadNetwork
from server.running import ServerThread
from tiers.brokers import copied, drain, finds_it_has_more

PLACE = "relay.last"


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Upstream(Broker):
    """A broker of this process, reached as if it were far away; `link` as a pull looks at it."""

    link = SimpleNamespace(session=SimpleNamespace(welcome=None), on_welcome=[])
    #: Places that can be moved before the connection breaks.
    moves = 1000

    async def advance(self, stripe: StripeId, subscription: str, offset: int) -> None:
        if not self.moves:
            raise ConnectionClosed("The connection broke.")
        self.moves -= 1
        await super().advance(stripe, subscription, offset)


def message(broker: Broker, offset: int, text: str = "") -> Block:
    body, now_ms = b"%d %s" % (offset, text.encode()), broker.store.clock.now_ms()
    return Block.decode(bytes(Block.build([body], sent_ms=1).stamp(offset, now_ms).buffer))


async def fill(broker: Broker, stripe: StripeId, stop: int, text: str = "") -> None:
    """Have the copy's stripe go up to `stop`."""
    for offset in range((await broker.store.stats(stripe)).tail, stop):
        segment = Segment(message(broker, offset, text), sequence=offset, placed=True)
        await broker.store.append(stripe, [segment], 0)


async def pair(last: list[int], edge: list[int], **settings: Any) -> tuple[QueuePull, list[Any]]:
    """A pull from `edge` into `last`, copies that have so much of each stripe; the stripes."""
    clock = ManualClock()
    brokers = Broker(MemoryStore(clock)), Upstream(MemoryStore(clock))
    chosen = {"order": "key", "stripes": len(last), "keep_done_ms": 0, **settings}
    origin = await Broker(MemoryStore(clock)).create_queue("readings", chosen)
    copies = []
    for broker, tails in zip(brokers, (last, edge), strict=True):
        copies.append(await broker.adopt_queue(origin, origin.settings))
        for stripe, tail in zip(origin.stripes(), tails, strict=True):
            await fill(broker, stripe, tail)
    pull = QueuePull(brokers[0], brokers[1], copies[1], "last", "none", Pulled())
    return pull, list(origin.stripes())


async def places(pull: QueuePull) -> list[int]:
    """Where the relay's place is, by stripe."""
    found = (await pull._upstream.queue_stats("readings")).stripes
    return [
        sub.floor for _, s in sorted(found.items()) for sub in s.subscriptions if sub.name == PLACE
    ]


@pytest.mark.parametrize("held", [False, True])
@looped
async def test_upstream_need_not_keep_what_the_copy_has(held: bool) -> None:
    pull, stripes = await pair([40, 7, 9, 0], [5, 9, 9, 3])
    if held:
        await pull._upstream.subscribe("readings", PLACE, Start("earliest"))
    compared = await pull._take_place()
    assert "has to catch up" in compared.lacks
    assert list(compared.positions.values()) == [40, 7, 9, 0]
    assert await places(pull) == [5, 7, 9, 0]
    await fill(pull._upstream, stripes[0], 41)
    compared = await pull._take_place()
    assert not compared.lacks
    assert await places(pull) == [40, 7, 9, 0]


@looped
async def test_the_place_follows_an_upstream_that_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringdove.tiers.pulling._AGAIN_S", 0)
    pull, stripes = await pair([40], [5])
    await pull._take_place()
    follows = asyncio.create_task(pull._follow_upstream())
    for tail in (6, 30, 40):
        await fill(pull._upstream, stripes[0], tail)
        while await places(pull) != [tail]:
            assert not follows.done()
            await asyncio.sleep(0)
    await follows


@looped
async def test_where_done_means_consumed_the_place_moves_as_far() -> None:
    pull, [stripe] = await pair([40], [5], relay_done="consumed")
    await pull._take_place()
    assert await places(pull) == [0]
    await pull._broker.store.commit(stripe, "default", 3)
    await pull._take_place()
    assert await places(pull) == [3]
    await pull._broker.store.commit(stripe, "default", 30)
    await pull._take_place()
    assert await places(pull) == [5]


@looped
async def test_a_break_between_two_stripes_is_made_up_for() -> None:
    pull, _ = await pair([40, 40], [5, 6])
    pull._upstream.moves = 1
    with pytest.raises(ConnectionClosed):
        await pull._take_place()
    assert await places(pull) == [5, 0]
    pull._upstream.moves = 1000
    await pull._take_place()
    assert await places(pull) == [5, 6]


@pytest.mark.parametrize("at_first", [True, False])
@looped
async def test_an_upstream_that_has_less_and_something_else_is_diverged(at_first: bool) -> None:
    pull, stripes = await pair([40, 40], [40, 0])
    if not at_first:
        await fill(pull._upstream, stripes[1], 5)
        await pull._take_place()
    await fill(pull._upstream, stripes[1], 9, "another")
    with pytest.raises(Diverged, match="Offset 8"):
        await pull._take_place()
    assert await places(pull) == []


@looped
async def test_stripes_that_are_not_behind_are_pulled_meanwhile() -> None:
    """Upstream may have no room for the others before; those are compared before they go on."""
    pull, [first, second] = await pair([40, 7], [5, 9])
    compared = await pull._take_place()
    coming = [
        StreamedBlock(second, 7, message(pull._broker, 7)),
        StreamedBlock(second, 8, message(pull._broker, 8)),
        StreamedBlock(first, 40, message(pull._broker, 40, "not compared")),
    ]

    async def following() -> StreamedBlock:
        return coming.pop(0)

    stream = SimpleNamespace(next=following, mismatches=0)
    under_way: asyncio.Queue[Any] = asyncio.Queue()
    await pull._read(stream, under_way, asyncio.Event(), compared)
    assert not coming
    while not under_way.empty():
        await under_way.get_nowait().append
    stats = pull._broker.store.stats
    assert [(await stats(stripe)).tail for stripe in (first, second)] == [40, 9]


def test_a_relay_that_waits_does_not_fill_the_spool_of_its_upstream(tmp_path: Path) -> None:
    """It would wait for upstream, and that for room which only it can make."""
    sent = [(b"%d " % n).ljust(500, b"x") for n in range(50)]
    chosen = {"level": 2, "name": "last"}
    with (
        ServerThread(tmp_path / "core") as core,
        BadNetwork(core.port) as network,
        ServerThread(
            tmp_path / "edge", level=1, upstream=network.url, name="edge",
            spool_bytes=15_000, relay_keep_ms=0,
        ) as edge,
        ringdove.connect(core.url) as near,
        ringdove.connect(edge.url) as far,
    ):  # fmt: skip
        origin = near.create_queue("readings", order="strict", body_bytes_max=1024)
        origin.subscribe("local")  # So that the core keeps all for the last one.
        for body in sent[:5]:
            origin.send(body)
        copy = copied(far, "readings", 5)
        copy.subscribe("app", start="earliest")
        network.closed = True
        network.cut()
        for body in sent[5:40]:
            origin.send(body)
        with (
            ServerThread(tmp_path / "last", upstream=core.url, **chosen) as last,
            ringdove.connect(last.url) as end,
        ):
            copied(end, "readings", 40)
        with (
            ServerThread(tmp_path / "last", upstream=edge.url, **chosen) as last,
            ringdove.connect(last.url) as end,
        ):
            finds_it_has_more(last, "readings")
            network.closed = False
            for body in sent[40:]:
                origin.send(body)
            assert drain(copy, "app", 50) == sent
            assert drain(end.queue("readings"), "default", 50) == sent
