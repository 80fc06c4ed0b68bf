"""The store on a Redis or Valkey cluster.

Each operation on a stripe is one function of `library.lua`, atomic on the stripe's master. Blocks
are written in the same transaction and read by name. A store keeps nothing that matters: blocks
that it has read or appended lately, and who waits for what.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.core.dedup import Appended, check_origin, check_segment
from ringdove.core.runs import LeasedRun
from ringdove.core.settings import check_name
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION, Part
from ringdove.errors import (
    ClientError,
    OffsetTrimmed,
    QueueNotFound,
    StoreUnavailable,
)
from ringdove.pending import Pending
from ringdove.stores.base import (
    Claim,
    Claimed,
    Delivered,
    Delivery,
    Start,
    StripeId,
    StripeStats,
    SubscriptionStats,
)
from ringdove.stores.fabric.near import Near
from ringdove.stores.fabric.places import BlockCache, Place, Places
from ringdove.stores.fabric.records import FabricRecords
from ringdove.stores.fabric.url import parse_url
from ringdove.stores.fabric.wire import Copies, Large
from ringdove.stores.fabric.words import (
    accepted,
    answer_of,
    appended_of,
    block_of,
    copies_needed,
    fcall,
    note_of,
    segment_words,
    settings_words,
)
from ringdove.stores.local import divide

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ringdove.clock import Clock
    from ringdove.core.block import Block
    from ringdove.core.dedup import Segment
    from ringdove.core.settings import QueueSettings
    from ringdove.stores.fabric.cluster import Attempt
    from ringdove.stores.fabric.wire import Word


class FabricStore(FabricRecords):
    """See `ringdove.stores.base.Store` for the contract."""

    def __init__(self, url: str, clock: Clock | None = None, seed: int | None = None) -> None:
        place = parse_url(url)
        super().__init__(place, clock)
        self._random = random.Random(seed)
        self._decided = Copies(self._copies_max - 1, lambda told: max(1, copies_needed(told)))
        self._near = Near(place.near)
        self._cache = BlockCache()
        self._places = Places(self._cluster, self._cache)
        self._place = self._places.of

    async def close(self) -> None:
        """Hang up. Idempotent."""
        self._cluster.close()

    # -- asking ---------------------------------------------------------------------------------

    def _accept(self, place: Place, reply: Any) -> Any:
        """The reply, unless it is a refusal, which is raised; with a stripe its blocks go."""
        try:
            return accepted(reply)
        except QueueNotFound:
            if not place.gone:
                self._places.is_gone(place)
            raise

    async def _ask(self, place: Place, name: str, *arguments: Word) -> Any:
        """Call a function on a stripe; raises what it refuses with."""
        reply = await self._call(place.slot, fcall(name, place.keys, arguments))
        return self._accept(place, reply)

    async def _make(self, place: Place, name: str, *arguments: Word) -> None:
        """`_ask`, for what is said again if a failover undoes it: a second server has it first."""
        command = fcall(name, place.keys, arguments)
        self._accept(place, await self._ask_copied(place.slot, command, self._a_second))

    async def _decide(self, place: Place, name: str, *arguments: Word) -> Any:
        """`_ask`, for what a failover must not undo.

        It has as many copies as the queue's messages, and is on a second server, before it counts.
        """
        command = fcall(name, place.keys, (*arguments, self._copies_max))
        told = await self._ask_copied(place.slot, command, self._decided)
        place.copies, _, era, answer = self._accept(place, told)
        self._cache.see(place, era)
        return answer

    async def _ask_soon(self, place: Place, name: str, *arguments: Word) -> Any:
        """`_ask`, for those who can go elsewhere: a node that is gone is not waited for."""
        await self._open()
        command = fcall(name, place.keys, arguments)
        reply, _ = await self._cluster.ask(place.slot, command, soon_s=_SOON_S)
        return self._accept(place, reply)

    async def _change(self, place: Place, attempt: Sequence[Word] | Attempt) -> list[Any]:
        """Do what must have as many copies as its queue says before it counts."""
        wanted = (place.copies or self._copies_max) - 1
        told = await self._ask_copied(place.slot, attempt, Copies(wanted, copies_needed))
        reply: list[Any]
        place.copies, _, era, *reply = self._accept(place, told)
        if copies_needed(told) > wanted:
            await self._copy_more(place, era)
        self._cache.see(place, era)
        return reply

    async def _copy_more(self, place: Place, era: bytes) -> None:
        """See that a change has its copies that was made when fewer were known to be needed."""
        copies = Copies(place.copies - 1, copies_needed)
        told = await self._ask_copied(place.slot, self._touch(place), copies)
        if self._accept(place, told)[2] != era:
            raise StoreUnavailable(
                "Another node has taken over: what was asked may come to nothing. Try again."
            )

    def _touch(self, place: Place) -> Sequence[Word]:
        """A change that means nothing, and has its copies only when those before it have."""
        return fcall("touch", place.keys, (self._now(), self._copies_max))

    # -- stripes --------------------------------------------------------------------------------

    async def create(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """See StripeStore."""
        place = self._place(stripe)
        arguments = settings_words(settings, version)
        await self._make(place, "create", self._now(), DEFAULT_SUBSCRIPTION, *arguments)
        place.gone = False

    async def configure(self, stripe: StripeId, settings: QueueSettings, version: int) -> None:
        """See StripeStore."""
        place = self._place(stripe)
        arguments = settings_words(settings, version)
        await self._decide(place, "configure", self._now(), place.channel, *arguments)
        place.announce()

    async def delete(self, stripe: StripeId) -> None:
        """See StripeStore."""
        place = self._place(stripe)
        await self._make(place, "delete", place.channel)
        self._places.is_gone(place)

    async def append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> list[Appended | ClientError]:
        """See StripeStore."""
        place = self._place(stripe)
        malformed = [
            check_segment(segment) or check_origin(segment, relayed=False) for segment in segments
        ]
        sound = [
            segment for segment, error in zip(segments, malformed, strict=True) if error is None
        ]
        arguments: list[Word] = [
            self._now(), version, place.channel, limits.TRIM_BLOCKS_PER_COMMIT_MAX,
            limits.PRODUCERS_MAX, limits.FORGET_PER_APPEND_MAX, self._copies_max,
        ]  # fmt: skip
        told, tail, stored = await self._put(place, arguments, sound)
        if place.copies > 1:
            self._show(place, int(tail))
        appended = [appended_of(answer) for answer in told]
        self._keep(place, sound, appended, int(stored))
        place.announce()
        answers = iter(appended)
        return [error if error is not None else next(answers) for error in malformed]

    async def _put(
        self, place: Place, arguments: Sequence[Word], segments: Sequence[Segment]
    ) -> list[Any]:
        """Write blocks and have them appended, in one transaction."""

        def attempt() -> list[Sequence[Word]]:
            # Names are drawn anew each time: an attempt that failed may have been carried out.
            blocks: list[Word] = []
            words: list[Word] = [*arguments]
            for segment in segments:
                name = os.urandom(_NAME_BYTES)
                blocks += (name, Large(segment.block.buffer))
                words += segment_words(segment, name)
            append = fcall("append", place.keys, words)
            return [("HSET", place.log, *blocks), append] if blocks else [append]

        return await self._change(place, attempt)

    def _keep(
        self,
        place: Place,
        segments: Sequence[Segment],
        answers: Sequence[Appended | ClientError],
        stored_ms: int,
    ) -> None:
        """Remember blocks that were just appended."""
        stored = [
            segment.block.stamp(answer.base, stored_ms)
            for segment, answer in zip(segments, answers, strict=True)
            if isinstance(answer, Appended) and not answer.duplicate
        ]
        self._cache.add(place, stored)

    def _show(self, place: Place, tail: int) -> None:
        """What is below `tail` has its copies: let it be seen.

        Nobody waits for that. Whoever meets messages that were not shown sees to it himself.
        """
        self._cluster.tell(place.slot, fcall("stable", place.keys, (tail, place.channel)))

    async def _settle_tail(self, place: Place) -> None:
        """See that what others have appended has its copies, whoever was to look after it."""
        [tail] = await self._change(place, self._touch(place))
        self._show(place, int(tail))

    async def _await_tail(self, place: Place) -> bool:
        """Have `_settle_tail` done, not too often; answers whether it is.

        As a rule who has appended something shows it in a moment. With copies that are late it goes
        on beside, and those who wait are told in the end.
        """
        if place.settling is not None and not place.settling.done:
            return False
        now_s = time.monotonic()
        often = now_s - place.settled_s < _SETTLE_AGAIN_S
        place.settled_s = now_s
        pause_s = _SETTLE_AGAIN_S if often else 0.0
        settling = self._cluster.submit(self._keep_settling(place, pause_s))
        place.settling = settling
        return not often and await settling.until(_SETTLE_S) and settling.error() is None

    async def _keep_settling(self, place: Place, pause_s: float) -> None:
        while True:
            if pause_s:
                await Pending[None]().until(pause_s)
            try:
                await self._settle_tail(place)
            except StoreUnavailable:
                pause_s = _SETTLE_PAUSE_S
            else:
                break
        place.announce()

    def submit_append(
        self, stripe: StripeId, segments: Sequence[Segment], version: int
    ) -> Pending[list[Appended | ClientError]]:
        """See StripeStore."""
        return self._cluster.submit(self.append(stripe, segments, version))

    async def lease(
        self,
        stripe: StripeId,
        subscription: str,
        want: int,
        lease_ms: int,
        spread: int,
        version: int,
    ) -> Delivery:
        """See StripeStore."""
        place = self._place(stripe)
        epoch, runs, dead, more, wait, unstable, era = await self._ask_soon(
            place, "lease", self._now(), version, subscription, want, lease_ms, spread,
            os.urandom(16), self._random.getrandbits(30), limits.PROMOTE_PER_CALL_MAX,
            limits.SCAN_PER_CALL_MAX, limits.LEASES_MAX, limits.TRIM_BLOCKS_PER_COMMIT_MAX,
            limits.LOOK_AHEAD,
        )  # fmt: skip
        self._cache.see(place, era)
        if unstable and not runs and not dead:
            await self._settle_tail(place)
            more = 1
        due_ms = None if int(wait) < 0 else self.clock.now_ms() + int(wait)
        held, rest = await self._hold(place, runs)
        held_dead, rest_dead = await self._hold(place, dead)
        if rest or rest_dead:
            claims = [Claim(epoch, run.token, run.lo, run.hi) for run in rest + rest_dead]
            await self.unlease(stripe, subscription, claims, 0)
            due_ms = self.clock.now_ms()
        return Delivery(epoch, held, held_dead, bool(more), due_ms)

    async def _hold(
        self, place: Place, leased: Sequence[Sequence[Any]]
    ) -> tuple[list[Delivered], list[LeasedRun]]:
        """Leased runs with their messages, as much as may be held; and those that may not."""
        found: list[Delivered] = []
        rest: list[LeasedRun] = []
        left = limits.LEASE_BYTES_MAX
        for lo, hi, token, until, receives, first in leased:
            run = LeasedRun(int(lo), int(hi), int(token, 16), int(until), receives, int(first))
            held = await self._parts(place, run.lo, run.hi, left) if left > 0 else []
            left -= sum(part.share_bytes for part in held)
            delivered, more = divide(run, held, left)
            found += [delivered] if delivered is not None else []
            rest += [more] if more is not None else []
        return found, rest

    async def acknowledge(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return await self._settle(stripe, subscription, claims, "acknowledge", "", version)

    async def extend(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        lease_ms: int,
        version: int,
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return await self._settle(stripe, subscription, claims, "extend", lease_ms, version)

    async def release(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        delay_ms: int | None,
        version: int,
    ) -> list[int | ClientError]:
        """See StripeStore."""
        delay: Word = "" if delay_ms is None else delay_ms
        return await self._settle(stripe, subscription, claims, "release", delay, version)

    async def unlease(
        self, stripe: StripeId, subscription: str, claims: Sequence[Claim], version: int
    ) -> list[int | ClientError]:
        """See StripeStore."""
        return await self._settle(stripe, subscription, claims, "unlease", "", version)

    async def _settle(
        self,
        stripe: StripeId,
        subscription: str,
        claims: Sequence[Claim],
        act: str,
        number: Word,
        version: int,
    ) -> list[int | ClientError]:
        place = self._place(stripe)
        answers: list[int | ClientError] = []
        for first in range(0, max(1, len(claims)), _CLAIMS_PER_CALL_MAX):
            arguments: list[Word] = [
                self._now(), version, place.channel, subscription, act, number,
                limits.TRIM_BLOCKS_PER_COMMIT_MAX, self._copies_max,
            ]  # fmt: skip
            for claim in claims[first : first + _CLAIMS_PER_CALL_MAX]:
                arguments += (
                    claim.epoch, f"{claim.token:015x}", claim.lo, claim.hi, int(claim.earlier),
                )  # fmt: skip
            [told] = await self._change(place, fcall("settle", place.keys, arguments))
            answers += [answer_of(answer) for answer in told]
        place.announce()
        return answers

    async def subscribe(self, stripe: StripeId, subscription: str, start: Start) -> int:
        """See StripeStore."""
        check_name(subscription, "subscription")
        place = self._place(stripe)
        kind, value = start.kind, start.value
        if kind == "time":
            kind, value = "offset", await self.find(stripe, value)
        elif kind not in ("earliest", "latest", "offset"):
            raise start.unknown()
        floor = await self._decide(
            place, "subscribe", self._now(), place.channel, subscription, kind, value,
            limits.SUBSCRIPTIONS_MAX,
        )  # fmt: skip
        place.announce()
        return int(floor)

    async def unsubscribe(self, stripe: StripeId, subscription: str) -> None:
        """See StripeStore."""
        place = self._place(stripe)
        await self._decide(place, "unsubscribe", self._now(), subscription)
        place.announce()

    async def claim(
        self, stripe: StripeId, subscription: str, owner: bytes, lease_ms: int
    ) -> Claimed:
        """See StripeStore."""
        fence = 0
        while not fence:  # Leases that have ended are noticed some at a time.
            fence, offset = await self._decide(
                self._place(stripe), "claim", self._now(), subscription, owner, lease_ms,
                limits.PROMOTE_PER_CALL_MAX,
            )  # fmt: skip
        return Claimed(fence, int(offset))

    async def hold(self, stripe: StripeId, subscription: str, fence: int, lease_ms: int) -> None:
        """See StripeStore."""
        await self._ask(self._place(stripe), "hold", self._now(), subscription, fence, lease_ms)

    async def commit(
        self,
        stripe: StripeId,
        subscription: str,
        offset: int,
        fence: int = 0,
        *,
        lazy: bool = False,
    ) -> None:
        """See StripeStore."""
        arguments: list[Word] = [
            self._now(), subscription, offset, fence, limits.TRIM_BLOCKS_PER_COMMIT_MAX,
        ]  # fmt: skip
        place = self._place(stripe)
        more = True
        while more:  # Leases below the offset are given up some at a time.
            if lazy:
                *_, more = await self._ask(place, "commit", *arguments, self._copies_max)
            else:
                more = await self._decide(place, "commit", *arguments)

    async def purge(self, stripe: StripeId) -> int:
        """See StripeStore."""
        most = limits.TRIM_BLOCKS_PER_COMMIT_MAX
        return int(await self._decide(self._place(stripe), "purge", self._now(), most))

    async def trim(self, stripe: StripeId) -> int:
        """See StripeStore."""
        most = limits.TRIM_BLOCKS_PER_COMMIT_MAX
        more = True
        while more:
            head, more = await self._ask(self._place(stripe), "trim", self._now(), most)
        return int(head)

    async def stats(self, stripe: StripeId) -> StripeStats:
        """See StripeStore."""
        place = self._place(stripe)
        more = True
        settled = False
        while more:  # Leases that have ended are noticed some at a time.
            epoch, head, tail, nbytes, oldest, subs, more, unstable = await self._ask(
                place, "stats", self._now(), limits.TRIM_BLOCKS_PER_COMMIT_MAX,
                limits.PROMOTE_PER_CALL_MAX,
            )  # fmt: skip
            if unstable and not settled:
                settled = await self._await_tail(place)
                more = more or settled
        found = [
            SubscriptionStats(name.decode(), int(floor), max(0, int(waiting)), leased, delayed)
            for name, floor, waiting, leased, delayed in subs
        ]
        return StripeStats(epoch, int(head), int(tail), int(nbytes), int(oldest), sorted(found))

    def node_of(self, stripe: StripeId) -> Hashable | None:
        """See StripeStore."""
        return self._cluster.master(self._place(stripe).slot)

    def is_near(self, stripe: StripeId) -> bool:
        """See StripeStore."""
        node = self._cluster.master(self._place(stripe).slot)
        return node is not None and self._near.has(node.host)

    def watch(self, stripe: StripeId) -> Pending[None]:
        """See StripeStore."""
        return self._places.watch(stripe, listen=self._opened)

    # -- the log --------------------------------------------------------------------------------

    async def read(
        self, stripe: StripeId, offset: int, messages_max: int, bytes_max: int
    ) -> list[Block]:
        """See StripeStore."""
        place = self._place(stripe)
        head, tail, unstable = await self._bounds(place)
        if unstable and offset >= tail and await self._await_tail(place):
            head, tail, _ = await self._bounds(place)
        _check_readable(offset, head)
        found: list[Block] = []
        while offset < tail and messages_max > 0 and (bytes_max > 0 or not found):
            wanted = min(tail, offset + messages_max)
            blocks = await self._blocks(place, offset, wanted)
            if not blocks or blocks[0].base > offset:
                # Skipped by an epoch; or trimmed since, which must not look the same.
                head, _, _ = await self._bounds(place)
                if found and offset < head:
                    break
                _check_readable(offset, head)
            if not blocks:
                break
            for block in blocks:
                if messages_max <= 0 or (bytes_max <= 0 and found):
                    break
                start = max(0, offset - block.base)
                stop = min(block.count, start + messages_max, tail - block.base)
                if stop <= start:
                    return found
                part = block.slice(start, stop)
                found.append(part)
                messages_max -= part.count
                bytes_max -= part.nbytes
                offset = part.end
        return found

    async def _bounds(self, place: Place) -> tuple[int, int, bool]:
        """The oldest offset, the end of what is shown, and whether there is more."""
        most = limits.TRIM_BLOCKS_PER_COMMIT_MAX
        era, head, tail, unstable = await self._ask(place, "bounds", self._now(), most)
        self._cache.see(place, era)
        return int(head), int(tail), bool(unstable)

    async def find(self, stripe: StripeId, time_ms: int) -> int:
        """See StripeStore."""
        return int(await self._ask(self._place(stripe), "find", time_ms))

    async def _parts(self, place: Place, lo: int, hi: int, bytes_max: int) -> list[Part]:
        """Where the messages [lo, hi) are, up to the one with which they have `bytes_max`."""
        found: list[Part] = []
        while lo < hi and bytes_max > 0:
            blocks = [b for b in await self._blocks(place, lo, hi) if b.base < hi]
            for block in blocks:
                start = max(lo, block.base)
                part = Part(block, start - block.base, min(hi, block.end) - block.base)
                found.append(part)
                bytes_max -= part.share_bytes
                lo = block.end
            if not blocks:
                break
        return found

    async def _blocks(self, place: Place, lo: int, hi: int) -> list[Block]:
        """Some of the blocks with messages of [lo, hi), in order, from the first one on.

        The last ones may begin at `hi` or later; none: nothing is stored from `lo` on.
        """
        known = place.known_block(lo)
        if known is not None:
            return [known]
        count = max(1, min(hi - lo, _READ_BYTES // place.block_bytes, _READ_BLOCKS_MAX))
        command = ("ZRANGEBYLEX", place.notes, b"[" + lo.to_bytes(8), "+", "LIMIT", 0, count)
        members, _ = await self._cluster.ask(place.slot, command)
        if not members:
            return []
        notes = [note_of(member) for member in members]
        fetch: list[Word] = ["HMGET", place.log, *(note.name for note in notes)]
        stored, _ = await self._cluster.ask(place.slot, fetch)
        # What was trimmed meanwhile is not there any more, and is not asked for again.
        blocks = [block_of(*found) for found in zip(notes, stored, strict=True) if found[1]]
        if blocks:
            place.block_bytes = sum(block.nbytes for block in blocks) // len(blocks)
            self._cache.add(place, blocks)
        return blocks


def _check_readable(offset: int, head: int) -> None:
    if offset < head:
        raise OffsetTrimmed(f"Offset {offset} has been trimmed; the oldest one stored is {head}.")


#: Seconds for the answer to a lease.
_SOON_S = 1.0

#: Seconds to wait until what others have appended is shown, between two looks after that, and
#: between two attempts while copies are missing.
_SETTLE_S, _SETTLE_AGAIN_S, _SETTLE_PAUSE_S = 0.25, 0.1, 1.0

#: Claims that one call settles: it must not hold a node up.
_CLAIMS_PER_CALL_MAX = 1_000

#: Bytes and blocks that one read of the log fetches, about.
_READ_BYTES, _READ_BLOCKS_MAX = 1024 * 1024, 1_000

#: Bytes of the names that are drawn for blocks.
_NAME_BYTES = 12
