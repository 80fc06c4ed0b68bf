"""The receiver's end of a stream, between the link's loop and the reader's thread."""

from types import SimpleNamespace
from typing import Any

import pytest

from ringdove.client import streaming
from ringdove.client.streaming import RemoteStream
from ringdove.core.block import Block
from ringdove.errors import ConnectionClosed
from ringdove.pending import Pending, run
from ringdove.protocol import messages
from ringdove.protocol.frames import Frame
from ringdove.protocol.messages import Verb
from ringdove.stores.base import StripeId


class StubLink(SimpleNamespace):
    """Takes what is written, and has something happen meanwhile."""

    def __init__(self) -> None:
        super().__init__(
            loop=SimpleNamespace(time=lambda: 0.0),
            session=SimpleNamespace(state=None),
            streams={}, on_welcome=[], written=[], meanwhile=[],
        )  # fmt: skip

    def write_soon(self, frame: Any) -> None:
        self.written.append(frame)
        if self.meanwhile:
            self.meanwhile.pop()()


def test_the_reader_may_acknowledge_while_the_stream_begins_anew():
    link = StubLink()
    stream = RemoteStream(link, "q", "s", b"me", {}, 1_000)
    run(stream.acknowledge(StripeId(1, 0, 0), 5))
    link.meanwhile = [lambda: run(stream.acknowledge(StripeId(1, 1, 0), 7))]
    meta = messages.encode(messages.Streaming(2, []))
    stream._begin(Frame(Verb.REPLY, 1, 0, meta, b""))
    assert stream.fence == 2
    assert len(link.written) == 3


def test_a_reader_that_is_about_to_wait_learns_that_the_stream_was_closed(monkeypatch):
    stream = RemoteStream(StubLink(), "q", "s", b"me", {}, 1_000)

    class Late(Pending[None]):
        """Comes into being just after another thread has closed the stream."""

        def __init__(self) -> None:
            run(stream.close())
            super().__init__()

    monkeypatch.setattr(streaming, "Pending", Late)
    waiting = stream.next()
    with pytest.raises(ConnectionClosed):
        waiting.send(None)


STRIPE = StripeId(1, 0, 0)


def block_frame(base: int, count: int, wanted: int) -> Frame:
    """What a server writes: a block, and the offset that this receiver should want next."""
    block = Block.build([b"%d" % (base + n) for n in range(count)], sent_ms=0).stamp(base, 0)
    return Frame(Verb.BLOCK, 1, 0, messages.encode((STRIPE, wanted)), block.buffer)


@pytest.mark.parametrize(
    ("base", "wanted", "bodies"),
    [
        (0, 0, []),  # Came already.
        (3, 3, [b"5", b"6", b"7"]),  # Two of it came already, in another block.
        (5, 5, [b"5", b"6", b"7", b"8", b"9"]),
        (6, 5, [b"6", b"7", b"8", b"9", b"10"]),  # What was between is gone for good.
        (6, 6, []),  # One before it is missing.
    ],
)
def test_of_a_block_what_has_not_come_yet_is_handed_out(base, wanted, bodies):
    """M1: nothing twice, nothing left out."""
    stream = RemoteStream(StubLink(), "q", "s", b"me", {STRIPE: 5}, 1_000)
    stream.take(block_frame(base, 5, wanted))
    streamed = run(stream.next(0))
    assert (streamed.block.bodies() if streamed else []) == bodies
    assert stream.cursors[STRIPE] == (int(bodies[-1]) + 1 if bodies else 5)
