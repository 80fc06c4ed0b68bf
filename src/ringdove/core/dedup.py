"""Exactly-once on the way in (M2): what a stripe remembers of its producers.

A *segment* is a block with its sender's claim about repetition: a producer id with the sequence
numbers the block uses up, or one message id per message, or neither. A store judges each segment on
its own, in the transaction that appends it, so that a retry, through whichever controller, meets
its first attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.core.tuples import maker
from ringdove.errors import InvalidArgument, LimitExceeded, QueueIsCopy, SequenceRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringdove.core.block import Block
    from ringdove.errors import ClientError


class Segment(NamedTuple):
    """One block to append, and how a repetition of it is recognised."""

    block: Block
    #: Who sends, when the sequence counts; at most 64 bytes, unique to one sender.
    producer: bytes | None = None
    #: First sequence number, and how many numbers the segment uses up.
    sequence: int = 0
    span: int = 1
    #: Whether the sequence may jump ahead. Without it, an earlier segment that failed cannot be
    #: overtaken and then mistaken for a duplicate.
    gaps: bool = False
    #: One id per message; a segment with ids holds one message.
    message_id: bytes | None = None
    #: Whether the block keeps the offsets and the time that its origin gave: a relay's append to a
    #: copy. `sequence` is then the offset that the copy must stand at.
    placed: bool = False


class Appended(NamedTuple):
    """What became of one segment."""

    #: Offset of the first message; of the first attempt when this one is a repetition, -1 if no
    #: longer known.
    base: int
    duplicate: bool = False


_appended = maker(Appended)


class ProducerState(NamedTuple):
    """What a stripe remembers of one producer."""

    #: The next sequence number expected.
    next: int
    #: Sequence and offset of the last segment accepted, to answer its repetition.
    last: int
    base: int
    #: See heard_ms.
    seen_ms: int


#: First byte of the name of a producer that lives as long as one job, such as a write of Spark's
#: that nobody has named. Of a full stripe such producers go first.
JOB_MARK = b"\0"


def heard_ms(producer: bytes, now_ms: int, retention_ms: int) -> int:
    """When a producer counts as heard of: it may be forgotten `retention_ms` later."""
    if not producer.startswith(JOB_MARK):
        return now_ms
    return now_ms - max(0, retention_ms - limits.JOB_PRODUCER_MS)


def judge(state: ProducerState | None, segment: Segment) -> Appended | None:
    """None to accept the segment, an answer when it is a repetition.

    Raises SequenceRefused when accepting it could lose or mix messages: the sequence jumps ahead
    without leave, or covers numbers both used and new.
    """
    expected = state.next if state is not None else 0
    end = segment.sequence + segment.span
    if state is not None and end <= expected:
        return Appended(state.base if segment.sequence == state.last else -1, duplicate=True)
    if segment.sequence < expected:
        raise SequenceRefused(
            f"The segment covers sequence {segment.sequence} to {end - 1}, but {expected} is next: "
            "send the part that is new under its own sequence.",
            expected,
        )
    if segment.sequence > expected and not segment.gaps:
        raise SequenceRefused(
            f"The segment starts at sequence {segment.sequence}, but {expected} is next: "
            "an earlier segment has not arrived."
            + ("" if state else " The stripe does not know this producer; start a new one at 0."),
            expected,
        )
    return None


#: Bytes of a producer's name.
PRODUCER_BYTES_MAX = 64


def check_segment(segment: Segment) -> InvalidArgument | None:
    """Why a segment cannot be judged at all, if so."""
    producer, message_id = segment.producer, segment.message_id
    if producer is not None and not 0 < len(producer) <= PRODUCER_BYTES_MAX:
        return InvalidArgument(
            f"A producer's name has 1 to {PRODUCER_BYTES_MAX} bytes, not {len(producer)}."
        )
    end = segment.sequence + segment.span
    if producer is not None and not 0 <= segment.sequence < end <= limits.OFFSET_MAX:
        return InvalidArgument(
            f"A segment covers at least one sequence number, from 0 up to {limits.OFFSET_MAX}, not "
            f"{segment.span} from {segment.sequence}."
        )
    if message_id is not None and not 0 < len(message_id) <= limits.MESSAGE_ID_BYTES_MAX:
        return InvalidArgument(
            f"A message id has 1 to {limits.MESSAGE_ID_BYTES_MAX} bytes, not {len(message_id)}."
        )
    return None


def judge_place(segment: Segment, tail: int) -> Appended | None:
    """None to accept a relay's segment at `tail`, an answer when it is there already.

    Offsets between the tail and the block were skipped or trimmed at the origin. Raises
    SequenceRefused when the relay believes that the copy stands elsewhere.
    """
    if segment.block.end <= tail:
        return Appended(segment.block.base, duplicate=True)
    if segment.sequence != tail or segment.block.base < tail:
        raise SequenceRefused(
            f"The copy stands at offset {tail}, not at {segment.sequence}: go on from there.", tail
        )
    return None


def check_origin(segment: Segment, *, relayed: bool) -> ClientError | None:
    """Why a segment does not belong on a copy, or only there."""
    if relayed and not segment.placed:
        return QueueIsCopy(
            "This queue is a relay's copy of another broker's: send to its origin, at level 0."
        )
    if segment.placed and not relayed:
        return InvalidArgument("Only a copy of another broker's queue takes placed blocks.")
    return None


class Plan(NamedTuple):
    """What an append of several segments comes to, decided before anything is written."""

    #: Per segment: where it will be, where its first attempt is, or why it is refused.
    answers: list[Appended | ClientError]
    #: What is new, stamped.
    blocks: list[Block]
    nbytes: int
    tail: int
    #: What must be remembered: producers' states, and offsets by message id.
    producers: dict[bytes, ProducerState]
    ids: dict[bytes, int]


_plan = maker(Plan)


def plan(
    segments: Sequence[Segment],
    tail: int,
    now_ms: int,
    retention_ms: int,
    known_producer: Callable[[bytes], ProducerState | None],
    known_id: Callable[[bytes], int | None],
    admit_producer: Callable[[], bool],
    *,
    relayed: bool = False,
) -> Plan:
    """Judge the segments in order, each for itself, as if appended at `tail`.

    `known_producer` and `known_id` look up what the stripe remembers; `admit_producer` says whether
    it may remember one producer more. `relayed` says that the stripe is a copy.
    """
    answers: list[Appended | ClientError] = []
    blocks: list[Block] = []
    nbytes = 0
    producers: dict[bytes, ProducerState] = {}
    ids: dict[bytes, int] = {}

    def judge_producer(segment: Segment, producer: bytes) -> Appended | ClientError | None:
        state = producers.get(producer) or known_producer(producer)
        answer = judge(state, segment)
        if answer is None:
            if state is None and not admit_producer():
                return LimitExceeded(
                    f"The stripe remembers {limits.PRODUCERS_MAX} producers, the most: "
                    "use fewer, or wait until old ones are forgotten."
                )
            end = segment.sequence + segment.span
            seen_ms = heard_ms(producer, now_ms, retention_ms)
            producers[producer] = ProducerState(end, segment.sequence, tail, seen_ms)
        return answer

    def judge_claim(segment: Segment) -> Appended | ClientError | None:
        refusal = check_segment(segment) or check_origin(segment, relayed=relayed)
        if refusal is not None:
            return refusal
        try:
            if segment.placed:
                return judge_place(segment, tail)
            if segment.producer is not None:
                return judge_producer(segment, segment.producer)
        except SequenceRefused as refused:
            return refused
        if segment.message_id is not None:
            offset = ids.get(segment.message_id, known_id(segment.message_id))
            if offset is not None:
                return Appended(offset, duplicate=True)
            ids[segment.message_id] = tail
        return None

    for segment in segments:
        claims = segment.producer is not None or segment.message_id is not None or segment.placed
        answer = judge_claim(segment) if claims or relayed else None
        if answer is None:
            block = segment.block if segment.placed else segment.block.stamp(tail, now_ms)
            answer = _appended((block.base, False))
            blocks.append(block)
            nbytes += block.nbytes
            tail = block.end
        answers.append(answer)
    return _plan((answers, blocks, nbytes, tail, producers, ids))
