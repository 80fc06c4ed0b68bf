"""A client's session with servers, without I/O (M6).

    NOT_CONNECTED --1--> CONNECTING --2--> CONNECTED --5--> CLOSED
                             ^  |              |              ^
                             |  '------4-------|--------------'
                             '--------3--------'

    1 the client begins      2 a server has welcomed it     3 the connection broke or went silent
    4 the session timed out  5 the client ended it (which it may also do while connecting: 4)

Requests outlive connections. A session keeps each until it is answered, and gives all unanswered
ones out again, in their first order, when a new connection is welcomed: a send that was under way
when the server died is repeated, and the queue recognises it where delivery is exactly-once.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ringdove.errors import ConnectionClosed, LocalProtocolError, RemoteProtocolError
from ringdove.pending import Pending
from ringdove.protocol import frames, messages
from ringdove.protocol.messages import Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringdove.core.block import Block
    from ringdove.core.columns import Buffer
    from ringdove.errors import RingdoveError
    from ringdove.protocol.frames import Frame


class SessionState(Enum):
    """Where a session stands."""

    NOT_CONNECTED = "not connected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


_ALLOWED = {
    (SessionState.NOT_CONNECTED, SessionState.CONNECTING),
    (SessionState.CONNECTING, SessionState.CONNECTED),
    (SessionState.CONNECTED, SessionState.CONNECTING),
    (SessionState.CONNECTING, SessionState.CLOSED),
    (SessionState.CONNECTED, SessionState.CLOSED),
    # Ended before it began.
    (SessionState.NOT_CONNECTED, SessionState.CLOSED),
}


class Request:
    """One request, from its first attempt to its answer."""

    __slots__ = (
        "answer", "blocks", "deadline_s", "meta", "number", "on_begin", "sent_times", "verb",
    )  # fmt: skip

    def __init__(
        self, verb: Verb, meta: bytes, blocks: Sequence[Block] = (), deadline_s: float | None = None
    ) -> None:
        self.verb = verb
        self.meta = meta
        self.blocks = blocks
        #: By when it must be answered, on the shell's clock.
        self.deadline_s = deadline_s
        self.number = 0
        #: Called with the number as soon as there is one.
        self.on_begin: Callable[[int], None] | None = None
        #: How often it was written; more than once, an earlier attempt may have been served.
        self.sent_times = 0
        self.answer: Pending[Frame] = Pending()

    def encode(self) -> list[Buffer]:
        """The request as a frame."""
        self.sent_times += 1
        return frames.encode(self.verb, self.number, self.meta, self.blocks)


class ClientSession:
    """The requests of a client, across connections."""

    def __init__(self, client: str) -> None:
        self.state = SessionState.NOT_CONNECTED
        self.welcome: messages.Welcome | None = None
        #: Called with the old and the new state, and why.
        self.on_state: Callable[[SessionState, SessionState, str], None] | None = None
        #: Called with frames that no request asked for: blocks of streams, and goodbyes.
        self.on_push: Callable[[Frame], None] | None = None
        self._client = client
        self._requests: dict[int, Request] = {}
        self._number = 0
        #: Receives that were taken back, as long as an answer may come; whom to tell if one does.
        self._abandoned: set[int] = set()
        self.on_unwanted: Callable[[list[messages.WireReceipt]], None] | None = None

    def change(self, state: SessionState, reason: str = "") -> None:
        """Go to another state."""
        before = self.state
        if before is state:
            return
        if (before, state) not in _ALLOWED:
            raise LocalProtocolError(f"A session cannot go from {before.value} to {state.value}.")
        self.state = state
        if self.on_state is not None:
            self.on_state(before, state, reason)

    @property
    def idle(self) -> bool:
        """Whether no answer is waited for."""
        return not self._requests

    @property
    def unanswered(self) -> list[Request]:
        """Requests without an answer, oldest first."""
        return list(self._requests.values())

    def begin(self, request: Request) -> None:
        """Take a request over; it is to be written when the session is connected."""
        if self.state is SessionState.CLOSED:
            request.answer.fail(ConnectionClosed("The connection has been closed."))
            return
        if not request.number:
            while not self._number or self._number in self._requests:
                self._number = self._number % _NUMBER_MAX + 1
            request.number = self._number
            self._number = self._number % _NUMBER_MAX + 1
            if request.on_begin is not None:
                request.on_begin(request.number)
        self._requests[request.number] = request

    def forget(self, request: Request) -> None:
        """Nobody waits for the request any more."""
        self._requests.pop(request.number, None)

    def abandon(self, request: Request) -> list[list[Buffer]]:
        """Nobody waits for the request any more: what to tell the server, if anything.

        A receive is taken back. Should its messages be on their way already, they are given back.
        """
        self.forget(request)
        if request.verb != Verb.RECEIVE or not request.sent_times:
            return []
        self._abandoned.add(request.number)
        return [frames.encode(Verb.CANCEL, 0, messages.encode(request.number))]

    def hello(self, credentials: bytes = b"") -> list[Buffer]:
        """The first frame of a connection, with what its server asks for."""
        self.welcome = None
        self._abandoned.clear()
        hello = messages.Hello(
            messages.PROTOCOL_VERSION, self._client, list(messages.FEATURES), credentials
        )
        return frames.encode(Verb.HELLO, 0, messages.encode(hello))

    def take(self, frame: Frame) -> None:
        """A frame has come: deliver it."""
        if self.welcome is None:
            self._take_welcome(frame)
        elif frame.verb in (Verb.REPLY, Verb.ERROR):
            request = self._requests.get(frame.number)
            error = decode_error(frame) if frame.verb == Verb.ERROR else None
            if request is None:
                self._take_abandoned(frame)
            elif isinstance(error, ConnectionClosed):
                return  # The server is closing: the request is for the next connection.
            else:
                self.forget(request)
                if error is None:
                    request.answer.resolve(frame)
                else:
                    request.answer.fail(error)
        elif self.on_push is not None:
            self.on_push(frame)

    def _take_abandoned(self, frame: Frame) -> None:
        """An answer that nobody waits for: give messages in it back at once."""
        if frame.number not in self._abandoned:
            return
        self._abandoned.discard(frame.number)
        if frame.verb == Verb.REPLY:
            runs = messages.decode(list[messages.WireRun], frame.meta)
            if runs and self.on_unwanted is not None:
                self.on_unwanted([run.receipt for run in runs])

    def _take_welcome(self, frame: Frame) -> None:
        if frame.verb in (Verb.ERROR, Verb.GOODBYE):
            raise decode_error(frame)
        if frame.verb != Verb.REPLY:
            raise RemoteProtocolError("The server did not begin with a welcome.")
        welcome: messages.Welcome = messages.decode(messages.Welcome, frame.meta)
        if welcome.version != messages.PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"The server speaks version {welcome.version} of the protocol, not "
                f"{messages.PROTOCOL_VERSION}."
            )
        self.welcome = welcome

    def close(self, error: RingdoveError, reason: str) -> None:
        """End the session; whatever is unanswered fails with `error`."""
        if self.state is SessionState.CLOSED:
            return
        self.change(SessionState.CLOSED, reason)
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.answer.fail(error)


def decode_error(frame: Frame) -> RingdoveError:
    """The error in a frame."""
    return messages.decode_error(messages.decode(messages.WireError, frame.meta))


_NUMBER_MAX = 2**32 - 2
