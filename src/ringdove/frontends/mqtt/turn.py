"""What arrives in one turn of the event loop is stored together and answered together.

A turn gathers, over all connections: messages by the queue they go to, copies for lasting sessions,
retained messages, and records of sessions that have changed. `flush` hands it all to the store at
once, which makes one commit of it. When everything is as durable as promised the turn is over, and
those who wait for it are told. Turns end in the order they began, so answers keep their order.

If a queue may refuse a message, nobody gets a copy before it has taken it: the copies of such a
turn, and of those behind it, wait until its queues have answered.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.controllers.sending import Outgoing
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.errors import (
    ClientError,
    LimitExceeded,
    QueueNotFound,
    RingdoveError,
    StoreUnavailable,
)
from ringdove.frontends.mqtt.session import (
    FLIGHT_PREFIX,
    encode_record,
    record_name,
)
from ringdove.pending import Pending
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from ringdove.controllers.broker import Broker
    from ringdove.core.attributes import Attributes
    from ringdove.frontends.mqtt.message import Message
    from ringdove.frontends.mqtt.publishing import Post
    from ringdove.frontends.mqtt.session import Session
    from ringdove.pending import Runner

_log = logging.getLogger(__name__)


class _Batch:
    """Messages of a turn for one queue, column by column."""

    __slots__ = ("attributed", "attributes", "bodies", "ids", "keyed", "keys", "marks")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[bytes] = []
        self.keyed = False
        self.attributes: list[Attributes | None] = []
        self.attributed = False
        #: What makes a message of QoS 2 recognisable; empty where nothing does.
        self.ids: list[bytes | None] = []
        #: By which the sender of each recognises what became of it.
        self.marks: list[int] = []

    def outgoing(self, position: int | None = None) -> Outgoing:
        """The messages, or one of them, as a send."""
        part = slice(None) if position is None else slice(position, position + 1)
        return Outgoing(
            self.bodies[part],
            self.keys[part] if self.keyed else None,
            self.attributes[part] if self.attributed else None,
            self.ids[part] or None,
        )


class Turn:
    """See the module."""

    __slots__ = (
        "appends", "batches", "careful", "exact", "failure", "flights", "kept", "marks", "over",
        "posts", "refused", "repeats", "retained", "sending", "then", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.batches: dict[str, _Batch] = {}
        #: Batches of messages that are recognised when they come again.
        self.exact: dict[str, _Batch] = {}
        #: Bodies for sessions' stripes, with what makes them recognisable, and their marks.
        self.appends: dict[Session, list[tuple[bytes, bytes | None, int]]] = {}
        #: Records by key, with the time they expire and their marks; empty to remove one. Of
        #: several, the last whose message is not refused counts.
        self.retained: dict[str, list[tuple[bytes, int, int]]] = {}
        #: What is retained in memory already, by mark, and what it stands for.
        self.kept: dict[int, tuple[Message, Message | None]] = {}
        self.flights: set[Session] = set()
        #: Called at the end, with the error that concerns all if there is one.
        self.then: list[Callable[[RingdoveError | None], None]] = []
        #: What publishers and subscribers get when the turn is over; see `publishing`.
        self.posts: list[Post] = []
        self.marks = 0
        #: What the store still has to answer, and how many queues.
        self.waiting = 0
        self.sending = 0
        #: Whether copies wait for the queues; not known before those are looked at.
        self.careful = True
        self.over = False
        self.failure: RingdoveError | None = None
        #: Errors that concern one message, by its mark.
        self.refused: dict[int, RingdoveError] = {}
        #: The first attempts of messages that came again meanwhile, by the mark of the second.
        self.repeats: dict[int, tuple[Turn, int]] = {}

    def mark(self) -> int:
        """By which a message is known in this turn."""
        self.marks += 1
        return self.marks

    def error_of(self, mark: int) -> RingdoveError | None:
        """Why a message was not stored; None if it was. To be asked when the turn is over."""
        first = self.repeats.get(mark) if self.repeats else None
        if first is not None:
            return first[0].error_of(first[1])
        return self.failure or (self.refused.get(mark) if self.refused else None)

    def put(
        self,
        mark: int,
        queue: str,
        body: bytes,
        key: bytes,
        attributes: Attributes | None,
        message_id: bytes | None = None,
    ) -> None:
        """Add a message for a queue."""
        batches = self.batches if message_id is None else self.exact
        batch = batches.get(queue)
        if batch is None:
            batch = batches[queue] = _Batch()
        batch.bodies.append(body)
        batch.keys.append(key)
        if key:
            batch.keyed = True
        batch.attributes.append(attributes)
        if attributes is not None:
            batch.attributed = True
        if message_id is not None:
            batch.ids.append(message_id)
        batch.marks.append(mark)

    def append(
        self, session: Session, body: bytes, message_id: bytes | None, mark: int = 0
    ) -> None:
        """Add a message for a session's stripe; it goes there unless the mark is refused."""
        self.appends.setdefault(session, []).append((body, message_id, mark))

    def retain(self, key: str, value: bytes, expires_ms: int, mark: int) -> None:
        """Add a record of a retained message, or with an empty one have it removed."""
        self.retained.setdefault(key, []).append((value, expires_ms, mark))

    def refuse(self, marks: Iterable[int], error: RingdoveError) -> None:
        """Note why messages could not be stored."""
        for mark in marks:
            if mark:
                self.refused.setdefault(mark, error)


class Turns:
    """The turns of a gateway."""

    def __init__(self, broker: Broker, runner: Runner) -> None:
        self._broker = broker
        self._store = broker.store
        self._runner = runner
        #: Whether what is handed to the store first is durable first: on one node it is.
        self._in_order = self._store.node_of(StripeId(0, 0, 0)) is None
        self._gathering: Turn | None = None
        self._under_way: deque[Turn] = deque()
        #: Those of them whose copies are not begun.
        self._uncopied: deque[Turn] = deque()
        self._created = 0

    async def settled(self) -> None:
        """Wait until everything that has come by now is stored and answered."""
        done = Pending[None]()
        self.now.then.append(lambda _: done.resolve(None))
        await done

    @property
    def now(self) -> Turn:
        """The turn that gathers."""
        turn = self._gathering
        if turn is None:
            turn = self._gathering = Turn()
            self._runner.loop.call_soon(self._flush)
        return turn

    def _flush(self) -> None:
        turn, self._gathering = self._gathering, None
        if turn is None:
            return
        self._under_way.append(turn)
        self._uncopied.append(turn)
        turn.waiting = 2  # This, and the copies.
        turn.sending = 1
        if turn.exact and turn.flights and not self._in_order:
            self._begin(turn, self._save_flights_first(turn))
        else:
            for session in turn.flights:
                self._begin(turn, self._save_flight(session))
            self._begin_messages(turn)
        self._answered(turn, None, None)

    async def _save_flights_first(self, turn: Turn) -> None:
        try:
            for session in turn.flights:
                await self._save_flight(session)
        except Exception:
            turn.appends.clear()
            turn.retained.clear()
            turn.sending = 0
            self._copy()
            raise
        self._begin_messages(turn)

    def _begin_messages(self, turn: Turn) -> None:
        """Store everything but flights, which must not be durable later than these.

        A message of QoS 2 is recognised by what its session's flight says of it (see
        `Session.begin_storing`); without that it would be taken for another one.
        """
        copied = bool(turn.appends or turn.retained)
        batches = [*turn.batches.items(), *turn.exact.items()]
        turn.careful = copied and any(self._may_refuse(*batch) for batch in batches)
        for queue, batch in batches:
            turn.waiting += 1
            turn.sending += 1
            self._runner.spawn(self._send(turn, queue, batch), partial(self._sent, turn))
        turn.sending -= 1
        self._copy()

    def _may_refuse(self, queue: str, batch: _Batch) -> bool:
        """Whether a queue may well refuse a message; others do only when something fails."""
        info = self._broker.known_queue(queue)
        if info is None:
            return True
        settings = info.settings
        bounded = settings.when_full == "refuse" and settings.bytes_max < limits.MAP_BYTES
        return bounded or max(map(len, batch.bodies)) > settings.body_bytes_max

    def _sent(self, turn: Turn, _: None, error: BaseException | None) -> None:
        turn.sending -= 1
        self._answered(turn, None, error)
        self._copy()

    def _copy(self) -> None:
        """Begin copies, turn by turn: so they keep their order."""
        while self._uncopied:
            turn = self._uncopied[0]
            if turn.sending and turn.careful:
                return
            self._uncopied.popleft()
            if turn.failure is None:
                for session, found in turn.appends.items():
                    self._begin(turn, self._append(turn, session, found))
                for key, values in turn.retained.items():
                    self._begin(turn, self._retain(turn, key, values))
            self._answered(turn, None, None)

    def _begin(self, turn: Turn, work: Coroutine[Any, Any, None]) -> None:
        turn.waiting += 1
        self._runner.spawn(work, partial(self._answered, turn))

    def _answered(self, turn: Turn, _: None, error: BaseException | None) -> None:
        if error is not None:
            if not isinstance(error, RingdoveError):
                _log.error("Something of a turn could not be stored.", exc_info=error)
                error = StoreUnavailable(f"The server failed: {error!r}.")
            turn.failure = error
        turn.waiting -= 1
        if turn.waiting:
            return
        turn.over = True
        while self._under_way and self._under_way[0].over:
            ended = self._under_way.popleft()
            for callback in ended.then:
                callback(ended.failure)

    # -- what is stored -------------------------------------------------------------------------

    async def _send(self, turn: Turn, queue: str, batch: _Batch) -> None:
        """Store messages in their queue; those it does not take are noted one by one."""
        try:
            await self._send_or_create(queue, batch.outgoing())
        except ClientError as error:
            if len(batch.bodies) == 1:
                turn.refused[batch.marks[0]] = error
                return
            for position, mark in enumerate(batch.marks):
                try:
                    await self._broker.send(queue, batch.outgoing(position))
                except RingdoveError as refusal:
                    turn.refused[mark] = refusal
        except RingdoveError as error:
            turn.refuse(batch.marks, error)

    async def _send_or_create(self, queue: str, outgoing: Outgoing) -> None:
        try:
            await self._broker.send(queue, outgoing)
        except QueueNotFound:
            if self._created >= limits.MQTT_QUEUES_MAX:
                raise LimitExceeded(
                    f"Devices have made {self._created} queues, the most: write a rule that maps "
                    f"topics such as that of {queue!r} to fewer."
                ) from None
            self._created += 1
            await self._broker.create_queue(queue, {})
            await self._broker.send(queue, outgoing)

    async def _append(
        self, turn: Turn, session: Session, found: list[tuple[bytes, bytes | None, int]]
    ) -> None:
        """Store copies for a lasting session, in their order."""
        stripe = session.stripe
        copies = [copy for copy in found if copy[2] not in turn.refused]
        if stripe is None or not copies:
            return
        now_ms = self._store.clock.now_ms()
        #: What makes a segment recognisable, its bodies, and their marks.
        parts: list[tuple[bytes | None, list[bytes], list[int]]] = []
        for body, message_id, mark in copies:
            if message_id is not None or not parts or parts[-1][0] is not None:
                parts.append((message_id, [], []))
            parts[-1][1].append(body)
            parts[-1][2].append(mark)
        segments = [
            Segment(Block.build(bodies, sent_ms=now_ms), message_id=message_id)
            for message_id, bodies, _ in parts
        ]
        try:
            answers = await self._store.submit_append(stripe, segments, 0)
        except QueueNotFound:
            return  # The session has ended meanwhile.
        except RingdoveError as error:
            _log.warning("Messages for %r could not be stored: %s", session.client_id, error)
            turn.refuse((mark for _, _, mark in copies), error)
            return
        for answer, (_, _, marks) in zip(answers, parts, strict=True):
            if isinstance(answer, RingdoveError):
                turn.refuse(marks, answer)

    async def _retain(self, turn: Turn, key: str, values: list[tuple[bytes, int, int]]) -> None:
        taken = [value for value in values if value[2] not in turn.refused]
        if not taken:
            return
        value, expires_ms, _ = taken[-1]
        try:
            if value:
                await self._store.put(key, value, expires_ms=expires_ms)
            else:
                await self._store.remove(key)
        except RingdoveError as error:
            turn.refuse((mark for _, _, mark in taken), error)

    async def _save_flight(self, session: Session) -> None:
        if session.lasting:
            key = FLIGHT_PREFIX + record_name(session.client_id)
            await self._store.put(key, encode_record(session.flight))
