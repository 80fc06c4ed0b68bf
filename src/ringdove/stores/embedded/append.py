"""Appending segments within a group commit: room, repetition, offsets.

Runs under the store's lock and inside the transaction. Sequences and message ids are looked up in
LMDB, so a stripe's memory does not grow with its producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import limits
from ringdove.core.dedup import Appended, ProducerState, Segment, judge
from ringdove.errors import ClientError, LimitExceeded, RingdoveError, StoreCorrupted
from ringdove.stores.embedded.state import DAMAGE, OFFSET, encode, under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.pending import Pending
    from ringdove.stores.embedded.state import StripeState
    from ringdove.stores.embedded.writer import Growth

_decode_producer = msgspec.msgpack.Decoder(ProducerState).decode
_decode_id = msgspec.msgpack.Decoder(tuple[int, int]).decode


class Append:
    """Segments waiting to be appended to one stripe."""

    __slots__ = ("answers", "nbytes", "pending", "segments", "state", "version")

    def __init__(
        self, state: StripeState, segments: Sequence[Segment], version: int, pending: Pending[Any]
    ) -> None:
        self.state = state
        self.segments = segments
        self.version = version
        self.nbytes = sum(segment.block.nbytes for segment in segments)
        self.pending = pending
        self.answers: list[Appended | ClientError] = []


def apply_append(append: Append, growth: Growth, txn: Any, db: dict[str, Any], now_ms: int) -> None:
    """Place the segments behind what this commit has placed already."""
    state = append.state
    stripe = state.check(append.version)
    stripe.make_room(growth.nbytes + append.nbytes, state)
    append.answers = []
    try:
        _place(append, growth, txn, db, now_ms)
    except DAMAGE as error:
        raise Poisoned(
            append,
            StoreCorrupted(
                f"What stripe {tuple(state.id)} remembers of a sender is damaged: {error} "
                "Run 'ringdove fsck'."
            ),
        ) from error


class Poisoned(Exception):
    """An operation met damage after it had written: the commit starts again without it."""

    def __init__(self, operation: Append, error: RingdoveError) -> None:
        super().__init__(str(error))
        self.operation = operation
        self.error = error


def _place(append: Append, growth: Growth, txn: Any, db: dict[str, Any], now_ms: int) -> None:
    state = append.state
    for segment in append.segments:
        answer = _repetition(state, segment, growth.tail, txn, db, now_ms)
        if answer is None:
            block = segment.block.stamp(growth.tail, now_ms)
            answer = Appended(growth.tail)
            growth.blocks.append(block)
            growth.nbytes += block.nbytes
            growth.tail = block.end
        append.answers.append(answer)


def _repetition(
    state: StripeState, segment: Segment, base: int, txn: Any, db: dict[str, Any], now_ms: int
) -> Appended | ClientError | None:
    """None for a new segment, which is remembered; else what to answer instead of appending."""
    if segment.producer is not None:
        return _judge_producer(state, segment, base, txn, db, now_ms)
    if segment.message_id is not None:
        dedup_ms = state.stripe.settings.dedup_ms
        return _judge_id(state.key, dedup_ms, segment.message_id, base, txn, db, now_ms)
    return None


def _judge_producer(
    state: StripeState, segment: Segment, base: int, txn: Any, db: dict[str, Any], now_ms: int
) -> Appended | ClientError | None:
    assert segment.producer is not None
    key = state.key + segment.producer
    raw = txn.get(key, db=db["producers"])
    known = _decode_producer(raw) if raw is not None else None
    try:
        repetition = judge(known, segment)
    except ClientError as refusal:
        return refusal
    if repetition is not None:
        return repetition
    if known is None and not _room_for_producer(state, txn, db["producers"], now_ms):
        return LimitExceeded(f"The stripe remembers {limits.PRODUCERS_MAX} producers, the most.")
    new = ProducerState(segment.sequence + segment.span, segment.sequence, base, now_ms)
    txn.put(key, encode(new), db=db["producers"])
    return None


def _room_for_producer(state: StripeState, txn: Any, db: Any, now_ms: int) -> bool:
    """Count one producer more; when there are many, forget those unseen for `retention_ms`."""
    if state.producer_count is None or state.producer_count >= limits.PRODUCERS_MAX:
        known = [(key, _decode_producer(value)) for key, value in under(txn, db, state.key)]
        state.producer_count = len(known)
        if len(known) >= limits.PRODUCERS_MAX:
            expired_ms = now_ms - state.stripe.settings.retention_ms
            for key, producer in known:
                if producer.seen_ms <= expired_ms:
                    txn.delete(key, db=db)
                    state.producer_count -= 1
    if state.producer_count >= limits.PRODUCERS_MAX:
        return False
    state.producer_count += 1
    return True


def _judge_id(
    key: bytes,
    dedup_ms: int,
    message_id: bytes,
    base: int,
    txn: Any,
    db: dict[str, Any],
    now_ms: int,
) -> Appended | None:
    _forget_ids(key, now_ms - dedup_ms, txn, db)
    raw = txn.get(key + message_id, db=db["ids"])
    if raw is not None:
        offset, seen_ms = _decode_id(raw)
        if seen_ms + dedup_ms > now_ms:
            return Appended(offset, duplicate=True)
        txn.delete(key + OFFSET.pack(seen_ms) + message_id, db=db["id_times"])
    txn.put(key + message_id, encode((base, now_ms)), db=db["ids"])
    txn.put(key + OFFSET.pack(now_ms) + message_id, b"", db=db["id_times"])
    return None


def _forget_ids(key: bytes, before_ms: int, txn: Any, db: dict[str, Any]) -> None:
    """Forget a bounded number of ids whose window has passed."""
    old = []
    for time_key, _ in under(txn, db["id_times"], key):
        if OFFSET.unpack_from(time_key, len(key))[0] > before_ms:
            break
        old.append(time_key)
        if len(old) == limits.FORGET_PER_APPEND_MAX:
            break
    for time_key in old:
        txn.delete(time_key, db=db["id_times"])
        txn.delete(key + time_key[len(key) + OFFSET.size :], db=db["ids"])
