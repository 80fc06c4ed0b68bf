"""One connection to one node of a Redis cluster: requests pipelined, replies in order.

Runs on an event loop in a thread of its own, which all connections of a store share; requests come
from any thread and are answered through pendings.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import hiredis

from ringdove.errors import StoreUnavailable
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Word = bytes | str | int | float | memoryview


class NodeAddress(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


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

    def __init__(self, address: NodeAddress, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self._loop = loop
        self._lock = threading.Lock()
        self._inbox: list[tuple[bytes, list[Pending[Any]]]] = []
        self._scheduled = False
        self._wire: _Wire | None = None
        self._connecting = False
        self._closed = False
        #: Called with each message of a sharded channel: its name; and when the node is lost or
        #: refuses. A node that listens is asked for nothing else.
        self.on_message: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[], None] | None = None

    def ask(self, *commands: Sequence[Word]) -> list[Pending[Any]]:
        """Send commands, one right behind the other; from any thread."""
        pendings: list[Pending[Any]] = [Pending() for _ in commands]
        data = b"".join(_pack(tuple(command)) for command in commands)
        with self._lock:
            self._inbox.append((data, pendings))
            wake = not self._scheduled
            self._scheduled = True
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._flush)
            except RuntimeError:
                self._fail("The store has been closed.")
        return pendings

    def tell(self, command: Sequence[Word]) -> None:
        """Send a command whose reply is a message; from the loop's thread."""
        with self._lock:
            self._inbox.append((_pack(tuple(command)), []))
        self._flush()

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
        for _, pendings in inbox:
            wire.expected.extend(pendings)
        wire.write(b"".join([data for data, _ in inbox]))

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, self._wire = await self._loop.create_connection(
                    lambda: _Wire(self), self.address.host, self.address.port
                )
        except (OSError, TimeoutError) as error:
            self._fail(f"Node {self.address} cannot be reached: {error or 'no answer in time'}.")
            return
        finally:
            self._connecting = False
        self._flush()

    def lost(self) -> None:
        """The connection is of no use any more."""
        if self.on_lost is not None:
            self.on_lost()

    def _fail(self, reason: str) -> None:
        self.lost()
        with self._lock:
            inbox, self._inbox = self._inbox, []
            self._scheduled = False
        for _, pendings in inbox:
            for pending in pendings:
                pending.fail(NodeLost(reason))

    def close(self) -> None:
        """Hang up; from the loop's thread."""
        self._closed = True
        self._fail("The store has been closed.")
        if self._wire is not None:
            self._wire.close()


class Synced:
    """Asks one node for changes, and waits until enough copies have them: a group commit.

    WAIT holds its connection up, so it has one of its own; whatever comes meanwhile goes together,
    with one WAIT behind all of it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._queue: list[tuple[Sequence[Word], int, Pending[tuple[Any, int]]]] = []
        self._under_way = False

    def ask(self, command: Sequence[Word], copies: int) -> Pending[tuple[Any, int]]:
        """Send a command; its reply, and how many copies besides the master have what it did."""
        pending: Pending[tuple[Any, int]] = Pending()
        with self._lock:
            self._queue.append((command, copies, pending))
            if self._under_way:
                return pending
            self._under_way = True
        self._send()
        return pending

    def _send(self) -> None:
        with self._lock:
            batch, self._queue = self._queue, []
            self._under_way = bool(batch)
        if not batch:
            return
        most = max(copies for _, copies, _ in batch)
        wait = ("WAIT", most, WAIT_MS)
        *replies, reached = self._node.ask(*(command for command, _, _ in batch), wait)

        def finish() -> None:
            error = reached.error()
            count = 0 if error is not None else int(reached.result())
            for (_, _, pending), reply in zip(batch, replies, strict=True):
                failure = reply.error() or error
                if failure is not None:
                    pending.fail(failure)
                else:
                    pending.resolve((reply.result(), count))
            self._send()

        reached.when_done(finish)


class _Wire(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_ENOUGH)
        self._transport: asyncio.Transport | None = None
        self.expected: deque[Pending[Any]] = deque()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        expected, self.expected = self.expected, deque()
        error = NodeLost(f"The connection to {self._node.address} broke: {exc or 'closed'}.")
        for pending in expected:
            pending.fail(error)
        self._node.lost()

    def data_received(self, data: bytes) -> None:
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
        if isinstance(reply, ReplyError) or reply[0] == b"sunsubscribe":
            self._node.lost()  # The slot has moved.
        elif reply[0] == b"smessage":
            self._node.on_message(reply[1])
        return True

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.close()


#: Its stub knows only tuples of one word.
_pack: Any = hiredis.pack_command

_NOT_ENOUGH = object()
_CONNECT_S = 2.0

#: Seconds for the thread to end.
_STOP_S = 5.0

#: Turns of the loop in which a closed connection ends.
_LAST_TURNS = 5

#: Milliseconds that copies have to take over a change.
WAIT_MS = 1_000
