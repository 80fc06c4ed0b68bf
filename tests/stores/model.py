"""A naive model of one stripe: one entry per message and subscription, nothing clever.

It predicts what a store must answer, or, where a store may choose (which groups of a key queue come
first), judges what it answered. It shares no code with core/index.py and looks at every message
every time, so it is slow and easy to believe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringdove.core.block import Block
    from ringdove.core.settings import QueueSettings


@dataclass
class Stored:
    """A message as it was appended."""

    body: bytes
    key: bytes
    not_before_ms: int
    stored_ms: int
    #: The block it came in, which is trimmed as a whole.
    block: int


@dataclass
class Entry:
    """What one subscription knows of one message."""

    done: bool = False
    #: Who received it last, until when it is out, and whether it was given back.
    token: int = 0
    until_ms: int = 0
    released: bool = False
    receives: int = 0
    first_ms: int = 0


@dataclass
class Model:
    """The state of one stripe, message by message."""

    settings: QueueSettings
    messages: list[Stored] = field(default_factory=list)
    subs: dict[str, list[Entry]] = field(default_factory=lambda: {"default": []})
    producers: dict[bytes, int] = field(default_factory=dict)
    ids: dict[bytes, int] = field(default_factory=dict)
    #: When each message was found to be done with by everybody, if done messages are kept.
    done_ms: dict[int, int] = field(default_factory=dict)
    #: Everything below was given up, kept or not.
    dropped: int = 0
    #: End and bytes of each block, by its first offset.
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def tail(self) -> int:
        """The next offset."""
        return len(self.messages)

    # -- appending ------------------------------------------------------------------------------

    def append(self, block: Block, now_ms: int) -> None:
        """Store one block."""
        base = self.tail
        self.sizes[base] = base + block.count, block.nbytes
        for body, key in zip(block.bodies(), block.keys(), strict=True):
            self.messages.append(Stored(body, key, block.not_before_ms, now_ms, base))
            for entries in self.subs.values():
                entries.append(Entry())

    def room(self, nbytes: int, head: int) -> int | None:
        """Below which offset all must go for `nbytes` more to fit; None when that is too much."""
        stored = [(end, size) for end, size in self.sizes.values() if end > head]
        excess = sum(size for _, size in stored) + nbytes - self.settings.bytes_max
        limit = self.tail
        if self.settings.when_full == "refuse":
            limit = min((self.floor(sub) for sub in self.subs), default=0)
        at = 0
        for end, size in stored:
            if excess <= 0 or end > limit:
                break
            at = end
            excess -= size
        return at if excess <= 0 else None

    def judge_sequence(self, producer: bytes, sequence: int, span: int, *, gaps: bool) -> str:
        """Whether a segment is new, repeated or refused; a new one is remembered."""
        expected = self.producers.get(producer, 0)
        if producer in self.producers and sequence + span <= expected:
            return "repeated"
        if sequence < expected or (sequence > expected and not gaps):
            return "refused"
        self.producers[producer] = sequence + span
        return "new"

    def judge_id(self, message_id: bytes, now_ms: int) -> str:
        """Whether a message id is new or repeated; a new one is remembered."""
        seen_ms = self.ids.get(message_id)
        if seen_ms is not None and now_ms < seen_ms + self.settings.dedup_ms:
            return "repeated"
        self.ids[message_id] = now_ms
        return "new"

    # -- what is where --------------------------------------------------------------------------

    def undone(self, sub: str) -> list[int]:
        """The offsets that a subscription is not done with."""
        return [offset for offset, entry in enumerate(self.subs[sub]) if not entry.done]

    def floor(self, sub: str) -> int:
        """Everything below is done."""
        return next(iter(self.undone(sub)), self.tail)

    def leased(self, sub: str, now_ms: int) -> list[int]:
        """The offsets in live leases."""
        return [
            offset
            for offset in self.undone(sub)
            if self._out(sub, offset, now_ms) and not self.subs[sub][offset].released
        ]

    def delayed(self, sub: str, now_ms: int) -> list[int]:
        """The offsets that wait for their time: released ones, and those that were sent so."""
        return [
            offset
            for offset in self.undone(sub)
            if (self._out(sub, offset, now_ms) and self.subs[sub][offset].released)
            or self.messages[offset].not_before_ms > now_ms
        ]

    def group(self, offset: int) -> object:
        """What must stay in order with this message."""
        if self.settings.order == "key":
            return self.messages[offset].key
        return "all" if self.settings.order == "strict" else offset

    def free(self, sub: str, now_ms: int) -> list[int]:
        """The offsets that may be handed out now, in order; the head of a group stands for it."""
        undone = self.undone(sub)
        locked = {self.group(offset) for offset in undone if self._out(sub, offset, now_ms)}
        found = []
        for offset in undone:
            if self.messages[offset].not_before_ms > now_ms:
                if self.settings.ordered:
                    break
            elif self.group(offset) not in locked:
                found.append(offset)
        return found

    def times(self, sub: str, now_ms: int) -> list[int]:
        """When something changes by itself: ends of leases, releases and delays."""
        times = []
        for offset in self.undone(sub):
            if self._out(sub, offset, now_ms):
                times.append(self.subs[sub][offset].until_ms)
            elif self.messages[offset].not_before_ms > now_ms:
                times.append(self.messages[offset].not_before_ms)
        return times

    def dead(self, sub: str, offset: int) -> bool:
        """Whether a message has been received too often."""
        limit = self.settings.receives_max
        return limit is not None and self.subs[sub][offset].receives >= limit

    def _out(self, sub: str, offset: int, now_ms: int) -> bool:
        return self.subs[sub][offset].until_ms > now_ms

    # -- leasing --------------------------------------------------------------------------------

    def predict(self, sub: str, want: int, now_ms: int) -> tuple[list[int], list[int]]:
        """What a lease must hand out, live and dead, on a loose or strict queue."""
        live: list[int] = []
        dead: list[int] = []
        for offset in self.free(sub, now_ms):
            if len(live) == want:
                break
            if not self.dead(sub, offset):
                if dead and self.settings.order == "strict":
                    break
                live.append(offset)
            elif live and self.settings.order == "strict":
                break
            else:
                dead.append(offset)
        return live, dead

    def faults(
        self, sub: str, want: int, live: list[int], dead: list[int], now_ms: int
    ) -> list[str]:
        """What is wrong with what a lease on a key queue handed out; empty when nothing is."""
        free = self.free(sub, now_ms)
        faults = []
        for group in {self.group(offset) for offset in free}:
            members = [offset for offset in free if self.group(offset) == group]
            mine = [offset for offset in live if self.group(offset) == group]
            buried = [offset for offset in dead if self.group(offset) == group]
            given = mine + buried
            if given != members[: len(given)] or (mine and buried):
                faults.append(f"group {group!r} gave {mine} and dead {buried} of {members}")
            if not given and len(live) < want:
                faults.append(f"group {group!r} waits with {members} although more was wanted")
        faults += [f"{offset} may not be leased" for offset in live + dead if offset not in free]
        faults += [f"{offset} is dead" for offset in live if self.dead(sub, offset)]
        faults += [f"{offset} is not dead" for offset in dead if not self.dead(sub, offset)]
        if len(live) > want:
            faults.append(f"{len(live)} messages instead of {want}")
        return faults

    def hand_out(self, sub: str, lo: int, hi: int, token: int, until_ms: int, now_ms: int) -> None:
        """Record that a store leased a run."""
        for entry in self.subs[sub][lo:hi]:
            entry.token, entry.until_ms, entry.released = token, until_ms, False
            entry.receives += 1
            entry.first_ms = entry.first_ms or now_ms

    # -- claims ---------------------------------------------------------------------------------

    def acknowledge(self, sub: str, token: int, lo: int, hi: int, now_ms: int) -> int | None:
        """How many messages become done; None when the claim is refused."""
        claimed = self.subs[sub][lo:hi]
        known = lo < hi <= len(self.subs[sub]) and all(entry.done for entry in claimed)
        if hi <= self.floor(sub) or known:
            return 0
        held = self._held(sub, token, lo, hi, now_ms)
        for entry in held:
            entry.done = True
        return len(held) or None

    def extend(
        self, sub: str, token: int, lo: int, hi: int, lease_ms: int, now_ms: int
    ) -> int | None:
        """How many messages stay leased; None when the claim is refused."""
        held = [e for e in self._held(sub, token, lo, hi, now_ms) if not e.released]
        for entry in held:
            entry.until_ms = now_ms + lease_ms
        return len(held) or None

    def release(
        self, sub: str, token: int, lo: int, hi: int, delay_ms: int | None, now_ms: int
    ) -> int | None:
        """How many messages are given back; None when the claim is refused."""
        held = self._held(sub, token, lo, hi, now_ms)
        for entry in held:
            wait_ms = delay_ms
            if wait_ms is None:
                doubled_ms = self.settings.backoff_ms * 2 ** (entry.receives - 1)
                wait_ms = min(doubled_ms, self.settings.backoff_ms_max)
            entry.until_ms, entry.released = now_ms + wait_ms, True
        return len(held) or None

    def _held(self, sub: str, token: int, lo: int, hi: int, now_ms: int) -> list[Entry]:
        """The claimed messages that the receipt still holds; none when it is refused."""
        entries = self.subs[sub][max(lo, 0) : max(hi, 0)]
        held = [entry for entry in entries if entry.token == token and not entry.done]
        over = [entry for entry in held if entry.released or entry.until_ms <= now_ms]
        return [] if over and self.settings.ordered else held

    # -- positions ------------------------------------------------------------------------------

    def subscribe(self, sub: str, offset: int) -> None:
        """Add a subscription that starts at `offset`."""
        self.subs[sub] = [Entry(done=at < offset) for at in range(self.tail)]

    def drop_below(self, offset: int, sub: str | None = None) -> None:
        """Mark everything below `offset` done, for one subscription or given up for all."""
        if sub is None:
            self.dropped = max(self.dropped, offset)
        for name in [sub] if sub else list(self.subs):
            for entry in self.subs[name][:offset]:
                entry.done = True

    def expire(self, now_ms: int) -> None:
        """Give up what retention no longer keeps."""
        old = [m.stored_ms + self.settings.retention_ms <= now_ms for m in self.messages]
        self.drop_below(sum(old))

    def head(self, now_ms: int) -> int:
        """The first offset that must be stored, a whole block (I6)."""
        needed = min(self.floor(sub) for sub in self.subs)
        for offset in range(needed):
            self.done_ms.setdefault(offset, now_ms if self.settings.keep_done_ms else 0)
        self.done_ms = {offset: ms for offset, ms in self.done_ms.items() if offset < needed}
        if not self.settings.keep_done_ms:
            self.done_ms = dict.fromkeys(self.done_ms, 0)
        for offset in range(needed - 1, self.dropped - 1, -1):
            if self.done_ms[offset] + self.settings.keep_done_ms > now_ms:
                needed = offset
        return self.messages[needed].block if needed < self.tail else self.tail
