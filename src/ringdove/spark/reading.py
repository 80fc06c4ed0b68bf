"""The source: ranges of stripes become input partitions, their blocks record batches (S1).

A position is an offset per stripe. Reading a range again gives the same messages, so Spark's
checkpoint alone decides what has been processed; the subscription, if one is named, is only told
how far that is, so that messages may go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ringdove import limits
from ringdove.errors import OffsetTrimmed, SubscriptionNotFound
from ringdove.pending import Started, run
from ringdove.pending import start as start_work
from ringdove.spark.arrow import Wrapper
from ringdove.spark.links import link
from ringdove.stores.base import Start, StripeId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from ringdove.client.backend import Backend
    from ringdove.core.block import Block
    from ringdove.spark.options import Options


class Range(NamedTuple):
    """Offsets [start, end) of a stripe."""

    stripe: StripeId
    start: int
    end: int


class StripeRange(InputPartition):
    """What one task reads."""

    def __init__(self, stripe: StripeId, start: int, end: int) -> None:
        super().__init__(None)
        self.stripe = tuple(stripe)
        self.start = start
        self.end = end


class _Source:
    """What the batch and the streaming reader share."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self.options = options
        self._columns = list(columns)

    def split(self, ranges: Sequence[Range]) -> list[InputPartition]:
        """Input partitions of at most so many rows each."""
        step = self.options.rows_per_partition
        return [
            StripeRange(stripe, first, min(first + step, end))
            for stripe, start, end in ranges
            for first in range(start, end, step)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the messages of a range."""
        assert isinstance(partition, StripeRange)
        stripe = StripeId(*partition.stripe)
        wrapper = Wrapper(stripe, self._columns)
        skip = self.options.trimmed == "skip"
        blocks = _blocks(link(self.options.url), stripe, partition.start, partition.end, skip=skip)
        return wrapper.wrap_all(blocks)

    def bounds(self) -> dict[StripeId, tuple[int, int]]:
        """First and next offset of each stripe."""
        stats = run(link(self.options.url).queue_stats(self.options.queue))
        return {stripe: (own.head, own.tail) for stripe, own in stats.stripes.items()}

    def starts(self, start: Start) -> dict[StripeId, int]:
        """Where reading begins on each stripe."""
        backend = link(self.options.url)
        return {
            stripe: max(head, run(backend.position(stripe, start)))
            for stripe, (head, _) in self.bounds().items()
        }


def _blocks(
    backend: Backend, stripe: StripeId, start: int, end: int, *, skip: bool
) -> Iterator[tuple[Block, int, int]]:
    """The blocks of a range, each with the part that is in it; the next are fetched meanwhile."""
    ahead = _fetch(backend, stripe, start, end, skip=skip)
    while start < end:
        blocks = ahead.finish()
        if not blocks:
            if skip:
                return
            raise OffsetTrimmed(
                f"Stripe {stripe.number} holds nothing from offset {start} on, and {end - start} "
                "messages were there before: its queue was replaced by an older one."
            )
        following = blocks[-1].end
        if following < end:
            ahead = _fetch(backend, stripe, following, end, skip=skip)
        for block in blocks:
            first, last = max(start, block.base), min(end, block.end)
            if first < last:
                yield block, first - block.base, last - block.base
        start = following


def _fetch(
    backend: Backend, stripe: StripeId, offset: int, end: int, *, skip: bool
) -> Started[list[Block]]:
    most = min(end - offset, limits.LEASE_MESSAGES_MAX)
    return start_work(backend.read(stripe, offset, most, skip_trimmed=skip))


class BatchReader(_Source, DataSourceReader):
    """Everything from the start to what was stored when the query was planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """See DataSourceReader."""
        ends = {stripe: tail for stripe, (_, tail) in self.bounds().items()}
        starts = self.starts(self.options.start)
        return self.split([Range(stripe, starts[stripe], end) for stripe, end in ends.items()])


class StreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches; an offset of Spark is a position per stripe, as text."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        #: Where a run with availableNow ends.
        self._last: dict[StripeId, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        """See DataSourceStreamReader."""
        return _told(self.starts(self.options.start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """See DataSourceStreamReader."""
        most = self.options.rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """See SupportsTriggerAvailableNow."""
        self._last = self._tails()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """See DataSourceStreamReader."""
        begun, ends = _read(start), self._last or self._tails()
        if isinstance(limit, ReadMaxRows):
            ends = share(begun, ends, limit.max_rows)
        # Stripes never go back, even if a stripe lost its tail that was never shown.
        return _told({**begun, **{s: max(end, begun.get(s, 0)) for s, end in ends.items()}})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """See DataSourceStreamReader."""
        begun = _read(start)
        missing = {s for s in _read(end) if s not in begun}
        if missing:  # Stripes that came later begin where they begin.
            begun |= {s: head for s, (head, _) in self.bounds().items() if s in missing}
        return self.split([Range(s, begun.get(s, 0), last) for s, last in _read(end).items()])

    def commit(self, end: dict[str, int]) -> None:
        """See DataSourceStreamReader: what is before will not be asked for again, as a rule."""
        if self.options.subscription is None:
            return
        # TODO

    def _tails(self) -> dict[StripeId, int]:
        return {stripe: tail for stripe, (_, tail) in self.bounds().items()}


def share(
    begun: dict[StripeId, int], ends: dict[StripeId, int], rows_max: int
) -> dict[StripeId, int]:
    """Ends that are at most so many rows from where stripes begin, in proportion to what waits."""
    waiting = {stripe: end - begun.get(stripe, 0) for stripe, end in ends.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return ends
    found: dict[StripeId, int] = {}
    for stripe, rows in sorted(waiting.items()):
        # What is left is shared among those that are left, so that rounding loses nothing.
        part = rows * rows_max // total if total else 0
        found[stripe] = begun.get(stripe, 0) + part
        total -= rows
        rows_max -= part
    return found


def _told(positions: dict[StripeId, int]) -> dict[str, int]:
    return {f"{s.queue:x}.{s.number}.{s.level}": at for s, at in sorted(positions.items())}


def _read(told: dict[str, int]) -> dict[StripeId, int]:
    found = {}
    for name, offset in told.items():
        queue, number, level = name.split(".")
        found[StripeId(int(queue, 16), int(number), int(level))] = offset
    return found
