"""What a client makes of answers that are lost, late or too large for one frame."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ringdove
from ringdove.client.address import parse
from ringdove.client.link import Link, LinkOptions
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Delivered, Parcel
from ringdove.errors import InvalidArgument, SequenceRefused, WaitTimeout
from ringdove.stores.base import StripeId
from server.running import PATIENCE_S, ServerThread

MB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", http=-1) as running:
        yield running


# -- answers that are lost -------------------------------------------------------------------------


def test_a_queue_whose_creation_was_answered_in_vain_is_there(rd, lose_next_answer):
    lose_next_answer()
    rd.create_queue("q", stripes=2)
    assert [queue.name for queue in rd.queues()] == ["q"]


def test_an_exactly_once_send_that_was_answered_in_vain_is_stored_once(rd, lose_next_answer):
    queue = rd.create_queue("q", delivery="exactly-once")
    queue.send(b"first")
    lose_next_answer()
    queue.send(b"second")
    assert [m.body for m in queue.receive(max=10)] == [b"first", b"second"]


def test_an_acknowledgement_that_was_answered_in_vain_is_no_error(rd, lose_next_answer):
    queue = rd.create_queue("q")
    queue.send(b"x")
    [message] = queue.receive(max=1)
    lose_next_answer()
    message.ack()
    assert queue.stats().subscriptions["default"] == (0, 0, 0)


def test_a_subscription_whose_making_was_answered_in_vain_is_there(rd, lose_next_answer):
    queue = rd.create_queue("q")
    lose_next_answer()
    queue.subscribe("s")
    assert "s" in queue.subscriptions()


def test_a_deletion_that_was_answered_in_vain_is_no_error(rd, lose_next_answer):
    rd.create_queue("q")
    lose_next_answer()
    rd.delete_queue("q")
    assert list(rd.queues()) == []


def test_a_subscription_whose_end_was_answered_in_vain_is_no_error(rd, lose_next_answer):
    queue = rd.create_queue("q")
    queue.subscribe("s")
    lose_next_answer()
    queue.unsubscribe("s")
    assert "s" not in queue.subscriptions()


def test_a_send_that_is_refused_for_ever_is_never_sent_without_a_number(
    rd, monkeypatch: pytest.MonkeyPatch
):
    queue = rd.create_queue("q", delivery="exactly-once")
    producers: list[bytes | None] = []

    async def refuse(self: Broker, queue: str, version: int, parcel: Parcel) -> Delivered:
        producers.extend(segment.producer for segment in parcel.segments)
        return StripeId(1, 0, 0), [SequenceRefused("Too early.", 0)]

    monkeypatch.setattr(Broker, "begin_to_deliver", lambda *_: None)
    monkeypatch.setattr(Broker, "deliver", refuse)
    with pytest.raises(SequenceRefused):
        queue.send(b"x")
    assert len(producers) > 1
    assert len(set(producers)) == len(producers), "each attempt has a name of its own"
    assert None not in producers


# -- more than fits in a frame ---------------------------------------------------------------------


def test_a_send_larger_than_a_frame_is_stored(server: ServerThread):
    with ringdove.connect(server.url, timeout_s=2) as rd:
        queue = rd.create_queue("q")
        assert len(queue.send_many([bytes(MB)] * 80)) == 80


def test_a_receive_larger_than_a_frame_gives_what_fits(server: ServerThread):
    with ringdove.connect(server.url, timeout_s=5) as rd:
        queue = rd.create_queue("q")
        for _ in range(8):
            queue.send_many([bytes(MB)] * 10)
        assert 0 < len(queue.receive(max=80)) <= 80


# -- waits that make no sense ----------------------------------------------------------------------


@pytest.mark.parametrize("wait", [-1, math.inf, math.nan, 1e12])
def test_a_strange_wait_is_served_or_refused_by_its_name(rd, wait):
    queue = rd.create_queue("q")
    queue.send(b"x")
    with contextlib.suppress(InvalidArgument):
        assert len(queue.receive(wait=wait)) == 1


# -- answers that do not come ----------------------------------------------------------------------


def test_the_time_for_an_answer_passes_without_a_server_too(server: ServerThread):
    with ringdove.connect(server.url, timeout_s=0.5, session_s=3) as rd:
        rd.queues()
        server.stop()
        with pytest.raises(WaitTimeout):
            rd.queues()


def test_giving_up_at_the_moment_the_server_hangs_up_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
):
    async def work(port: int) -> bool:
        loop = asyncio.get_running_loop()
        link = Link(parse(f"ringdove://127.0.0.1:{port}"), LinkOptions(session_s=1), loop)
        connect = Link._connect
        wires: asyncio.Queue[Any] = asyncio.Queue()

        async def watched(self: Link, *rest: Any) -> Any:
            wire = await connect(self, *rest)
            wires.put_nowait(wire)
            return wire

        monkeypatch.setattr(Link, "_connect", watched)
        opening = loop.create_task(link.open())
        wire = await asyncio.wait_for(wires.get(), PATIENCE_S)
        await asyncio.sleep(0.05)  # The link waits for its welcome.
        wire._end(ConnectionResetError("hung up"))
        closing = loop.create_task(link.close())
        done, _ = await asyncio.wait({closing}, timeout=0.5)
        opening.cancel()
        await asyncio.wait({opening, closing}, timeout=PATIENCE_S)
        return closing in done

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(work(silent.getsockname()[1]))
