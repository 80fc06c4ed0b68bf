"""One client's connection to the native port: frames in, requests to the broker, answers out.

Requests are begun in the order they arrive, without waiting for one another, so sends are stored in
the order they were sent and one commit answers many. Reading pauses while too much is under way or
the client does not take its answers; so a fast producer is slowed down and a slow consumer is not
buffered for without bound.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from ringdove import limits
from ringdove.errors import (
    ConnectionClosed,
    FatalClientError,
    InvalidArgument,
    LimitExceeded,
    NotAuthorized,
    QueueNotFound,
    RemoteProtocolError,
    RingdoveError,
    SettingsStale,
    StoreUnavailable,
)
from ringdove.frontends.requests import begin_send, encode_received, encode_stored, fit
from ringdove.frontends.streams import ServerStream
from ringdove.protocol import frames, messages
from ringdove.protocol.messages import Verb
from ringdove.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringdove.controllers.visiting import Received
    from ringdove.core.block import Block
    from ringdove.core.dedup import Appended
    from ringdove.errors import ClientError
    from ringdove.frontends.native import NativeServer
    from ringdove.pending import Driven, Pending
    from ringdove.protocol.frames import Frame
    from ringdove.stores.base import StripeId

_log = logging.getLogger(__name__)

_decode_receive = messages.decoder(messages.Receive)

#: Requests under way from which on it is asked whether there may be more.
_CROWD = min(limits.REQUESTS_IN_FLIGHT_MAX, limits.RECEIVES_PARKED_MAX)


class Follower(Protocol):
    """A standby that follows over a connection."""

    def take(self, frame: Frame) -> None:
        """The standby says what it has."""
        ...

    def stop(self) -> None:
        """The connection is over."""
        ...


class Connection(asyncio.BufferedProtocol):
    """See the module. Thousands may be parked, so it is as small as it can be."""

    __slots__ = (
        "_answered", "_decoder", "_gone", "_reading", "_receives", "_refused", "_server",
        "_streams", "_stuck_s", "_transport", "_under_way", "_under_way_bytes", "_welcomed",
        "draining", "follower", "frame_due_s", "heard_s", "writable",
    )  # fmt: skip

    def __init__(self, server: NativeServer) -> None:
        self._server = server
        self._decoder = frames.FrameDecoder(server.scratch)
        self._transport: asyncio.Transport | None = None
        self._welcomed = False
        #: Requests begun and not answered: their bytes, and what can be cancelled.
        self._under_way: dict[int, int] = {}
        self._under_way_bytes = 0
        self._receives: dict[int, Driven] = {}
        self._streams: dict[int, ServerStream] = {}
        #: Set if it is a standby's.
        self.follower: Follower | None = None
        self._reading = True
        self._refused = False
        self.writable = True
        #: Since when answers are not taken, while they are not.
        self._stuck_s: float | None = None
        self.draining = False
        #: Made when somebody waits: for all requests to be answered, for the connection to end.
        self._answered: asyncio.Event | None = None
        self._gone: asyncio.Event | None = None
        self.heard_s = server.loop.time()
        #: When a frame that has begun must have ended.
        self.frame_due_s: float | None = self.heard_s + limits.HELLO_S_MAX

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio."""
        self._transport = None
        for event in (self._gone, self._answered):
            if event is not None:
                event.set()
        self._server.disconnected(self)
        for driven in self._receives.values():
            driven.cancel()
        self._receives.clear()
        for stream in list(self._streams.values()):
            stream.stop()
        self._streams.clear()
        if self.follower is not None:
            self.follower.stop()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """See asyncio."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        server = self._server
        server.bytes_in += nbytes
        self.heard_s = server.loop.time()
        if server.spinner is not None:
            server.spinner.stay()
        whole = False
        try:
            for frame in self._decoder.wrote(nbytes):
                whole = True
                self._take(frame)
            if self._decoder.failure is not None:
                raise self._decoder.failure
        except RingdoveError as error:
            self._refuse(error)
            return
        if not self._welcomed:
            return
        if not self._decoder.partial:
            self.frame_due_s = None
        elif self.frame_due_s is None or whole:
            self.frame_due_s = self.heard_s + limits.FRAME_S_MAX

    def eof_received(self) -> bool:
        """See asyncio."""
        return False

    def pause_writing(self) -> None:
        """See asyncio."""
        self.writable = False
        self._stuck_s = self._server.loop.time()
        self._regulate()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.writable = True
        self._stuck_s = None
        self._regulate()
        for stream in list(self._streams.values()):
            stream.go_on()

    # -- requests -------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if not self._welcomed:
            self._welcome(frame)
            return
        verb, number, _, meta, blob = frame
        at_once = self._AT_ONCE.get(verb)
        if at_once is not None:
            at_once(self, frame)
            return
        if self.draining:
            self.answer_error(number, _closing())  # The client asks again elsewhere.
            return
        if number in self._under_way or number in self._streams:
            raise RemoteProtocolError(f"Request {number} is still under way; numbers are unique.")
        nbytes = len(meta) + len(blob)
        self._under_way[number] = nbytes
        self._under_way_bytes += nbytes
        self._server.requests += 1
        try:
            self._BEGIN.get(verb, Connection._handle)(self, frame)
        except (RemoteProtocolError, InvalidArgument) as error:
            # The frame was whole, but what is in it is damaged, unknown or not for this server.
            self.answer_error(number, error)
        if len(self._under_way) >= _CROWD or self._under_way_bytes >= limits.REQUESTS_BYTES_MAX:
            self._regulate()

    def _pong(self, frame: Frame) -> None:
        self._write(Verb.REPLY, frame.number, b"")

    def _cancel(self, frame: Frame) -> None:
        number = messages.decode(int, frame.meta)
        driven = self._receives.pop(number, None)
        if driven is not None:
            driven.cancel()
            self.answer(number, *encode_received([]))

    def _acknowledged(self, frame: Frame) -> None:
        stream = self._streams.get(frame.number)
        if stream is not None:
            stream.acknowledged(messages.decode(messages.StreamAck, frame.meta))

    def _applied(self, frame: Frame) -> None:
        if self.follower is not None:
            self.follower.take(frame)

    def _welcome(self, frame: Frame) -> None:
        if frame.verb != Verb.HELLO:
            raise RemoteProtocolError("A connection begins with HELLO.")
        hello: messages.Hello = messages.decode(messages.Hello, frame.meta)
        if hello.version != messages.PROTOCOL_VERSION:
            raise FatalClientError(
                f"The client speaks version {hello.version} of the protocol; this server speaks "
                f"{messages.PROTOCOL_VERSION}."
            )
        token = self._server.token
        if token is not None and not secrets.compare_digest(hello.credentials, token.encode()):
            raise NotAuthorized(
                "The server asks for a token, and the client gave none or another one: "
                "use ringdove://:TOKEN@HOST:PORT."
            )
        self._welcomed = True
        self.frame_due_s = None
        self._decoder.frame_bytes_max = limits.FRAME_BYTES_MAX
        welcome = messages.Welcome(
            messages.PROTOCOL_VERSION,
            f"ringdove {__version__}",
            [feature for feature in messages.FEATURES if feature in hello.features],
            limits.FRAME_BYTES_MAX,
            limits.REQUESTS_IN_FLIGHT_MAX,
            limits.IDLE_S_MAX / 3,
            self._server.store_id,
        )
        self._write(Verb.REPLY, frame.number, messages.encode(welcome))

    def _handle(self, frame: Frame) -> None:
        handler = self._server.handlers.get(frame.verb)
        if handler is None:
            raise RemoteProtocolError(f"There is no verb {frame.verb}.")
        reply = handler(self._server.broker, frame)
        self._server.runner.spawn(reply, partial(self._handled, frame.number))

    def _begin_send(self, frame: Frame) -> None:
        """Without a coroutine, unless something has to be waited for before it begins."""
        try:
            begun = begin_send(self._server.broker, frame)
        except (SettingsStale, QueueNotFound):
            begun = None
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._handled(frame.number, None, error)
            return
        if begun is None:
            self._handle(frame)
            return
        stripe, pending = begun
        runner = self._server.runner
        runner.begin(pending)
        # Whoever receives it is served first.
        pending.when_done(partial(runner.later, partial(self._stored, frame, stripe, pending)))

    def _stored(
        self, frame: Frame, stripe: StripeId, pending: Pending[list[Appended | ClientError]]
    ) -> None:
        error = pending.error()
        if error is None:
            self.answer(frame.number, *encode_stored(stripe, pending.result()))
        elif isinstance(error, SettingsStale | QueueNotFound):
            self._handle(frame)  # Nothing is stored; it finds out what the queue is now.
        else:
            self._handled(frame.number, None, error)

    def _begin_stream(self, frame: Frame) -> None:
        ask = messages.decode(messages.Stream, frame.meta)
        number = frame.number
        stream = self._streams[number] = ServerStream(self, self._server, number)
        stream.open(ask)

    def _close_stream(self, frame: Frame) -> None:
        stopped = self._streams.pop(messages.decode(int, frame.meta), None)
        if stopped is not None:
            stopped.close()
        self.answer(frame.number, b"")

    def _follow(self, frame: Frame) -> None:
        ask = messages.decode(messages.Follow, frame.meta)
        self.follower = self._server.follow(self, frame.number, ask)

    def _begin_receive(self, frame: Frame) -> None:
        number = frame.number
        ask = _decode_receive(frame.meta)
        receive = self._server.broker.receive(
            ask.queue, ask.subscription, ask.max, ask.wait_s, ask.lease_ms
        )
        driven = self._server.runner.spawn(receive, partial(self._received, number))
        if not driven.over:
            self._receives[number] = driven

    def _received(
        self, number: int, received: list[Received] | None, error: BaseException | None
    ) -> None:
        self._receives.pop(number, None)
        if received is None:
            self._handled(number, None, error)
            return
        if self._transport is None and received:
            self._server.give_back(received)
            return
        received, rest = fit(received, limits.BLOCK_BYTES_MAX)
        if rest:
            self._server.give_back(rest)
        meta, blocks = encode_received(received)
        for block in blocks:
            self._server.messages_out += block.count
        self.answer(number, meta, blocks)

    def _handled(
        self, number: int, answer: tuple[bytes, list[Block]] | None, error: BaseException | None
    ) -> None:
        if error is None and answer is not None:
            self.answer(number, *answer)
        elif isinstance(error, RingdoveError):
            self.answer_error(number, error)
        else:
            _log.error("A request failed.", exc_info=error)
            self.answer_error(number, StoreUnavailable(f"The server failed: {error!r}."))

    # -- answers --------------------------------------------------------------------------------

    def answer(self, number: int, meta: bytes, blocks: Sequence[Block] = ()) -> None:
        """Answer a request, which is over with it."""
        self._write(Verb.REPLY, number, meta, blocks)
        self._end(number)

    def answer_error(self, number: int, error: RingdoveError) -> None:
        """Refuse a request, which is over with it."""
        self._end(number)
        self._write(Verb.ERROR, number, messages.encode(messages.encode_error(error)))

    def refuse_stream(self, number: int, error: RingdoveError, *, begun: bool) -> None:
        """A stream could not begin, or ended."""
        self._streams.pop(number, None)
        if not begun:
            self.answer_error(number, error)
            return
        self._write(Verb.STREAM_ENDED, number, messages.encode(messages.encode_error(error)))

    def push(self, number: int, meta: bytes, block: Block) -> None:
        """Send a block of a stream."""
        self._server.messages_out += block.count
        self._write(Verb.BLOCK, number, meta, [block])

    def send_commit(self, number: int, meta: bytes) -> None:
        """Send what was committed to a standby."""
        self._write(Verb.COMMIT, number, meta)

    def _end(self, number: int) -> None:
        self._under_way_bytes -= self._under_way.pop(number, 0)
        if self._answered is not None and not self._under_way:
            self._answered.set()
        if not self._reading:
            self._regulate()

    def _write(self, verb: int, number: int, meta: bytes, blocks: Sequence[Block] = ()) -> None:
        transport = self._transport
        if transport is None:
            return
        for buffer in frames.encode(verb, number, meta, blocks):
            self._server.bytes_out += len(buffer)
            transport.write(buffer)
        if transport.get_write_buffer_size() > limits.WRITE_BUFFER_BYTES_MAX:
            _log.warning("A client does not take its answers; it is dropped.")
            transport.abort()

    # -- pressure and the end -------------------------------------------------------------------

    def _regulate(self) -> None:
        """Read on only while what is under way stays within its limits."""
        wanted = (
            self.writable
            and len(self._under_way) - len(self._receives) < limits.REQUESTS_IN_FLIGHT_MAX
            and len(self._receives) < limits.RECEIVES_PARKED_MAX
            and self._under_way_bytes < limits.REQUESTS_BYTES_MAX
        )
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self.heard_s = self._server.loop.time()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _refuse(self, error: RingdoveError) -> None:
        """Say why, and close: the stream of bytes cannot go on."""
        self._refused = True
        self._server.refused += 1
        self._write(Verb.GOODBYE, 0, messages.encode(messages.encode_error(error)))
        self.close()

    def expire(self, now_s: float) -> None:
        """Drop the connection if it is dead or dawdles."""
        if self._refused:
            if self._transport is not None:
                self._transport.abort()  # It does not even take its goodbye.
        elif self._stuck_s is not None and now_s - self._stuck_s > limits.IDLE_S_MAX:
            self._server.refused += 1
            if self._transport is not None:
                self._transport.abort()  # It would not take a goodbye either.
        elif not self._reading:
            return  # It is this side that does not listen.
        elif self.frame_due_s is not None and now_s > self.frame_due_s:
            self._refuse(LimitExceeded("A frame, or HELLO, did not arrive in time."))
        elif now_s - self.heard_s > limits.IDLE_S_MAX:
            self._refuse(LimitExceeded(f"Nothing was heard for {limits.IDLE_S_MAX} s."))

    def drain(self) -> None:
        """Take no more requests; answer parked receivers, let sends finish."""
        self.draining = True
        for number, driven in list(self._receives.items()):
            driven.cancel()
            self.answer_error(number, _closing())
        self._receives.clear()
        for stream in list(self._streams.values()):
            stream.stop()
        self._streams.clear()
        self._write(Verb.GOODBYE, 0, messages.encode(messages.encode_error(_closing())))

    async def settled(self) -> None:
        """Wait until every request has been answered, while draining."""
        if self._under_way and self._transport is not None:
            self._answered = asyncio.Event()
            await self._answered.wait()

    async def ended(self) -> None:
        """Wait until the connection is over."""
        if self._transport is not None:
            self._gone = asyncio.Event()
            await self._gone.wait()

    def close(self) -> None:
        """Send what is written, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()

    #: What is served at once, also while draining.
    _AT_ONCE: ClassVar[dict[int, Callable[[Connection, Frame], None]]] = {
        Verb.PING: _pong,
        Verb.CANCEL: _cancel,
        Verb.STREAM_ACK: _acknowledged,
        Verb.APPLIED: _applied,
    }

    #: How a request begins, unless one of the server's handlers serves it.
    _BEGIN: ClassVar[dict[int, Callable[[Connection, Frame], None]]] = {
        Verb.SEND: _begin_send,
        Verb.RECEIVE: _begin_receive,
        Verb.STREAM: _begin_stream,
        Verb.STREAM_CLOSE: _close_stream,
        Verb.FOLLOW: _follow,
    }


def _closing() -> ConnectionClosed:
    return ConnectionClosed("The server is closing; connect again.")
