"""The message index of one subscription, range-coded (B2).

    offsets   0 ........ 40 ......... 55 ....... 70 ............................. 1,000,000
               done       leased T=12:00:30  done  |scan                               |tail
               `- below scan: explicit runs -'      `- above: implicit, visible since arrival

Below `scan` every message that is not done belongs to exactly one `Run`; above it nothing is
recorded, so an append costs the index nothing and a backlog of any length is one implicit entry. A
run is

    LEASED   in the `timed` heap by the end of its lease
    WAITING  in the `timed` heap by the time it becomes deliverable (delay, back-off)
    READY    in the `ready` heap by offset

and moves READY -> LEASED on lease, LEASED -> done on acknowledge, LEASED or WAITING -> READY when
its time has passed. There are no timers: `lease` first moves what has come due, a bounded number
per call (agenda.py). Cost: O(log r) per run touched, r being the runs outstanding; never the
backlog.

What must survive a restart is what is done, and how often a message was received. `changes` hands
both out since the last call, for the store to write; `restore` takes them back. Messages that were
passed over are found again by scanning from the floor, around the `holes` that are done or leased.

`Index` serves order loose and strict; `KeyIndex` (groups.py) serves order key.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.core.agenda import Agenda
from ringdove.core.runs import (
    LEASED,
    READY,
    WAITING,
    Heirs,
    IndexChanges,
    Leased,
    LeasedRun,
    Run,
    RunRecord,
    joined,
    lo_of,
    misplaced,
)
from ringdove.core.tuples import maker
from ringdove.errors import LimitExceeded, ReceiptStale, StoreCorrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from ringdove.core.runs import Hold, Source
    from ringdove.core.settings import QueueSettings


class Index(Agenda):
    """Which messages of a stripe a subscription has waiting, leased and done."""

    def __init__(
        self, settings: QueueSettings, make_token: Callable[[], int], random: Random, floor: int = 0
    ) -> None:
        super().__init__(floor)
        self.settings = settings
        #: Everything at or above it that is no hole is deliverable and not recorded.
        self.scan = floor
        self._make_token = make_token
        self._random = random
        self._leases: dict[int, list[Run]] = {}
        self._saved_floor = -1
        self._holes: deque[tuple[int, int]] = deque()
        self._changed_tokens: set[int] = set()
        #: What `changes` has handed out and nobody has written yet.
        self.handed: IndexChanges | None = None
        self._heirs = Heirs()
        self._scan_due_ms: int | None = None
        #: How often the subscription was claimed for streaming, and by whom now (core/stripe.py).
        self.fence = 0
        self.held: Hold | None = None

    # -- the four verbs -------------------------------------------------------------------------

    def lease(
        self, want: int, now_ms: int, lease_ms: int, source: Source, tail: int, spread: int = 1
    ) -> Leased:
        """Hand out up to `want` of the oldest deliverable messages below `tail`.

        With `spread` > 1 they are picked at random among that many of the oldest (B3). The result
        may be smaller than what is deliverable only when `more` says so.
        """
        if spread == 1 and (leased := self._lease_next(want, now_ms, lease_ms, source, tail)):
            return leased
        if self._holes:
            self._recover(now_ms, source, tail)
        exhausted = self._promote(now_ms)
        if self.settings.order == "strict" and self.leased + self.delayed:
            return Leased([], [], not exhausted)
        if self.settings.ordered:
            spread = 1
        if len(self._leases) >= limits.LEASES_MAX and not self._something_ready():
            raise LimitExceeded(
                f"The subscription has {len(self._leases)} leases outstanding, the most allowed: "
                "acknowledge some first, or receive more messages at once."
            )
        pieces: list[Run] = []
        dead: list[Run] = []
        try:
            exhausted &= self._gather(max(want, spread), now_ms, source, tail, pieces, dead)
        except StoreCorrupted:
            if not pieces and not dead:
                raise  # The damage is what comes next; before, deliver what is in front of it.
        except BaseException:
            for run in pieces + dead:
                self._give_back(run)
            raise
        if spread > 1:
            pieces = self._pick(pieces, want, spread)
        until_ms = now_ms + lease_ms
        return Leased(
            [self._hand_out(run, now_ms, until_ms) for run in joined(pieces)],
            [self._hand_out(run, now_ms, until_ms) for run in dead],
            not exhausted,
        )

    def _lease_next(
        self, want: int, now_ms: int, lease_ms: int, source: Source, tail: int
    ) -> Leased | None:
        """`lease` where nothing has come back and one block has what comes next: the usual case.

        None where it is not; nothing has changed then.
        """
        start = self.scan
        if (
            not self.done.floor <= start < tail
            or self._ready
            or self._holes
            or (self._timed and self._timed[0][0] <= now_ms)
            or self.settings.order != "loose"
            or len(self._leases) >= limits.LEASES_MAX
        ):
            return None
        block = source.block_at(start)
        stop = min(start + want, tail)
        if block.base > start or block.end < stop or block.not_before_ms > now_ms:
            return None
        self.scan = stop
        self._scan_due_ms = None
        leased = self._hand_out(Run(start, stop), now_ms, now_ms + lease_ms)
        return _leased(([leased], [], False))

    def acknowledge(self, token: int, lo: int, hi: int, now_ms: int) -> int:
        """Mark the messages of [lo, hi) that the lease still holds done; answers how many.

        An expired lease still acknowledges until its messages are leased again, except where order
        is promised. Raises ReceiptStale when the lease holds nothing of the range any more.
        """
        if hi <= self.done.floor:
            return 0
        try:
            return self._acknowledge(token, lo, hi, now_ms)
        except ReceiptStale:
            if self.done.covers(lo, hi):
                return 0  # Said twice, perhaps because the first answer was lost.
            raise

    def _acknowledge(self, token: int, lo: int, hi: int, now_ms: int) -> int:
        if self.settings.ordered:
            self._refuse_expired(token, lo, hi, now_ms)
        runs = self._leases.get(token, _NO_RUNS)
        front = runs[0]
        if front.state == LEASED and lo <= front.lo < hi < front.hi:
            return self._shrink(front, hi)
        if len(runs) == 1 and lo <= front.lo < front.hi <= hi:
            del self._leases[token]
            self._changed_tokens.add(token)
            self._settle(front)
            self.done.add(front.lo, front.hi)
            return front.hi - front.lo
        count = 0
        for run in self._carve(token, lo, hi):
            self._settle(run)
            self.done.add(run.lo, run.hi)
            count += run.hi - run.lo
        return count

    def extend(self, token: int, lo: int, hi: int, until_ms: int, now_ms: int) -> int:
        """Keep the messages of [lo, hi) leased until `until_ms`; answers how many.

        Released messages stay released. On a loose queue an expired lease that nobody has taken
        over comes back to life.
        """
        if self.settings.ordered:
            self._refuse_expired(token, lo, hi, now_ms)
        count = 0
        for run in self._carve(token, lo, hi, keep=True):
            if run.released:
                continue
            self._account(run, -1)
            run.state = LEASED
            self._wait(run, until_ms)
            count += run.hi - run.lo
        if not count:
            raise ReceiptStale("The messages were released; there is no lease to extend.")
        return count

    def release(self, token: int, lo: int, hi: int, delay_ms: int | None, now_ms: int) -> int:
        """Give the messages of [lo, hi) back, after `delay_ms` or by default after a back-off."""
        count = 0
        for run in self._given_back(token, lo, hi, now_ms):
            wait_ms = self.settings.backoff_after_ms(run.receives) if delay_ms is None else delay_ms
            self._wait(run, now_ms + wait_ms)
            count += run.hi - run.lo
        return count

    def unlease(self, token: int, lo: int, hi: int, now_ms: int) -> int:
        """Take the lease of [lo, hi) back: nobody has seen the messages, so it does not count."""
        count = 0
        for run in self._given_back(token, lo, hi, now_ms, unseen=True):
            self._wait(run, now_ms)
            count += run.hi - run.lo
        return count

    def _given_back(
        self, token: int, lo: int, hi: int, now_ms: int, *, unseen: bool = False
    ) -> list[Run]:
        if self.settings.ordered:
            self._refuse_expired(token, lo, hi, now_ms)
        runs = self._carve(token, lo, hi, keep=True)
        for run in runs:
            if unseen and not run.released:  # Said twice, it is taken back once.
                run.receives -= 1
                run.first_ms = run.first_ms if run.receives else 0
            self._account(run, -1)
            run.state = WAITING
            run.released = True
        return runs

    def heir(self, token: int, offset: int) -> int:
        """The lease that holds a message now which `token` has held; `token` if none is known."""
        return token if self.settings.ordered else self._heirs.find(token, offset, self._leases)

    # -- positions ------------------------------------------------------------------------------

    def drop_below(self, offset: int) -> None:
        """Forget all below `offset`: expired by retention, purged, or committed by a reader."""
        self.done.raise_floor(offset)
        floor = self.done.floor
        self.scan = max(self.scan, floor)
        if self.delayed:
            self._drop_delayed(floor)
        for token in [t for t, runs in self._leases.items() if runs[0].lo < floor]:
            for run in self._carve(token, 0, floor):
                self._settle(run)

    def _drop_delayed(self, floor: int) -> None:
        """Forget delayed messages below `floor` that no lease names."""
        for _, place, run in self._timed:
            if run.place == place and not run.token and run.lo < floor:
                self._account(run, -1)
                run.lo = min(floor, run.hi)
                self._account(run, 1)
                if run.lo == run.hi:
                    run.place = 0

    def due_ms(self, now_ms: int, tail: int) -> int | None:
        """When the next message becomes deliverable by time alone; None when none will.

        Answers `now_ms` when something is deliverable already.
        """
        locked = self.settings.order == "strict" and self.leased + self.delayed
        unscanned = self.scan < tail and self._scan_due_ms is None
        if not locked and (unscanned or self._something_ready()):
            return now_ms
        while self._timed and self._timed[0][2].place != self._timed[0][1]:
            heapq.heappop(self._timed)
        times = [self._timed[0][0]] if self._timed else []
        if self._scan_due_ms is not None and not locked:
            times.append(self._scan_due_ms)
        return max(now_ms, min(times)) if times else None

    def come_due(self, now_ms: int) -> None:
        """Notice every lease and delay that has ended."""
        while not self._promote(now_ms):
            continue

    def waiting(self, tail: int) -> int:
        """Messages below `tail` that are neither done, leased nor delayed."""
        return max(0, tail - self.done.floor - self.done.above - self.leased - self.delayed)

    # -- what is stored -------------------------------------------------------------------------

    def changes(self) -> IndexChanges | None:
        """What has changed since the last call, or None."""
        if not (self._changed_tokens or self.done.changed or self.done.floor != self._saved_floor):
            return None
        changes = IndexChanges(
            self.done.floor,
            {lo: self.done.end_of(lo) for lo in self.done.changed},
            {token: self._records(token) for token in self._changed_tokens},
        )
        self.handed = changes  # Before they are forgotten: Ctrl-C may strike in between.
        self.done.changed.clear()
        self._changed_tokens.clear()
        self._saved_floor = self.done.floor
        return changes

    def put_back(self) -> None:
        """Take back what was not written of the last changes; the next call hands it out again."""
        if self.handed is not None:
            self.done.changed.update(self.handed.done)
            self._changed_tokens.update(self.handed.leases)
            self._saved_floor = -1

    def succeed(self, former: Index) -> None:
        """Take the place of an index that is done, with what it has not written yet."""
        self.done.changed |= former.done.changed
        self._changed_tokens |= former._changed_tokens
        self.fence, self.held = former.fence, former.held

    def restore(
        self, done: Iterable[tuple[int, int]], leases: Iterable[tuple[int, list[RunRecord]]]
    ) -> None:
        """Fill a new index with what an earlier one had stored."""
        holes = []
        for lo, hi in done:
            self.done.add(lo, hi)
            holes.append((lo, hi))
        for token, records in leases:
            runs = [self._revive(token, record) for record in records]
            if runs:
                self._leases[token] = runs
                holes += [(run.lo, run.hi) for run in runs]
        self.done.changed.clear()
        self._saved_floor = self.done.floor
        self._holes = deque(sorted(holes))

    def audit(self, tail: int) -> list[str]:
        """What breaks the invariants of the index; an empty list when nothing does (I2)."""
        spans = [(lo, hi, "done") for lo, hi in self.done.runs()]
        spans += [(r.lo, r.hi, "leased") for runs in self._leases.values() for r in runs]
        return misplaced(spans, self.done.floor, tail)

    # -- inside ---------------------------------------------------------------------------------

    def _gather(
        self, want: int, now_ms: int, source: Source, tail: int, pieces: list[Run], dead: list[Run]
    ) -> bool:
        """Take up to `want` deliverable messages out of the heap and the scan, oldest first."""
        receives_max = self.settings.receives_max
        dead_left = limits.PROMOTE_PER_CALL_MAX
        while want > 0 and (run := self._pop_ready()) is not None:
            if receives_max is not None and run.receives >= receives_max:
                if self.settings.order == "strict":
                    return self._gather_dead_in_order(run, pieces, dead)
                dead.append(run)
                dead_left -= 1
                if not dead_left:
                    return False
                continue
            if len(run) > want:
                self._make_ready(self._split(run, run.lo + want))
            pieces.append(run)
            want -= len(run)
        return self._scan(want, now_ms, source, tail, pieces)

    def _gather_dead_in_order(self, run: Run, pieces: list[Run], dead: list[Run]) -> bool:
        """Where order is strict, a dead run goes alone; what is behind it waits for its move."""
        if pieces:
            self._make_ready(run)
        else:
            dead.append(run)
        return True

    def _scan(self, want: int, now_ms: int, source: Source, tail: int, pieces: list[Run]) -> bool:
        """Advance `scan` until `want` messages are found; False when the limit stopped it."""
        passed_left = limits.SCAN_PER_CALL_MAX
        self._scan_due_ms = None
        while want > 0 and (start := self._scan_start(tail)) < tail:
            block = source.block_at(start)
            if block.base > start:
                self.done.add(start, min(block.base, tail))
                self.scan = min(block.base, tail)
                continue
            stop = min(block.end, tail, self._holes[0][0] if self._holes else tail)
            if block.not_before_ms > now_ms:
                if self.settings.ordered:
                    self._scan_due_ms = block.not_before_ms
                    return True
                run = Run(start, stop)
                run.state = WAITING
                self._wait(run, block.not_before_ms)
                passed_left -= stop - start
                self.scan = stop
                if passed_left <= 0:
                    return False
                continue
            stop = min(stop, start + want)
            pieces.append(Run(start, stop))
            want -= stop - start
            self.scan = stop
        return True

    def _scan_start(self, tail: int) -> int:
        """Where scanning goes on, past everything that is done or leased already."""
        while self._holes and self._holes[0][0] <= self.scan:
            self.scan = max(self.scan, self._holes.popleft()[1])
        self.scan = min(max(self.scan, self.done.floor), tail)
        return self.scan

    def _recover(self, now_ms: int, source: Source, tail: int) -> None:
        """After a restart: find what was passed over below the last hole, so that order holds."""
        end = min(self._holes[-1][1], tail)
        while self._holes and self.scan < end:
            before, pieces = self.scan, list[Run]()
            try:
                self._scan(end, now_ms, source, end, pieces)
            except StoreCorrupted:
                before = self.scan  # What is behind the damage is found when that is dealt with.
            finally:
                for run in pieces:
                    self._give_back(run)
            if self.scan == before:
                return

    def _give_back(self, run: Run) -> None:
        """Undo the gathering of a run."""
        self._make_ready(run)

    def _pick(self, pieces: list[Run], want: int, spread: int) -> list[Run]:
        """Keep `want` messages starting at random among the `spread` oldest; give the rest back."""
        total = sum(map(len, pieces))
        skip = self._random.randrange(max(1, min(spread, total) - want + 1))
        picked = []
        for run in pieces:
            if skip >= len(run):
                skip -= len(run)
                self._make_ready(run)
                continue
            if skip:
                right = self._split(run, run.lo + skip)
                self._make_ready(run)
                run, skip = right, 0  # noqa: PLW2901
            if want and len(run) > want:
                self._make_ready(self._split(run, run.lo + want))
            if want:
                picked.append(run)
                want -= len(run)
            else:
                self._make_ready(run)
        return picked

    def _hand_out(self, run: Run, now_ms: int, until_ms: int) -> LeasedRun:
        """Turn a gathered run into a lease under a new token."""
        token = self._make_token()
        if run.token:
            self._forget(run)
            self._heirs.note(run.token, token)
        run.token = token
        run.receives += 1
        run.first_ms = run.first_ms or now_ms
        run.state = LEASED
        run.released = False
        run.until_ms = until_ms
        self._leases[token] = [run]
        self._changed_tokens.add(token)
        self.leased += run.hi - run.lo
        self._enter(run)
        return _leased_run((run.lo, run.hi, token, until_ms, run.receives, run.first_ms))

    def _carve(self, token: int, lo: int, hi: int, *, keep: bool = False) -> list[Run]:
        """The lease's runs within [lo, hi), split at its borders; removed unless `keep`."""
        runs = self._leases.get(token)
        if runs is None:
            raise ReceiptStale(
                "The receipt's lease has ended: its messages are done or were leased again."
            )
        first = max(0, bisect_right(runs, lo, key=lo_of) - 1)
        if runs[first].lo < lo < runs[first].hi:
            self._split(runs[first], lo)
            runs = self._leases[token]
        last = first
        while last < len(runs) and runs[last].lo < hi:
            if runs[last].hi > hi:
                self._split(runs[last], hi)
                runs = self._leases[token]
            last += 1
        found = [run for run in runs[first:last] if run.lo >= lo]
        if not found:
            raise ReceiptStale(
                f"The receipt's lease no longer holds messages {lo} to {hi - 1}: "
                "they are done or were leased again."
            )
        self._changed_tokens.add(token)
        if not keep:
            del runs[last - len(found) : last]
            if not runs:
                del self._leases[token]
        return found

    def _split(self, run: Run, at: int) -> Run:
        """Cut a run in two; it keeps the left part, and the right one is returned."""
        right = run.part(at, run.hi)
        run.hi = at
        if run.token:
            siblings = self._leases[run.token]
            siblings.insert(bisect_right(siblings, run.lo, key=lo_of), right)
            self._changed_tokens.add(run.token)
        self._follow(run, right)
        return right

    def _follow(self, run: Run, right: Run) -> None:
        """Put the right part of a split run where the whole run was."""
        if run.place and run.state == READY:
            self._make_ready(right)
        elif run.place:
            self._enter(right)

    def _shrink(self, run: Run, hi: int) -> int:
        """Mark the front of a leased run done without splitting it: the usual one-by-one case."""
        count = hi - run.lo
        self.leased -= count
        self.done.add(run.lo, hi)
        run.lo = hi
        self._changed_tokens.add(run.token)
        return count

    def _settle(self, run: Run) -> None:
        """Take a run out of its heap for good."""
        self._account(run, -1)
        run.place = 0

    def _forget(self, run: Run) -> None:
        """Remove a run from the lease that handed it out last, which is hereby stale."""
        siblings = self._leases[run.token]
        siblings.remove(run)
        if not siblings:
            del self._leases[run.token]
        self._changed_tokens.add(run.token)

    def _refuse_expired(self, token: int, lo: int, hi: int, now_ms: int) -> None:
        """Where order is promised, an expired or released lease is over: others may go ahead."""
        for run in self._leases.get(token, ()):
            if run.lo < hi and run.hi > lo and (run.state != LEASED or run.until_ms <= now_ms):
                raise ReceiptStale(
                    "The receipt's lease has expired, which ends it on an ordered queue."
                )

    def _records(self, token: int) -> list[RunRecord] | None:
        runs = self._leases.get(token)
        return None if runs is None else [run.record() for run in runs]

    def _revive(self, token: int, record: RunRecord) -> Run:
        run = record.revived(token)
        self._wait(run, record.until_ms)
        return run


_leased, _leased_run = maker(Leased), maker(LeasedRun)

#: Stands for the runs of an unknown token; it holds no offset.
_NO_RUNS = [Run(0, 0)]
