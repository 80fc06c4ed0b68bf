"""What senders and receivers hold: a tracer notes rows in memory and passes them on in blocks.

A row costs a fraction of a microsecond and 31 bytes; a queue gets one send for up to 50,000 of
them. Rows are passed on after a second, too, but only when something is noted: call `flush` where
a pause may follow.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ringdove.client.closing import Closable
from ringdove.client.delivery import BaseBatch, BaseMessage
from ringdove.client.sync import Queue
from ringdove.controllers.sending import Sent, SentBatch
from ringdove.errors import InvalidArgument
from ringdove.tracing.block import INTACT, UNCHECKED, TraceBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeAlias

    #: What names messages: what a send answered, what a receive delivered, or ids of one's own.
    Named: TypeAlias = (
        "bytes | Sent | BaseMessage | BaseBatch[Any] | Iterable[bytes | Sent | BaseMessage]"
    )

#: Rows of one trace message: with the longest ids they stay below the usual limit of a body.
ROWS_PER_MESSAGE = 2_048

#: Rows that are passed on together, and how long rows wait for others.
ROWS_TOGETHER = 50_000
LINGER_S = 1.0


class Sink(Protocol):
    """Where blocks go."""

    def write(self, blocks: Sequence[TraceBlock]) -> None:
        """Take blocks."""

    def close(self) -> None:
        """Keep what was taken. Idempotent."""


class QueueSink:
    """A queue of trace messages; they are durable when `write` returns."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def write(self, blocks: Sequence[TraceBlock]) -> None:
        """See Sink."""
        self._queue.send_many([block.encode() for block in blocks], compression="zstd")

    def close(self) -> None:
        """See Sink."""


class _Notes:
    """Rows of one kind that have not been passed on."""

    __slots__ = ("checks", "first", "ids", "times_us")

    def __init__(self, first: int) -> None:
        self.first = first
        self.times_us = array("q")
        self.ids: list[bytes] = []
        self.checks = bytearray()


class Tracer(Closable):
    """Notes what one sender or receiver does with one queue; belongs to one thread.

    `to` is a queue, a directory for Parquet files, or None; then the rows wait for `take`, as
    asyncio programs want it: `await traces.send_many(trace.take())`. `name` is the producer or
    receiver of the rows; no two tracers of a queue may share one, so by default it is unique.
    """

    def __init__(
        self,
        queue: str,
        to: Queue | Path | str | None,
        *,
        name: str | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.queue = queue
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._clock_ns = clock_ns
        self._sink = _sink(to, self.queue, self.name)
        self._notes: dict[Literal["sent", "received"], _Notes] = {
            "sent": _Notes(0),
            "received": _Notes(0),
        }
        self._due_us = self.now_us() + int(LINGER_S * 1e6)

    def now_us(self) -> int:
        """The time of a row: microseconds since 1970. Take it before a send."""
        return self._clock_ns() // 1000

    def sent(self, messages: Named, at_us: int | None = None) -> None:
        """Note messages that were sent at a time, by default now, in the order they are given.

        Messages that the queue had already, without saying where, are left out.
        """
        ids = ids_of(messages)
        self._add("sent", ids, at_us, bytes([UNCHECKED]) * len(ids))

    def received(
        self,
        messages: Named,
        intact: bool | Sequence[bool] | None = None,  # noqa: FBT001  a result, not a switch
        at_us: int | None = None,
    ) -> None:
        """Note messages that were received, in the order they are given.

        `intact` is what their checksums said, for all or for each; None: nobody looked.
        """
        ids = ids_of(messages)
        if intact is None or isinstance(intact, bool):
            checks = bytes([UNCHECKED if intact is None else INTACT * intact]) * len(ids)
        else:
            checks = bytes(INTACT * bool(one) for one in intact)
        if len(checks) != len(ids):
            raise InvalidArgument(f"{len(checks)} checksum results do not fit {len(ids)} messages.")
        self._add("received", ids, at_us, checks)

    def take(self) -> list[bytes]:
        """The rows noted since the last time, as bodies of trace messages."""
        bodies = [block.encode() for block in self._blocks()]
        self._forget()
        return bodies

    def flush(self) -> None:
        """Pass on what was noted. What could not be passed on stays for the next time.

        Rows that were stored although an error was told are stored twice then; reports count a
        row once.
        """
        self._due_us = self.now_us() + int(LINGER_S * 1e6)
        if self._sink is None:
            return
        blocks = self._blocks()
        if blocks:
            self._sink.write(blocks)
            self._forget()

    def close(self) -> None:
        """Flush, and end."""
        self.flush()
        if self._sink is not None:
            self._sink.close()

    def _add(
        self,
        kind: Literal["sent", "received"],
        ids: list[bytes],
        at_us: int | None,
        checks: bytes,
    ) -> None:
        now_us = self.now_us()
        notes = self._notes[kind]
        notes.times_us.extend(array("q", [now_us if at_us is None else at_us]) * len(ids))
        notes.ids += ids
        notes.checks += checks
        if len(notes.ids) >= ROWS_TOGETHER or now_us >= self._due_us:
            self.flush()

    def _blocks(self) -> list[TraceBlock]:
        found = []
        for kind, notes in self._notes.items():
            for at in range(0, len(notes.ids), ROWS_PER_MESSAGE):
                part = slice(at, at + ROWS_PER_MESSAGE)
                found.append(
                    TraceBlock.build(
                        self.queue,
                        kind,
                        self.name,
                        notes.first + at,
                        notes.times_us[part],
                        notes.ids[part],
                        bytes(notes.checks[part]),
                    )
                )
        return found

    def _forget(self) -> None:
        for kind, notes in self._notes.items():
            self._notes[kind] = _Notes(notes.first + len(notes.ids))


def ids_of(messages: Named) -> list[bytes]:
    """The ids of messages, in order: what names a message of Ringdove everywhere, or one's own."""
    if isinstance(messages, BaseBatch):
        return [
            prefix + offset.to_bytes(8, "big")
            for chunk in messages.chunks()
            for prefix in (chunk.stripe.key(),)
            for offset in range(chunk.lo, chunk.hi)
        ]
    if isinstance(messages, SentBatch):
        return _sent_ids(messages)
    if isinstance(messages, bytes | Sent | BaseMessage):
        messages = [messages]
    return [found for message in messages if (found := _id(message)) is not None]


def _sent_ids(batch: SentBatch) -> list[bytes]:
    found: dict[int, bytes] = {}
    for positions, stripe, (base, _) in batch.parts():
        prefix = stripe.key()
        if base >= 0:
            for offset, position in enumerate(positions, base):
                found[position] = prefix + offset.to_bytes(8, "big")
    return [found[position] for position in sorted(found)]


def _id(message: bytes | Sent | BaseMessage) -> bytes | None:
    if isinstance(message, bytes):
        return message
    if isinstance(message, Sent):
        return message.stripe.place(message.offset) if message.offset >= 0 else None
    if isinstance(message, BaseMessage):
        return message.id.stripe.place(message.offset)
    raise InvalidArgument(
        f"{message!r} names no message: give what a send or receive answered, or ids as bytes."
    )


def _sink(to: Queue | Path | str | None, queue: str, name: str) -> Sink | None:
    if to is None:
        return None
    if isinstance(to, Queue):
        return QueueSink(to)
    if isinstance(to, str | Path):
        from ringdove.tracing.parquet import ParquetSink  # noqa: PLC0415  needs pyarrow

        return ParquetSink(Path(to), queue, name)
    raise InvalidArgument(
        f"Traces cannot go to {to!r}: give a queue of a synchronous connection or a directory, or "
        "None and send what `take` answers."
    )
