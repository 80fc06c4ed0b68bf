"""What consumers share: options, which messages of a batch are done, and which stay leased."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ringdove.client import arguments
from ringdove.client.delivery import spans
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import MutableSet

    from ringdove.client.aio import Queue
    from ringdove.client.delivery import BaseMessage, Chunk
    from ringdove.core.receipt import Receipt


class Appetite:
    """How many messages a consumer takes at a time.

    A number that was given, or as many as are handled in a tenth of a second. That begins small: a
    handler that takes long, or ends its process, has few messages in its hands. With `ack="manual"`
    nobody knows when they are handled, and the number stays.
    """

    def __init__(self, max: int | None, ack: str) -> None:
        self._adapts = max is None and ack == "auto"
        self.max = max if max is not None else _FIRST if self._adapts else _FIXED

    def handled(self, count: int, took_s: float) -> None:
        """A batch of `count` messages has been handled."""
        if self._adapts:
            fitting = int(count * _MOMENT_S / took_s) if took_s > 0 else _MOST
            self.max = max(1, min(fitting, _GROWTH * self.max, _MOST))


#: What a loop over the messages of a consumer is.
Loop = TypeVar("Loop")


class BaseConsumer(Generic[Loop]):
    """A consumer before it knows how its loops are driven."""

    #: What holds its open loops.
    _holder: ClassVar[type[MutableSet[Any]]]

    def __init__(
        self,
        queue: Queue,
        *,
        max: int | None = None,
        wait: float | None = None,
        subscription: str = DEFAULT_SUBSCRIPTION,
        lease_ms: int | None = None,
        ack: str = "auto",
        ack_linger_ms: int = 100,
    ) -> None:
        arguments.check_consumer(max, wait, subscription, lease_ms, ack_linger_ms)
        self._queue = queue
        self._appetite = Appetite(max, ack)
        self._wait = wait
        self._subscription = subscription
        self._lease_ms = lease_ms
        self._keeper = LeaseKeeper(ack, ack_linger_ms)
        self._open: MutableSet[Loop] = self._holder()


class LeaseKeeper:
    """The batch in a consumer's hands.

    Messages are handled in order, so what is done is a growing front of each chunk; it is settled
    as one range, however many messages that is. `held` may be called from another thread.
    """

    def __init__(self, ack: str, ack_linger_ms: int) -> None:
        if ack not in ("auto", "manual"):
            raise InvalidArgument(f"ack is {ack!r}; it must be 'auto' or 'manual'.")
        self._auto = ack == "auto"
        self._linger_s = ack_linger_ms / 1000
        self._chunks: list[Chunk] = []
        self._at = 0
        self._from = self._to = 0
        self._flushed_s = 0.0

    def begin(self, chunks: list[Chunk]) -> None:
        """Take a new batch over."""
        self._chunks = chunks
        self._at = 0
        self._from = self._to = chunks[0].lo
        self._flushed_s = time.monotonic()

    def handled(self, message: BaseMessage) -> bool:
        """Note that the loop is through with a message; True when it is time to settle."""
        if not self._auto:
            return False
        self._to = message[1] + 1
        last = self._to == message[2].hi
        return last or time.monotonic() - self._flushed_s >= self._linger_s

    def done(self) -> list[Receipt]:
        """Receipts for what is done and not settled yet; counts as settled from now on."""
        self._flushed_s = time.monotonic()
        if self._at >= len(self._chunks):
            return []
        chunk = self._chunks[self._at]
        receipts = [chunk.receipt(lo, hi) for lo, hi in spans(self._from, self._to, chunk.settled)]
        self._from = self._to
        if self._to >= chunk.hi:
            self._at += 1
            if self._at < len(self._chunks):
                self._from = self._to = self._chunks[self._at].lo
        return receipts

    def held(self) -> list[Receipt]:
        """Receipts for everything that is not settled, to be kept leased."""
        return [receipt for receipt in self._rest() if receipt.lo < receipt.hi]

    def unfinished(self) -> tuple[list[Receipt], list[Receipt]]:
        """Receipts for the message in the loop's hands, and for what it never saw; it is over."""
        left = self._rest() if self._auto else []
        self._chunks = []
        if not left:
            return [], []
        first = left[0]
        seen, rest = first._replace(hi=first.lo + 1), first._replace(lo=first.lo + 1)
        return [seen], [receipt for receipt in (rest, *left[1:]) if receipt.lo < receipt.hi]

    def _rest(self) -> list[Receipt]:
        receipts = []
        chunks, at = self._chunks, self._at
        for position in range(at, len(chunks)):
            chunk = chunks[position]
            lo = self._from if position == at and self._auto else chunk.lo
            receipts += [chunk.receipt(*span) for span in spans(lo, chunk.hi, chunk.settled)]
        return receipts


#: How often a lease is extended before it ends; and if that failed.
EXTENDS, EXTENDS_AGAIN = 3, 10

#: Messages of a first batch, by how much the next may be larger, and how large one may be.
_FIRST, _GROWTH, _MOST = 10, 4, 10_000
_FIXED = 100

#: Seconds in which a batch should be handled.
_MOMENT_S = 0.1
