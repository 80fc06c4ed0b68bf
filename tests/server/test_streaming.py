"""Ordered streaming over a network that loses, damages, repeats and delays (M1, M2).

Every message is handed out once, in order, per stripe: whatever happens on the way.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ringdove
from ringdove.client.streaming import RemoteStream
from ringdove.controllers.streaming import BlockStream
from ringdove.errors import SubscriptionBusy
from ringdove.pending import Pending, run
from ringdove.protocol.messages import Verb
from server.bad_network import BadNetwork, Chance, Passing, any_of, no_harm
from server.known_places import Log, Places, Reader
from server.running import wait_for


def stream_through(
    network: BadNetwork,
    log: Log,
    harm: Callable[[Passing], str],
    count: int = 60,
    *,
    for_ever: bool = False,
    **options: Any,
) -> Places:
    """Let a reader read everything; unless it goes on for ever, the harm ends before the end."""
    log.send(count)
    network.harm = harm
    reader = Reader(network.url, log.stripes, position=log.start, **options)
    wait_for(lambda: network.passed[Verb.BLOCK] >= count, "blocks on their way", 20)
    # A block that is lost and has no follower is another test.
    network.harm = harm if for_ever else no_harm
    log.end()
    return reader.result()


# -- one fault at a time, and all ---------------------------------------------------------------

FAULTS = {
    "drop": {"drop": 0.2},
    "duplicate": {"duplicate": 0.3},
    "corrupt": {"corrupt": 0.2},
    "header": {"header": 0.1},
    "delay": {"delay": 0.2},
    "cut": {"cut": 0.1},
    "all": {
        "drop": 0.05, "duplicate": 0.05, "corrupt": 0.05, "header": 0.03, "delay": 0.05,
        "cut": 0.03,
    },
}  # fmt: skip


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_order_and_exactly_once_survive(rd, network, fault, stripes):
    """M1, M2: each block is harmed once at most."""
    log = Log(rd, stripes)
    found = stream_through(network, log, Chance(1, once=True, **FAULTS[fault]))
    assert network.harmed
    assert found == log.expected


def test_a_good_network_resends_nothing(rd, network):
    log = Log(rd, 3)
    found = stream_through(network, log, no_harm)
    assert found == log.expected
    assert network.passed[Verb.BLOCK] == 63
    assert network.connections == 1


# -- what is sent again is harmed again ---------------------------------------------------------


def nth(verb: Verb, *numbers: int, fault: str) -> Callable[[Passing], str]:
    """The fault, for the frames of a verb that pass as the so-manieth, counted from 0."""
    seen: list[Passing] = []

    def harm(passing: Passing) -> str:
        if passing.frame.verb != verb:
            return ""
        seen.append(passing)
        return fault if len(seen) - 1 in numbers else ""

    return harm


def always(place: int, times: int, fault: str) -> Callable[[Passing], str]:
    """The fault, for the block at an offset, the first `times` times it passes."""
    left = [times]

    def harm(passing: Passing) -> str:
        if passing.frame.verb != Verb.BLOCK or passing.place[1] != place or not left[0]:
            return ""
        left[0] -= 1
        return fault

    return harm


@pytest.mark.parametrize(
    "fault",
    [
        "corrupt",
        "drop",
        "duplicate",
        "header",
        "cut",
    ],
)
def test_a_block_harmed_several_times_comes_in_the_end(rd, network, fault):
    """M2: a mismatch is requested again, as often as it takes."""
    log = Log(rd)
    found = stream_through(network, log, always(5, 3, fault), 20, for_ever=True)
    assert network.harmed[fault] >= 1
    assert found == log.expected


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize(
    "fault",
    [
        "drop",
        "corrupt",
        "duplicate",
        "header",
        "cut",
    ],
)
def test_order_and_exactly_once_survive_faults_without_end(rd, network, fault, stripes):
    """M1, M2: repetitions are harmed like anything else."""
    log = Log(rd, stripes)
    # A repetition that is lost or damaged too is asked for again after a second.
    slow = fault in ("drop", "corrupt")
    harm = Chance(2, **{name: p * (1 if slow else 2) for name, p in FAULTS[fault].items()})
    found = stream_through(network, log, harm, 20 if slow else 60, for_ever=True, wait=4)
    assert found == log.expected


def test_a_lost_block_without_a_follower_comes_again(rd, network):
    """M1: the sender resends on loss."""
    log = Log(rd)
    network.harm = nth(Verb.BLOCK, 0, fault="drop")
    log.end()
    assert Reader(network.url, 1, position=log.start).result() == log.expected


def test_a_damaged_block_without_a_follower_comes_again(rd, network):
    """M2."""
    log = Log(rd)
    network.harm = nth(Verb.BLOCK, 0, fault="corrupt")
    log.end()
    assert Reader(network.url, 1, position=log.start).result() == log.expected
    assert network.passed[Verb.BLOCK] == 2


def test_a_damaged_length_does_not_stop_the_stream(rd, network):
    log = Log(rd)
    log.send(3, body_bytes=70_000)
    harm = nth(Verb.BLOCK, 1, fault="length")
    network.harm = harm
    network._damage = lambda data, meta_bytes, fault: (
        data[:3] + bytes([data[3] ^ 2]) + data[4:] if fault == "length" else data
    )
    log.end()
    assert Reader(network.url, 1, position=log.start).result() == log.expected


def test_cuts_at_every_kind_of_frame_are_survived(rd, network):
    """Welcomes, answers and acknowledgements are lost with their connections too."""
    log = Log(rd, 3)
    harm = any_of(
        Chance(3, inward=True, verbs=(Verb.STREAM, Verb.STREAM_ACK), cut=0.05),
        Chance(4, verbs=(Verb.REPLY, Verb.BLOCK), cut=0.05),
    )
    found = stream_through(network, log, harm)
    assert network.connections > 1
    assert found == log.expected


# -- at the beginning ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drop", "corrupt"])
def test_the_first_block_may_be_harmed_like_any_other(rd, network, monkeypatch, fault):
    """The subscription's own position counts, which the reader learns with the answer."""
    log = Log(rd)
    log.send(5)
    log.end()
    network.harm = nth(Verb.BLOCK, 0, fault=fault)
    begin = RemoteStream._begin

    def late(self: RemoteStream, frame: Any) -> None:
        # As if the thread that opens the stream had not run yet.
        wait_for(lambda: network.passed[Verb.BLOCK] >= 6, "blocks before the answer is read")
        begin(self, frame)

    monkeypatch.setattr(RemoteStream, "_begin", late)
    assert Reader(network.url, 1).result() == log.expected


def test_the_position_counts_only_what_was_handed_out(rd, network):
    """M1: nothing was handed out, so a stream from this position gives everything."""
    log = Log(rd, 3)
    log.send(9)
    log.end()
    with ringdove.connect(network.url) as reader:
        source = reader.backend.link
        submit = source.submit

        def late(request: Any) -> None:
            submit(request)
            if request.verb == Verb.STREAM:
                wait_for(lambda: network.passed[Verb.BLOCK] >= 12, "blocks on their way")

        source.submit = late
        with reader.queue("q").stream() as stream:
            position = stream.position
    assert position == log.start


def test_a_stream_of_fewer_stripes_goes_on_after_a_cut(rd, network):
    """The reader knows stripes by then that the server's new stream has not."""
    queue = rd.create_queue("q", stripes=2)
    for number in range(4):
        queue.send(b"%d" % number)
    with (
        ringdove.connect(network.url) as connection,
        connection.queue("q").stream(wait=20) as stream,
    ):
        batches = iter(stream)
        found = [body for _ in range(4) for body in next(batches).bodies()]
        for stripe, offset in stream._twin._positions.items():
            run(stream._twin.source.acknowledge(stripe, offset))
        wait_for(lambda: not queue.stats().waiting(), "the acknowledgements")
        queue.configure(stripes=1)
        network.cut()
        queue.send(b"after")
        found += next(batches).bodies()
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"after"]


def test_a_stream_that_is_closed_before_it_has_begun_gives_its_claim_up(rd, server, monkeypatch):
    rd.create_queue("q")
    began, gate = threading.Event(), Pending()
    open_stream = BlockStream.open

    async def open_late(self: BlockStream, *args: Any, **options: Any) -> None:
        began.set()
        await gate
        await open_stream(self, *args, **options)

    async def leave() -> None:
        async with ringdove.aio.connect(server.url) as reader:
            entering = asyncio.create_task(reader.queue("q").stream().__aenter__())
            assert await asyncio.to_thread(began.wait, 20)
            entering.cancel()
            await asyncio.wait([entering])

    with monkeypatch.context() as patched:
        patched.setattr(BlockStream, "open", open_late)
        asyncio.run(leave())
        gate.resolve(None)
    store, stripe = server.server.broker.store, next(iter(rd.queue("q").stats().stripes))

    def free() -> bool:
        try:
            server.call(store.claim(stripe, "default", b"another", 1000))
        except SubscriptionBusy:
            return False
        return True

    wait_for(lambda: server.call(_fence(store, stripe)) > 0, "the claim")
    wait_for(free, "the claim to be given up", 5)


async def _fence(store: Any, stripe: Any) -> int:
    return store._state(stripe).stripe.subscription("default").fence
