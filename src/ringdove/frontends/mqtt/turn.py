"""What arrives in one turn of the event loop is stored together and answered together.

A turn gathers, over all connections: messages by the queue they go to, copies for lasting sessions,
retained messages, and records of sessions that have changed. `flush` hands it all to the store at
once, which makes one commit of it. When everything is as durable as promised the turn is over, and
those who wait for it are told. Turns end in the order they began, so answers keep their order.

If a queue may refuse a message, nobody gets a copy before it has taken it: the copies of such a
turn, and of those behind it, wait until its queues have answered.

Queues that keep order have a *lane* each: what a turn has for one is handed over when that of the
turns before is stored or refused. What comes meanwhile waits, and is then handed over as one.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ringdove import limits
from ringdove.controllers.sending import Outgoing
from ringdove.core.block import Block, key_hash
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
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.core.attributes import Attributes
    from ringdove.core.settings import QueueSettings
    from ringdove.frontends.mqtt.message import Message
    from ringdove.frontends.mqtt.publishing import Post
    from ringdove.frontends.mqtt.session import Session
    from ringdove.pending import Runner

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Bytes of bodies that are sent to a queue as one: they fit in one block, with all that they have.
_PART_BYTES_MAX = limits.BLOCK_BYTES_MAX // 4

#: Messages, about, that are handed over as one when they have waited in a lane: if the queue
#: refuses one of them, they are tried one by one.
_LANE_MESSAGES_MAX = 1_000


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

    def outgoing(self, positions: Sequence[int]) -> Outgoing:
        """The messages at some positions, or all of them, as a send."""
        whole = len(positions) == len(self.bodies)

        def pick(column: Sequence[T]) -> Sequence[T]:
            return column if whole else [column[position] for position in positions]

        return Outgoing(
            pick(self.bodies),
            pick(self.keys) if self.keyed else None,
            pick(self.attributes) if self.attributed else None,
            pick(self.ids) if self.ids else None,
        )

    def join(self, other: _Batch) -> None:
        """Take the messages of another batch, behind those that are here; marks become places."""
        self.bodies += other.bodies
        self.keys += other.keys
        self.keyed |= other.keyed
        self.attributes += other.attributes
        self.attributed |= other.attributed
        self.ids += other.ids
        self.marks = list(range(1, len(self.bodies) + 1))

    def parts(self, settings: QueueSettings) -> list[list[Sequence[int]]]:
        """Positions of messages that a queue takes all or none of, in one block; by stripe."""
        placed: dict[int, list[int]] = {}
        if settings.order == "key" and settings.stripes > 1:
            for position, key in enumerate(self.keys):
                placed.setdefault(key_hash(key) % settings.stripes, []).append(position)
        stripes = placed.values() or [range(len(self.bodies))]
        return [list(self._parts(positions, settings.body_bytes_max)) for positions in stripes]

    def _parts(self, positions: Sequence[int], body_bytes_max: int) -> Iterator[Sequence[int]]:
        bodies = self.bodies
        large = [position for position in positions if len(bodies[position]) > body_bytes_max]
        if large:  # They are refused, and must not hold up the others.
            positions = [at for at in positions if len(bodies[at]) <= body_bytes_max]
        first = nbytes = 0
        for at, position in enumerate(positions):
            nbytes += len(bodies[position])
            if nbytes > _PART_BYTES_MAX and at > first:
                yield positions[first:at]
                first, nbytes = at, len(bodies[position])
        if positions:
            yield positions[first:]
        for position in large:
            yield [position]


class Turn:
    """See the module."""

    __slots__ = (
        "appends", "batches", "careful", "exact", "failure", "flights", "kept", "marks", "over",
        "posts", "ready", "refused", "repeats", "retained", "sending", "then", "waiting",
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
        #: Whether its messages may be begun.
        self.ready = False
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
        #: Those of them whose messages are not begun, and those whose copies are not.
        self._unbegun: deque[Turn] = deque()
        self._uncopied: deque[Turn] = deque()
        #: What waits for queues that keep order, or may; those without have nothing under way.
        self._lanes: dict[str, deque[tuple[Turn, _Batch]]] = {}
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
        self._unbegun.append(turn)
        turn.waiting = 2  # This, and the copies.
        turn.sending = 1
        if turn.exact and turn.flights and not self._in_order:
            self._begin(turn, self._save_flights_first(turn))
        else:
            for session in turn.flights:
                self._begin(turn, self._save_flight(session))
            turn.ready = True
            self._begin_ready()
        self._answered(turn, None, None)

    async def _save_flights_first(self, turn: Turn) -> None:
        try:
            for session in turn.flights:
                await self._save_flight(session)
        except Exception:
            turn.appends.clear()
            turn.retained.clear()
            turn.sending = 0
            self._unbegun.remove(turn)
            self._copy()
            self._begin_ready()
            raise
        turn.ready = True
        self._begin_ready()

    def _begin_ready(self) -> None:
        """Begin with messages, turn by turn: those behind flights that are not saved wait, too."""
        while self._unbegun and self._unbegun[0].ready:
            self._begin_messages(self._unbegun.popleft())

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
            self._hand_over(turn, queue, batch)
        turn.sending -= 1
        self._copy()

    def _hand_over(self, turn: Turn, queue: str, batch: _Batch) -> None:
        """Have messages sent to their queue: now, or after those before them if it keeps order."""
        lane = self._lanes.get(queue)
        if lane is not None:
            lane.append((turn, batch))
        elif self._is_loose(queue):
            self._runner.spawn(self._send(turn, queue, batch), partial(self._sent, turn))
        else:
            self._lanes[queue] = deque([(turn, batch)])
            self._go_on(queue)

    def _is_loose(self, queue: str) -> bool:
        info = self._broker.known_queue(queue)
        return info is not None and not info.settings.ordered

    def _go_on(self, queue: str) -> None:
        """Send what waits in a lane, up to a limit."""
        lane = self._lanes[queue]
        taken = [lane.popleft()]
        count, exact = len(taken[0][1].bodies), bool(taken[0][1].ids)
        while lane and count < _LANE_MESSAGES_MAX and bool(lane[0][1].ids) == exact:
            taken.append(lane.popleft())
            count += len(taken[-1][1].bodies)
        self._runner.spawn(self._send_taken(queue, taken), partial(self._gone_on, queue, taken))

    def _gone_on(
        self,
        queue: str,
        taken: list[tuple[Turn, _Batch]],
        _: None,
        error: BaseException | None,
    ) -> None:
        if not self._lanes[queue]:
            del self._lanes[queue]
        elif self._is_loose(queue):
            for turn, batch in self._lanes.pop(queue):
                self._hand_over(turn, queue, batch)
        else:
            self._runner.loop.call_soon(self._go_on, queue)
        for turn, _batch in taken:
            self._sent(turn, None, error)

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

    async def _send_taken(self, queue: str, taken: list[tuple[Turn, _Batch]]) -> None:
        """Store what has waited in a lane as if it had come in one turn."""
        if len(taken) == 1:
            await self._send(taken[0][0], queue, taken[0][1])
            return
        together, joined = Turn(), _Batch()
        for _, batch in taken:
            joined.join(batch)
        await self._send(together, queue, joined)
        place = 0
        for turn, batch in taken:
            for mark in batch.marks:
                place += 1
                if place in together.refused:
                    turn.refused[mark] = together.refused[place]

    async def _send(self, turn: Turn, queue: str, batch: _Batch) -> None:
        """Store messages in their queue, which is made if it is missing."""
        try:
            info = self._broker.known_queue(queue) or await self._find_or_create(queue)
        except RingdoveError as error:
            turn.refuse(batch.marks, error)
            return
        stripes = batch.parts(info.settings)
        if len(stripes) == 1:
            await self._send_parts(turn, queue, batch, stripes[0])
            return
        under_way = len(stripes)
        failures: list[BaseException] = []
        done = Pending[None]()

        def ended(_: None, error: BaseException | None) -> None:
            nonlocal under_way
            under_way -= 1
            if error is not None:
                failures.append(error)
            if not under_way:
                done.resolve(None)

        for parts in stripes:
            self._runner.spawn(self._send_parts(turn, queue, batch, parts), ended)
        await done
        if failures:
            raise failures[0]

    async def _send_parts(
        self, turn: Turn, queue: str, batch: _Batch, parts: list[Sequence[int]]
    ) -> None:
        """Store what goes to one stripe, one part after the other."""
        for positions in parts:
            await self._send_part(turn, queue, batch, positions)

    async def _send_part(
        self, turn: Turn, queue: str, batch: _Batch, positions: Sequence[int]
    ) -> None:
        """Store a part of a batch; if it is refused, what the queue does not take of it is noted.

        Nothing of a part that is refused is stored, so its messages may be tried one by one.
        """
        try:
            await self._send_or_create(queue, batch.outgoing(positions))
        except ClientError as error:
            if len(positions) == 1:
                turn.refused[batch.marks[positions[0]]] = error
                return
            for position in positions:
                try:
                    await self._broker.send(queue, batch.outgoing([position]))
                except RingdoveError as refusal:
                    turn.refused[batch.marks[position]] = refusal
        except RingdoveError as error:
            turn.refuse((batch.marks[position] for position in positions), error)

    async def _send_or_create(self, queue: str, outgoing: Outgoing) -> None:
        try:
            await self._broker.send(queue, outgoing)
        except QueueNotFound:
            await self._create(queue)
            await self._broker.send(queue, outgoing)

    async def _find_or_create(self, queue: str) -> QueueInfo:
        found = await self._broker.list_queues(queue, max=1)
        # Of all whose name starts so, the queue itself would be the first.
        if found and found[0].name == queue:
            return await self._broker.get_queue(queue)
        return await self._create(queue)

    async def _create(self, queue: str) -> QueueInfo:
        if self._created >= limits.MQTT_QUEUES_MAX:
            raise LimitExceeded(
                f"Devices have made {self._created} queues, the most: write a rule that maps "
                f"topics such as that of {queue!r} to fewer."
            )
        self._created += 1
        try:
            return await self._broker.create_queue(queue, {})
        except BaseException:
            self._created -= 1
            raise

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
