"""Group commit: everything that waits is written in one transaction, synced once, then answered.

Operations queue up while a commit is under way; whoever comes next takes them all. A synchronous
caller that waits becomes that leader itself (pending.py), so a lone caller pays for no thread
switch; for callers on an event loop, and for leases that nobody waits for, a writer thread leads.
One lock, `_turn`, makes sure there is one leader at a time.

A commit has four steps. *Apply* runs under the store's lock: offsets are given, repetitions judged,
changed index entries collected. *Write* puts it all into the LMDB transaction and *commit* syncs
it, both without the lock, so receivers go on meanwhile. *Publish* makes the new tail visible and
answers. Nobody sees a message before it is as durable as promised. If anything fails before
publishing, nothing has happened: appended blocks were never visible, and collected index changes
are put back for the next commit. While a standby follows (shipping.py), what is written is shipped
to it as well, both disks sync at the same time, and it is published when both have it.

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
from typing import TYPE_CHECKING, Any

import lmdb

from ringdove import limits
from ringdove.errors import (
    ConnectionClosed,
    QueueFull,
    RingdoveError,
    StoreFull,
    StoreUnavailable,
)
from ringdove.pending import Pending
from ringdove.stores.base import STRIPE_KEY_BYTES
from ringdove.stores.embedded.append import Append, apply_append
from ringdove.stores.embedded.changes import Change
from ringdove.stores.embedded.environment import translated
from ringdove.stores.embedded.shipping import Parcel, RecordingTxn
from ringdove.stores.embedded.state import (
    NUMBER,
    OFFSET,
    TAIL,
    BlockCache,
    StripeState,
    SubscriptionRecord,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringdove.clock import Clock
    from ringdove.core.block import Block
    from ringdove.core.index import Index
    from ringdove.core.runs import IndexChanges
    from ringdove.stores.embedded.environment import Directory, Environment
    from ringdove.stores.embedded.shipping import Shipping


_log = logging.getLogger(__name__)


class Barrier:
    """Waits until every index change made so far is as durable as an append."""

    __slots__ = ("pending",)

    def __init__(self, pending: Pending[None]) -> None:
        self.pending = pending


Operation = Append | Change | Barrier


class Growth:
    """What a commit adds to and takes from one stripe's log."""

    __slots__ = ("blocks", "head", "head_end", "nbytes", "tail", "trim_left", "trim_offset")

    def __init__(self, tail: int) -> None:
        self.tail = tail
        self.nbytes = 0
        self.blocks: list[Block] = []
        #: Blocks below it go; 0 when none do. `trim_left` when some had to stay for the next
        #: commit.
        self.trim_offset = 0
        self.trim_left = False
        #: First offset stored and end of its block, after trimming.
        self.head = 0
        self.head_end = 0


class Writer:
    """The group commit of one environment."""

    def __init__(
        self,
        env: Environment,
        directory: Directory,
        clock: Clock,
        lock: threading.RLock,
        cache: BlockCache,
    ) -> None:
        self.env = env
        self.clock = clock
        #: The store's lock, which guards all stripe states.
        self.lock = lock
        self.cache = cache
        #: Stripes with changes to write or blocks to trim, and deleted ones to clean up.
        self.dirty: set[StripeState] = set()
        self.graves: list[bytes] = []
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
        #: How long commits take, on average over the last few.
        self._commit_s = 0.0
        self._thread = threading.Thread(
            target=self._loop, name=f"ringdove-writer-{env.durability}", daemon=True
        )
        self._thread.start()

    def submit(self, make: Callable[[Pending[Any]], Operation]) -> Pending[Any]:
        """Queue an operation; its pending is done when it is committed, or has failed."""
        pending: Pending[Any] = Pending(self._lead, self._kick)
        if self._closed:
            pending.fail(ConnectionClosed("The store has been closed."))
        else:
            self._queue.append(make(pending))
            if self._closed:
                with self._turn:
                    self._refuse_queued()
        return pending

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
            self._refuse_queued()

    def _refuse_queued(self) -> None:
        self._drop_answered()
        while self._queue:
            self._queue.popleft().pending.fail(ConnectionClosed("The store has been closed."))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep commits away, for replacing the environment."""
        with self._turn:
            self._finish_interrupted()
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
        swept_s = time.monotonic()
        while not self._closed:
            self._asleep = idle_rounds > _IDLE_ROUNDS
            wait_ms = limits.RETENTION_CHECK_MS if self._asleep else limits.LEASE_FLUSH_MS
            woken = self._wake.wait(wait_ms / 1000)
            self._wake.clear()
            if self._queue or self.dirty or self.graves:
                idle_rounds = 0
                if not self._commit_or_log() and not woken:
                    time.sleep(_RETRY_S)
            else:
                idle_rounds += 1
            if time.monotonic() - swept_s > limits.RETENTION_CHECK_MS / 1000:
                swept_s = time.monotonic()
                try:
                    self.on_sweep()
                    self._directory.hold_reserve()
                except Exception:  # noqa: BLE001  the writer must go on
                    _log.exception("Looking for what may go from %s failed.", self.env.path)

    def _commit_or_log(self) -> bool:
        """Commit in the writer thread, which must go on whatever happens."""
        try:
            with self._turn:
                committed = self._commit_queue()
        except Exception:  # noqa: BLE001  the next round tries again
            _log.exception("A commit to %s came to no end.", self.env.path)
            return False
        if self._queue:
            self._wake.set()  # Not all of it went into one commit.
        return committed

    def _commit_queue(self) -> bool:
        """Commit what is queued, up to a limit; False when the disk said no."""
        self._finish_interrupted()
        operations: list[Operation] = []
        nbytes = 0
        for position in range(len(self._queue)):
            operation = self._queue[position]
            if operation.pending.done:
                continue  # It overtook one that the commit before has left.
            operations.append(operation)
            if isinstance(operation, Append):
                nbytes += operation.nbytes
                if nbytes >= limits.COMMIT_BYTES_MAX:
                    break
        if not operations and not self.dirty and not self.graves:
            return True
        error = self._commit(operations)
        committed = error is None
        if isinstance(error, StoreFull):
            committed = self._commit_without_appends(operations, error)
        elif error is not None:
            for operation in operations:
                operation.pending.fail(error)
        self._drop_answered()
        return committed

    def _drop_answered(self) -> None:
        while self._queue and self._queue[0].pending.done:
            self._queue.popleft()

    def _finish_interrupted(self) -> None:
        """Publish or put back the commit of a leader that did not come to its end."""
        commit = self._unsettled
        if commit is not None:
            commit.committed = 0 < commit.txn_id <= self.env.lmdb.info()["last_txnid"]
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
                operation.pending.fail(error)
        second: RingdoveError | None = error
        if rest or self.dirty:
            second = self._commit(rest)
            if isinstance(second, StoreFull) and self._directory.free_reserve():
                second = self._commit(rest)
                self._directory.hold_reserve()
        if second is not None:
            for operation in rest:
                operation.pending.fail(second)
        return second is None

    def _commit(self, operations: list[Operation]) -> RingdoveError | None:
        if self._given_up is not None:
            return self._given_up
        began_s = time.perf_counter()
        commit = self._unsettled = GroupCommit(self, operations)
        failure: RingdoveError | None = None
        try:
            if self.shipping is None:
                self._write(commit)
            else:
                self._write_and_ship(commit, self.shipping)
            commit.committed = True
        except lmdb.Error as error:
            failure = translated(error, self.env.path)
        except RingdoveError as error:
            failure = error
        except Exception as error:  # noqa: BLE001  a leader must answer everybody
            failure = StoreUnavailable(f"The store in {self.env.path} failed: {error!r}.")
            failure.__cause__ = error
        self._settle(commit)
        self._commit_s += (time.perf_counter() - began_s - self._commit_s) * _COMMIT_WEIGHT
        return failure

    def _write(self, commit: GroupCommit, parcel: Parcel | None = None) -> None:
        """The transaction; with a parcel, what it changes is shipped just before it happens."""
        txn = self.env.lmdb.begin(write=True, buffers=True)
        try:
            used = txn if parcel is None else RecordingTxn(txn, self.env, parcel.edits)
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


class GroupCommit:
    """One transaction on behalf of many."""

    def __init__(self, writer: Writer, operations: list[Operation]) -> None:
        #: Of the transaction, once it is about to be committed.
        self.txn_id = 0
        self.committed = False
        #: What appends are told although they are stored: that it is not where it should be, too.
        self.doubt: RingdoveError | None = None
        self._writer = writer
        self._db = writer.env.db
        self._operations = operations
        self._now_ms = writer.clock.now_ms()
        self._growth: dict[StripeState, Growth] = {}
        self._changes: list[tuple[StripeState, str, Index, IndexChanges]] = []
        #: Whose changes were asked for, noted first.
        self._asked: list[tuple[StripeState, Index]] = []
        self._touched: set[StripeState] = set()
        self._applied: list[Change] = []
        #: Appends left to the next commit, and the stripes where nothing may overtake them.
        self._left: set[Operation] = set()
        self._crowded: set[StripeState] = set()
        self._refused: list[tuple[Operation, RingdoveError]] = []
        self._buried: set[bytes] = set()

    def apply(self, txn: Any) -> None:
        """Decide everything, under the store's lock."""
        for operation in self._operations:
            try:
                if isinstance(operation, Append):
                    self._apply_append(operation, txn)
                elif isinstance(operation, Change):
                    self._applied.append(operation)
                    operation.result = operation.edit(txn)
            except RingdoveError as refusal:
                self._refused.append((operation, refusal))
                if isinstance(operation, Change):
                    self._applied.pop()
        self._touched, self._writer.dirty = self._writer.dirty, set()
        for state in self._touched | self._growth.keys():
            if state.deleted:
                continue
            for name, index in state.stripe.subscriptions.items():
                self._asked.append((state, index))
                changes = index.changes()
                if changes is not None:
                    self._changes.append((state, name, index, changes))
            trim_offset = state.stripe.trim_offset(self._now_ms)
            if trim_offset > state.log_head and trim_offset >= state.head_end:
                self._growth_of(state).trim_offset = trim_offset
                # From here on nobody may look below: the commit is about to remove it.
                state.stripe.head = max(state.stripe.head, trim_offset)

    def _apply_append(self, append: Append, txn: Any) -> None:
        """Append, or leave it to the next commit: only what is stored by then can be dropped."""
        state, growth = append.state, self._growth_of(append.state)
        try:
            if state not in self._crowded:
                apply_append(append, growth, txn, self._db, self._now_ms)
                return
        except QueueFull:
            if state.stripe.settings.when_full != "drop-oldest" or not growth.nbytes:
                raise
            self._crowded.add(state)
        self._left.add(append)

    def write(self, txn: Any) -> None:
        """Put what was decided into the transaction, without the lock."""
        db = self._db
        for state, growth in self._growth.items():
            if state.deleted:
                continue
            for block in growth.blocks:
                txn.put(state.key + OFFSET.pack(block.end - 1), block.buffer, db=db["log"])
            if growth.trim_offset:
                self._trim(txn, state, growth)
            nbytes = max(0, state.stripe.nbytes + growth.nbytes)
            head = growth.head if growth.trim_offset else state.log_head
            txn.put(state.key, TAIL.pack(growth.tail, nbytes, head), db=db["tails"])
        for state, name, index, changes in self._changes:
            self._write_index(txn, state, name, index, changes)
        self._bury(txn)
        txn.put(b"clock", OFFSET.pack(self._writer.clock.now_ms()), db=db["meta"])

    def publish(self) -> None:
        """Show what is now durable, and answer."""
        writer = self._writer
        with writer.lock:
            if self._buried:
                writer.graves = [key for key in writer.graves if key not in self._buried]
            for _, index in self._asked:
                index.handed = None
            for state, growth in self._growth.items():
                if not state.deleted:
                    self._show(state, growth)
        for change in self._applied:
            change.publish()
        for state, growth in self._growth.items():
            if growth.blocks:
                state.announce()
        for operation, refusal in self._refused:
            if not operation.pending.done:
                operation.pending.fail(refusal)
        for operation in self._operations:
            if not operation.pending.done and operation not in self._left:
                self._answer(operation)

    def _show(self, state: StripeState, growth: Growth) -> None:
        stripe, writer = state.stripe, self._writer
        for block in growth.blocks:
            stripe.note_appended(block)
            writer.cache.add(state.id, block)
        stripe.nbytes += growth.nbytes
        growth.nbytes = 0
        if growth.trim_offset:
            state.log_head, state.head_end = growth.head, growth.head_end
            stripe.head = growth.head
        if growth.trim_left:
            writer.dirty.add(state)

    def _answer(self, operation: Operation) -> None:
        if isinstance(operation, Append):
            if self.doubt is None:
                operation.pending.resolve(operation.answers)
            else:
                operation.pending.fail(self.doubt)
        else:
            operation.pending.resolve(operation.result if isinstance(operation, Change) else None)

    def put_back(self) -> None:
        """Nothing was written: have the next commit try the index changes again."""
        writer = self._writer
        with writer.lock:
            while self._applied:
                undo = self._applied.pop().undo
                try:
                    if undo is not None:
                        undo()
                except Exception:  # noqa: BLE001  the others must be taken back all the same
                    _log.exception("A failed change of %s was not taken back.", writer.env.path)
            for _, index in self._asked:
                index.put_back()
            writer.dirty |= self._touched | {state for state, _ in self._asked}

    def _growth_of(self, state: StripeState) -> Growth:
        growth = self._growth.get(state)
        if growth is None:
            growth = self._growth[state] = Growth(state.stripe.tail)
        return growth

    def _write_index(
        self, txn: Any, state: StripeState, name: str, index: Index, changes: IndexChanges
    ) -> None:
        db = self._db
        number = state.numbers[name]
        prefix = state.key + NUMBER.pack(number)
        record = SubscriptionRecord(number, changes.floor, index.fence)
        txn.put(state.key + name.encode(), encode(record), db=db["subs"])
        for lo, hi in changes.done.items():
            if hi is None:
                txn.delete(prefix + OFFSET.pack(lo), db=db["done"])
            else:
                txn.put(prefix + OFFSET.pack(lo), OFFSET.pack(hi), db=db["done"])
        for token, runs in changes.leases.items():
            if runs is None:
                txn.delete(prefix + OFFSET.pack(token), db=db["leases"])
            else:
                txn.put(prefix + OFFSET.pack(token), encode(runs), db=db["leases"])

    def _trim(self, txn: Any, state: StripeState, growth: Growth) -> None:
        """Delete blocks that nobody needs, a bounded number; the rest goes with the next commit."""
        cursor = txn.cursor(self._db["log"])
        found = cursor.set_range(state.key)
        left = limits.TRIM_BLOCKS_PER_COMMIT_MAX
        growth.head = state.log_head
        while found and (key := bytes(cursor.key())).startswith(state.key):
            end = OFFSET.unpack_from(key, STRIPE_KEY_BYTES)[0] + 1
            growth.trim_left = end <= growth.trim_offset and not left
            if end > growth.trim_offset or not left:
                growth.head_end = end
                return
            growth.nbytes -= len(cursor.value())
            self._writer.cache.remove((state.id, growth.head))
            growth.head = end
            found = cursor.delete() and cursor.key()
            left -= 1
        growth.head, growth.head_end = growth.tail, 0

    def _bury(self, txn: Any) -> None:
        """Remove what is left of deleted stripes, a bounded amount."""
        left = limits.TRIM_BLOCKS_PER_COMMIT_MAX
        for key in self._writer.graves[::-1]:
            for name in ("log", "done", "leases", "producers", "ids", "id_times"):
                cursor = txn.cursor(self._db[name])
                found = cursor.set_range(key)
                while found and left > 0 and bytes(cursor.key()).startswith(key):
                    found = cursor.delete() and cursor.key()
                    left -= 1
            if left <= 0:
                return
            txn.delete(key, db=self._db["graves"])
            self._buried.add(key)


def _nothing() -> None:
    """Stand in for a sweep that nobody set."""


#: Rounds without work after which the writer thread sleeps until woken.
_IDLE_ROUNDS = 5

#: Weight of the last commit in the average time, and how an average beyond the limit fades.
_COMMIT_WEIGHT = 0.1
_FORGET_SLOW = 0.99

#: Seconds between attempts while the disk is full and nobody waits.
_RETRY_S = 0.5
