"""A client's link at its end: whoever asks then gets an answer, whatever the moment."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

import ringdove
from ringdove.client.address import parse
from ringdove.client.link import BackgroundLoop, Link, LinkOptions
from ringdove.errors import ConnectionClosed
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import Request
from server.running import ServerThread

PATIENCE_S = 30


def test_every_request_fails_once_the_loop_is_closed():
    loop = asyncio.new_event_loop()
    link = Link(parse("ringdove://127.0.0.1:1"), LinkOptions(), loop)
    loop.close()
    for _ in range(2):
        request = Request(Verb.LIST, b"")
        link.submit(request)
        assert request.answer.done
        with pytest.raises(ConnectionClosed):
            request.answer.result()


def test_a_request_that_came_with_the_last_turn_of_the_loop_fails():
    loop = asyncio.new_event_loop()
    link = Link(parse("ringdove://127.0.0.1:1"), LinkOptions(), loop)
    requests = [Request(Verb.LIST, b"") for _ in range(2)]
    link.submit(requests[0])  # The loop is told, and does not turn any more.
    loop.close()
    link.refuse_inbox()
    link.submit(requests[1])
    assert [type(request.answer.error()) for request in requests] == [ConnectionClosed] * 2


def test_a_background_loop_does_what_it_was_asked_for_before_its_end(
    monkeypatch: pytest.MonkeyPatch,
):
    background = BackgroundLoop()
    loop, thread = background.loop, background._thread
    held = threading.Event()
    loop.call_soon_threadsafe(held.wait)
    turns: list[int] = []
    join = thread.join

    def take_turns() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            loop.call_soon(take_turns)

    def ask_and_join() -> None:
        loop.call_soon_threadsafe(take_turns)  # The loop's end has been asked for by now.
        held.set()
        join()

    monkeypatch.setattr(thread, "join", ask_and_join)
    background.stop()
    assert turns == [0, 1, 2]


def test_threads_that_ask_while_the_connection_is_closed_all_end(tmp_path: Path):
    with ServerThread(tmp_path, memory=True, http=-1) as server:
        for _ in range(20):
            rd = ringdove.connect(server.url)
            begun = threading.Barrier(4)

            def ask() -> None:
                begun.wait(PATIENCE_S)
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        rd.queues()

            threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait(PATIENCE_S)
            rd.close()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert not any(thread.is_alive() for thread in threads)
