"""The message index where a key's messages stay in order (T3.7).

Messages with one key hash form a *group*. A group has a list of waiting runs in offset order and
counts the runs it has out (leased, or released and waiting for their time). It is ready when it has
something waiting and nothing out; ready groups are in a line, by when they became so. So a group's
next messages wait until its leased ones are done, and no group ever waits for another, however many
messages that has.

Scanning looks at each message's key hash once: a message of a group that is not ready joins that
group's list, any other is handed out at once. A small receive looks somewhat ahead, so that it gets
the next messages of one group rather than one each of many. Delayed blocks hold the scan, because
passing them would break order.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.core.index import Index
from ringdove.core.runs import LEASED, READY, WAITING, Run, RunRecord, Source
from ringdove.errors import StoreCorrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ringdove.core.settings import QueueSettings


class Group:
    """The messages of one key hash that the scan has passed and that are not done."""

    __slots__ = ("key_hash", "out", "place", "waiting")

    def __init__(self, key_hash: int) -> None:
        self.key_hash = key_hash
        #: Runs leased, or released and not due yet.
        self.out = 0
        #: Number of the group's valid entry in the line of ready groups.
        self.place = 0
        self.waiting: deque[Run] = deque()

    def take_back(self, run: Run) -> None:
        """Insert a run that comes back, in offset order; it nearly always goes first."""
        at = 0
        while at < len(self.waiting) and self.waiting[at].lo < run.lo:
            at += 1
        self.waiting.insert(at, run)

    def add(self, lo: int, hi: int) -> None:
        """Append a message that the scan passed over."""
        last = self.waiting[-1] if self.waiting else None
        if last is not None and last.hi == lo and not last.token:
            last.hi = hi
            return
        run = Run(lo, hi)
        run.group = self
        self.waiting.append(run)


class KeyIndex(Index):
    """`Index` for order key: one lease per group at a time."""

    def __init__(
        self, settings: QueueSettings, make_token: Callable[[], int], random: Random, floor: int = 0
    ) -> None:
        super().__init__(settings, make_token, random, floor)
        self._groups: dict[int, Group] = {}
        self._ready_groups: deque[tuple[int, Group]] = deque()

    def _gather(
        self, want: int, now_ms: int, source: Source, tail: int, pieces: list[Run], dead: list[Run]
    ) -> bool:
        passed_left = limits.SCAN_PER_CALL_MAX
        if 0 < want <= limits.LOOK_AHEAD:
            known = self.scan - self.done.floor - self.done.above - self.leased - self.delayed
            if known < limits.LOOK_AHEAD:
                # Damage ahead is no reason to keep back what is in front of it; where nothing is,
                # scanning comes to it again below.
                with suppress(StoreCorrupted):
                    self._scan(limits.LOOK_AHEAD - known, now_ms, source, tail, None)
        while True:
            while want > 0 and (group := self._pop_ready_group()) is not None:
                want -= self._take(group, want, pieces, dead)
                if len(dead) >= limits.PROMOTE_PER_CALL_MAX:
                    return False
            if not 0 < want <= limits.LOOK_AHEAD:
                return self._scan(want, now_ms, source, tail, pieces)
            if passed_left <= 0:
                return False
            start = self.scan
            self._scan(limits.LOOK_AHEAD, now_ms, source, tail, None)
            if self.scan == start:
                return True
            passed_left -= self.scan - start

    def _take(self, group: Group, want: int, pieces: list[Run], dead: list[Run]) -> int:
        """Lock a ready group and take up to `want` of its messages; answers how many."""
        receives_max = self.settings.receives_max
        waiting = group.waiting
        taken = 0
        while taken < want and waiting:
            run = waiting[0]
            if receives_max is not None and run.receives >= receives_max:
                if not taken:
                    dead.append(waiting.popleft())
                    group.out += 1
                break
            if len(run) > want - taken:
                self._split(run, run.lo + want - taken)
            waiting.popleft()
            pieces.append(run)
            group.out += 1
            taken += len(run)
        return taken

    def _scan(
        self, want: int, now_ms: int, source: Source, tail: int, pieces: list[Run] | None
    ) -> bool:
        """See Index. Without `pieces`, messages only join their groups: `want` of them."""
        passed_left = limits.SCAN_PER_CALL_MAX
        self._scan_due_ms = None
        mine: dict[int, Run] = {}
        while want > 0 and (start := self._scan_start(tail)) < tail:
            block = source.block_at(start)
            if block.base > start:
                self.done.add(start, min(block.base, tail))
                self.scan = min(block.base, tail)
                continue
            if block.not_before_ms > now_ms:
                self._scan_due_ms = block.not_before_ms
                return True
            stop = min(block.end, tail, self._holes[0][0] if self._holes else tail)
            stop = min(stop, start + passed_left)
            hashes = block.key_hashes()[start - block.base : stop - block.base].tolist()
            if pieces is None:
                want -= self._sort_block(start, hashes[:want])
            else:
                want -= self._scan_block(start, hashes, want, mine, pieces)
            passed_left -= self.scan - start
            if passed_left <= 0:
                return want == 0
        return True

    def _scan_block(
        self, at: int, hashes: list[int], want: int, mine: dict[int, Run], pieces: list[Run]
    ) -> int:
        """Sort the messages from offset `at` into groups; answers how many were taken."""
        groups = self._groups
        taken = 0
        for key_hash in hashes:
            group = groups.get(key_hash)
            if group is None:
                groups[key_hash] = group = Group(key_hash)
            elif group.waiting or key_hash not in mine:
                group.add(at, at + 1)
                at += 1
                continue
            run = mine.get(key_hash)
            if run is not None and run.hi == at:
                run.hi = at + 1
            else:
                mine[key_hash] = run = Run(at, at + 1)
                run.group = group
                group.out += 1
                pieces.append(run)
            at += 1
            taken += 1
            if taken == want:
                break
        self.scan = at
        return taken

    def _sort_block(self, at: int, hashes: list[int]) -> int:
        """Have the messages from offset `at` join their groups; answers how many they are."""
        groups = self._groups
        for key_hash in hashes:
            group = groups.get(key_hash)
            if group is None:
                groups[key_hash] = group = Group(key_hash)
                group.add(at, at + 1)
                self._offer(group)
            else:
                group.add(at, at + 1)
            at += 1
        self.scan = at
        return len(hashes)

    def _follow(self, run: Run, right: Run) -> None:
        """A part of a run that is out is out too; a part of a waiting one waits behind it."""
        group = run.group
        assert group is not None
        if run.place:
            group.out += 1
            self._enter(right)
        else:
            group.waiting.insert(group.waiting.index(run) + 1, right)

    def _give_back(self, run: Run) -> None:
        assert run.group is not None
        run.group.out -= 1
        run.group.take_back(run)
        self._offer(run.group)

    def _settle(self, run: Run) -> None:
        was_out = run.state != READY
        super()._settle(run)
        group = run.group
        assert group is not None
        if was_out:
            group.out -= 1
        else:
            group.waiting.remove(run)
        self._offer(group)

    def _make_ready(self, run: Run) -> None:
        """A leased or delayed run has come due: it goes back into its group."""
        group = run.group
        assert group is not None
        run.place = 0
        if run.state in (LEASED, WAITING):
            group.out -= 1
        run.state = READY
        group.take_back(run)
        self._offer(group)

    def _offer(self, group: Group) -> None:
        """Put the group in line if nothing of it is out; forget it when it is empty."""
        if group.out:
            return
        if not group.waiting:
            self._forget_group(group)
            return
        self._place = group.place = self._place + 1
        self._ready_groups.append((group.place, group))

    def _forget_group(self, group: Group) -> None:
        """Drop an empty group; its key may have another one by now."""
        group.place = 0
        if self._groups.get(group.key_hash) is group:
            del self._groups[group.key_hash]

    def _pop_ready_group(self) -> Group | None:
        while self._something_ready():
            _, group = self._ready_groups.popleft()
            group.place = 0
            return group
        return None

    def _something_ready(self) -> bool:
        while self._ready_groups:
            place, group = self._ready_groups[0]
            if group.place == place and not group.out:
                self._clip(group)
                if group.waiting:
                    return True
                self._forget_group(group)
            self._ready_groups.popleft()
        return False

    def _clip(self, group: Group) -> None:
        """Drop what retention has taken from the front of a group's list."""
        floor = self.done.floor
        waiting = group.waiting
        while waiting and waiting[0].hi <= floor:
            waiting.popleft()
        if waiting and waiting[0].lo < floor:
            waiting[0].lo = floor

    def _revive(self, token: int, record: RunRecord) -> Run:
        run = super()._revive(token, record)
        group = self._groups.get(record.group)
        if group is None:
            self._groups[record.group] = group = Group(record.group)
        run.group = group
        group.out += 1
        return run
