"""Group commit: everything that waits is written in one transaction, synced once, then answered.

Operations queue up while a commit is under way; whoever comes next takes them all. A synchronous
caller that waits becomes that leader itself (pending.py), so a lone caller pays for no thread
switch; for callers on an event loop, and for leases that nobody waits for, a writer thread leads.
One lock, `_turn`, makes sure there is one leader at a time.

A commit (commit.py) has four steps. *Apply* runs under the store's lock: offsets are given,
repetitions judged, changed index entries collected. *Write* puts it all into the LMDB transaction
and *commit* syncs it, both without the lock, so receivers go on meanwhile. *Publish* makes the new
tail visible and answers. Nobody sees a message before it is as durable as promised. If anything
fails before publishing, nothing has happened: appended blocks were never visible, and collected
index changes are put back for the next commit. While a standby follows (shipping.py), what is
written is shipped to it as well, both disks sync at the same time, and it is published when both
have it.

Ctrl-C may strike the leader anywhere. Operations therefore stay queued until they are answered, and
a commit stays `_unsettled` until it is published or put back: the next leader finishes either
before it goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb

from ringdove import limits
from ringdove.errors import ConnectionClosed, RingdoveError, StoreFull, StoreUnavailable
from ringdove.stores.embedded.append import Append
from ringdove.stores.embedded.changes import Change
from ringdove.stores.embedded.commit import Barrier, GroupCommit
from ringdove.stores.embedded.environment import translated
from ringdove.stores.embedded.journal import Draft, NeedsTree, note_applied, write_edits
from ringdove.stores.embedded.shipping import Parcel, RecordingTxn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringdove.clock import Clock
    from ringdove.core.dedup import Appended, Segment
    from ringdove.errors import ClientError
    from ringdove.pending import Pending
    from ringdove.stores.embedded.commit import Operation
    from ringdove.stores.embedded.environment import Directory, Environment
    from ringdove.stores.embedded.journal import Journal
    from ringdove.stores.embedded.shipping import Shipping
    from ringdove.stores.embedded.state import BlockCache, StripeState

    Op = TypeVar("Op", bound=Operation)

_log = logging.getLogger(__name__)


class Writer:
    """The group commit of one environment."""

    def __init__(
        self,
        env: Environment,
        directory: Directory,
        clock: Clock,
        lock: threading.RLock,
        cache: BlockCache,
        journal: Journal,
    ) -> None:
        self.env = env
        self.clock = clock
        #: The store's lock, which guards all stripe states.
        self.lock = lock
        self.cache = cache
        #: Stripes with changes to write, with blocks to trim, and deleted ones to clean up.
        self.dirty: set[StripeState] = set()
        self.untrimmed: set[StripeState] = set()
        self.graves: list[bytes] = []
        #: Small commits, and what the tree does not have of them: entries by database and key, and
        #: stripes with entries or blocks among them.
        self.journal = journal
        self.backlog: dict[tuple[int, bytes], Any] = {}
        self.unwritten: set[StripeState] = set()
        #: The last of them that the tree has.
        self._noted = journal.number
        #: Set by the owner: called now and then from the writer thread.
        self.on_sweep: Callable[[], None] = _nothing
        #: Set while a standby follows, between commits: where they are shipped to.
        self.shipping: Shipping | None = None
        #: Why nothing is committed any more, once a commit could not be shipped.
        self._given_up: RingdoveError | None = None
        self._directory = directory
        self._queue: deque[Operation] = deque()
        self._unsettled: GroupCommit | None = None
        self._turn = threading.Lock()
        self._wake = threading.Event()
        self._asleep = False
        self._closed = False
        #: Whether the disk has room, if that was asked since the tree was last written to.
        self._roomy: bool | None = None
        #: How long commits take, on average over the last few.
        self._commit_s = 0.0
        self._thread = threading.Thread(
            target=self._loop, name=f"ringdove-writer-{env.durability}", daemon=True
        )
        self._thread.start()

    def append(
        self, state: StripeState, segments: Sequence[Segment], version: int
    ) -> Pending[list[Appended | ClientError]]:
        """Queue an append; it is done when it is committed, or has failed."""
        append = Append(self._lead, self._kick)
        append.state = state
        append.segments = segments
        append.version = version
        append.nbytes = 0
        append.identified = False
        for segment in segments:
            append.nbytes += segment.block.nbytes
            if segment.message_id is not None:
                append.identified = True
        append.answers = []
        return self._queue_up(append)

    def submit(self, change: Change) -> Pending[Any]:
        """Queue another change; likewise."""
        change.led_by(self._lead, self._kick)
        return self._queue_up(change)

    def barrier(self) -> Pending[None]:
        """Queue nothing: done when every index change made so far is as durable as an append."""
        return self._queue_up(Barrier(self._lead, self._kick))

    def _queue_up(self, operation: Op) -> Op:
        if self._closed:
            operation.fail(ConnectionClosed("The store has been closed."))
        else:
            self._queue.append(operation)
            if self._closed:
                with self._turn:
                    self._refuse_queued()
        return operation

    def touch(self, state: StripeState) -> None:
        """Note that a stripe has changes that the next commit should take along."""
        self.dirty.add(state)
        if self._asleep:
            self._wake.set()

    def close(self) -> None:
        """Commit everything queued and changed, then stop."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        with self._turn:
            while (self._queue or self.dirty) and self._commit_queue():
                continue
            self._catch_up()  # What it cannot write by now, the journal still has.
            self._refuse_queued()
            self.journal.close()

    def _refuse_queued(self) -> None:
        self._drop_answered()
        while self._queue:
            self._queue.popleft().fail(ConnectionClosed("The store has been closed."))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep commits away, for replacing the environment; the tree has everything."""
        with self._turn:
            self._finish_interrupted()
            error = self._catch_up()
            if error is not None:
                raise error
            yield

    # -- leading --------------------------------------------------------------------------------

    def _kick(self, inline: bool) -> None:  # noqa: FBT001  a callback
        """Have the queue committed: here if that is short and allowed, else by the writer thread.

        Waking a thread and being woken costs more than a short commit does. One that waits for a
        standby is not short.
        """
        try:
            if inline and self._turn.acquire(blocking=False):
                try:
                    if self._is_short():
                        self._commit_queue()
                finally:
                    self._turn.release()
        finally:
            if self._queue:
                self._wake.set()

    def _is_short(self) -> bool:
        """Whether a commit would be; asked only by the leader, as others take from the queue."""
        if self.shipping is not None:
            return False
        if self._commit_s > limits.INLINE_COMMIT_S_MAX:
            self._commit_s *= _FORGET_SLOW  # Try again some time.
            return False
        nbytes = 0
        for position in range(len(self._queue)):
            operation = self._queue[position]
            if isinstance(operation, Append):
                nbytes += operation.nbytes
                if nbytes > limits.INLINE_COMMIT_BYTES_MAX:
                    return False
        return True

    def _lead(self, pending: Pending[Any]) -> None:
        """Commit for everybody, in the thread of one who waits."""
        try:
            while not pending.done:
                with self._turn:
                    if not pending.done:
                        self._commit_queue()
        except BaseException:
            self._wake.set()  # Others still wait for what this thread had begun.
            raise

    def _loop(self) -> None:
        idle_rounds = 0
        swept_s = caught_up_s = time.monotonic()
        while not self._closed:
            self._asleep = idle_rounds > _IDLE_ROUNDS
            wait_ms = limits.RETENTION_CHECK_MS if self._asleep else limits.LEASE_FLUSH_MS
            woken = self._wake.wait(wait_ms / 1000)
            self._wake.clear()
            idle_rounds += 1
            if self._queue or self.dirty or self.graves:
                idle_rounds = 0
                if not self._commit_or_log(self._commit_queue) and not woken:
                    time.sleep(_RETRY_S)
            if self.unwritten or self.untrimmed:
                idle_rounds = 0
                late = time.monotonic() - caught_up_s > limits.JOURNAL_MS / 1000
                if late or self.journal.crowded:
                    self._commit_or_log(lambda: self._catch_up() is None)
                    caught_up_s = time.monotonic()
            else:
                caught_up_s = time.monotonic()
            if time.monotonic() - swept_s > limits.RETENTION_CHECK_MS / 1000:
                swept_s = time.monotonic()
                try:
                    self.on_sweep()
                    self._directory.hold_reserve()
                except Exception:  # noqa: BLE001  the writer must go on
                    _log.exception("Looking for what may go from %s failed.", self.env.path)

    def _commit_or_log(self, commit: Callable[[], bool]) -> bool:
        """Commit in the writer thread, which must go on whatever happens."""
        try:
            with self._turn:
                committed = commit()
        except Exception:  # noqa: BLE001  the next round tries again
            _log.exception("A commit to %s came to no end.", self.env.path)
            return False
        if self._queue:
            self._wake.set()  # Not all of it went into one commit.
        return committed

    def _commit_queue(self) -> bool:
        """Commit what is queued, up to a limit; False when the disk said no."""
        if self._unsettled is not None or (self._queue and self._queue[0].done):
            self._finish_interrupted()
        operations, journaled = self._gather()
        if not (operations or self.dirty or self.graves):
            return True
        error = self._commit(operations, journaled=journaled)
        if self._asleep or self.journal.crowded:
            self._wake.set()
        if isinstance(error, StoreFull) and self.untrimmed and self._catch_up() is None:
            self._commit([])  # LMDB uses pages again in the second transaction after they went.
            error = self._commit(operations)
        committed = error is None
        if isinstance(error, StoreFull):
            committed = self._commit_without_appends(operations, error)
        elif error is not None:
            for operation in operations:
                operation.fail(error)
        self._drop_answered()
        return committed

    def _gather(self) -> tuple[list[Operation], bool]:
        """What the next commit does, and whether it is for the journal."""
        operations: list[Operation] = []
        nbytes = 0
        small = self.shipping is None
        for position in range(len(self._queue)):
            operation = self._queue[position]
            if operation.done:
                continue  # It overtook one that the commit before has left.
            operations.append(operation)
            if isinstance(operation, Append):
                nbytes += operation.nbytes
                small = small and not operation.identified
                if nbytes >= limits.COMMIT_BYTES_MAX:
                    break
            elif isinstance(operation, Change):
                small = False
        if nbytes:
            small = small and self._has_room()
        elif not (operations or self.dirty):
            small = False  # Graves are in the tree.
        return operations, small and self.journal.takes(nbytes)

    def _drop_answered(self) -> None:
        while self._queue and self._queue[0].done:
            self._queue.popleft()

    def _finish_interrupted(self) -> None:
        """Publish or put back the commit of a leader that did not come to its end."""
        commit = self._unsettled
        if commit is not None:
            in_tree = 0 < commit.txn_id <= self.env.lmdb.info()["last_txnid"]
            commit.committed = in_tree or self.journal.has(commit.number)
            self._settle(commit)
        self._drop_answered()

    def _settle(self, commit: GroupCommit) -> None:
        if commit.committed:
            commit.publish()
        else:
            commit.put_back()
        self._unsettled = None

    def _commit_without_appends(self, operations: list[Operation], error: StoreFull) -> bool:
        """The disk is full: refuse the appends, and spend the reserve on the rest."""
        rest: list[Operation] = [op for op in operations if not isinstance(op, Append)]
        for operation in operations:
            if isinstance(operation, Append):
                operation.fail(error)
        second: RingdoveError | None = error
        if rest or self.dirty:
            second = self._commit(rest)
            if isinstance(second, StoreFull) and self._directory.free_reserve():
                second = self._commit(rest)
                self._directory.hold_reserve()
        if second is not None:
            for operation in rest:
                operation.fail(second)
        return second is None

    def _catch_up(self) -> RingdoveError | None:
        """Give the tree what only the journal has, and let go what nobody needs."""
        if not (self.unwritten or self.untrimmed):
            return None
        error = self._commit([])
        if isinstance(error, StoreFull) and self._directory.free_reserve():
            error = self._commit([])
            self._directory.hold_reserve()
        return error

    def _has_room(self) -> bool:
        """Whether the tree will have room for what the journal takes, even if others write, too."""
        if self._roomy is None:
            self._roomy = self._directory.is_roomy()
        return self._roomy

    def tree_has_all(self, untrimmed: set[StripeState]) -> None:
        """A transaction of the tree is done; some stripes may have blocks left to be trimmed."""
        self.backlog.clear()
        for state in self.unwritten:
            state.unwritten = []  # Not emptied: somebody may be looking at it.
        self.unwritten.clear()
        self.untrimmed = untrimmed
        self._noted = self.journal.number
        self._roomy = None

    def _commit(
        self, operations: list[Operation], *, journaled: bool = False
    ) -> RingdoveError | None:
        if self._given_up is not None:
            return self._given_up
        began_s = time.perf_counter()
        draft = Draft(self.env, self.backlog) if journaled else None
        commit = self._unsettled = GroupCommit(self, operations, draft)
        failure: RingdoveError | None = None
        try:
            if draft is not None:
                with self.lock:
                    commit.apply(draft)
                commit.write(draft)
                commit.record()
            elif self.shipping is None:
                self._write(commit)
            else:
                self._write_and_ship(commit, self.shipping)
            commit.committed = True
        except NeedsTree:
            self._settle(commit)
            return self._commit(operations)
        except lmdb.Error as error:
            failure = translated(error, self.env.path)
        except RingdoveError as error:
            failure = error
        except Exception as error:  # noqa: BLE001  a leader must answer everybody
            failure = StoreUnavailable(f"The store in {self.env.path} failed: {error!r}.")
            failure.__cause__ = error
        self._settle(commit)
        # One that took very long says little of the next.
        took_s = min(time.perf_counter() - began_s, 2 * limits.INLINE_COMMIT_S_MAX)
        self._commit_s += (took_s - self._commit_s) * _COMMIT_WEIGHT
        return failure

    def _write(self, commit: GroupCommit, parcel: Parcel | None = None) -> None:
        """The transaction; with a parcel, what it changes is shipped just before it happens."""
        txn = self.env.lmdb.begin(write=True, buffers=True)
        try:
            used = txn if parcel is None else RecordingTxn(txn, self.env, parcel.edits)
            if self.backlog:
                write_edits(used, self.env, self.backlog)
            if self._noted != self.journal.number:
                note_applied(used, self.env, self.journal.number)
            with self.lock:
                commit.apply(used)
            commit.write(used)
            commit.txn_id = txn.id()
            if parcel is not None:
                parcel.send()
            txn.commit()
        except BaseException:
            txn.abort()
            raise

    def _write_and_ship(self, commit: GroupCommit, shipping: Shipping) -> None:
        """Commit here and there; what is not confirmed is the last that is ever committed."""
        parcel = Parcel(self.env, shipping)
        try:
            self._write(commit, parcel)
        except Exception:
            self._or_give_up(parcel.take_back)
            raise
        commit.doubt = self._or_give_up(parcel.confirm)

    def _or_give_up(self, settle: Callable[[], RingdoveError | None]) -> RingdoveError | None:
        """Have both directories agree; where that fails, only opening this one anew can go on."""
        try:
            return settle()
        except RingdoveError as error:
            self._given_up = error
        except lmdb.Error as error:
            self._given_up = translated(error, self.env.path)
        raise self._given_up


def _nothing() -> None:
    """Stand in for a sweep that nobody set."""


#: Rounds without work after which the writer thread sleeps until woken.
_IDLE_ROUNDS = 5

#: Weight of the last commit in the average time, and how an average beyond the limit fades.
_COMMIT_WEIGHT = 0.1
_FORGET_SLOW = 0.99

#: Seconds between attempts while the disk is full and nobody waits.
_RETRY_S = 0.5
