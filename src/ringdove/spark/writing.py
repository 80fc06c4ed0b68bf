"""The sink: all of a task's rows for one stripe are one atomic append (S1, architecture 10).

Each partition of a query is a producer of its own, and each batch uses up a range of its sequence
numbers as a whole. A task that is tried again, a batch that is run again after a crash: either
finds that its rows are there already, all of them, and stores nothing.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ringdove import limits
from ringdove.controllers.sending import Parcel
from ringdove.core.block import key_hash
from ringdove.core.dedup import JOB_MARK, Segment
from ringdove.errors import (
    InvalidArgument,
    LimitExceeded,
    RingdoveError,
    SequenceRefused,
    SettingsStale,
)
from ringdove.pending import Started, run
from ringdove.pending import start as start_work
from ringdove.spark.links import linked
from ringdove.spark.options import BATCHES_MAX
from ringdove.spark.packing import Packer, by_stripe, has_keys, in_order, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ringdove.client.backend import Backend
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.sending import Delivered
    from ringdove.core.block import Block
    from ringdove.core.dedup import Appended
    from ringdove.spark.options import Options

#: Sequence numbers of one batch. Segments take one each from the first half; the last one begins in
#: the second half, at a number that tells how many rows there were, and uses up all the rest.
_NUMBERS = limits.OFFSET_MAX // BATCHES_MAX
_LAST = _NUMBERS // 2

#: Numbers of rows are told apart up to here, and beyond unless they differ by a multiple of it: a
#: prime, so that twice or a power of two as many rows are no such multiple.
_ROWS = _LAST - 9

#: Bytes of a step, where a task may write in several.
_STEP_BYTES = 8 * limits.BLOCK_BYTES_TARGET

#: What Spark tells the tasks of a streaming query; its own names, not of its public interface.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What one task stored."""

    rows: int
    #: Rows that an earlier attempt had stored.
    duplicates: int


class Claim(NamedTuple):
    """Who writes what: recognised when it comes again."""

    producer: str
    partition: int
    batch: int


class _Sink:
    """What the batch and the streaming writer share."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def claim(self) -> Claim:
        """Of the task that is running."""
        raise NotImplementedError

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: store its rows."""
        claim, options = self.claim(), self.options
        with linked(options.place) as backend:
            info = run(backend.get_queue(options.queue))
            places: dict[int, _Place] = {}
            for given in iterator:
                for number, batch in _placed(info, claim, prepare(given)):
                    if number not in places:
                        places[number] = _Place(backend, info, number, claim, options)
                    places[number].add(batch)
            for place in places.values():
                place.finish()
        rows = sum(place.rows for place in places.values())
        return Written(rows, sum(place.duplicates for place in places.values()))


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write`: a producer of its own each time, unless the options name one."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        # Nobody will write as this producer again when the job is done.
        self._producer = options.producer or JOB_MARK.decode() + uuid.uuid4().hex

    def claim(self) -> Claim:
        """See _Sink."""
        return Claim(self._producer, _task().partitionId(), self.options.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See DataSourceWriter: what tasks wrote is stored already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """See DataSourceWriter: what tasks wrote stays."""


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream`: the query is the producer."""

    def claim(self) -> Claim:
        """See _Sink."""
        task = _task()
        query, batch = task.getLocalProperty(QUERY_PROPERTY), task.getLocalProperty(BATCH_PROPERTY)
        if query is None or batch is None:
            raise InvalidArgument(
                "This version of Spark does not say which query and batch a task belongs to, so "
                "nothing can be written exactly once: write from foreachBatch, with the options "
                "'producer' and 'batch'."
            )
        return Claim(self.options.producer or query, task.partitionId(), int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See DataSourceStreamWriter: what tasks wrote is stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See DataSourceStreamWriter: what tasks wrote stays, and is recognised next time."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls this within a task"
    return task


def _placed(
    info: QueueInfo, claim: Claim, batch: pa.RecordBatch
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows for each stripe: by key where that is the order, else all for one."""
    stripes = info.settings.stripes
    if not batch.num_rows:
        return
    if info.settings.order == "key":
        if not has_keys(batch):
            raise InvalidArgument(
                f"Queue {info.name!r} keeps messages in order by key: give every row a 'key'."
            )
        yield from by_stripe(batch, stripes)
    else:
        yield claim.partition % stripes, batch


class _Place:
    """What one task writes to one stripe."""

    def __init__(
        self, backend: Backend, info: QueueInfo, number: int, claim: Claim, options: Options
    ) -> None:
        self.rows = 0
        self.duplicates = 0
        self._backend = backend
        self._info = info
        self._number = number
        self._producer = _name(claim, number, info.settings.stripes)
        self._first = claim.batch * _NUMBERS
        self._taken = 0
        self._split = options.split
        self._sorted = options.split_sorted
        self._held: list[pa.RecordBatch] = []
        self._packer = Packer(options.compression, time.time_ns() // 1_000_000)
        self._sending: tuple[Parcel, Started[Delivered]] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; they are sent at the end, unless a task may write in several steps."""
        self.rows += batch.num_rows
        if self._sorted:
            self._held.append(batch)
        else:
            self._pack(batch)

    def _pack(self, batch: pa.RecordBatch) -> None:
        self._packer.add(batch)
        if self._split and self._packer.nbytes >= _STEP_BYTES:
            self._send(self._numbered(self._packer.take()))
        self._check_size()

    def finish(self) -> None:
        """Send what is left, and wait until all is stored."""
        for batch in in_order(self._held):
            self._pack(batch)
        self._packer.finish()
        self._check_size()
        blocks = self._packer.take()
        if blocks:
            *others, last = blocks
            number = _LAST + self.rows % _ROWS
            segment = Segment(
                last, self._producer, self._first + number, _NUMBERS - number, gaps=True
            )
            self._send([*self._numbered(others), segment])
        self._settle()

    def _check_size(self) -> None:
        """Refuse what would go in several steps, and so might be stored in part."""
        if not self._split and self._packer.nbytes > limits.BLOCK_BYTES_MAX:
            raise LimitExceeded(
                f"A task has more than {limits.BLOCK_BYTES_MAX >> 20} MB for one stripe of queue "
                f"{self._info.name!r}, and writes in one step: use more partitions "
                "(df.repartition(n)) or smaller batches (rowsPerTrigger of the source), or say "
                ".option('split', 'sorted') if a task that is tried again has the same rows, "
                "'true' if it also has them in the same order."
            )

    def _numbered(self, blocks: list[Block]) -> list[Segment]:
        """Segments that are not the last."""
        first = self._first + self._taken
        self._taken += len(blocks)
        if self._taken > _LAST:
            raise LimitExceeded(f"A task writes at most {_LAST} blocks: use more partitions.")
        return [
            Segment(block, self._producer, number, gaps=True)
            for number, block in enumerate(blocks, first)
        ]

    def _send(self, segments: list[Segment]) -> None:
        """Have an append begun, when the one before it has ended."""
        self._settle()
        parcel = Parcel(self._number, 0, segments)
        sending = start_work(self._backend.deliver(self._info.name, self._info.version, parcel))
        self._sending = parcel, sending

    def _settle(self) -> None:
        """Wait for what is under way."""
        if self._sending is None:
            return
        (parcel, sending), self._sending = self._sending, None
        try:
            _, answers = sending.finish()
        except SettingsStale:
            self._info = run(self._backend.get_queue(self._info.name))
            _, answers = run(self._backend.deliver(self._info.name, self._info.version, parcel))
        for segment, answer in zip(parcel.segments, answers, strict=True):
            if isinstance(answer, RingdoveError):
                raise answer
            if answer.duplicate:
                self.duplicates += segment.block.count
                self._compare(segment, answer)

    def _compare(self, segment: Segment, answer: Appended) -> None:
        """An earlier attempt at this must have had as many rows."""
        if segment.span == 1 or answer.base >= 0:
            return
        batch, last = self._first // _NUMBERS, (self._expected(segment) - 1) // _NUMBERS
        if batch < last:
            raise SequenceRefused(
                f"Batch {batch} is older than batch {last}, the last one that producer "
                f"{self._producer.decode()!r} has stored in queue {self._info.name!r}: it was "
                "stored before that one, or left out. Nothing was stored now. Count batches "
                "upwards, or write this one as another producer.",
                segment.sequence,
            )
        raise SequenceRefused(
            f"An earlier attempt at batch {batch} has stored another number "
            f"of rows than {self.rows} for the same partition of queue {self._info.name!r}: "
            "the rows of a batch were spread differently over partitions when it was run "
            "again, so some may be missing. Run it with the same number of partitions as the "
            "first time, or begin with a new checkpoint and let readers drop duplicates.",
            segment.sequence,
        )

    def _expected(self, segment: Segment) -> int:
        """The number that the stripe expects next: it tells when it refuses one far ahead."""
        ahead = Segment(segment.block.slice(0, 1), self._producer, limits.OFFSET_MAX - 1)
        parcel = Parcel(self._number, 0, [ahead])
        _, [answer] = run(self._backend.deliver(self._info.name, self._info.version, parcel))
        return answer.expected if isinstance(answer, SequenceRefused) else limits.OFFSET_MAX


def _name(claim: Claim, number: int, stripes: int) -> bytes:
    """A producer's name whose hash leads to the stripe, which exactly-once queues ask for."""
    for turn in count():
        name = f"{claim.producer}/{claim.partition}/{turn}".encode()
        if key_hash(name) % stripes == number:
            return name
    raise AssertionError
