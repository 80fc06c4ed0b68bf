"""What the stores that run in this process share: how a call is carried out on a stripe's state."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.core.index import Index
from ringdove.core.stripe import Stripe, add_parts, find_time
from ringdove.core.tuples import maker
from ringdove.errors import ClientError, InvalidArgument, RecordConflict, StoreCorrupted
from ringdove.stores.base import (
    Claim,
    Delivered,
    Record,
    Start,
    StripeStats,
    SubscriptionStats,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.block import Block
    from ringdove.core.runs import Leased, LeasedRun, Source
    from ringdove.core.stripe import Part
    from ringdove.stores.base import StripeId


#: Bytes of a record's key; LMDB allows 511.
RECORD_KEY_BYTES_MAX = 500


class OneNode:
    """A store that is wholly in this process."""

    def node_of(self, stripe: StripeId) -> None:
        """See StripeStore."""

    def is_near(self, stripe: StripeId) -> bool:  # noqa: ARG002
        """See StripeStore."""
        return True


#: Tokens drawn and not given out yet; popping is atomic.
_tokens: list[int] = []
_TOKENS_DRAWN = 256
os.register_at_fork(after_in_child=_tokens.clear)


def make_token() -> int:
    """A lease token: 62 random bits that cannot be guessed, never 0.

    The operating system is asked for many at once, which is several times cheaper.
    """
    try:
        return _tokens.pop()
    except IndexError:
        drawn = struct.unpack(f"<{_TOKENS_DRAWN}Q", os.urandom(8 * _TOKENS_DRAWN))
        _tokens.extend(number >> 1 | 1 for number in drawn)
        return _tokens.pop()


def hold(
    index: Index, leased: Leased, source: Source, now_ms: int
) -> tuple[list[Delivered], list[Delivered]]:
    """What was leased just now, and what of it is dead, with its messages; as much as may be held.

    What is damaged is given back. Raises StoreCorrupted where there is nothing else.
    """
    damages: list[StoreCorrupted] = []
    runs = _hold(index, leased.runs, source, now_ms, damages)
    dead = _hold(index, leased.dead, source, now_ms, damages) if leased.dead else []
    if damages and not runs and not dead:
        raise damages[0]
    return runs, dead


def _hold(
    index: Index,
    runs: list[LeasedRun],
    source: Source,
    now_ms: int,
    damages: list[StoreCorrupted],
) -> list[Delivered]:
    found: list[Delivered] = []
    left = limits.LEASE_BYTES_MAX
    for run in runs:
        held: list[Part] = []
        damaged = False
        try:
            left -= add_parts(held, source, run.lo, run.hi, left)
        except StoreCorrupted as error:
            damages.append(error)
            damaged = True
        if left > 0 and not damaged:
            found.append(_delivered((run, held)))
            continue
        delivered, rest = divide(run, held, 0 if damaged else left)
        if delivered is not None:
            found.append(delivered)
        if rest is not None:
            index.unlease(rest.token, rest.lo, rest.hi, now_ms)
    return found


def divide(
    run: LeasedRun, held: list[Part], bytes_left: int
) -> tuple[Delivered | None, LeasedRun | None]:
    """What of a leased run is in hand, and what is not, because it would have been too much."""
    end = held[-1].block.base + held[-1].stop if held else run.lo
    if bytes_left > 0 or end >= run.hi:
        return Delivered(run, held), None
    delivered = Delivered(run._replace(hi=end), held) if held else None
    return delivered, run._replace(lo=end)


_delivered = maker(Delivered)

#: Does something with the messages of a claim, now; answers how many.
Act = Callable[[Index, Claim, int], int]


def acknowledging(index: Index, claim: Claim, now_ms: int) -> int:
    """Marks them done."""
    return index.acknowledge(claim.token, claim.lo, claim.hi, now_ms)


def extending(lease_ms: int) -> Act:
    """Keeps them leased."""
    return lambda index, c, now_ms: index.extend(c.token, c.lo, c.hi, now_ms + lease_ms, now_ms)


def releasing(delay_ms: int | None) -> Act:
    """Gives them back."""
    return lambda index, c, now_ms: index.release(c.token, c.lo, c.hi, delay_ms, now_ms)


def unleasing(index: Index, claim: Claim, now_ms: int) -> int:
    """Makes their lease undone."""
    return index.unlease(claim.token, claim.lo, claim.hi, now_ms)


def settle(
    stripe: Stripe,
    subscription: str,
    claims: Sequence[Claim],
    now_ms: int,
    act: Act,
) -> list[int | ClientError]:
    """Apply `act` to each claim; one that is refused does not stop the others."""
    index = stripe.subscription(subscription)
    answers: list[int | ClientError] = []
    for claim in claims:
        try:
            stripe.check_epoch(claim.epoch)
            if claim.earlier:
                claim = claim._replace(token=index.heir(claim.token, claim.lo))  # noqa: PLW2901
            answers.append(act(index, claim, now_ms))
        except ClientError as refusal:
            answers.append(refusal)
    return answers


def read_blocks(
    source: Source, offset: int, tail: int, messages_max: int, bytes_max: int
) -> list[Block]:
    """Blocks from `offset` up to the limits, at least one if there is any."""
    blocks: list[Block] = []
    while offset < tail and messages_max > 0 and (bytes_max > 0 or not blocks):
        block = source.block_at(offset)
        start = max(offset, block.base)
        block = block.slice(start - block.base, min(block.count, start - block.base + messages_max))
        blocks.append(block)
        messages_max -= block.count
        bytes_max -= block.nbytes
        offset = block.end
    return blocks


def committable(stripe: Stripe, subscription: str, fence: int) -> Index:
    """The index whose position is committed, by whoever holds the fence if one is given."""
    return stripe.check_fence(subscription, fence) if fence else stripe.subscription(subscription)


def start_offset(stripe: Stripe, source: Source, start: Start) -> int:
    """The offset at which a new subscription begins."""
    if start.kind == "latest":
        return stripe.tail
    if start.kind == "offset":
        return start.value
    if start.kind == "time":
        return find_time(source, stripe.head, stripe.tail, start.value)
    if start.kind != "earliest":
        raise start.unknown()
    return stripe.head


def stripe_stats(stripe: Stripe, oldest_ms: int, now_ms: int) -> StripeStats:
    """The statistics of a stripe from its state."""
    for index in stripe.subscriptions.values():
        index.come_due(now_ms)
    return StripeStats(
        stripe.epoch,
        stripe.head,
        stripe.tail,
        stripe.nbytes,
        oldest_ms,
        [
            _subscription_stats(stripe, name, index, now_ms)
            for name, index in sorted(stripe.subscriptions.items())
        ],
    )


def _subscription_stats(stripe: Stripe, name: str, index: Index, now_ms: int) -> SubscriptionStats:
    ahead = stripe.delayed_ahead(index, now_ms)
    waiting = max(0, index.waiting(stripe.tail) - ahead)
    return SubscriptionStats(name, index.done.floor, waiting, index.leased, index.delayed + ahead)


def live(record: Record | None, now_ms: int) -> Record | None:
    """The record, unless it has expired."""
    if record is not None and record.expires_ms and record.expires_ms <= now_ms:
        return None
    return record


def check_expected(current: Record | None, key: str, expect: int | None) -> None:
    """Raise RecordConflict unless the record has the expected version (0: must not exist)."""
    version = current.version if current else 0
    if expect is not None and expect != version:
        raise RecordConflict(f"Record {key!r} has version {version}, not {expect}: read it again.")


def check_record(key: str, value: bytes) -> None:
    """Raise InvalidArgument for a record that no store takes."""
    if not 0 < len(key.encode()) <= RECORD_KEY_BYTES_MAX:
        raise InvalidArgument(
            f"A record's key has 1 to {RECORD_KEY_BYTES_MAX} bytes, not {len(key.encode())}."
        )
    if len(value) > limits.RECORD_BYTES_MAX:
        raise InvalidArgument(
            f"A record has at most {limits.RECORD_BYTES_MAX} bytes, not {len(value)}."
        )


def next_record(
    current: Record | None, key: str, value: bytes, expect: int | None, expires_ms: int
) -> Record:
    """The record that a put writes."""
    check_expected(current, key, expect)
    return Record(key, value, (current.version if current else 0) + 1, expires_ms)
