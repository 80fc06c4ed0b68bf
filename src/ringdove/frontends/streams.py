"""The server's end of a stream: pushes blocks while the receiver's window has room (M1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.core.compression import CODEC_NUMBERS
from ringdove.errors import InvalidArgument, RingdoveError, StoreUnavailable
from ringdove.protocol import messages
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    import asyncio

    from ringdove.controllers.streaming import BlockStream, StreamedBlock
    from ringdove.frontends.connection import Connection
    from ringdove.frontends.native import NativeServer
    from ringdove.pending import Driven


class ServerStream:
    """One stream of one connection."""

    def __init__(self, connection: Connection, server: NativeServer, number: int) -> None:
        self._connection = connection
        self._server = server
        self._number = number
        self._stream: BlockStream | None = None
        self._window_bytes = self._window_bytes_max = 0
        self._compression = "none"
        self._reading: Driven | None = None
        #: A block that was read and waits for room.
        self._waiting: StreamedBlock | None = None
        self._stopped = False
        #: Whether the receiver has ended it, so that nobody takes the claim over.
        self._closed = False
        self._hold_timer: asyncio.TimerHandle | None = None

    def open(self, ask: messages.Stream) -> None:
        """Claim the subscription, answer, and begin to push."""
        if not 0 < ask.window_bytes <= limits.STREAM_WINDOW_BYTES_MAX:
            limit = limits.STREAM_WINDOW_BYTES_MAX
            self._end(InvalidArgument(f"A stream's window is 1 to {limit} bytes."), begun=False)
            return
        if ask.compression not in CODEC_NUMBERS:
            known = ", ".join(CODEC_NUMBERS)
            refusal = InvalidArgument(f"Compression {ask.compression!r} is none of {known}.")
            self._end(refusal, begun=False)
            return
        self._compression = ask.compression
        self._window_bytes = self._window_bytes_max = ask.window_bytes
        positions = {StripeId(*stripe): offset for stripe, offset in ask.positions}
        self._server.runner.spawn(
            self._server.broker.stream(
                ask.queue, ask.subscription, ask.owner, positions, ask.lease_ms, exact=ask.exact
            ),
            self._opened,
        )

    def _opened(self, stream: BlockStream | None, error: BaseException | None) -> None:
        if stream is None:
            self._end(error, begun=False)
            return
        self._stream = stream
        if self._closed:
            self.close()
            return
        if self._stopped:
            self._give_up()
            return
        answer = messages.Streaming(stream.fence, list(stream.cursors.items()))
        self._connection.answer(self._number, messages.encode(answer))
        self._hold_later()
        self.go_on()

    def go_on(self) -> None:
        """Push while there is room; called whenever there may be."""
        if self._stream is None or self._stopped:
            return
        while self._window_bytes > 0 and self._connection.writable:
            if self._waiting is not None:
                block, self._waiting = self._waiting, None
                self._push(block)
                continue
            if self._reading is not None:
                return
            driven = self._server.runner.spawn(self._stream.next(), self._read)
            if not driven.over:
                self._reading = driven
                return

    def _read(self, block: StreamedBlock | None, error: BaseException | None) -> None:
        later = self._reading is not None
        self._reading = None
        if block is None:
            self._end(error, begun=True)
            return
        self._waiting = block
        if later:
            self.go_on()

    def _push(self, streamed: StreamedBlock) -> None:
        assert self._stream is not None
        if streamed.block.base > self._stream.cursors[streamed.stripe]:
            return  # Asked to go back meanwhile: an earlier block comes first.
        block = streamed.block.packed(self._compression)
        self._window_bytes -= block.nbytes
        meta = messages.encode((streamed.stripe, streamed.wanted))
        self._connection.push(self._number, meta, block)

    def acknowledged(self, ack: messages.StreamAck) -> None:
        """The receiver is through with something, or wants something again."""
        if self._stream is None or self._stopped:
            return
        stripe = StripeId(*ack.stripe)
        # Before the connection broke, the queue may have had more stripes.
        known = stripe in self._stream.cursors
        try:
            if ack.resend and known:
                self._stream.rewind(stripe, ack.next)
                self._window_bytes = self._window_bytes_max - max(0, ack.freed_bytes)
                self._put_back()
            else:
                freed_bytes = self._window_bytes + max(0, ack.freed_bytes)
                self._window_bytes = min(freed_bytes, self._window_bytes_max)
        except RingdoveError as error:
            self._end(error, begun=True)
            return
        if known and not ack.resend and ack.next >= 0:
            self._server.runner.spawn(self._stream.acknowledge(stripe, ack.next), self._done)
        self.go_on()

    def _put_back(self) -> None:
        """What was read and not sent is read again, after what comes before it."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and self._stream is not None:
            self._stream.rewind(waiting.stripe, waiting.wanted)

    def stop(self) -> None:
        """The connection or the receiver is gone."""
        self._stopped = True
        if self._stream is not None:
            self._give_up()

    def _give_up(self) -> None:
        """Stop reading; the claim stays until it expires, for its owner to take over."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def close(self) -> None:
        """The receiver has ended the stream: give the claim up."""
        self._closed = True
        self.stop()
        if self._stream is not None:
            self._server.runner.spawn(self._stream.close(), _ignore)

    def _hold_later(self) -> None:
        assert self._stream is not None
        pause_s = self._stream.lease_ms / 3000
        self._hold_timer = self._server.loop.call_later(pause_s, self._hold)

    def _hold(self) -> None:
        if self._stream is not None and not self._stopped:
            self._server.runner.spawn(self._stream.hold(), self._done)
            self._hold_later()

    def _done(self, _: object, error: BaseException | None) -> None:
        if error is not None and not self._stopped:
            self._end(error, begun=True)

    def _end(self, error: BaseException | None, *, begun: bool) -> None:
        self.stop()
        if not isinstance(error, RingdoveError):
            error = StoreUnavailable(f"The stream failed: {error!r}.")
        self._connection.refuse_stream(self._number, error, begun=begun)


def _ignore(_: object, __: BaseException | None) -> None:
    """Nobody waits for it."""
