"""Received messages, as light as speed needs.

A received block stays a block until somebody looks at a message. A message is a tuple of (body,
offset, chunk), made in C for a whole block at once; everything else about it is looked up in its
chunk when asked for.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ringdove.core.tuples import maker
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.controllers.visiting import Received
    from ringdove.core.attributes import Attributes
    from ringdove.core.block import Block
    from ringdove.core.receipt import Receipt
    from ringdove.core.stripe import Part


class MessageId(NamedTuple):
    """Names a message for ever: its stripe and its offset there."""

    stripe: StripeId
    offset: int


class Chunk:
    """Messages of one block of a delivery: what they have in common."""

    __slots__ = ("_attributes", "_keys", "_times", "hi", "lo", "part", "queue", "received",
                 "settled", "stripe")  # fmt: skip

    def __init__(self, queue: Any, stripe: StripeId, part: Part, received: Received | None) -> None:
        self.queue = queue
        self.stripe = stripe
        self.part = part
        #: The offsets of the messages: [lo, hi).
        self.lo = part.block.base + part.start
        self.hi = part.block.base + part.stop
        #: The lease that delivered them; None for messages that were only read.
        self.received = received
        #: Offsets that the receiver has settled one by one.
        self.settled: set[int] = set()
        self._keys: list[bytes] | None = None
        self._attributes: list[Attributes] | None = None
        self._times: list[int] | None = None

    def bodies(self) -> list[bytes]:
        """The payloads, in order."""
        block, start, stop = self.part
        return block.bodies(start, stop)

    def key(self, offset: int) -> bytes:
        """The key of a message."""
        if self._keys is None:
            block, start, stop = self.part
            self._keys = block.keys(start, stop)
        return self._keys[offset - self.lo]

    def attributes(self, offset: int) -> Attributes:
        """The attributes of a message."""
        if self._attributes is None:
            block, start, stop = self.part
            self._attributes = block.attributes(start, stop)
        return self._attributes[offset - self.lo]

    def sent_ms(self, offset: int) -> int:
        """When a message was sent."""
        if self._times is None:
            block, start, stop = self.part
            self._times = block.sent_times_ms(start, stop)
        return self._times[offset - self.lo]

    def receipt(self, lo: int, hi: int) -> Receipt:
        """The receipt for some of the chunk's messages."""
        if self.received is None:
            raise TypeError("The message was only read, not received: there is nothing to settle.")
        return self.received.receipt._replace(lo=lo, hi=hi)


class BaseMessage(tuple[bytes, int, Chunk]):
    """A message; made by queues, not by users."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def body(self) -> bytes:
            """The payload."""

        @property
        def offset(self) -> int:
            """Position within its stripe."""

    else:
        body = property(itemgetter(0), doc="The payload.")
        offset = property(itemgetter(1), doc="Position within its stripe.")

    @property
    def key(self) -> bytes:
        """The key, empty when the sender gave none."""
        return self[2].key(self[1])

    @property
    def attributes(self) -> Attributes:
        """The attributes by name."""
        return self[2].attributes(self[1])

    @property
    def id(self) -> MessageId:
        """Names the message for ever."""
        return MessageId(self[2].stripe, self[1])

    @property
    def sent_ms(self) -> int:
        """When it was sent, in milliseconds since 1970."""
        return self[2].sent_ms(self[1])

    @property
    def receives(self) -> int:
        """How often it has been received, this time included; 0 when it was only read."""
        received = self[2].received
        return received.receives if received else 0

    @property
    def receipt(self) -> bytes:
        """An opaque token with which any process can settle the message."""
        return self[2].receipt(self[1], self[1] + 1).encode()

    def __repr__(self) -> str:
        body = self[0] if len(self[0]) <= 40 else self[0][:37] + b"..."
        return f"Message({body!r}, offset={self[1]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseMessage) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


M = TypeVar("M", bound=BaseMessage)


class BaseBatch(Generic[M]):
    """The messages of one receive, in order."""

    __slots__ = ("_chunks", "_count", "_make")

    def __init__(self, kind: type[M], chunks: list[Chunk]) -> None:
        self._make = partial(tuple.__new__, kind)
        self._chunks = chunks
        self._count = 0
        for chunk in chunks:
            self._count += chunk.hi - chunk.lo

    def bodies(self) -> list[bytes]:
        """The payloads only: the fastest way to read a batch."""
        if len(self._chunks) == 1:
            return self._chunks[0].bodies()
        return [body for chunk in self._chunks for body in chunk.bodies()]

    def blocks(self) -> list[Block]:
        """The messages as blocks, for those who want columns."""
        return [chunk.part.cut() for chunk in self._chunks]

    def receipts(self) -> list[Receipt]:
        """For all that is not settled yet: usually one receipt per leased run."""
        if any(chunk.settled for chunk in self._chunks):
            return [
                chunk.receipt(lo, hi)
                for chunk in self._chunks
                for lo, hi in spans(chunk.lo, chunk.hi, chunk.settled)
            ]
        found = {}
        for chunk in self._chunks:
            if chunk.received is not None:
                found[chunk.received.receipt.token] = chunk.received.receipt
        return list(found.values())

    def messages_of(self, chunk: Chunk) -> list[M]:
        """The messages of one chunk, all made at once."""
        rows = zip(chunk.bodies(), range(chunk.lo, chunk.hi), repeat(chunk), strict=False)
        messages: list[M] = list(map(self._make, rows))
        return messages

    def chunks(self) -> list[Chunk]:
        """The blocks with their leases."""
        return self._chunks

    def __iter__(self) -> Iterator[M]:
        for chunk in self._chunks:
            yield from self.messages_of(chunk)

    def __getitem__(self, index: int) -> M:
        return list(self)[index]

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __repr__(self) -> str:
        return f"Batch({self._count} messages)"


def spans(lo: int, hi: int, without: set[int]) -> list[tuple[int, int]]:
    """The range [lo, hi) without some offsets, as ranges."""
    found = []
    for offset in sorted(without):
        if lo <= offset < hi:
            if lo < offset:
                found.append((lo, offset))
            lo = offset + 1
    if lo < hi:
        found.append((lo, hi))
    return found


def chunks_of(queue: Any, received: list[Received]) -> list[Chunk]:
    """The chunks of a receive."""
    return [
        Chunk(queue, _stripe(run.receipt[:3]), part, run)
        for run in received
        for part in run.delivered.parts
    ]


_stripe = maker(StripeId)
