"""Runs of offsets: what the range-coded index is made of.

A `Run` is a contiguous range of messages of one subscription that share a state: leased until a
time, waiting for a time, or ready. `DoneSet` remembers which offsets are done: everything below
`floor`, and separate runs above it. Because each offset becomes done exactly once, the runs never
overlap, and two dictionaries keyed by their ends merge neighbours in constant time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from ringdove.core.block import Block
    from ringdove.core.groups import Group

READY: Final = 0
LEASED: Final = 1
WAITING: Final = 2


class Run:
    """Messages [lo, hi) that share a state. Mutable, owned by one index.

    `place` is the number of the run's valid entry in one of the index's heaps; entries with another
    number are left over from earlier states and are skipped.
    """

    __slots__ = (
        "first_ms", "group", "hi", "lo", "place", "receives", "released", "state", "token",
        "until_ms",
    )  # fmt: skip

    def __init__(
        self,
        lo: int,
        hi: int,
        token: int = 0,
        until_ms: int = 0,
        receives: int = 0,
        first_ms: int = 0,
    ) -> None:
        self.lo = lo
        self.hi = hi
        #: Names the lease that handed the run out last; 0 when it was never handed out.
        self.token = token
        #: End of the lease, or the time before which the run is not deliverable.
        self.until_ms = until_ms
        self.receives = receives
        #: When the messages were first handed out; 0 when never.
        self.first_ms = first_ms
        self.group: Group | None = None
        self.state = READY
        #: Given back by its receiver, whose receipt may still acknowledge but no longer extend.
        self.released = False
        self.place = 0

    def part(self, lo: int, hi: int) -> Run:
        """A run with the same history over other offsets, in no heap yet."""
        run = Run(lo, hi, self.token, self.until_ms, self.receives, self.first_ms)
        run.group = self.group
        run.state = self.state
        run.released = self.released
        return run

    def record(self) -> RunRecord:
        """What is stored of it."""
        group = self.group.key_hash if self.group else 0
        return RunRecord(
            self.lo, self.hi, self.until_ms, self.receives, self.first_ms, group, self.released
        )

    def __len__(self) -> int:
        return self.hi - self.lo

    def __repr__(self) -> str:
        state = ("ready", "leased", "waiting")[self.state]
        return f"Run({self.lo}..{self.hi}, {state}, receives={self.receives})"


def lo_of(run: Run) -> int:
    """Where a run begins, as a key to search by."""
    return run.lo


def joined(pieces: list[Run]) -> list[Run]:
    """Neighbours with the same history as one run, so that they are one lease."""
    if len(pieces) <= 1:
        return pieces
    found: list[Run] = []
    for run in pieces:
        last = found[-1] if found else None
        if (
            last is not None
            and last.hi == run.lo
            and not last.token
            and not run.token
            and last.group is run.group
        ):
            last.hi = run.hi
        else:
            found.append(run)
    return found


def misplaced(spans: list[tuple[int, int, str]], floor: int, tail: int) -> list[str]:
    """What is wrong with runs that should be apart, between `floor` and `tail`."""
    spans = sorted(spans)
    faults = [
        f"{a[2]} {a[0]}..{a[1]} overlaps {b[2]} {b[0]}..{b[1]}"
        for a, b in zip(spans, spans[1:], strict=False)
        if a[1] > b[0]
    ]
    if spans and (spans[0][0] < floor or spans[-1][1] > tail):
        faults.append(f"runs reach outside {floor}..{tail}")
    return faults


class DoneSet:
    """The offsets that are done: all below `floor`, and disjoint runs above it."""

    __slots__ = ("_hi_of", "_lo_of", "above", "changed", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        #: How many offsets above the floor are done.
        self.above = 0
        #: Starts of runs that came, grew or went since the owner last looked; the owner clears it.
        self.changed: set[int] = set()
        self._hi_of: dict[int, int] = {}
        self._lo_of: dict[int, int] = {}

    def add(self, lo: int, hi: int) -> None:
        """Mark [lo, hi) done. None of it may be done already."""
        if lo == self.floor:
            self.floor = hi
        else:
            self.above += hi - lo
            left = self._lo_of.pop(lo, None)
            if left is not None:
                lo = left
        right = self._hi_of.pop(hi, None)
        if right is not None:
            self.changed.add(hi)
            del self._lo_of[right]
            if self.floor == hi:
                self.above -= right - hi
                self.floor = right
                return
            hi = right
        if self.floor < hi:
            self._hi_of[lo] = hi
            self._lo_of[hi] = lo
            self.changed.add(lo)

    def raise_floor(self, floor: int) -> None:
        """Mark everything below `floor` done, whatever its state."""
        if floor <= self.floor:
            return
        for lo, hi in [run for run in self._hi_of.items() if run[0] < floor]:
            del self._hi_of[lo]
            del self._lo_of[hi]
            self.changed.add(lo)
            self.above -= hi - lo
            floor = max(floor, hi)
        self.floor = floor
        touching = self._hi_of.pop(floor, None)
        if touching is not None:
            del self._lo_of[touching]
            self.changed.add(floor)
            self.above -= touching - floor
            self.floor = touching

    def runs(self) -> list[tuple[int, int]]:
        """The runs above the floor, in order."""
        return sorted(self._hi_of.items())

    def covers(self, lo: int, hi: int) -> bool:
        """Whether all of [lo, hi) is done. Looks at every run: for rare questions only."""
        return lo < hi and any(
            start <= max(lo, self.floor) and hi <= end for start, end in self._hi_of.items()
        )

    def end_of(self, lo: int) -> int | None:
        """The end of the run that starts at `lo`, if there is one."""
        return self._hi_of.get(lo)


class Source(Protocol):
    """Where the index looks at blocks: the store's log."""

    def block_at(self, offset: int) -> Block:
        """The block that holds `offset`, or the next one when offsets were skipped."""
        ...


class LeasedRun(NamedTuple):
    """One contiguous range handed to a receiver."""

    lo: int
    hi: int
    token: int
    until_ms: int
    receives: int
    first_ms: int


class Hold(NamedTuple):
    """The exclusive right of one reader to stream a subscription."""

    owner: bytes
    until_ms: int


class Leased(NamedTuple):
    """What a lease call found."""

    runs: list[LeasedRun]
    #: Runs that have been received too often: leased too, but to be moved to the dead-letter queue.
    dead: list[LeasedRun]
    #: The call stopped at a limit although more may be deliverable: call again.
    more: bool


class RunRecord(NamedTuple):
    """A run as it is stored: everything that must survive a restart."""

    lo: int
    hi: int
    until_ms: int
    receives: int
    first_ms: int
    group: int
    #: Released and waiting for its time, rather than leased.
    released: bool

    def revived(self, token: int) -> Run:
        """The run of the lease `token`, in no heap yet."""
        run = Run(self.lo, self.hi, token, self.until_ms, self.receives, self.first_ms)
        run.released = self.released
        run.state = WAITING if self.released else LEASED
        return run


class IndexChanges(NamedTuple):
    """What changed since the last call of `changes`."""

    floor: int
    #: Done runs by start; None where a run no longer starts.
    done: dict[int, int | None]
    #: Runs by lease token; None where the lease is gone.
    leases: dict[int, list[RunRecord] | None]


class Heirs:
    """Which leases have taken over the messages of an earlier one.

    A memory, no more: it is bounded, and gone after a restart.
    """

    def __init__(self) -> None:
        self._later: dict[int, list[int]] = {}

    def note(self, token: int, later: int) -> None:
        """Messages that `token` held are held by `later`."""
        if len(self._later) >= _HEIRS_MAX:
            del self._later[next(iter(self._later))]
        self._later.setdefault(token, []).append(later)

    def find(self, token: int, offset: int, leases: dict[int, list[Run]]) -> int:
        """The lease that holds a message now which `token` has held; `token` if none is known."""
        chain = [token]
        for known in chain:
            if any(run.lo <= offset < run.hi for run in leases.get(known, ())):
                return known
            if len(chain) < _HEIRS_MAX:
                chain += self._later.get(known, ())
        return token


#: Leases that were taken over and are remembered.
_HEIRS_MAX = 10_000
