"""One connection to one node of a Redis cluster: requests pipelined, replies in order.

Runs on an event loop in a thread of its own, which all connections of a store share; requests come
from any thread and are answered through pendings.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import hiredis

from ringdove.errors import StoreUnavailable
from ringdove.pending import Pending

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from ringdove.core.columns import Buffer

    Word: TypeAlias = "bytes | str | int | float | Large"
    Commands: TypeAlias = Sequence[Sequence[Word]]


class NodeAddress(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Login(NamedTuple):
    """What it takes to be let in."""

    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None


_NO_LOGIN = Login()


class Large:
    """A word of a command that is not copied more often than it must be."""

    __slots__ = ("data",)

    def __init__(self, data: Buffer) -> None:
        self.data = data


class ReplyError(Exception):
    """A node has answered with an error; its first word says which."""

    @property
    def word(self) -> str:
        """The first word."""
        return str(self).partition(" ")[0]


class NodeLost(StoreUnavailable):
    """The connection to a node broke, or could not be made: what was asked may have been done."""


class Loop:
    """The event loop of a store's connections, in a thread of its own."""

    def __init__(self) -> None:
        # Not uvloop: closing one in a thread of its own was seen to hang.
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ringdove-fabric", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(_finish_turns())
        self.loop.close()

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_S)


async def _finish_turns() -> None:
    """Let connections that were closed come to their end, and end attempts to connect."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)


class Node:
    """A node: connects when it is first needed, and again after a loss."""

    def __init__(
        self, address: NodeAddress, loop: asyncio.AbstractEventLoop, login: Login = _NO_LOGIN
    ) -> None:
        self.address = address
        self._loop = loop
        self._login = login
        self._lock = threading.Lock()
        self._inbox: list[_Asked] = []
        self._scheduled = False
        self._wire: _Wire | None = None
        self._connecting = False
        self._closed = False
        #: How many of its connections were lost.
        self.losses = 0
        #: Called with each message of a sharded channel: its name, and what it says; and when the
        #: node is lost or refuses. A node that listens is asked for nothing else.
        self.on_message: Callable[[bytes, bytes], None] | None = None
        #: Called with the name of a channel that is listened to from now on, or not any more.
        self.on_joined: Callable[[bytes], None] | None = None
        self.on_left: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[], None] | None = None

    def ask(self, *commands: Sequence[Word], losses: int | None = None) -> list[Pending[Any]]:
        """Send commands, one right behind the other; from any thread.

        Those that mean something only on the connection of earlier ones say how many were lost
        before it; on a later one they fail.
        """
        pendings: list[Pending[Any]] = [Pending() for _ in commands]
        parts = [part for command in commands for part in _pack(command)]
        with self._lock:
            self._inbox.append(_Asked(parts, pendings, losses))
            wake = not self._scheduled
            self._scheduled = True
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                self._fail("The store has been closed.")
        return pendings

    def ask_as_one(self, commands: Commands) -> Pending[Any]:
        """Send commands that are carried out as one; the reply is that of the last."""
        replies = self.ask(*_as_one(commands))
        if len(replies) == 1:
            return replies[0]
        outcome: Pending[Any] = Pending()

        def settle() -> None:
            reply, error = _outcome(replies)
            if error is None:
                outcome.resolve(reply)
            else:
                outcome.fail(error)

        replies[-1].when_done(settle)
        return outcome

    def tell(self, command: Sequence[Word]) -> None:
        """Send a command whose reply is a message; from the loop's thread."""
        with self._lock:
            self._inbox.append(_Asked(_pack(command), [], None))
        self._flush()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after a while, unless the loop has ended by then; from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, act)

    def _flush(self) -> None:
        wire = self._wire
        if wire is None or wire.lost:
            if not self._connecting and not self._closed:
                self._connecting = True
                self._loop.create_task(self._connect())
            return
        with self._lock:
            inbox, self._inbox = self._inbox, []
            self._scheduled = False
        if not wire.expected and self.on_message is None:
            wire.heard_s = time.monotonic()
        fresh = [asked for asked in inbox if asked.losses in (None, self.losses)]
        for asked in fresh:
            wire.expected.extend(asked.pendings)
        wire.write(b"".join([part for asked in fresh for part in asked.parts]))
        if len(fresh) < len(inbox):
            late = [asked for asked in inbox if asked.losses not in (None, self.losses)]
            _refuse(late, f"The connection to {self.address} has been another meanwhile.")

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, wire = await self._loop.create_connection(
                    lambda: _Wire(self), *self.address, ssl=self._login.tls
                )
                await wire.log_in(self._login)
        except (OSError, TimeoutError) as error:
            self._fail(f"Node {self.address} cannot be reached: {error or 'no answer in time'}.")
            return
        except ReplyError as error:
            wire.close()
            self._fail(f"Node {self.address} does not let us in: {error}")
            return
        except NodeLost as error:
            self._fail(str(error))
            return
        finally:
            self._connecting = False
        self._wire = wire
        if self._closed:
            wire.close()
        self._flush()

    def check(self) -> None:
        """Give the connection up when the node has been silent for too long; from any thread.

        A cut network or a machine that is gone breaks no connection by itself.
        """
        wire = self._wire
        if wire is not None and wire.expected and time.monotonic() - wire.heard_s > _SILENT_S:
            with contextlib.suppress(RuntimeError):  # The loop has been closed.
                self._loop.call_soon_threadsafe(wire.close)

    def ping(self) -> None:
        """See that a node that is listened to still says something; from the loop's thread.

        It owes no answers, so nothing else would tell that the connection is dead.
        """
        wire = self._wire
        if wire is None or wire.lost:
            return
        if time.monotonic() - wire.heard_s > _SILENT_S:
            wire.close()
        else:
            self.tell(("PING",))

    def lost(self) -> None:
        """The connection is of no use any more."""
        if self.on_lost is not None:
            self.on_lost()

    def _fail(self, reason: str) -> None:
        self.lost()
        with self._lock:
            inbox, self._inbox = self._inbox, []
            self._scheduled = False
        _refuse(inbox, reason)

    def close(self) -> None:
        """Hang up; from the loop's thread."""
        self._closed = True
        self._fail("The store has been closed.")
        if self._wire is not None:
            self._wire.close()


class _Asked(NamedTuple):
    """Commands on their way, and who waits for the replies; see Node.ask."""

    parts: list[Buffer]
    pendings: list[Pending[Any]]
    losses: int | None


def _refuse(inbox: list[_Asked], reason: str) -> None:
    for asked in inbox:
        for pending in asked.pendings:
            pending.fail(NodeLost(reason))


class Copies(NamedTuple):
    """How many copies besides the master a change should have."""

    #: As many as there are to be.
    wanted: int
    #: As many as there must be before it counts, by what the node has answered.
    needed: Callable[[Any], int]


class _Change:
    """Commands under way, until enough copies have what they did."""

    __slots__ = ("commands", "copies", "deadline_s", "needed", "pending", "reply")

    def __init__(self, commands: Commands, copies: Copies) -> None:
        self.commands = _as_one(commands)
        self.copies = copies
        self.deadline_s = time.monotonic() + WAIT_MS / 1000
        self.needed = 0
        self.reply: Any = None
        self.pending: Pending[tuple[Any, int]] = Pending()


class Synced:
    """Asks one node for changes, and waits until enough copies have them: a group commit.

    WAIT holds its connection up, so it has one of its own; whatever comes meanwhile goes together,
    with one WAIT behind all of it. That asks for the copies that can be reached: one that has not
    followed for `LATE_MS` is done without, by changes that need not have it, until the node reports
    it back. Changes that need more copies wait on, but do not hold the others up: a WAIT tells how
    many have followed even if it asks for fewer, and every one has asked the late copies, too, to
    say how far they are. It means nothing on another connection than the changes came by.
    """

    def __init__(self, node: Node) -> None:
        self.address = node.address
        self._node = node
        self._lock = threading.Lock()
        self._queue: list[_Change] = []
        self._under_way = False
        #: Nothing is asked for a moment, for all there is are changes that lack a late copy.
        self._resting = False
        self._losses = 0
        #: Changes that the node has done and that lack copies.
        self._short: list[_Change] = []
        #: Copies that follow, as far as is known; None: all that are wanted.
        self._following: int | None = None
        self._look_s = 0.0

    def check(self) -> None:
        """See Node."""
        self._node.check()

    def ask(self, commands: Commands, copies: Copies) -> Pending[tuple[Any, int]]:
        """Send commands that are carried out as one.

        Answers the reply to the last, and how many copies besides the master have what they did.
        """
        change = _Change(commands, copies)
        with self._lock:
            self._queue.append(change)
            if self._under_way and not self._resting:
                return change.pending
            self._under_way, self._resting = True, False
        self._send()
        return change.pending

    def _send(self) -> None:
        with self._lock:
            batch, self._queue = self._queue, []
            self._under_way = bool(batch or self._short)
            if not self._under_way:
                return
        asked = wanted = max(change.copies.wanted for change in (*batch, *self._short))
        commands = [command for change in batch for command in change.commands]
        asked_for = len(commands)
        if self._following is not None:
            asked = min(wanted, max(1, self._following))
            if time.monotonic() >= self._look_s:
                commands.append(("INFO", "replication"))
        if not self._short:
            self._losses = self._node.losses
        losses = self._losses if self._short else None
        *replies, reached = self._node.ask(*commands, ("WAIT", asked, LATE_MS), losses=losses)

        def finish() -> None:
            error = reached.error()
            if error is None:
                self._take(batch, replies)
                self._settle(asked, int(reached.result()))
                for told in replies[asked_for:]:
                    self._heed(told, wanted)
            else:
                self._fail(batch, replies, error)
            self._go_on()

        reached.when_done(finish)

    def _go_on(self) -> None:
        with self._lock:
            late = bool(self._short) and self._following is not None
            self._resting = resting = late and not self._queue
        if resting:
            self._node.later(_MOMENT_S, self._look_again)
        else:
            self._send()

    def _look_again(self) -> None:
        with self._lock:
            if not self._resting:
                return
            self._resting = False
        self._send()

    def _take(self, batch: list[_Change], replies: list[Pending[Any]]) -> None:
        """Learn what the node has answered to changes."""
        for change, (reply, error) in zip(batch, _outcomes(batch, replies), strict=True):
            if error is not None:
                change.pending.fail(error)
                continue
            change.reply = reply
            change.needed = min(change.copies.wanted, change.copies.needed(change.reply))
            self._short.append(change)

    def _settle(self, asked: int, reached: int) -> None:
        """Answer the changes that have enough copies, and those that waited long enough."""
        now_s = time.monotonic()
        short, self._short = self._short, []
        for change in short:
            if reached >= change.needed or now_s >= change.deadline_s:
                change.pending.resolve((change.reply, reached))
            else:
                self._short.append(change)
        if reached < asked:
            self._following = reached
            self._look_s = now_s + _LOOK_S

    def _heed(self, told: Pending[Any], wanted: int) -> None:
        """Learn from the node how many copies follow it."""
        self._look_s = time.monotonic() + _LOOK_S
        if told.error() is None:
            following = _followers(told.result())
            self._following = None if following >= wanted else following

    def _fail(
        self, batch: list[_Change], replies: list[Pending[Any]], error: BaseException
    ) -> None:
        """The connection broke, or the node is no master any more: what was asked may be undone."""
        lost = error if isinstance(error, NodeLost) else NodeLost(f"{self.address}: {error}")
        for change in self._short:
            change.pending.fail(lost)
        for change, (_, refusal) in zip(batch, _outcomes(batch, replies), strict=True):
            change.pending.fail(refusal or lost)
        self._short = []
        self._following = None


def _as_one(commands: Commands) -> Commands:
    """Commands as a transaction, if they are several."""
    return commands if len(commands) == 1 else [("MULTI",), *commands, ("EXEC",)]


def _outcome(replies: Sequence[Pending[Any]]) -> tuple[Any, BaseException | None]:
    """The reply to the last of commands that were sent as one, or why they were refused."""
    # Of a transaction that was given up, the first refusal says why.
    error = next((found for reply in replies if (found := reply.error()) is not None), None)
    if error is not None:
        return None, error
    answer = replies[-1].result()
    if len(replies) == 1:
        return answer, None
    refused = next((part for part in answer if isinstance(part, ReplyError)), None)
    return answer[-1], refused


def _outcomes(
    batch: list[_Change], replies: list[Pending[Any]]
) -> Iterator[tuple[Any, BaseException | None]]:
    """What became of each of several changes."""
    at = 0
    for change in batch:
        yield _outcome(replies[at : at + len(change.commands)])
        at += len(change.commands)


def _followers(info: bytes) -> int:
    """How many copies follow a node closely, by what it says of its replication.

    Lines like slave0:ip=127.0.0.1,port=7002,state=online,offset=42,lag=1; Valkey says more.
    """
    lines = (line for line in info.split(b"\r\n") if line.startswith(b"slave"))
    copies = (set(line.partition(b":")[2].split(b",")) for line in lines)
    return sum(b"state=online" in copy and bool(copy & {b"lag=0", b"lag=1"}) for copy in copies)


class _Wire(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_ENOUGH)
        self._transport: asyncio.Transport | None = None
        self.expected: deque[Pending[Any]] = deque()
        self.lost = False
        #: When the node last said something, or was first asked for it.
        self.heard_s = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._node.losses += 1
        expected, self.expected = self.expected, deque()
        error = NodeLost(f"The connection to {self._node.address} broke: {exc or 'closed'}.")
        for pending in expected:
            pending.fail(error)
        self._node.lost()

    async def log_in(self, login: Login) -> None:
        """Say who we are, if that is asked for."""
        if login.password:
            user = (login.user,) if login.user else ()
            answer: Pending[Any] = Pending()
            self.expected.append(answer)
            self.write(_pack_small(("AUTH", *user, login.password)))
            try:
                await answer
            except asyncio.CancelledError:
                self.close()
                raise

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _NOT_ENOUGH:
            if self._is_message(reply):
                continue
            pending = self.expected.popleft()
            if isinstance(reply, ReplyError):
                pending.fail(reply)
            else:
                pending.resolve(reply)

    def _is_message(self, reply: Any) -> bool:
        """Deliver what a subscription brings; such a connection gets nothing else."""
        if self._node.on_message is None:
            return False
        if isinstance(reply, ReplyError):
            self._node.lost()  # The slot has moved.
        elif reply[0] == b"ssubscribe" and self._node.on_joined is not None:
            self._node.on_joined(reply[1])
        elif reply[0] == b"sunsubscribe" and self._node.on_left is not None:
            self._node.on_left(reply[1])
        elif reply[0] == b"smessage":
            self._node.on_message(reply[1], reply[2])
        return True

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Hang up at once: nobody waits for an answer, nor for TLS to say goodbye."""
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.abort()


def _pack(command: Sequence[Word]) -> list[Buffer]:
    """A command as it goes over the wire, in parts; large words are not copied."""
    if not any(type(word) is Large for word in command):
        return [_pack_small(tuple(command))]
    parts: list[Buffer] = [b"*%d\r\n" % len(command)]
    small: list[Word] = []
    for word in command:
        if type(word) is not Large:
            small.append(word)
            continue
        parts += (_words(small), b"$%d\r\n" % len(word.data), word.data, b"\r\n")
        small = []
    parts.append(_words(small))
    return parts


def _words(words: list[Word]) -> bytes:
    """Words without the line in front that says how many they are."""
    packed: bytes = _pack_small(tuple(words))
    return packed[packed.index(b"\n") + 1 :]


#: Its stub knows only tuples of one word.
_pack_small: Any = hiredis.pack_command

_NOT_ENOUGH = object()
_CONNECT_S = 2.0

#: Seconds without a word from a node that owes an answer, or is listened to, after which its
#: connection is given up.
_SILENT_S = 5.0

#: Seconds for the thread to end.
_STOP_S = 5.0

#: Turns of the loop in which a closed connection ends.
_LAST_TURNS = 5

#: Milliseconds that copies have to take over a change that cannot do without them, and those after
#: which a copy counts as late: less than what makes a sender go elsewhere.
WAIT_MS, LATE_MS = 1_000, 200

#: Seconds between two looks whether changes that lack a late copy have it.
_MOMENT_S = 0.02

#: Seconds between two questions whether a copy that was late follows again.
_LOOK_S = 0.5
