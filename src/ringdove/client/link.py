"""The I/O of a client's session: connects, reconnects, writes requests, reads answers.

A link lives on one event loop. The asynchronous client uses its own loop; for the synchronous one a
thread runs a loop in the background (`BackgroundLoop`). Requests may come from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from ringdove import limits
from ringdove.client.address import Address, Endpoint, tls_context
from ringdove.client.arguments import check_seconds
from ringdove.client.endpoints import Endpoints, FixedEndpoints
from ringdove.errors import (
    ConnectionClosed,
    FatalClientError,
    InvalidArgument,
    RingdoveError,
    StoreUnavailable,
    WaitTimeout,
)
from ringdove.pending import running_loop
from ringdove.protocol import frames, messages
from ringdove.protocol.frames import FrameDecoder
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import ClientSession, Request, SessionState, decode_error
from ringdove.spinning import check_spin, spinner_of
from ringdove.version import __version__

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from ringdove.core.columns import Buffer
    from ringdove.protocol.frames import Frame

_TICK_S = 0.25

#: Not the module's own: whoever has seeded that wants the same numbers again.
_random = random.Random()

#: Seconds between rounds of attempts to connect: at first, and at most, so that a server that takes
#: over from another is found soon.
_BACKOFF_S, _BACKOFF_S_MAX = 0.02, 0.5

#: A frame that arrives more slowly than this is taken for one that never ends.
_SLOWEST_BYTES_PER_S = 1_000_000

#: Seconds for a connection to end in good order.
_CLOSE_S_MAX = 1.0

#: Share of an attempt's time that is kept when all servers were tried.
_REST = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How a client deals with servers that are slow or gone."""

    #: For one attempt to connect, and for the first one to succeed somewhere.
    connect_s: float = 5
    #: For an answer; a receive that waits has its own wait on top.
    timeout_s: float = 30
    #: Of silence, with requests unanswered, after which a server is taken for dead.
    silence_s: float = 5
    #: Without any server, after which the session is closed and everything fails.
    session_s: float = 60
    #: Microseconds for which to stay awake for an answer; spends processor time to have it sooner.
    spin_us: int = 0
    #: For TLS: the authority to trust, and this client's own certificate and key.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    #: Called with the old state, the new state and the reason, on the link's loop.
    on_state: Callable[[SessionState, SessionState, str], None] | None = None

    def __post_init__(self) -> None:
        for name in ("connect_s", "timeout_s", "silence_s", "session_s"):
            check_seconds(name, getattr(self, name))
        check_spin(self.spin_us)


class StreamEnd(Protocol):
    """What takes the frames of a stream."""

    def take(self, frame: Frame) -> None:
        """A frame with the stream's number has come."""
        ...

    def tick(self, now_s: float) -> None:
        """Called several times a second, while there is a connection."""
        ...


class Link:
    """See the module."""

    def __init__(
        self, address: Address, options: LinkOptions, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self.options = options
        self.session = ClientSession(f"ringdove {__version__} {socket.gethostname()}:{os.getpid()}")
        self.session.on_push = self._pushed
        self.session.on_state = options.on_state
        self.session.on_unwanted = self._give_back
        #: By number of the request that began it: what takes the blocks of a stream.
        self.streams: dict[int, StreamEnd] = {}
        #: Called when a new connection has been welcomed, before requests are written again.
        self.on_welcome: list[Callable[[], None]] = []
        #: Where to connect; set before `open` by who knows better than the address.
        self.endpoints: Endpoints = FixedEndpoints(address.endpoints)
        self._tls: ssl.SSLContext | None = None
        self._hint = "One that speaks TLS is reached by ringdoves://."
        if any(endpoint.tls for endpoint in address.endpoints):
            self._tls_context()
            self._hint = (
                "Its certificate must be from an authority that is trusted here: name that by the "
                "option tls_ca, or for commands by SSL_CERT_FILE."
            )
        self._inbox: deque[Request] = deque()
        self._scheduled = False
        #: Requests that wait until the server may take more.
        self._backlog: deque[Request] = deque()
        self._wire: _Wire | None = None
        #: Connections that are not over yet.
        self._wires: set[_Wire] = set()
        self._task: asyncio.Task[None] | None = None
        self._clock: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[str] | None = None
        self._failure: RingdoveError | None = None
        #: What keeps the loop awake for answers, if anything does.
        self.spinner = spinner_of(loop, options.spin_us)

    # -- the session ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and stay connected from then on; raises when there is no server."""
        self.session.change(SessionState.CONNECTING, "begin")
        welcomed: asyncio.Future[None] = self.loop.create_future()
        self._task = self.loop.create_task(self._stay_connected(welcomed))
        self._clock = self.loop.create_task(self._keep_time())
        try:
            async with asyncio.timeout(self.options.connect_s):
                await asyncio.shield(welcomed)
        except TimeoutError:
            reason = f" ({self._failure})" if self._failure else ""
            error = StoreUnavailable(
                f"No server answered at {self.endpoints}{reason}. Is it running? {self._hint}"
            )
            await self.close(error)
            raise error from self._failure
        except RingdoveError:
            await self.close()
            raise

    async def close(self, error: RingdoveError | None = None) -> None:
        """End the session. Idempotent."""
        self.session.close(error or ConnectionClosed("The connection has been closed."), "closed")
        tasks = [task for task in (self._task, self._clock) if task is not None]
        self._task = self._clock = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.endpoints.close()
        for wire in list(self._wires):
            wire.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S_MAX):
                    await wire.gone.wait()
            wire.abort()

    def submit(self, request: Request) -> None:
        """Begin a request; from any thread."""
        here = running_loop() is self.loop
        wire = self._wire
        if (
            here
            and wire is not None
            and wire.writable
            and self.session.state is SessionState.CONNECTED
            and not (self._inbox or self._backlog)
        ):
            self.session.begin(request)
            wire.write(request.encode())
            if self.spinner is not None:
                self.spinner.stay()
            return
        self._inbox.append(request)
        if here:
            self._take_inbox()
        elif not self._scheduled:
            self._scheduled = True
            try:
                self.loop.call_soon_threadsafe(self._take_inbox)
            except RuntimeError:  # The loop was closed.
                self.refuse_inbox()

    def refuse_inbox(self) -> None:
        """Fail what nobody will take any more: the loop is closed."""
        self._scheduled = False  # First, so that whoever submits later comes here itself.
        with contextlib.suppress(IndexError):
            while True:
                request = self._inbox.popleft()
                request.answer.fail(ConnectionClosed("The connection has been closed."))

    def abandon(self, request: Request) -> None:
        """Nobody waits for a request any more; from any thread."""
        if running_loop() is self.loop:
            self._abandon(request)
        else:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._abandon, request)

    def _abandon(self, request: Request) -> None:
        self._take_inbox()
        with contextlib.suppress(ValueError):
            self._backlog.remove(request)
        for buffers in self.session.abandon(request):
            self.write(buffers)

    def _take_inbox(self) -> None:
        self._scheduled = False
        for _ in range(len(self._inbox)):
            request = self._inbox.popleft()
            self.session.begin(request)
            if self.session.state is SessionState.CONNECTED:
                self._backlog.append(request)
        self._write_backlog()

    def _write_backlog(self) -> None:
        wire = self._wire
        while wire is not None and wire.writable and self._backlog:
            request = self._backlog.popleft()
            if not request.answer.done:
                wire.write(request.encode())
                if self.spinner is not None:
                    self.spinner.stay()

    def write(self, buffers: list[Buffer]) -> None:
        """Write a frame that wants no answer, if there is a connection; on the link's loop."""
        if self._wire is not None and self.session.state is SessionState.CONNECTED:
            self._wire.write(buffers)

    def write_soon(self, buffers: list[Buffer]) -> None:
        """`write`, from any thread."""
        if running_loop() is self.loop:
            self.write(buffers)
        else:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.write, buffers)

    def _give_back(self, receipts: list[messages.WireReceipt]) -> None:
        self.submit(Request(Verb.UNLEASE, messages.encode(messages.Settle(receipts))))

    # -- staying connected ----------------------------------------------------------------------

    async def _stay_connected(self, welcomed: asyncio.Future[None]) -> None:
        backoff_s = _BACKOFF_S
        apart_s = self.loop.time()
        untried = self.endpoints.count
        while self.session.state is not SessionState.CLOSED:
            began_s = self.loop.time()
            try:
                reason = await self._serve_next(welcomed)
                apart_s, untried = self.loop.time(), 1
                if apart_s - began_s > _BACKOFF_S_MAX:
                    backoff_s = _BACKOFF_S
            except (FatalClientError, InvalidArgument) as error:
                self._give_up(error, welcomed)
                return
            except (OSError, RingdoveError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                self._failure = StoreUnavailable(reason)
            if self.session.state is SessionState.CONNECTED:
                self.session.change(SessionState.CONNECTING, reason)
            if self.loop.time() - apart_s > self.options.session_s:
                gone = f"No server for {self.options.session_s:.0f} s ({reason})."
                self._give_up(ConnectionClosed(gone), welcomed)
                return
            untried -= 1
            if untried <= 0:
                untried = self.endpoints.count
                await asyncio.sleep(backoff_s * _random.uniform(0.5, 1))
                backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)

    async def _serve_next(self, welcomed: asyncio.Future[None]) -> str:
        """Connect to the next place; answers why that ended, or raises if it did not begin."""
        endpoint = await self.endpoints.next()
        try:
            return await self._serve_one(endpoint, welcomed)
        except FatalClientError:
            raise
        except (OSError, RingdoveError, TimeoutError) as error:
            raise StoreUnavailable(f"{endpoint}: {error or type(error).__name__}") from error
        finally:
            self.endpoints.ended(endpoint)

    def _give_up(self, error: RingdoveError, welcomed: asyncio.Future[None]) -> None:
        self.session.close(error, str(error))
        if not welcomed.done():
            welcomed.set_exception(error)

    async def _serve_one(self, endpoint: Endpoint, welcomed: asyncio.Future[None]) -> str:
        """One connection, from beginning to end; answers why it ended."""
        self._lost = self.loop.create_future()
        # One that hangs must leave time for the others.
        attempt_s = self.options.connect_s / (self.endpoints.count + _REST)
        async with asyncio.timeout(attempt_s):
            wire = await self._connect(endpoint)
        try:
            wire.write(self.session.hello(endpoint.token.encode()))
            async with asyncio.timeout(attempt_s):
                await wire.welcomed
            self._wire = wire
            self.endpoints.welcomed(endpoint)
            for notify in list(self.on_welcome):
                notify()
            # First: whoever is told of the change may ask for more, which goes behind it.
            self._backlog = deque(self.session.unanswered)
            self.session.change(SessionState.CONNECTED, str(endpoint))
            self._write_backlog()
            if not welcomed.done():
                welcomed.set_result(None)
            return await self._lost
        finally:
            self._wire = None
            wire.close()

    async def _connect(self, endpoint: Endpoint) -> _Wire:
        if endpoint.unix is not None:
            _, wire = await self.loop.create_unix_connection(lambda: _Wire(self), endpoint.unix)
        else:
            _, wire = await self.loop.create_connection(
                lambda: _Wire(self),
                endpoint.host,
                endpoint.port,
                ssl=self._tls_context() if endpoint.tls else None,
                server_hostname=endpoint.host if endpoint.tls else None,
            )
        return wire

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            options = self.options
            self._tls = tls_context(options.tls_ca, options.tls_cert, options.tls_key)
        return self._tls

    @property
    def own_host(self) -> str:
        """This side's address of the connection; empty while there is none."""
        return self._wire.own_host if self._wire is not None else ""

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._tick()

    def _tick(self) -> None:
        """Notice requests that take too long, silence, and idleness."""
        now_s = self.loop.time()
        for request in self.session.unanswered:
            if request.deadline_s is not None and now_s > request.deadline_s:
                self._abandon(request)
                request.answer.fail(
                    WaitTimeout(f"The server did not answer within {self.options.timeout_s} s.")
                )
        wire = self._wire
        if wire is None:
            return
        for stream in list(self.streams.values()):
            stream.tick(now_s)
        quiet_s = wire.quiet_s(now_s)
        asked = bool(self.session.unanswered) or bool(self.streams)
        if quiet_s > self.options.silence_s and asked:
            self.lost(f"The server has been silent for {quiet_s:.1f} s.")
        elif quiet_s > self.options.silence_s / 2 or now_s - wire.wrote_s > _ping_s(self.session):
            wire.write(frames.encode(Verb.PING, 0, b""))

    def lost(self, reason: str) -> None:
        """The connection is of no use any more."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    def _pushed(self, frame: Frame) -> None:
        if frame.verb == Verb.GOODBYE:
            error = decode_error(frame)
            if isinstance(error, FatalClientError):
                self.session.close(error, str(error))
            self.lost(f"The server said goodbye: {error}")
            return
        stream = self.streams.get(frame.number)
        if stream is not None:
            stream.take(frame)


def _ping_s(session: ClientSession) -> float:
    return session.welcome.idle_s if session.welcome is not None else limits.IDLE_S_MAX / 3


class _Wire(asyncio.BufferedProtocol):
    """One connection to one server."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._decoder = FrameDecoder()
        self._decoder.frame_bytes_max = limits.FRAME_BYTES_MAX
        self._transport: asyncio.Transport | None = None
        self.welcomed: asyncio.Future[None] = link.loop.create_future()
        self.writable = True
        self.gone = asyncio.Event()
        #: When the last whole frame came, and when something was last written.
        self.framed_s = self.wrote_s = link.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._link._wires.add(self)  # noqa: SLF001  one thing in two classes
        transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.gone.set()
        self._link._wires.discard(self)  # noqa: SLF001
        self._end(exc or ConnectionResetError("The server closed the connection."))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        session = self._link.session
        try:
            for frame in self._decoder.wrote(nbytes):
                self.framed_s = self._link.loop.time()
                session.take(frame)
                if not self.welcomed.done():
                    self.welcomed.set_result(None)
            if self._decoder.failure is not None:
                raise self._decoder.failure
            if self._link.spinner is not None and session.idle:
                self._link.spinner.rest()
        except RingdoveError as error:
            self._end(error)
            self.close()

    def quiet_s(self, now_s: float) -> float:
        """How long nothing whole has come, with patience for a large frame on its way."""
        return now_s - self.framed_s - self._decoder.partial_bytes / _SLOWEST_BYTES_PER_S

    @property
    def own_host(self) -> str:
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return name[0] if isinstance(name, tuple) else ""

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._link._write_backlog()  # noqa: SLF001  one thing in two classes

    def write(self, buffers: list[Buffer]) -> None:
        if self._transport is not None:
            self.wrote_s = self._link.loop.time()
            for buffer in buffers:
                self._transport.write(buffer)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Exception) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()  # Seen, even if nobody waits for it any more.
        elif not self.welcomed.cancelled():  # Else it was given up, and another is tried by now.
            self._link.lost(str(error))


class BackgroundLoop:
    """An event loop in a thread of its own, for clients without one."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="ringdove-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(asyncio.sleep(0))  # What was asked for before the end is done.
        self.loop.close()

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  plain asyncio does where it is missing
    except ImportError:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())
