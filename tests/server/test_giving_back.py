"""What was leased for a client and is not sent to it: others may have it at once."""

import asyncio
import signal
from typing import Any

import pytest

import ringdove
from ringdove import limits
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.controllers.visiting import Received
from ringdove.core.block import Block
from ringdove.errors import QueueNotFound, WaitTimeout
from ringdove.frontends import connection as connection_module
from ringdove.frontends.connection import Connection
from ringdove.frontends.native import NativeServer
from ringdove.frontends.requests import HANDLERS, fit
from ringdove.pending import Pending, run
from ringdove.protocol import messages
from ringdove.protocol.frames import Frame
from ringdove.protocol.messages import Verb
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore
from server.running import ServerProcess, ServerThread, wait_for
from server.wire import RawClient, error_of

LEASE_MS = 3_600_000


# -- more than fits in a frame ---------------------------------------------------------------------


def test_what_is_read_fits_in_a_frame():
    blocks = [Block.build([bytes(limits.BLOCK_BYTES_MAX // 2)], sent_ms=1) for _ in range(3)]

    class Full:
        async def read(self, *_: Any, **__: Any) -> list[Block]:
            return blocks.copy()

    ask = messages.encode(messages.Read((1, 0, 0), 0, 10, skip_trimmed=True))
    meta, sent = run(HANDLERS[Verb.READ](Full(), Frame(Verb.READ, 1, 0, ask, b"")))
    assert (messages.decode(int, meta), sent) == (1, blocks[:1])


@pytest.fixture(scope="module")
def received() -> list[Received]:
    """Three runs, the last of several blocks; they begin and end within blocks."""
    broker = Broker(MemoryStore())
    run(broker.create_queue("q", {"lease_ms": LEASE_MS}))
    for size in (10, 300, 20, 5_000, 40, 700):
        run(broker.send("q", Outgoing([bytes(size)] * 6)))
    first, _, third = (run(broker.receive("q", "default", count, 0, None)) for count in (2, 7, 5))
    run(broker.release([first[0].receipt, third[0].receipt], 0))
    found = run(broker.receive("q", "default", 27, 0, None))
    assert [len(one.delivered.parts) for one in found] == [1, 2, 4]
    return found


def places(runs: list[Received]) -> list[tuple[int, int]]:
    """Stripe and offset of every message, after a check that receipts and blocks agree."""
    found = []
    for one in runs:
        blocks = one.delivered.blocks
        offsets = [offset for block in blocks for offset in range(block.base, block.end)]
        assert offsets == list(range(one.receipt.lo, one.receipt.hi))
        found += [(one.receipt.number, offset) for offset in offsets]
    return found


def nbytes(runs: list[Received]) -> int:
    return sum(block.nbytes for one in runs for block in one.delivered.blocks)


def test_what_fits_and_what_does_not_are_everything_once(received: list[Received]):
    for bytes_max in range(0, nbytes(received) + 100, 37):
        kept, rest = fit(received, bytes_max)
        assert places(kept) + places(rest) == places(received), bytes_max


def test_what_fits_is_as_much_as_fits_and_at_least_a_block(received: list[Received]):
    blocks = [block.nbytes for one in received for block in one.delivered.blocks]
    for bytes_max in range(0, nbytes(received) + 100, 37):
        kept, _ = fit(received, bytes_max)
        count = sum(len(one.delivered.parts) for one in kept)
        assert count > 0
        assert count == 1 or nbytes(kept) <= bytes_max
        assert count == len(blocks) or nbytes(kept) + blocks[count] > bytes_max


def test_everything_fits_when_there_is_room(received: list[Received]):
    assert fit(received, nbytes(received)) == (received, [])


def test_what_does_not_fit_is_received_next(
    rd: ringdove.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection_module, "fit", lambda runs, _: fit(runs, 2_000))
    queue = rd.create_queue("q", lease_ms=LEASE_MS)
    for number in range(10):
        queue.send_many([b"%d" % number * 100] * 5)
    found = []
    while batch := queue.receive(max=50):
        assert len(batch) < 50
        found += batch.bodies()
        assert queue.stats().subscriptions["default"] == (50 - len(found), len(batch), 0)
        batch.ack()
    assert found == [b"%d" % number * 100 for number in range(10) for _ in range(5)]


# -- clients that have gone ------------------------------------------------------------------------


def test_what_is_received_for_a_connection_that_has_gone_is_given_back():
    async def main() -> None:
        broker = Broker(MemoryStore())
        await broker.create_queue("q", {"lease_ms": LEASE_MS})
        await broker.send("q", Outgoing([b"x"] * 3))
        gone = Connection(NativeServer(broker, asyncio.get_running_loop()))
        gone._received(1, await broker.receive("q", "default", 2, 0, None), None)
        assert (await broker.queue_stats("q")).subscriptions["default"] == (3, 0, 0)

    asyncio.run(main())


def test_what_a_client_that_vanishes_has_leased_by_then_is_given_back(
    server: ServerThread, rd: ringdove.Connection, monkeypatch: pytest.MonkeyPatch
):
    """It hangs up when its receive has visited one stripe and is at the next."""
    leased = []
    lease = EmbeddedStore.lease

    async def halting(self: EmbeddedStore, *arguments: Any) -> Any:
        if leased:
            await Pending()
        leased.append(await lease(self, *arguments))
        return leased[-1]

    queue = rd.create_queue("q", stripes=2, order="key", lease_ms=LEASE_MS)
    queue.send_many([ringdove.NewMessage(b"x", key=b"%d" % number) for number in range(20)])
    monkeypatch.setattr(EmbeddedStore, "lease", halting)
    with RawClient(server.port) as client:
        client.hello().send(Verb.RECEIVE, 1, messages.Receive("q", "default", 20, 60, None))
        wait_for(lambda: leased and leased[0].runs, "a stripe has been visited")
    wait_for(lambda: queue.stats().subscriptions["default"] == (20, 0, 0), "all wait again")


def test_a_receiver_that_waits_learns_that_its_queue_was_deleted(
    server: ServerThread, rd: ringdove.Connection
):
    rd.create_queue("q")
    with RawClient(server.port) as client:
        client.hello().send(Verb.RECEIVE, 1, messages.Receive("q", "default", 1, 600, None))
        wait_for(lambda: server.server._broker.dequeuer.parked, "the receiver waits")
        rd.delete_queue("q")
        assert isinstance(error_of(client.next()), QueueNotFound)


def test_what_comes_after_the_client_gave_up_waiting_is_given_back(tmp_path):
    with (
        ServerProcess(tmp_path) as server,
        ringdove.connect(server.url, timeout_s=1, silence_s=60) as rd,
    ):
        queue = rd.create_queue("q", lease_ms=LEASE_MS)
        queue.send(b"late")
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(WaitTimeout):
                queue.receive()
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert queue.receive(wait=30).bodies() == [b"late"]
