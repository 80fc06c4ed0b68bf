"""One transaction on behalf of many: what a group commit decides, writes, and shows.

Its four steps are described in writer.py, which decides when there is one.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.errors import QueueFull, RingdoveError
from ringdove.pending import Pending
from ringdove.stores.base import STRIPE_KEY_BYTES
from ringdove.stores.embedded.append import Append, apply_append
from ringdove.stores.embedded.changes import Change
from ringdove.stores.embedded.journal import NUMBERS
from ringdove.stores.embedded.state import (
    NUMBER,
    OFFSET,
    TAIL,
    SubscriptionRecord,
    encode,
    end_of,
)

if TYPE_CHECKING:
    from ringdove.core.block import Block
    from ringdove.core.index import Index
    from ringdove.core.runs import IndexChanges
    from ringdove.stores.embedded.journal import Draft
    from ringdove.stores.embedded.state import StripeState
    from ringdove.stores.embedded.writer import Writer

_log = logging.getLogger(__name__)


class Barrier(Pending[None]):
    """Waits until every index change made so far is as durable as an append."""

    __slots__ = ()


Operation = Append | Change | Barrier


class Growth:
    """What a commit adds to and takes from one stripe's log."""

    __slots__ = (
        "blocks", "head", "head_end", "nbytes", "stored", "tail", "trim_left", "trim_offset",
    )  # fmt: skip

    def __init__(self, tail: int) -> None:
        self.tail = tail
        #: Bytes that it adds, or takes; and what the stripe holds then.
        self.nbytes = 0
        self.stored = 0
        self.blocks: list[Block] = []
        #: Blocks below it go; 0 when none do. `trim_left` when some had to stay for the next
        #: commit.
        self.trim_offset = 0
        self.trim_left = False
        #: First offset stored and end of its block, after trimming.
        self.head = 0
        self.head_end = 0


class GroupCommit:
    """One transaction on behalf of many."""

    __slots__ = (
        "_applied", "_asked", "_buried", "_changes", "_crowded", "_db", "_growth", "_left",
        "_now_ms", "_operations", "_refused", "_touched", "_writer", "committed", "doubt", "draft",
        "number", "txn_id",
    )  # fmt: skip

    def __init__(
        self, writer: Writer, operations: list[Operation], draft: Draft | None = None
    ) -> None:
        #: The edits, if it goes to the journal; else it has a transaction of the tree.
        self.draft = draft
        #: Of the transaction, or in the journal, once it is about to be committed.
        self.txn_id = 0
        self.number = 0
        self.committed = False
        #: What appends are told although they are stored: that it is not where it should be, too.
        self.doubt: RingdoveError | None = None
        self._writer = writer
        self._db: dict[str, Any] = writer.env.db if draft is None else NUMBERS
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
                    operation.outcome = operation.edit(txn)
            except RingdoveError as refusal:
                self._refused.append((operation, refusal))
                if isinstance(operation, Change):
                    self._applied.pop()
        writer = self._writer
        self._touched, writer.dirty = writer.dirty, set()
        states = self._touched | self._growth.keys()
        if self.draft is None:
            states |= writer.untrimmed
        for state in states:
            if state.deleted:
                continue
            for name, index in state.stripe.subscriptions.items():
                self._asked.append((state, index))
                changes = index.changes()
                if changes is not None:
                    self._changes.append((state, name, index, changes))
            trim_offset = state.stripe.trim_offset(self._now_ms)
            if trim_offset > state.log_head and trim_offset >= state.head_end:
                if self.draft is not None and not state.is_young:
                    writer.untrimmed.add(state)
                    continue
                self._growth_of(state).trim_offset = trim_offset
                # From here on nobody may look below: the commit is about to remove it.
                state.stripe.head = max(state.stripe.head, trim_offset)

    def _apply_append(self, append: Append, txn: Any) -> None:
        """Append, or leave it to the next commit: only what is stored by then can be dropped."""
        state = append.state
        growth = self._growth.get(state)
        if growth is None:
            growth = self._growth[state] = Growth(state.stripe.tail)
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
        if self.draft is None:
            self._write_journaled(txn)
        for state, growth in self._growth.items():
            if state.deleted:
                continue
            for block in growth.blocks:
                txn.put(state.key + OFFSET.pack(block.end - 1), block.buffer, db=db["log"])
            if growth.trim_offset and self.draft is not None:
                self._drop_young(txn, state, growth)
            elif growth.trim_offset:
                self._trim(txn, state, growth)
            growth.stored = max(0, state.stripe.nbytes + growth.nbytes)
            head = growth.head if growth.trim_offset else state.log_head
            txn.put(state.key, TAIL.pack(growth.tail, growth.stored, head), db=db["tails"])
        for state, name, index, changes in self._changes:
            self._write_index(txn, state, name, index, changes)
        if self.draft is None:
            if self._writer.graves:
                self._bury(txn)
            txn.put(b"clock", OFFSET.pack(self._now_ms), db=db["meta"])

    def _write_journaled(self, txn: Any) -> None:
        """Put blocks into the tree that only the journal has."""
        for state in self._writer.unwritten:
            if not state.deleted:
                for block in state.unwritten:
                    key = state.key + OFFSET.pack(block.end - 1)
                    txn.put(key, block.buffer, db=self._db["log"])

    def record(self) -> None:
        """Have the journal take it; NeedsTree if it does not."""
        assert self.draft is not None
        journal = self._writer.journal
        if self.draft.edits:
            self.number = journal.number + 1
            journal.append(self.draft.edits, self._now_ms)

    def publish(self) -> None:
        """Show what is now durable, and answer. Ctrl-C may have it done twice."""
        if self.draft is None:
            self._writer.journal.begin_anew()
        with self._writer.lock:
            self._show_all()
        for change in self._applied:
            change.publish()
        for state, growth in self._growth.items():
            if growth.blocks:
                state.announce()
        for operation, refusal in self._refused:
            if not operation.done:
                operation.fail(refusal)
        for operation in self._operations:
            if not operation.done and operation not in self._left:
                self._answer(operation)

    def _show_all(self) -> None:
        writer = self._writer
        if self.draft is not None:
            self._remember(self.draft)
        else:
            writer.tree_has_all({s for s, growth in self._growth.items() if growth.trim_left})
        if self._buried:
            writer.graves = [key for key in writer.graves if key not in self._buried]
        for _, index in self._asked:
            index.handed = None
        for state, growth in self._growth.items():
            if not state.deleted:
                self._show(state, growth)

    def _show(self, state: StripeState, growth: Growth) -> None:
        stripe, writer = state.stripe, self._writer
        for block in growth.blocks:
            stripe.note_appended(block)
            writer.cache.add(state.id, block)
            state.newest = block if block.nbytes <= limits.JOIN_BYTES_MAX else None
        stripe.nbytes = growth.stored
        if growth.trim_offset:
            state.log_head, state.head_end = growth.head, growth.head_end
            stripe.head = growth.head
            gone = bisect_right(state.unwritten, growth.head, key=end_of)
            del state.unwritten[:gone]

    def _remember(self, draft: Draft) -> None:
        """Note what the tree does not have."""
        writer = self._writer
        log = NUMBERS["log"]
        for place, value in draft.edits.items():
            if place[0] != log:
                writer.backlog[place] = value
        writer.unwritten.update(state for state, _ in self._asked)
        for state, growth in self._growth.items():
            writer.unwritten.add(state)
            known = state.unwritten
            for block in growth.blocks:
                if not known or known[-1].end <= block.base:
                    known.append(block)

    def _answer(self, operation: Operation) -> None:
        if isinstance(operation, Append):
            if self.doubt is None:
                operation.resolve(operation.answers)
            else:
                operation.fail(self.doubt)
        else:
            operation.resolve(operation.outcome if isinstance(operation, Change) else None)

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

    def _drop_young(self, txn: Any, state: StripeState, growth: Growth) -> None:
        """Forget blocks that nobody needs and that have not come into the tree."""
        growth.head = state.log_head
        for block in chain(state.unwritten, growth.blocks):
            if block.end > growth.trim_offset:
                growth.head_end = block.end
                return
            txn.delete(state.key + OFFSET.pack(block.end - 1), db=self._db["log"])
            self._writer.cache.remove((state.id, block.base))
            growth.nbytes -= block.nbytes
            growth.head = block.end
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
