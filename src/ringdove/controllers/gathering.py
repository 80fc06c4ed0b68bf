"""Sends that wait for company: what comes together for a stripe becomes one append, and one block.

Small sends gather until somebody wants his answer, and while an append to their stripe is under
way; then all that have come go as one. Where repetition is judged, segments stay apart and still
share the append. Each send is answered with its part of what the store has said.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Protocol

from ringdove import limits
from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.core.tuples import maker
from ringdove.errors import LocalProtocolError, RingdoveError
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringdove.core.attributes import Attributes
    from ringdove.errors import ClientError
    from ringdove.stores.base import Store, StripeId

_segment = maker(Segment)


class Counting(Protocol):
    """Who gathers: its store, and its counters."""

    store: Store
    #: Messages that went to the store; blocks of them, and those joined from several sends.
    messages: int
    blocks: int
    joined: int

    def forget(self, gathering: Gathering) -> None:
        """Nothing is gathered there any more."""
        ...


class Message:
    """A message that is in no block yet; has what is asked of a small block."""

    __slots__ = ("attributes", "body", "key", "sent_ms")

    count = 1

    def __init__(
        self, body: bytes, key: bytes, attributes: Attributes | None, sent_ms: int
    ) -> None:
        self.body = body
        self.key = key
        self.attributes = attributes
        self.sent_ms = sent_ms

    @property
    def nbytes(self) -> int:
        """About what it adds to a block."""
        return len(self.body) + len(self.key) + 16


class Apart:
    """Segments that share an append with others, and no block."""

    __slots__ = ("count", "nbytes", "segments")

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.count = sum(segment.block.count for segment in segments)
        self.nbytes = sum(segment.block.nbytes for segment in segments)


Content = Block | Message | Apart


class Single(Pending["list[Appended | ClientError]"]):
    """A send that waits for company, or for those before it."""

    __slots__ = ("content", "gathering", "version")

    #: Set by the gathering that makes it, which spares a constructor.
    content: Content
    version: int
    gathering: Gathering

    def prepare(self) -> None:
        """See Pending: the append goes to the store, which does what has come to it as one."""
        self.gathering.submit()

    def withdraw(self) -> bool:
        """Take it back, if it has not gone to the store yet."""
        return self.gathering.remove(self)


class Gathering:
    """Sends to one stripe, and the append that is under way there."""

    def __init__(self, owner: Counting, stripe: StripeId) -> None:
        self.stripe = stripe
        self.waiting: list[Single] = []
        self.under_way: Pending[Any] | None = None
        #: Appends that the store has and that nobody has had it begin.
        self._unbegun: list[Pending[Any]] = []
        self._owner = owner
        self._lock = threading.Lock()

    def add(self, content: Content, version: int) -> Single:
        """Gather something; its answer comes with the append that takes it."""
        single = Single(self.lead, self.flush)
        single.content = content
        single.version = version
        single.gathering = self
        self.waiting.append(single)
        return single

    def remove(self, single: Single) -> bool:
        """Forget one that waits for company; False when it is under way."""
        with self._lock:
            if single not in self.waiting:
                return False
            self.waiting.remove(single)
            return True

    def flush(self, inline: bool = False, *, at_once: bool = False) -> None:  # noqa: FBT001, FBT002
        """`submit`, and have the store begin; `inline`: here, if it is short."""
        self.submit(at_once=at_once)
        while self._unbegun:
            with self._lock:
                unbegun, self._unbegun = self._unbegun, []
            for pending in unbegun:
                if pending.kick is not None and not pending.done:
                    pending.kick(inline)

    def submit(self, *, at_once: bool = False) -> None:
        """Give the store what has gathered, unless an append is under way; that does it at its end.

        `at_once`: all of it, whatever is under way; for stores that do it in this order.
        """
        submitted: list[tuple[list[Single], Pending[list[Appended | ClientError]]]] = []
        with self._lock:
            while self.waiting and (at_once or self.under_way is None):
                # The list stays: other threads add to it meanwhile.
                batch = [self.waiting.pop(0)] if len(self.waiting) == 1 else self._take()
                self.under_way = self._submit(batch)
                submitted.append((batch, self.under_way))
                self._unbegun.append(self.under_way)
        for batch, pending in submitted:
            pending.when_done(partial(self._appended, batch, pending))

    def _submit(self, batch: list[Single]) -> Pending[list[Appended | ClientError]]:
        owner = self._owner
        try:
            content = batch[0].content
            if len(batch) == 1 and isinstance(content, Block):
                segments = [_segment((content, None, 0, 1, False, None, False))]
            else:
                shares, segments = _in_blocks(batch)
                for share in shares:
                    owner.joined += len(share) > 1
            owner.blocks += len(segments)
            for segment in segments:
                owner.messages += segment.block.count
            return owner.store.submit_append(self.stripe, segments, batch[0].version)
        except Exception as error:  # noqa: BLE001  whoever gathered must be answered
            failed: Pending[list[Appended | ClientError]] = Pending()
            failed.fail(error)
            return failed

    def lead(self, pending: Pending[Any]) -> None:
        """For a thread that waits: append, and help until the answer is there."""
        while not pending.done:
            self.flush()
            under_way = self.under_way
            if under_way is not None:
                under_way.block()

    def _appended(
        self, batch: list[Single], pending: Pending[list[Appended | ClientError]]
    ) -> None:
        with self._lock:
            if self.under_way is pending:
                self.under_way = None
        error = pending.error()
        if error is not None:
            for single in batch:
                single.fail(error)
        else:
            answers = iter(pending.result())
            for share in _shares(batch):
                _answer(share, answers)
        if self.waiting or self._unbegun:
            self.flush()
        self._owner.forget(self)

    def _take(self) -> list[Single]:
        """What may go in one append; the rest waits for the next."""
        batch: list[Single] = []
        count = nbytes = 0
        for single in self.waiting:
            count += single.content.count
            nbytes += single.content.nbytes
            if batch and (
                count > limits.BLOCK_MESSAGES_TARGET
                or nbytes > limits.BLOCK_BYTES_TARGET
                or single.version != batch[0].version
            ):
                break
            batch.append(single)
        del self.waiting[: len(batch)]
        return batch


def _shares(batch: list[Single]) -> list[list[Single]]:
    """The sends of an append in order, by what they make of it: a block together, or segments."""
    if len(batch) == 1:
        return [batch]
    shares: list[list[Single]] = []
    for apart, share in groupby(batch, lambda single: isinstance(single.content, Apart)):
        if apart:
            shares += ([single] for single in share)
        else:
            shares.append(list(share))
    return shares


def _segments(share: list[Single]) -> list[Segment]:
    content = share[0].content
    if isinstance(content, Apart):
        return content.segments
    if isinstance(content, Block) and len(share) == 1:
        return [Segment(content)]
    return [Segment(_build([single.content for single in share]))]


def _in_blocks(batch: list[Single]) -> tuple[list[list[Single]], list[Segment]]:
    """The sends of an append as they share blocks, and those blocks."""
    if len(batch) == 1:
        return [batch], _segments(batch)
    shares = _shares(batch)
    try:
        return shares, [segment for share in shares for segment in _segments(share)]
    except LocalProtocolError:
        # One block cannot hold them all, as when a sender's clock is years behind: each its own.
        for single in batch:
            if not isinstance(single.content, Apart):
                single.content = Apart([Segment(_build([single.content]))])
        shares = [[single] for single in batch]
        return shares, [segment for share in shares for segment in _segments(share)]


def _answer(share: list[Single], answers: Iterator[Appended | ClientError]) -> None:
    """Give each send of a share its part of what the store has answered."""
    content = share[0].content
    if isinstance(content, Apart):
        share[0].resolve(list(islice(answers, len(content.segments))))
        return
    answer = next(answers)
    if isinstance(answer, RingdoveError):
        for single in share:
            single.fail(answer)
    elif len(share) == 1:
        share[0].resolve([answer])
    else:
        base = answer.base
        for single in share:
            single.resolve([Appended(base)])
            base += single.content.count


def _build(contents: Sequence[Content]) -> Block:
    """One block of everything, in order; messages that follow one another are built together."""
    blocks: list[Block] = []
    loose: list[Message] = []
    for content in contents:
        if isinstance(content, Message):
            loose.append(content)
            continue
        if loose:
            blocks.append(_build_messages(loose))
            loose = []
        assert isinstance(content, Block)
        blocks.append(content)
    if loose:
        blocks.append(_build_messages(loose))
    return Block.join(blocks)


def _build_messages(found: list[Message]) -> Block:
    keyed = any(message.key for message in found)
    attributed = any(message.attributes for message in found)
    return Block.build(
        [message.body for message in found],
        sent_ms=[message.sent_ms for message in found],
        keys=[message.key for message in found] if keyed else None,
        attributes=[message.attributes for message in found] if attributed else None,
    )
