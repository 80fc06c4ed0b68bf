"""Appending segments within a group commit: room, repetition, offsets.

Runs under the store's lock and inside the transaction. Sequences and message ids are looked up in
LMDB, so a stripe's memory does not grow with its producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import limits
from ringdove.core.dedup import ProducerState, plan
from ringdove.errors import StoreCorrupted
from ringdove.pending import Pending
from ringdove.stores.embedded.journal import Draft, NeedsTree
from ringdove.stores.embedded.state import DAMAGE, OFFSET, encode, under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.dedup import Appended, Segment
    from ringdove.errors import ClientError
    from ringdove.stores.embedded.commit import Growth
    from ringdove.stores.embedded.state import StripeState

_decode_producer = msgspec.msgpack.Decoder(ProducerState).decode
_decode_id = msgspec.msgpack.Decoder(tuple[int, int]).decode


class Append(Pending["list[Appended | ClientError]"]):
    """Segments waiting to be appended to one stripe; the writer that makes it sets what is here."""

    __slots__ = ("answers", "identified", "nbytes", "segments", "state", "version")

    state: StripeState
    segments: Sequence[Segment]
    version: int
    nbytes: int
    #: Whether there are message ids.
    identified: bool
    answers: list[Appended | ClientError]


def apply_append(append: Append, growth: Growth, txn: Any, db: dict[str, Any], now_ms: int) -> None:
    """Place the segments behind what this commit has placed already.

    Everything is read and judged before anything is written, so a refusal leaves no trace.
    """
    state = append.state
    stripe = state.check(append.version)
    if now_ms >= state.expire_due_ms:
        state.expire(now_ms)
    try:
        planned = plan(
            append.segments,
            growth.tail,
            now_ms,
            stripe.settings.retention_ms,
            lambda producer: _known_producer(state.key + producer, txn, db),
            lambda message_id: _known_id(state, message_id, txn, db, now_ms),
            lambda: _room_for_producer(state, txn, db["producers"], now_ms),
            relayed=stripe.settings.relayed,
        )
    except DAMAGE as error:
        raise StoreCorrupted(
            f"What stripe {tuple(state.id)} remembers of a sender is damaged: {error} "
            "Run 'ringdove fsck'."
        ) from error
    if stripe.nbytes + growth.nbytes + planned.nbytes > stripe.settings.bytes_max:
        if isinstance(txn, Draft):
            raise NeedsTree("Room can be made only in the tree.")
        stripe.make_room(growth.nbytes + planned.nbytes, state, state.log_head)
    for producer, known in planned.producers.items():
        txn.put(state.key + producer, encode(known), db=db["producers"])
    if planned.ids:
        _remember_ids(state, planned.ids, txn, db, now_ms)
    growth.blocks += planned.blocks
    growth.nbytes += planned.nbytes
    growth.tail = planned.tail
    append.answers = planned.answers


def _known_producer(key: bytes, txn: Any, db: dict[str, Any]) -> ProducerState | None:
    raw = txn.get(key, db=db["producers"])
    return _decode_producer(raw) if raw is not None else None


def _known_id(
    state: StripeState, message_id: bytes, txn: Any, db: dict[str, Any], now_ms: int
) -> int | None:
    raw = txn.get(state.key + message_id, db=db["ids"])
    if raw is None:
        return None
    offset, seen_ms = _decode_id(raw)
    return offset if seen_ms + state.stripe.settings.dedup_ms > now_ms else None


def _room_for_producer(state: StripeState, txn: Any, db: Any, now_ms: int) -> bool:
    """Count one producer more; when there are many, forget those unseen for `retention_ms`."""
    if state.producer_count is None or (
        state.producer_count >= limits.PRODUCERS_MAX and now_ms >= state.producers_due_ms
    ):
        known = [(key, _decode_producer(value)) for key, value in under(txn, db, state.key)]
        state.producer_count = len(known)
        if len(known) >= limits.PRODUCERS_MAX:
            retention_ms = state.stripe.settings.retention_ms
            # All of them are read, so not again before there is something to forget.
            state.producers_due_ms = now_ms + limits.PRODUCERS_LOOK_MS
            for key, producer in known:
                due_ms = producer.seen_ms + retention_ms
                if due_ms <= now_ms:
                    txn.delete(key, db=db)
                    state.producer_count -= 1
                else:
                    state.producers_due_ms = min(state.producers_due_ms, due_ms)
    if state.producer_count >= limits.PRODUCERS_MAX:
        return False
    state.producer_count += 1
    return True


def _remember_ids(
    state: StripeState, ids: dict[bytes, int], txn: Any, db: dict[str, Any], now_ms: int
) -> None:
    key = state.key
    most = limits.FORGET_PER_APPEND_MAX + len(ids)
    _forget_ids(key, now_ms - state.stripe.settings.dedup_ms, most, txn, db)
    for message_id, offset in ids.items():
        raw = txn.get(key + message_id, db=db["ids"])
        if raw is not None:
            txn.delete(key + OFFSET.pack(_decode_id(raw)[1]) + message_id, db=db["id_times"])
        txn.put(key + message_id, encode((offset, now_ms)), db=db["ids"])
        txn.put(key + OFFSET.pack(now_ms) + message_id, b"", db=db["id_times"])


def _forget_ids(key: bytes, before_ms: int, most: int, txn: Any, db: dict[str, Any]) -> None:
    """Forget ids whose window has passed, somewhat faster than they come."""
    old = []
    for time_key, _ in under(txn, db["id_times"], key):
        if OFFSET.unpack_from(time_key, len(key))[0] > before_ms:
            break
        old.append(time_key)
        if len(old) == most:
            break
    for time_key in old:
        txn.delete(time_key, db=db["id_times"])
        txn.delete(key + time_key[len(key) + OFFSET.size :], db=db["ids"])
