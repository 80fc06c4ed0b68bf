"""The source: ranges of stripes become input partitions, their blocks record batches (S1).

A position is an offset per stripe. Reading a range again gives the same messages, so Spark's
checkpoint alone decides what has been processed; the subscription, if one is named, is only told
how far that is, so that messages may go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ringdove import limits
from ringdove.errors import OffsetTrimmed, QueueNotFound, SubscriptionNotFound
from ringdove.pending import Started, run
from ringdove.pending import start as start_work
from ringdove.spark.arrow import Wrapper
from ringdove.spark.links import linked
from ringdove.stores.base import Start, StripeId, StripeStats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from ringdove.client.backend import Backend
    from ringdove.core.block import Block
    from ringdove.spark.options import Options

#: Bytes of one fetch: what the processor's cache still holds when it is handed on to Spark.
_FETCH_BYTES = 2 * limits.BLOCK_BYTES_TARGET

#: An offset per stripe.
Positions = dict[StripeId, int]


class Range(NamedTuple):
    """Offsets [start, end) of a stripe."""

    stripe: StripeId
    start: int
    end: int


class _Source:
    """What the batch and the streaming reader share."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self.options = options
        self._columns = list(columns)

    def split(self, ranges: Sequence[Range]) -> list[InputPartition]:
        """Input partitions of at most so many rows each."""
        rows = self.options.rows_per_partition
        return [InputPartition(piece) for own in ranges for piece in pieces(own, rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the messages of a range."""
        own: Range | None = partition.value
        if own is None:
            return  # Spark's own partition, when there are no others.
        skip = self.options.skip_trimmed
        with linked(self.options.place) as backend:
            blocks = _blocks(backend, own, skip=skip)
            try:
                yield from Wrapper(own.stripe, self._columns).wrap_all(blocks)
            except QueueNotFound:  # The stripe went, after this was planned.
                if not skip:
                    raise

    def stats(self) -> dict[StripeId, StripeStats]:
        """The state of each stripe."""
        with linked(self.options.place) as backend:
            return run(backend.queue_stats(self.options.queue)).stripes

    def starts(self, stripes: Mapping[StripeId, StripeStats]) -> Positions:
        """Where reading begins on each stripe."""
        start, name = self.options.start, self.options.subscription
        if start is None and name is not None:
            return {stripe: _floor(own, name) for stripe, own in stripes.items()}
        with linked(self.options.place) as backend:
            found = {s: run(backend.position(s, start or Start("earliest"))) for s in stripes}
        if self.options.skip_trimmed:
            return {stripe: max(stripes[stripe].head, at) for stripe, at in found.items()}
        return found


def _floor(own: StripeStats, subscription: str) -> int:
    for found in own.subscriptions:
        if found.name == subscription:
            return max(found.floor, own.head)
    raise SubscriptionNotFound(
        f"The queue has no subscription {subscription!r}: create it first, or leave the option out."
    )


def _blocks(backend: Backend, own: Range, *, skip: bool) -> Iterator[tuple[Block, int, int]]:
    """The blocks of a range, each with the part that is in it; the next are fetched meanwhile."""
    stripe, start, end = own
    ahead = _fetch(backend, own, skip=skip)
    while start < end:
        blocks = ahead.finish()
        if not blocks:
            if skip:
                return
            raise OffsetTrimmed(
                f"Stripe {stripe.number} holds nothing from offset {start} on, and {end - start} "
                "messages were there when this was planned: its queue was purged or replaced."
            )
        following = blocks[-1].end
        if following < end:
            ahead = _fetch(backend, Range(stripe, following, end), skip=skip)
        for block in blocks:
            first, last = max(start, block.base), min(end, block.end)
            if first < last:
                yield block, first - block.base, last - block.base
        start = following


def _fetch(backend: Backend, own: Range, *, skip: bool) -> Started[list[Block]]:
    # By bytes: blocks come whole then, and only the first and the last of a range are cut.
    most = min(own.end - own.start, limits.LEASE_MESSAGES_MAX)
    return start_work(backend.read(own.stripe, own.start, most, _FETCH_BYTES, skip_trimmed=skip))


class BatchReader(_Source, DataSourceReader):
    """Everything from the start to what was stored when the query was planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """See DataSourceReader."""
        stripes = self.stats()
        starts = self.starts(stripes)
        return self.split([Range(s, starts[s], own.tail) for s, own in stripes.items()])


class StreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches; an offset of Spark is a position per stripe, as text."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        #: Where a run with availableNow ends.
        self._last: Positions | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        """See DataSourceStreamReader."""
        return _told(self.starts(self.stats()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """See DataSourceStreamReader; both limits are applied, whichever Spark is told of."""
        if self.options.rows_per_trigger is None and self.options.bytes_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(self.options.rows_per_trigger or limits.OFFSET_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """See SupportsTriggerAvailableNow."""
        self._last = {stripe: own.tail for stripe, own in self.stats().items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """See DataSourceStreamReader."""
        begun, stripes = _read(start), self.stats()
        self._refuse_replaced(begun, stripes)
        ends = self._last or {stripe: own.tail for stripe, own in stripes.items()}
        if not isinstance(limit, ReadAllAvailable):
            begins = begun
            if self.options.skip_trimmed:  # What is gone counts for nothing.
                begins = {s: max(own.head, begun.get(s, 0)) for s, own in stripes.items()}
            ends = share(self._past_skips(begins, ends), ends, self._rows_max(stripes))
        # A position never goes back; that of a stripe that is gone is kept, it may come again.
        return _told({**begun, **{s: max(end, begun.get(s, 0)) for s, end in ends.items()}})

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """See DataSourceStreamReader: how far the queue is, for progress reports."""
        return _told({stripe: own.tail for stripe, own in self.stats().items()})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """See DataSourceStreamReader."""
        begun, ends = _read(start), _read(end)
        # Stripes that came later are read from the very first message, also when this is repeated.
        return self.split([Range(s, begun.get(s, 0), last) for s, last in ends.items()])

    def commit(self, end: dict[str, int]) -> None:
        """See DataSourceStreamReader: what is before will not be asked for again, as a rule."""
        name = self.options.subscription
        if name is None:
            return
        there = self.stats()
        with linked(self.options.place) as backend:
            for stripe, offset in _read(end).items():
                if stripe in there:
                    run(backend.advance(stripe, name, offset))

    def _past_skips(self, begun: Positions, ends: Positions) -> Positions:
        """Where the next message of each stripe is: what a failover has skipped is no rows."""
        found = dict(begun)
        with linked(self.options.place) as backend:
            for stripe, end in ends.items():
                at = begun.get(stripe, 0)
                if _skips(at, end):
                    blocks = run(backend.read(stripe, at, 1))
                    found[stripe] = max(at, blocks[0].base) if blocks else at
        return found

    def _rows_max(self, stripes: Mapping[StripeId, StripeStats]) -> int:
        """Rows of one micro-batch: as many as the options say, bytes by their mean so far."""
        rows = self.options.rows_per_trigger or limits.OFFSET_MAX
        if self.options.bytes_per_trigger is None:
            return rows
        counted = [own for own in stripes.values() if not _skips(own.head, own.tail)]
        messages = sum(own.tail - own.head for own in counted)
        nbytes = sum(own.nbytes for own in counted)
        if not messages:
            messages, nbytes = self._one_of(stripes)
        return min(rows, max(1, self.options.bytes_per_trigger * messages // max(1, nbytes)))

    def _one_of(self, stripes: Mapping[StripeId, StripeStats]) -> tuple[int, int]:
        """A message, and its bytes: where it is not known how many there are."""
        with linked(self.options.place) as backend:
            for stripe, own in stripes.items():
                for block in run(backend.read(stripe, own.head, 1)):
                    return 1, block.nbytes
        return 1, 1

    def _refuse_replaced(self, begun: Positions, stripes: Mapping[StripeId, StripeStats]) -> None:
        if self.options.skip_trimmed:
            return
        start = self.options.start
        ahead = start.value if start is not None and start.kind == "offset" else 0
        for stripe, own in stripes.items():
            if begun.get(stripe, 0) > max(own.tail, ahead):
                raise OffsetTrimmed(
                    f"This query has read stripe {stripe.number} of queue {self.options.queue!r} "
                    f"up to offset {begun[stripe]}, and it ends at {own.tail}: messages were lost "
                    "or replaced. Begin with a new checkpoint, or go on from that offset by "
                    ".option('trimmed', 'skip')."
                )
        if begun and not begun.keys() & stripes.keys():
            raise OffsetTrimmed(
                f"Queue {self.options.queue!r} was deleted and made anew since this query's "
                "checkpoint: begin with a new checkpoint, or go on with what is there by "
                ".option('trimmed', 'skip')."
            )


def _skips(start: int, end: int) -> bool:
    """Whether so many offsets cannot all be messages: a fabric has passed some over."""
    return end - start >= limits.EPOCH_OFFSETS // 2


def pieces(own: Range, rows: int) -> Iterator[Range]:
    """A range in pieces of at most so many rows; what a failover has skipped is in one of them."""
    stripe, start, end = own
    while start < end:
        until = min(end, (start // limits.EPOCH_OFFSETS + 1) * limits.EPOCH_OFFSETS)
        step = until - start if _skips(start, until) else rows
        for first in range(start, until, step):
            yield Range(stripe, first, min(first + step, until))
        start = until


def share(begun: Positions, ends: Positions, rows_max: int) -> Positions:
    """Ends that are at most so many rows from where stripes begin, in proportion to what waits."""
    waiting = {stripe: max(0, end - begun.get(stripe, 0)) for stripe, end in ends.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return ends
    found: Positions = {}
    for stripe, rows in sorted(waiting.items()):
        # What is left is shared among those that are left, so that rounding loses nothing.
        part = rows * rows_max // total if total else 0
        found[stripe] = begun.get(stripe, 0) + part
        total -= rows
        rows_max -= part
    return found


def _told(positions: Positions) -> dict[str, int]:
    return {f"{s.queue:x}.{s.number}.{s.level}": at for s, at in sorted(positions.items())}


def _read(told: dict[str, int]) -> Positions:
    found = {}
    for name, offset in told.items():
        queue, number, level = name.split(".")
        found[StripeId(int(queue, 16), int(number), int(level))] = offset
    return found
